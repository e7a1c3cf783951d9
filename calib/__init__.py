"""Calibration: measures kernels on a GPU and fits the profiles that simkit ships."""
