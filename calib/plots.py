from __future__ import annotations

from pathlib import Path

from calib.fit import FitResult
from calib.table import Table


def plot_page(table: Table, result: FitResult, path: Path) -> None:
    pass
