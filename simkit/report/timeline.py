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
class Frame:
    """Axis limits shared by all arms, so that panels can be compared by eye; `bin_ns` is the throughput bin."""

    end_ns: float
    bin_ns: float
    waiting: float
    running: float
    per_s: float


@dataclass(frozen=True, slots=True)
class _Lines:
    over: series.Series
    edges_ns: Floats
    per_s: Floats


def frame(runs: Sequence[Run]) -> Frame:
    """Limits that hold every arm."""
    end = max((series.end_ns(run) for run in runs), default=0.0)
    bin_ns = _nice(end / BINS)
    lines = [found for found in (_lines(run, bin_ns) for run in runs) if found is not None]
    return Frame(
        end_ns=end,
        bin_ns=bin_ns,
        waiting=max((float(found.over.values["waiting"].max()) for found in lines), default=0.0),
        running=max((float(found.over.values["running"].max()) for found in lines), default=0.0),
        per_s=max((float(found.per_s.max()) for found in lines), default=0.0),
    )


def draw(run: Run, key: str, limits: Frame) -> tuple[str, str] | None:
    """(SVG, what is shown) of one arm; None when it ran no step."""
    lines = _lines(run, limits.bin_ns)
    if lines is None:
        return None
    unit = style.time_unit(limits.end_ns)
    times = lines.over.times_ns / unit.ns
    with style.drawing():
        fig = style.new_figure(6.3, 4.3)
        waiting, running, rate = fig.subplots(3, 1, sharex=True)
        waiting.stairs(lines.over.values["waiting"], times, color=style.VERMILLION, linewidth=1.3, baseline=None)
        waiting.set(title=run.name, ylabel="waiting\n[requests]", ylim=(0, _room(limits.waiting)))
        running.stairs(lines.over.values["running"], times, color=style.LINE_BLUE, linewidth=1.3, baseline=None)
        running.set(ylabel="running\n[requests]", ylim=(0, _room(limits.running)))
        rate.stairs(
            lines.per_s,
            lines.edges_ns / unit.ns,
            fill=True,
            facecolor=style.GREEN,
            edgecolor=style.HATCH_INK,
            linewidth=0.3,
        )
        mean = run.value("throughput", "requests_per_s")
        if mean is not None:
            rate.axhline(mean, color=style.INK, linewidth=1.0, linestyle=(0, (4, 2)))
        rate.set(ylabel="finished\n[requests/s]", xlabel=f"time [{unit.name}]", ylim=(0, _room(limits.per_s)))
        rate.set_xlim(0, limits.end_ns / unit.ns)
        for ax in (waiting, running):
            ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        for ax in (waiting, running, rate):
            style.grid(ax)
        fig.align_ylabels()
        svg = style.to_svg(fig, key, f"Queue, running sequences and throughput of {run.name} over time")
    peak = {name: float(lines.over.values[name].max()) for name in ("waiting", "running")}
    return svg, (
        f"{run.name}: at most {peak['waiting']:,.0f} waiting and {peak['running']:,.0f} running"
        + (f"; lines are averages over {series.MAX_POINTS} equal bins" if lines.over.thinned else "")
    )


def _lines(run: Run, bin_ns: float) -> _Lines | None:
    over = series.over_time(series.first_replication(run), ("waiting", "running"), held=("waiting",))
    if over is None:
        return None
    mine = (run.requests["replication"] == 0) & (run.requests["status"] == "finished")
    last = run.requests["last_token_ns"][mine].astype(float)
    edges = np.arange(0.0, series.end_ns(run) + bin_ns, bin_ns)
    counts = np.histogram(last[np.isfinite(last)], bins=edges)[0]
    return _Lines(over, edges, counts / (bin_ns / NS_PER_S))


def _nice(size: float) -> float:
    """The next of 1, 2, 5 times a power of ten at or above `size`."""
    if size <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(size))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= size)


def _room(largest: float) -> float:
    return 1.08 * largest if largest > 0 else 1.0
