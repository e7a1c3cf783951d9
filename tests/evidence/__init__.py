"""Predicted against measured: the program that builds the evidence page and the kept plans of `reports/`."""
