"""All figures of a report, in order, each with its caption. Composes the figure modules; reads no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simkit.report.document import Figure
from simkit.report.figures import cdf, gantt, memory, timeline
from simkit.report.read.run import Run


@dataclass(frozen=True, slots=True)
class Section:
    """Figures of one kind: how to read them, the figures, and what has none and why."""

    key: str
    title: str
    reading: str
    figures: tuple[Figure, ...]
    missing: tuple[str, ...]
    wide: bool = False


def sections(runs: Sequence[Run]) -> list[Section]:
    """The four figure sections of a report."""
    return [_slots(runs), _memory(runs), _latency(runs), _timelines(runs)]


def _slots(runs: Sequence[Run]) -> Section:
    return _section(
        "slots",
        "Who sits in which slot",
        "A row is a slot of the batch, a bar is the stay of one request in it. A request takes the lowest slot that is "
        "free. Hatched grey is a dead slot: its request has all its tokens, but the batch has not ended, so the slot "
        "cannot be given to anybody else. A gap is an empty slot. Each arm has its own time axis. First replication, "
        "first replica.",
        [(run, gantt.draw(run, f"slots{i}")) for i, run in enumerate(runs)],
        "no request ever held a slot",
    )


def _memory(runs: Sequence[Run]) -> Section:
    return _section(
        "memory",
        "What the KV memory holds",
        "From the bottom up: tokens that are stored (used); room that its sequence will still fill (reserved); room "
        "that nobody will ever fill (internal waste); free room in holes too small for the request at the head of the "
        "queue (external waste; contiguous memory only). What is left is free. First replication, all replicas "
        "together.",
        [(run, memory.pool(run, f"memory{i}")) for i, run in enumerate(runs)],
        "no step was run",
    )


def _latency(runs: Sequence[Run]) -> Section:
    drawn = {name: cdf.draw(group, f"cdf{i}", name) for i, (name, group) in enumerate(cdf.groups(runs).items())}
    return Section(
        "latency",
        "Latency distributions",
        "The height of a line at x is the share of finished, measured requests that took x or less; further left is "
        "better. The circle is p95 and the diamond p99 of summary.json. With replications the line pools them and the "
        "marks are means of theirs.",
        tuple(figure for figure in drawn.values() if figure is not None),
        tuple(
            f"{name}: no request finished, so there is no latency to show"
            for name, figure in drawn.items()
            if figure is None
        ),
        wide=True,
    )


def _timelines(runs: Sequence[Run]) -> Section:
    limits = timeline.limits(runs)
    return _section(
        "timeline",
        "Queue, running and throughput over time",
        "Requests that wait, requests that hold a slot, and finished requests per second (batches that leave together "
        "make peaks); the dashed line is the throughput of summary.json. Time axes differ, the other axes are the same "
        "for all arms. A queue that keeps growing while requests arrive means that the arm is saturated. First "
        "replication, all replicas together.",
        [(run, timeline.draw(run, f"timeline{i}", limits)) for i, run in enumerate(runs)],
        "no step was run",
    )


def _section(key: str, title: str, reading: str, drawn: Sequence[tuple[Run, Figure | None]], reason: str) -> Section:
    return Section(
        key,
        title,
        reading,
        tuple(figure for _, figure in drawn if figure is not None),
        tuple(f"{run.name}: {reason}" for run, figure in drawn if figure is None),
    )
