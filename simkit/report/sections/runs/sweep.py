"""The terminal's table of a sweep: one row a point. Reads summaries and manifests; knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from simkit.metrics.catalogue import SWEEP
from simkit.report.sections.runs.compare import Runs, summary_tables

if TYPE_CHECKING:
    from rich.console import RenderableType


def sweep_tables(points: Runs, failed: Sequence[str], width: int = 100) -> list[RenderableType]:
    """One row a point, split to fit `width` columns, and which points `failed`."""
    note = "latencies in ms; KV utilisation is the used share of the pool; cost is per million output tokens"
    parts = summary_tables("point", points, SWEEP, note, width)
    return [*parts, *([Text(f"failed, no numbers: {'; '.join(failed)}")] if failed else [])]
