"""Modules of the evidence page, for tests: the repository is no package, so it is made importable first."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def section(name: str) -> Any:
    """The module `reports.validation.<name>`."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(f"reports.validation.{name}")
