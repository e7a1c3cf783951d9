"""The arms of a report beside each other: every metric, paired differences, why output lengths matter, and charts.

Numbers are those of summary.json; an empty cell has a mark, and under the table the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from simkit.metrics.catalogue import COUNT, HTML, SHARE, Metric, find, shown
from simkit.plain import Json
from simkit.report import words
from simkit.report.document import Cell, Drawing, Figure, Grid, Note, Row, Section, Table, across
from simkit.report.figures import cdf, gantt, memory, timeline
from simkit.report.read.run import Run, num_rows, select
from simkit.report.words import NOT_STREAMED, OF, are_several, show_of, why_missing

_REASONS = {
    NOT_STREAMED: "not streamed: every token is delivered when the batch ends",
    "no slo": "the scenario states no SLO",
}
"""What the summary says in two words, in a sentence."""


def grid(runs: Sequence[Run], caption: str) -> Grid:
    """Every metric of every arm."""
    marks: dict[str, str] = {}
    several = are_several(run.manifest for run in runs)
    fail = any(run.scenario.get("failures") for run in runs)
    groups: dict[str, list[Row]] = {}
    for metric in shown(HTML):
        if fail or not metric.rare:
            unit = metric.unit
            if several and metric.scope:
                unit = f"{unit}, {OF[metric.scope]}".removeprefix(", ")
            row = Row(metric.label, unit, tuple(_cell(run, metric, marks) for run in runs))
            groups.setdefault(metric.heading, []).append(row)
    notes = tuple(Note(reason, mark) for reason, mark in marks.items())
    return Grid(caption, tuple(run.name for run in runs), _grouped(groups), notes)


def _grouped(groups: Mapping[str, Sequence[Row]]) -> tuple[tuple[str, tuple[Row, ...]], ...]:
    return tuple((title, tuple(rows)) for title, rows in groups.items())


def reason(run: Run, key: str) -> str:
    """Why a number of the summary is null, in words."""
    found = why_missing(run.summary, run.manifest, key)
    return _REASONS.get(found, found)


def _cell(run: Run, metric: Metric, marks: dict[str, str]) -> Cell:
    show: words.Show = words.count if metric.kind is COUNT else show_of(metric.kind)
    found, half = run.value(metric.key), run.value(f"{metric.key}_ci95")
    if found is None:
        return Cell(words.MISSING, mark=marks.setdefault(reason(run, metric.key), _mark(len(marks))))
    wide = run.value(f"{metric.key}_range95")
    text = "" if half is None else f"± {show(half)}"
    return Cell(show(found), f"{text}; {show(wide[0])} to {show(wide[1])}" if wide else text)


def _mark(position: int) -> str:
    return chr(ord("a") + position) if position < 26 else f"n{position}"


def paired_grid(runs: Sequence[Run], comparison: Json, caption: str) -> Grid | None:
    """Paired differences to the baseline; None when the comparison holds none."""
    paired: Mapping[str, Json] = comparison.get("paired") or {}
    names = [run.name for run in runs if run.name in paired]
    keys = dict.fromkeys(key for name in names for key in paired[name])
    if not keys:
        return None
    rows = []
    for key in keys:
        metric = find(key)
        share = metric is not None and metric.kind is SHARE
        label, unit = (key, "") if metric is None else (metric.label, metric.unit)
        rows.append(Row(label, unit, tuple(_difference(paired[name].get(key), share) for name in names)))
    gaps = any(cell.mark for row in rows for cell in row.cells)
    notes = (Note("the arm or the baseline has no such number; the table above says why", "a"),) if gaps else ()
    return Grid(caption, tuple(names), (("Difference to the baseline", tuple(rows)),), notes)


def _difference(found: Json | None, share: bool) -> Cell:
    if not found or found.get("difference") is None:
        return Cell(words.MISSING, mark="a")
    return Cell(*words.difference(found, share))


# --- why the ratio depends on output lengths --------------------------------------------------------------------------
_WHY = (
    "A static batch lasts as long as its longest answer, and every member keeps its slot until then. The share of the "
    "held slots that does useful work is therefore close to the mean output divided by the mean longest output of a "
    "batch (above it where the prefill, in which everybody works, takes a good part of the time). Continuous batching "
    "hands a slot on in the step after its request ends and pays nothing for the spread. So the wider the lengths, the "
    "larger its gain. The ratio also holds what paging adds: without room reserved for the longest possible answer, "
    "more sequences run at once."
)


def lengths(runs: Sequence[Run]) -> Section | None:
    """A row an output-length setting that has a static+contiguous and a continuous+paged arm; None unless they differ.

    Of several such arms those with the slots of the first static+contiguous arm count, so that lengths alone differ.
    """
    pairs = _pairs(runs)
    if len(pairs) < 2:
        return None
    names, rows = zip(*(_spread(static, continuous) for static, continuous in pairs), strict=True)
    heads = (
        "continuous / static, req/s", "slot utilisation, static", "useful share of held slots, static",
        "mean output [tokens]", "std of outputs [tokens]", "mean longest of a batch [tokens]", "mean / longest", "arms",
    )  # fmt: skip
    columns = across(heads, rows, words=("arms",))
    table = Table("Computed from the run directories, first replication.", "output tokens", names, (columns,))
    title = "Why the ratio depends on the spread of output lengths"
    return Section("lengths", title, (_WHY,), (table,), short="Output lengths")


def _pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """The static and the continuous arm of each setting."""
    static = [run for run in runs if _kind(run) == ("static", "contiguous")]
    if not static:
        return []
    slots = static[0].engine.get("max_num_seqs")
    continuous: dict[str, Run] = {}
    for run in runs:
        if _kind(run) == ("continuous", "paged") and run.engine.get("max_num_seqs") == slots:
            continuous.setdefault(_setting(run), run)
    pairs: dict[str, tuple[Run, Run]] = {}
    for run in static:
        setting = _setting(run)
        if run.engine.get("max_num_seqs") == slots and setting in continuous:
            pairs.setdefault(setting, (run, continuous[setting]))
    return list(pairs.values())


def describe_setting(output_tokens: Json) -> str:
    """A distribution in words, e.g. ``lognormal, mean 256, cv 1``."""
    rest = ", ".join(
        f"{key} {words.plain(value)}" for key, value in output_tokens.items() if key != "dist" and value is not None
    )
    return f"{output_tokens.get('dist', '?')}{', ' if rest else ''}{rest}"


def _kind(run: Run) -> tuple[Any, Any]:
    return run.engine.get("batching"), run.engine.get("kv_allocator")


def _setting(run: Run) -> str:
    return json.dumps((run.scenario.get("workload") or {}).get("output_tokens"), sort_keys=True)


def _spread(static: Run, continuous: Run) -> tuple[str, tuple[str, ...]]:
    """The setting in words, and its row."""
    low, high = (run.value("throughput.requests_per_s") for run in (static, continuous))
    used, held = static.value("slot_utilization"), static.value("slot_occupancy")
    done = select(static.requests, (static.requests["replication"] == 0) & (static.requests["status"] == "finished"))
    outputs = done["output_tokens"].astype(float)
    mean, std = (float(outputs.mean()), float(outputs.std())) if len(outputs) else (None, None)
    longest = _mean_longest(static, dict(zip(done["id"].tolist(), outputs.tolist(), strict=True)))
    return describe_setting((static.scenario.get("workload") or {}).get("output_tokens") or {}), (
        f"{words.plain(high / low)}x" if low and high is not None else words.MISSING,
        words.percent(used),
        words.percent(used / held if held and used is not None else None),
        words.plain(mean),
        words.plain(std),
        words.plain(longest),
        words.percent(mean / longest if mean is not None and longest else None),
        f"{continuous.name} over {static.name}",
    )


def _mean_longest(static: Run, output_of: Mapping[int, float]) -> float | None:
    """Mean over batches of the longest output of a batch; a batch is who was admitted at one instant on one replica."""
    if not num_rows(static.slots):
        return None
    longest: dict[tuple[int, int], float] = {}
    slots = (static.slots[name].tolist() for name in ("replica", "admitted_ns", "id"))
    for replica, admitted, request in zip(*slots, strict=True):
        if request in output_of:
            key = (replica, admitted)
            longest[key] = max(longest.get(key, 0.0), output_of[request])
    return float(np.mean(list(longest.values()))) if longest else None


# --- a chart an arm or a group of arms, and what has none -------------------------------------------------------------
SLOTS = (
    "A row is a slot of the batch, a bar is the stay of one request in it. A request takes the lowest slot that is "
    "free. Hatched grey is a dead slot: its request has all its tokens, but the batch has not ended, so the slot "
    "cannot be given to anybody else. A gap is an empty slot. Each arm has its own time axis. First replication, "
    "first replica."
)
MEMORY = (
    "From the bottom up: tokens that are stored (used); room that its sequence will still fill (reserved); room "
    "that nobody will ever fill (internal waste); free room in holes too small for the request at the head of the "
    "queue (external waste; contiguous memory only). What is left is free. First replication, all replicas "
    "together."
)
LATENCY = (
    "The height of a line at x is the share of finished, measured requests that took x or less; further left is "
    "better. The circle is p95 and the diamond p99 of summary.json. With replications the line pools them and the "
    "marks are means of theirs."
)
TIMELINE = (
    "Requests that wait, requests that hold a slot, and finished requests per second (batches that leave together "
    "make peaks); the dashed line is the throughput of summary.json. Time axes differ, the other axes are the same "
    "for all arms. A queue that keeps growing while requests arrive means that the arm is saturated. First "
    "replication, all replicas together."
)


def charts(runs: Sequence[Run]) -> list[Section]:
    """The four of a page, drawn when a renderer asks for them."""
    draw_timeline = partial(timeline.draw, limits=timeline.limits(runs))
    nothing = "no request finished, so there is no latency to show"
    cdfs = [
        Drawing(partial(cdf.draw, group, f"cdf{i}", name), f"{name}: {nothing}")
        for i, (name, group) in enumerate(cdf.groups(runs).items())
    ]
    return [
        _arms("slots", "Who sits in which slot", SLOTS, runs, gantt.draw, "no request ever held a slot"),
        _arms("memory", "What the KV memory holds", MEMORY, runs, memory.pool, "no step was run"),
        Section("latency", "Latency distributions", (LATENCY,), figures=tuple(cdfs)),
        _arms("timeline", "Queue, running and throughput over time", TIMELINE, runs, draw_timeline, "no step was run"),
    ]


def _arms(
    key: str, title: str, reading: str, runs: Sequence[Run], draw: Callable[[Run, str], Figure | None], missing: str
) -> Section:
    """A chart an arm, or why it has none."""
    drawings = (Drawing(partial(draw, run, f"{key}{i}"), f"{run.name}: {missing}") for i, run in enumerate(runs))
    return Section(key, title, (reading,), figures=tuple(drawings))
