"""Rows of benchmark tables that others published, each simulated again: reading, scenario, study and errors."""
