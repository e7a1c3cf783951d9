"""What is said of runs: one, several arms beside each other, a sweep, a replay."""
