"""Calibration: measures kernels on a GPU and fits the profiles that simkit ships."""

from __future__ import annotations


class CalibrationError(Exception):
    """Calibration cannot start or go on: one line that says why and what to do."""
