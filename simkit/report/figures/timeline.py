"""What one arm does over time: step functions from the spans of steps.parquet; queue, running sequences, throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import MaxNLocator

from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.read.run import Column, Run, Table, num_rows, select
from simkit.types import Floats
from simkit.units import NS_PER_S

BINS = 40
MAX_POINTS = 300


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, each holding from `times_ns[i]` to `times_ns[i + 1]`; len(times) = len(values) + 1.

    `thinned` says that each value is the time average of one of `MAX_POINTS` equal bins instead of a span's own.
    """

    times_ns: Floats
    values: dict[str, Floats]
    thinned: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper ends of the value axes, shared by all arms so that panels can be compared by eye."""

    waiting: float
    running: float
    per_s: float


@dataclass(frozen=True, slots=True)
class _Lines:
    """What one arm draws; finished requests per second in bins between `edges_ns`."""

    over: Series
    edges_ns: Floats
    per_s: Floats
    mean_per_s: float | None
    end_ns: float
    outages: tuple[_Outage, ...]


@dataclass(frozen=True, slots=True)
class _Outage:
    """A replica that is down from `start_ns` to `end_ns`, or to the end of the run."""

    replica: int
    start_ns: float
    end_ns: float


def first_replication(run: Run) -> Table:
    """The spans of replication 0 in time order."""
    steps = select(run.steps, run.steps["replication"] == 0)
    return select(steps, np.argsort(steps["t_start_ns"], kind="stable"))


def end_ns(run: Run) -> float:
    """The last instant of replication 0 that the tables know, 0 when nothing happened."""
    ends = [0.0]
    steps = first_replication(run)
    if num_rows(steps):
        ends.append(float(steps["t_end_ns"].max()))
    last = run.requests["last_token_ns"][run.requests["replication"] == 0].astype(float)
    if np.isfinite(last).any():
        ends.append(float(np.nanmax(last)))
    return max(ends)


def over_time(steps: Table, columns: Sequence[str], held: Sequence[str] = ()) -> Series | None:
    """The sum over replicas of each column, None without spans.

    Between spans the engine does nothing: a column counts as 0 there, those named in `held` keep their last value.
    One replica with at most `MAX_POINTS` spans is shown as it is, anything else as averages over equal bins of time.
    """
    if not num_rows(steps):
        return None
    replicas = np.unique(steps["replica"])
    parts = [select(steps, steps["replica"] == replica) for replica in replicas]
    if len(parts) == 1 and num_rows(steps) <= MAX_POINTS:
        times, filled = _contiguous(parts[0], columns, held)
        return Series(times, filled, thinned=False)
    edges = np.linspace(float(steps["t_start_ns"].min()), float(steps["t_end_ns"].max()), MAX_POINTS + 1)
    totals = {column: np.zeros(MAX_POINTS) for column in columns}
    for part in parts:
        times, filled = _contiguous(part, columns, held)
        for column in columns:
            totals[column] += _bin_means(times, filled[column], edges)
    return Series(edges, totals, thinned=True)


def _contiguous(steps: Table, columns: Sequence[str], held: Sequence[str]) -> tuple[Floats, dict[str, Floats]]:
    """Span boundaries with the gaps between spans filled in."""
    starts, ends = steps["t_start_ns"].astype(float), steps["t_end_ns"].astype(float)
    gap_after = np.append(starts[1:] > ends[:-1], False)
    times = np.append(_interleave(starts, ends, gap_after), ends[-1])
    values = {}
    for column in columns:
        own = steps[column].astype(float)
        values[column] = _interleave(own, own if column in held else np.zeros_like(own), gap_after)
    return times, values


def _interleave(values: Column, after: Column, where: Column) -> Floats:
    """`values` with `after[i]` inserted behind each position i where `where[i]` is true."""
    positions = np.flatnonzero(where)
    return np.asarray(np.insert(values, positions + 1, after[positions]), dtype=np.float64)


def _bin_means(times: Floats, values: Floats, edges: Floats) -> Floats:
    """Time averages of a step function over the bins between `edges`; 0 outside of `times`."""
    integral = np.concatenate(([0.0], np.cumsum(values * np.diff(times))))
    return np.diff(np.interp(edges, times, integral)) / np.diff(edges)


def limits(runs: Sequence[Run]) -> Limits:
    """Axes that hold every arm."""
    lines = [found for found in map(_lines, runs) if found is not None]
    return Limits(
        waiting=max((float(found.over.values["waiting"].max()) for found in lines), default=0.0),
        running=max((float(found.over.values["running"].max()) for found in lines), default=0.0),
        per_s=max((max(float(found.per_s.max()), found.mean_per_s or 0.0) for found in lines), default=0.0),
    )


def draw(run: Run, key: str, limits: Limits) -> Figure | None:
    """Queue, running sequences and throughput of one arm; None when it ran no step."""
    lines = _lines(run)
    if lines is None:
        return None
    unit = style.time_unit(lines.end_ns)
    times, edges = lines.over.times_ns / unit.ns, lines.edges_ns / unit.ns
    with style.drawing(6.3, 4.3) as drawn:
        waiting, running, rate = panels = drawn.panels(3, 1, sharex=True)
        waiting.stairs(lines.over.values["waiting"], times, color=style.VERMILLION, linewidth=1.3, baseline=None)
        waiting.set(title=run.name, ylabel="waiting\n[requests]", ylim=(0, _room(limits.waiting)))
        running.stairs(lines.over.values["running"], times, color=style.LINE_BLUE, linewidth=1.3, baseline=None)
        running.set(ylabel="running\n[requests]", ylim=(0, _room(limits.running)))
        rate.stairs(lines.per_s, edges, fill=True, facecolor=style.GREEN, edgecolor=style.HATCH_INK, linewidth=0.3)
        if lines.mean_per_s is not None:
            rate.axhline(lines.mean_per_s, color=style.INK, linewidth=1.0, linestyle=style.DASHES[1])
        rate.set(ylabel="finished\n[requests/s]", xlabel=f"time [{unit.name}]", ylim=(0, _room(limits.per_s)))
        rate.set_xlim(0, lines.end_ns / unit.ns)
        for ax in (waiting, running):
            ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        for ax in panels:
            style.grid(ax)
            for outage in lines.outages:
                start, end = outage.start_ns / unit.ns, outage.end_ns / unit.ns
                ax.axvspan(start, end, color=style.GREY, alpha=0.3, linewidth=0, zorder=0)
        drawn.fig.align_ylabels()
        alt = f"Queue, running sequences and throughput of {run.name} over time"
        return drawn.figure(key, alt, _describe(run, lines, unit))


def _describe(run: Run, lines: _Lines, unit: style.TimeUnit) -> str:
    peaks = [f"{lines.over.values[name].max():,.0f} {name}" for name in ("waiting", "running")]
    bin_ns = lines.edges_ns[1] - lines.edges_ns[0]
    text = f"{run.name}: at most {' and '.join(peaks)}, bins of {bin_ns / unit.ns:g} {unit.name}"
    for outage in lines.outages:
        times = f"{outage.start_ns / unit.ns:.4g} to {outage.end_ns / unit.ns:.4g} {unit.name}"
        text += f"; grey: replica {outage.replica} is down ({times})"
    replicas = set(range(int(run.scenario.get("replicas") or 1)))
    if any(_down_at(outage.start_ns, lines.outages) == replicas for outage in lines.outages):
        text += "; who waits at the router while no replica is up is not drawn"
    return f"{text}; lines are averages over {MAX_POINTS} equal times" if lines.over.thinned else text


def _lines(run: Run) -> _Lines | None:
    end = end_ns(run)
    outages = _outages(run, end)
    steps = _with_outages(first_replication(run), outages)
    over = over_time(steps, ("waiting", "running"), held=("waiting",))
    if over is None or end <= 0:
        return None
    mine = (run.requests["replication"] == 0) & (run.requests["status"] == "finished")
    last = run.requests["last_token_ns"][mine].astype(float)
    bin_ns = _nice(end / BINS)
    edges: Floats = np.arange(math.ceil(end / bin_ns) + 1, dtype=np.float64) * bin_ns
    counts = np.histogram(last[np.isfinite(last)], bins=edges)[0]
    mean = run.value("throughput.requests_per_s")
    return _Lines(over, edges, counts / (bin_ns / NS_PER_S), mean, end, outages)


def _outages(run: Run, end_ns: float) -> tuple[_Outage, ...]:
    """Those of the scenario that begin before `end_ns`, cut there."""
    found = []
    for failure in run.scenario.get("failures") or ():
        start_ns = failure["at_s"] * NS_PER_S
        until_ns = end_ns if failure["for_s"] is None else min(end_ns, start_ns + failure["for_s"] * NS_PER_S)
        if start_ns < end_ns:
            found.append(_Outage(failure["replica"], start_ns, until_ns))
    return tuple(found)


def _with_outages(steps: Table, outages: Sequence[_Outage]) -> Table:
    """The spans, and one without anybody for each outage: nobody waits at a replica that is down."""
    if not outages or not num_rows(steps):
        return steps
    given = {
        "replica": [outage.replica for outage in outages],
        "t_start_ns": [outage.start_ns for outage in outages],
        "t_end_ns": [outage.end_ns for outage in outages],
    }
    nobody = [0] * len(outages)
    together = {name: np.concatenate([steps[name], given.get(name, nobody)]) for name in (*given, "waiting", "running")}
    return select(together, np.argsort(together["t_start_ns"], kind="stable"))


def _down_at(time_ns: float, outages: Sequence[_Outage]) -> set[int]:
    return {outage.replica for outage in outages if outage.start_ns <= time_ns < outage.end_ns}


def _nice(size: float) -> float:
    """The next of 1, 2, 5 times a power of ten at or above `size`."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= size)


def _room(largest: float) -> float:
    return 1.08 * largest if largest > 0 else 1.0
