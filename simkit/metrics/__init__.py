"""Metrics: facts in, numbers out."""
