"""The terminal's tables of a run beside what was measured, from the content of validation.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simkit.report.numbers import MISSING, plain

if TYPE_CHECKING:
    from rich.console import RenderableType


def terminal(content: Mapping[str, Any], width: int = 100) -> list[RenderableType]:
    """A row a number: measured, predicted, error."""
    from simkit.report.tables import Column, fit

    rows = {f"{metric}.{stat}": found for metric, stats in content["errors"].items() for stat, found in stats.items()}
    measured, predicted = (tuple(plain(row[key]) for row in rows.values()) for key in ("measured", "predicted"))
    error = tuple(MISSING if row["error_pct"] is None else f"{row['error_pct']:+.1f} %" for row in rows.values())
    columns = [(Column("measured", measured), Column("predicted", predicted), Column("error", error))]
    return [*fit("", list(rows), columns, width, "Predicted against measured")]
