"""Predicted against measured: runs and rows that simkit did not make, simulated again, and how far off it is.

Many simulations to an error.
"""
