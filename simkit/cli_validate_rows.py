"""The rows of `simkit validate --summary`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simkit.errors import InputError


def run_rows(summary: Path, **options: Any) -> None:
    """Compare aggregate rows."""
    raise InputError(f"--summary {summary}: aggregate rows are not read by this version")
