"""Metrics: facts in, numbers out. Imports no engine."""
