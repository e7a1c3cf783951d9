"""The error of calibration that a user sees: one line. Imports nothing."""

from __future__ import annotations


class CalibrationError(Exception):
    """What was asked cannot be measured or fitted: one line that says why and what to do."""
