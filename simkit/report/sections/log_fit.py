"""The terminal's table of a fit: percentiles of the log, of the workload fitted on it, and of an even one.

Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from simkit.report.document import Column
from simkit.report.render.terminal import fit
from simkit.report.words import percent, plain

if TYPE_CHECKING:
    from rich.console import RenderableType


def fit_tables(check: Mapping[str, Any], width: int = 100) -> list[RenderableType]:
    """A row a metric and statistic, then the hit rates and how the log was played."""
    rows = [
        (f"{metric.removesuffix('_ms').upper()} {stat}", values)
        for metric, stats in check["metrics"].items()
        for stat, values in stats.items()
    ]
    names = (*(name for name, _ in rows), "prefix cache hit rate")
    rates = check["prefix_cache_hit_rate"]
    groups = tuple(
        (Column(header, (*(show(values[key]) for _, values in rows), percent(rates[key]) if key in rates else "")),)
        for header, key, show in (
            ("original", "original", plain),
            ("fitted", "fitted", plain),
            ("difference", "fitted_difference_pct", _difference),
            ("even", "even", plain),
            ("difference", "even_difference_pct", _difference),
        )
    )
    speed = check["speed"]
    played = "as it was recorded" if speed == 1 else f"at {speed:.3g} of its speed, 70 % of what the engine sustains"
    requests = check["requests"]["original"]
    return [
        *fit("latency, ms", names, groups, width),
        Text(
            f"{check['model']} on {check['gpu']}; the log is played {played}: {requests['arrived']:,} requests, "
            f"{requests['rejected']:,} rejected. Fitted and even are means over 3 seeds; even has Poisson arrivals "
            "and the mean lengths for all."
        ),
    ]


def _difference(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} %"
