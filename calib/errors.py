"""The error of calibration that a user can act on."""

from __future__ import annotations


class CalibrationError(Exception):
    """Calibration cannot start or go on: one line that says why and what to do."""
