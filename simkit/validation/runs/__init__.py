"""A run that others measured, request by request, simulated again: its facts, numbers, comparison and fitted terms."""
