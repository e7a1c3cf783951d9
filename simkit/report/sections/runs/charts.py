"""The sections of charts of a page of runs: how to read them, a chart an arm or a group of arms, and what has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from simkit.report.document import Drawing, Figure, Section
from simkit.report.figures import cdf, gantt, memory, timeline
from simkit.report.read.run import Run

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


def sections(runs: Sequence[Run]) -> list[Section]:
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
