"""What a replay shows beside its run: measured against predicted, and the log against an even workload.

Reads `measured` and `even_workload` of a summary; for the terminal and for the page. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simkit.report.words import MISSING, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

STATS = ("mean", "p50", "p90", "p95", "p99")
NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}


@dataclass(frozen=True, slots=True)
class Sheet:
    """A small table of ready text, its first column the name of a row, with a remark under it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remark: str


def sheets(summary: Mapping[str, Any], measured: Mapping[str, Any] | None) -> list[Sheet]:
    """Those that a run has; none for most."""
    found = [_measured_sheet(measured)] if measured else []
    even = summary.get("even_workload")
    return [*found, _even_sheet(summary, even)] if even else found


def terminal(summary: Mapping[str, Any], width: int = 100) -> list[RenderableType]:
    """The sheets as tables of the terminal."""
    from rich.text import Text

    from simkit.report.document import Column
    from simkit.report.render.terminal import fit

    parts: list[RenderableType] = []
    for sheet in sheets(summary, summary.get("measured")):
        names, *cells = zip(*sheet.rows, strict=True)
        columns = [(Column(head, tuple(column)),) for head, column in zip(sheet.head[1:], cells, strict=True)]
        parts += [*fit(sheet.head[0], names, columns, width, sheet.title), Text(sheet.remark)]
    return parts


def _measured_sheet(measured: Mapping[str, Any]) -> Sheet:
    rows = []
    for metric, values in measured.items():
        name = NAMES[metric]
        rows += [
            (f"{name} measured [ms]", *(plain(values[stat]["measured"]) for stat in STATS)),
            (f"{name} predicted [ms]", *(plain(values[stat]["predicted"]) for stat in STATS)),
            (f"{name} error", *(_error(values[stat]["error_pct"]) for stat in STATS)),
        ]
    counts = ", ".join(f"{NAMES[metric]} {plain(values['num_requests'])}" for metric, values in measured.items())
    remark = f"requests that finished in both: {counts}; a positive error: the prediction is too slow"
    return Sheet("Predicted against measured", ("", *STATS), tuple(rows), remark)


def _even_sheet(summary: Mapping[str, Any], even: Mapping[str, Any]) -> Sheet:
    rows = []
    for metric in ("ttft_ms", "tpot_ms"):
        log, smooth = summary.get(metric) or {}, even.get(metric) or {}
        name = NAMES[metric]
        rows += [
            (f"{name} of the log [ms]", *(plain(log.get(stat)) for stat in STATS)),
            (f"{name} of the even one [ms]", *(plain(smooth.get(stat)) for stat in STATS)),
            (f"{name} log / even", *(_times(log.get(stat), smooth.get(stat)) for stat in STATS)),
        ]
    made = even["workload"]
    count, rate, prompt, output = (
        plain(made[key]) for key in ("num_requests", "rate_per_s", "prompt_tokens", "output_tokens")
    )
    remark = (
        f"even workload: {count} requests, Poisson arrivals at {rate} a second, each of {prompt} prompt and {output} "
        "output tokens"
    )
    return Sheet("The log beside an even workload with equal means", ("", *STATS), tuple(rows), remark)


def _error(percent: float | None) -> str:
    return MISSING if percent is None else f"{percent:+.1f} %"


def _times(log: float | None, even: float | None) -> str:
    return f"{log / even:.3g}x" if log is not None and even else MISSING
