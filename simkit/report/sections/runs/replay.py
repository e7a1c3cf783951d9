"""What a replay shows beside its run: measured against predicted, and the log against an even workload.

Reads `measured` and `even_workload` of a summary; for the terminal and for the page. Knows no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from simkit.metrics.catalogue import MEASURED_LATENCIES, STATS
from simkit.plain import Json
from simkit.report.document import Table, column, single
from simkit.report.render.terminal import fit
from simkit.report.words import error, plain, times

if TYPE_CHECKING:
    from rich.console import RenderableType


def tables(summary: Json, measured: Json | None, arm: str = "") -> list[Table]:
    """Those that a run has; none for most."""
    found = [_measured(measured, arm)] if measured else []
    even = summary.get("even_workload")
    return [*found, _even(summary, even, arm)] if even else found


def terminal(summary: Json, width: int = 100) -> list[RenderableType]:
    """They as a terminal shows them."""
    parts: list[RenderableType] = []
    for table in tables(summary, summary.get("measured")):
        parts += [*fit(table.head, table.names, table.groups, width, table.title), *map(Text, table.notes)]
    return parts


def _table(title: str, rows: dict[str, tuple[str, ...]], note: str, arm: str) -> Table:
    """A row a number of a latency, with its statistics."""
    groups = single(*(column(stat, (cells[at] for cells in rows.values())) for at, stat in enumerate(STATS)))
    return Table(title, "", tuple(rows), groups, (note,), arm=arm)


def _measured(measured: Json, arm: str) -> Table:
    rows: dict[str, tuple[str, ...]] = {}
    for metric, values in measured.items():
        name = MEASURED_LATENCIES[metric]
        rows[f"{name} measured [ms]"] = tuple(plain(values[stat]["measured"]) for stat in STATS)
        rows[f"{name} predicted [ms]"] = tuple(plain(values[stat]["predicted"]) for stat in STATS)
        rows[f"{name} error"] = tuple(error(values[stat]["error_pct"]) for stat in STATS)
    counts = ", ".join(f"{MEASURED_LATENCIES[key]} {plain(values['num_requests'])}" for key, values in measured.items())
    note = f"requests that finished in both: {counts}; a positive error: the prediction is too slow"
    return _table("Predicted against measured", rows, note, arm)


def _even(summary: Json, even: Json, arm: str) -> Table:
    rows: dict[str, tuple[str, ...]] = {}
    for metric in ("ttft_ms", "tpot_ms"):
        log: Json = summary.get(metric) or {}
        smooth: Json = even.get(metric) or {}
        name = MEASURED_LATENCIES[metric]
        rows[f"{name} of the log [ms]"] = tuple(plain(log.get(stat)) for stat in STATS)
        rows[f"{name} of the even one [ms]"] = tuple(plain(smooth.get(stat)) for stat in STATS)
        rows[f"{name} log / even"] = tuple(times(log.get(stat), smooth.get(stat)) for stat in STATS)
    made = even["workload"]
    count, rate, prompt, output = (
        plain(made[key]) for key in ("num_requests", "rate_per_s", "prompt_tokens", "output_tokens")
    )
    note = (
        f"even workload: {count} requests, Poisson arrivals at {rate} a second, each of {prompt} prompt and {output} "
        "output tokens"
    )
    return _table("The log beside an even workload with equal means", rows, note, arm)
