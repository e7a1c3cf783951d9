"""What reports are made of, read: run directories, and what the numbers of plan.json and its like are called."""
