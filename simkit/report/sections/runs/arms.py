"""The table of arms: which rows it has, and why a cell is empty. Numbers are those of summary.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simkit.report import words
from simkit.report.read.run import Run
from simkit.report.read.summary import EACH, FULLEST, SCOPES, TOGETHER, are_several

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A number as text, its 95 % interval (may be empty), and the mark of the note that says why it is ``-``."""

    text: str
    interval: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A metric over all arms."""

    label: str
    unit: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows under one heading."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class ArmTable:
    """A table with an arm a column; `notes` maps a mark to its reason."""

    arms: tuple[str, ...]
    groups: tuple[Group, ...]
    notes: Mapping[str, str]


def _latency(name: str, key: str) -> list[tuple[str, str, Path, Callable[[Any], str]]]:
    return [(f"{name} {p}", "ms", (key, p), words.plain) for p in ("p50", "p95", "p99")]


def _waste(kind: str) -> tuple[str, str, Path, Callable[[Any], str]]:
    return (f"KV {kind}", "of allocated", ("kv", kind, "share_of_allocated"), words.percent)


REQUEUED: Path = ("num_requeued",)
"""A row only where replicas fail."""

ROWS: tuple[tuple[str, list[tuple[str, str, Path, Callable[[Any], str]]]], ...] = (
    (
        "Throughput",
        [
            ("Throughput", "req/s", ("throughput", "requests_per_s"), words.plain),
            ("Output tokens", "tok/s", ("throughput", "output_tokens_per_s"), words.plain),
            ("All tokens", "tok/s", ("throughput", "total_tokens_per_s"), words.plain),
            ("Concurrency, mean", "requests", ("concurrency_mean",), words.plain),
            ("Goodput", "req/s", ("goodput_per_s",), words.plain),
            ("Cost", "per million output tokens", ("cost_per_million_output_tokens",), words.plain),
            ("Measured window", "s", ("window_s",), words.plain),
            ("Makespan", "s", ("makespan_s",), words.plain),
            ("Throughput of the makespan", "req/s", ("makespan_throughput", "requests_per_s"), words.plain),
            ("Output tokens of the makespan", "tok/s", ("makespan_throughput", "output_tokens_per_s"), words.plain),
            ("All tokens of the makespan", "tok/s", ("makespan_throughput", "total_tokens_per_s"), words.plain),
        ],
    ),
    (
        "Latency",
        [
            *_latency("TTFT", "ttft_ms"),
            *_latency("TPOT", "tpot_ms"),
            *_latency("ITL", "itl_ms"),
            *_latency("E2E", "e2e_ms"),
            *_latency("Queue", "queue_ms"),
        ],
    ),
    (
        "Slots",
        [
            ("Slot utilisation", "", ("slot_utilization",), words.percent),
            ("Slot occupancy", "", ("slot_occupancy",), words.percent),
        ],
    ),
    (
        "KV memory",
        [
            _waste("used"),
            _waste("reserved"),
            _waste("internal"),
            _waste("external"),
            ("KV utilisation", "of the pool", ("kv", "utilization"), words.percent),
            ("KV peak", "tokens", ("kv", "peak_tokens"), words.count),
        ],
    ),
    (
        "Work and events",
        [
            ("Preemptions", "", ("num_preemptions",), words.count),
            ("Requeued", "requests", REQUEUED, words.count),
            ("Prefix cache hits", "of prompt tokens", ("prefix_cache_hit_rate",), words.percent),
            ("Steps", "", ("num_steps",), words.count),
            ("GPU busy", "", ("gpu", "busy"), words.percent),
            ("MFU", "", ("gpu", "mfu"), words.percent),
            ("MBU", "", ("gpu", "mbu"), words.percent),
        ],
    ),
    (
        "Requests",
        [
            (kind.capitalize(), "", ("num_requests", kind), words.count)
            for kind in ("arrived", "finished", "rejected", "refused", "aborted", "unfinished")
        ]
        + [("Saturated", "", ("saturated",), words.plain)],
    ),
)


def arm_table(runs: Sequence[Run]) -> ArmTable:
    """Every metric of every arm."""
    notes: dict[str, str] = {}
    groups = []
    several = are_several(run.manifest for run in runs)
    for title, rows in ROWS:
        shown = [row for row in rows if row[2] != REQUEUED or any(run.scenario.get("failures") for run in runs)]
        cells = (
            Row(label, _unit(unit, path, several), _cells(runs, path, show, notes)) for label, unit, path, show in shown
        )
        groups.append(Group(title, tuple(cells)))
    return ArmTable(tuple(run.name for run in runs), tuple(groups), {mark: reason for reason, mark in notes.items()})


_OF = {TOGETHER: "all replicas", EACH: "each replica", FULLEST: "fullest replica"}


def _unit(unit: str, path: Path, several: bool) -> str:
    """The unit of a row, and what its numbers are of where there are several replicas."""
    scope = SCOPES.get(".".join(path))
    return ", ".join(filter(None, (unit, _OF[scope] if several and scope else "")))


# What the summary says in two words, in a sentence.
_WORDS = {
    "not streamed": "not streamed: every token is delivered when the batch ends",
    "no slo": "the scenario states no SLO",
}


def why_missing(run: Run, path: Path) -> str:
    """Why a number of the summary is null, in words."""
    given = run.value(path[0], "reason") or run.value(f"{path[0].removesuffix('_per_s')}_reason")
    if isinstance(given, str):
        return _WORDS.get(given, given)
    if path[0] in ("tpot_ms", "itl_ms") and not run.streams:
        return _WORDS["not streamed"]
    if path[0] == "goodput_per_s":
        if not run.scenario.get("slo"):
            return _WORDS["no slo"]
        return "not streamed, so a TPOT target cannot be judged"
    if path[0] == "cost_per_million_output_tokens" and not (run.scenario.get("hardware") or {}).get(
        "price_per_gpu_hour"
    ):
        return "no hardware.price_per_gpu_hour"
    if path[0] == "prefix_cache_hit_rate":
        return "no prefix caching"
    if path == REQUEUED:
        return "no replica fails"
    if path[0] == "gpu":
        return "the latency model has no hardware behind it"
    if not run.value("num_requests", "finished"):
        return "no request finished"
    if path[0] in ("tpot_ms", "itl_ms"):
        return "no finished request has two or more output tokens"
    return "undefined in this run"


def _cells(runs: Sequence[Run], path: Path, show: Callable[[Any], str], notes: dict[str, str]) -> tuple[Cell, ...]:
    cells = []
    for run in runs:
        value = run.value(*path)
        if value is None:
            mark = notes.setdefault(why_missing(run, path), _mark(len(notes)))
            cells.append(Cell(words.MISSING, mark=mark))
            continue
        half = run.value(*path[:-1], f"{path[-1]}_ci95")
        cells.append(Cell(show(value), "" if half is None else f"± {show(half)}"))
    return tuple(cells)


def _mark(position: int) -> str:
    return chr(ord("a") + position) if position < 26 else f"n{position}"


def paired_table(runs: Sequence[Run], comparison: Mapping[str, Any]) -> ArmTable | None:
    """Paired differences to the baseline; None when the comparison holds none."""
    paired: Mapping[str, Mapping[str, Any]] = comparison.get("paired") or {}
    names = [run.name for run in runs if run.name in paired]
    metrics: dict[str, None] = {}
    for name in names:
        metrics.update(dict.fromkeys(paired[name]))
    if not names or not metrics:
        return None
    rows = tuple(
        Row(label, unit, tuple(_difference(paired[name].get(metric), share) for name in names))
        for metric, (label, unit, share) in ((metric, _metric_name(metric)) for metric in metrics)
    )
    gaps = any(cell.mark for row in rows for cell in row.cells)
    notes = {"a": "the arm or the baseline has no such number; the table above says why"} if gaps else {}
    return ArmTable(tuple(names), (Group("Difference to the baseline", rows),), notes)


def _difference(found: Mapping[str, Any] | None, share: bool) -> Cell:
    if not found or found.get("difference") is None:
        return Cell(words.MISSING, mark="a")
    half = found.get("ci95")
    if isinstance(half, (list, tuple)):
        interval = f"[{words.signed(half[0], share)}, {words.signed(half[1], share)}]"
    elif half is None:
        interval = ""
    else:
        interval = f"± {words.signed(half, share).lstrip('+')}"
    return Cell(words.signed(found["difference"], share), interval)


def _metric_name(metric: str) -> tuple[str, str, bool]:
    """(label, unit, is a share) of a dotted summary key."""
    path = tuple(metric.split("."))
    for _, rows in ROWS:
        for label, unit, row_path, show in rows:
            if path == row_path or (len(path) == 1 and path[0] == row_path[-1]):
                return label, unit, show is words.percent
    unit = next((unit for end, unit in (("_ms", "ms"), ("_per_s", "1/s"), ("_s", "s")) if path[0].endswith(end)), "")
    return metric, unit, path[-1].startswith("share_of")
