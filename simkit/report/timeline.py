"""Queue, running sequences and throughput of one arm over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import MaxNLocator

from simkit.report import series, style
from simkit.report.load import Run
from simkit.types import Floats
from simkit.units import NS_PER_S

BINS = 40


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper ends of the value axes, shared by all arms so that panels can be compared by eye."""

    waiting: float
    running: float
    per_s: float


@dataclass(frozen=True, slots=True)
class _Lines:
    """What one arm draws; finished requests per second in bins between `edges_ns`."""

    over: series.Series
    edges_ns: Floats
    per_s: Floats
    mean_per_s: float | None
    end_ns: float


def limits(runs: Sequence[Run]) -> Limits:
    """Axes that hold every arm."""
    lines = [found for found in map(_lines, runs) if found is not None]
    return Limits(
        waiting=max((float(found.over.values["waiting"].max()) for found in lines), default=0.0),
        running=max((float(found.over.values["running"].max()) for found in lines), default=0.0),
        per_s=max((max(float(found.per_s.max()), found.mean_per_s or 0.0) for found in lines), default=0.0),
    )


def draw(run: Run, key: str, axes: Limits) -> tuple[str, str] | None:
    """(SVG, what is shown) of one arm; None when it ran no step."""
    lines = _lines(run)
    if lines is None:
        return None
    unit = style.time_unit(lines.end_ns)
    times, edges = lines.over.times_ns / unit.ns, lines.edges_ns / unit.ns
    with style.drawing():
        fig = style.new_figure(6.3, 4.3)
        waiting, running, rate = fig.subplots(3, 1, sharex=True)
        waiting.stairs(lines.over.values["waiting"], times, color=style.VERMILLION, linewidth=1.3, baseline=None)
        waiting.set(title=run.name, ylabel="waiting\n[requests]", ylim=(0, _room(axes.waiting)))
        running.stairs(lines.over.values["running"], times, color=style.LINE_BLUE, linewidth=1.3, baseline=None)
        running.set(ylabel="running\n[requests]", ylim=(0, _room(axes.running)))
        rate.stairs(lines.per_s, edges, fill=True, facecolor=style.GREEN, edgecolor=style.HATCH_INK, linewidth=0.3)
        if lines.mean_per_s is not None:
            rate.axhline(lines.mean_per_s, color=style.INK, linewidth=1.0, linestyle=(0, (4, 2)))
        rate.set(ylabel="finished\n[requests/s]", xlabel=f"time [{unit.name}]", ylim=(0, _room(axes.per_s)))
        rate.set_xlim(0, lines.end_ns / unit.ns)
        for ax in (waiting, running):
            ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        for ax in (waiting, running, rate):
            style.grid(ax)
        fig.align_ylabels()
        svg = style.to_svg(fig, key, f"Queue, running sequences and throughput of {run.name} over time")
    return svg, _describe(run, lines, unit)


def _describe(run: Run, lines: _Lines, unit: style.TimeUnit) -> str:
    peaks = [f"{lines.over.values[name].max():,.0f} {name}" for name in ("waiting", "running")]
    bin_ns = lines.edges_ns[1] - lines.edges_ns[0]
    text = f"{run.name}: at most {' and '.join(peaks)}, bins of {bin_ns / unit.ns:g} {unit.name}"
    return f"{text}; lines are averages over {series.MAX_POINTS} equal times" if lines.over.thinned else text


def _lines(run: Run) -> _Lines | None:
    over = series.over_time(series.first_replication(run), ("waiting", "running"), held=("waiting",))
    end = series.end_ns(run)
    if over is None or end <= 0:
        return None
    mine = (run.requests["replication"] == 0) & (run.requests["status"] == "finished")
    last = run.requests["last_token_ns"][mine].astype(float)
    bin_ns = _nice(end / BINS)
    edges: Floats = np.arange(math.ceil(end / bin_ns) + 1, dtype=np.float64) * bin_ns
    counts = np.histogram(last[np.isfinite(last)], bins=edges)[0]
    mean = run.value("throughput", "requests_per_s")
    return _Lines(over, edges, counts / (bin_ns / NS_PER_S), mean, end)


def _nice(size: float) -> float:
    """The next of 1, 2, 5 times a power of ten at or above `size`."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= size)


def _room(largest: float) -> float:
    return 1.08 * largest if largest > 0 else 1.0
