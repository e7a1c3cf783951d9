"""The page of plots of a calibration."""
