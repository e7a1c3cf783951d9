"""Latency CDFs: TTFT, TPOT and E2E of all arms of a group, with p95 and p99 marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from simkit.metrics.latencies import defined, values_ns
from simkit.report.figures import style
from simkit.report.read.run import Run, Table, select
from simkit.types import Floats
from simkit.units import NS_PER_MS

_OFFSETS = (0.0, 5.0, 2.5)  # static and dynamic dashes, often on one line, fill each other's gaps
WIDE = 20  # largest / smallest beyond which the axis is logarithmic
# Body and tail get 150 points each, so that p95 and p99 lie on the line.
LEVELS = np.concatenate((np.linspace(0, 0.9, 151)[:-1], np.linspace(0.9, 1, 151)))


@dataclass(frozen=True, slots=True)
class Latency:
    """One panel: its title, its key in summary.json, and whether arms that deliver at batch end have it."""

    title: str
    key: str
    needs_stream: bool


COLUMNS = ("arrival_ns", "first_token_ns", "last_token_ns", "output_tokens")

LATENCIES = (
    Latency("TTFT", "ttft_ms", False),
    Latency("TPOT", "tpot_ms", True),
    Latency("E2E", "e2e_ms", False),
)


def draw(runs: Sequence[Run], key: str) -> str | None:
    """One SVG with a panel per latency; None when no request of any arm finished."""
    samples = {run.name: latencies_ms(run) for run in runs}
    if not any(len(values) for by_key in samples.values() for values in by_key.values()):
        return None
    with style.drawing():
        fig = style.new_figure(12.4, 4.0 + 0.22 * ((len(runs) + 1) // 4))
        axes = fig.subplots(1, len(LATENCIES), sharey=True)
        looks = arm_looks(runs)
        for ax, latency in zip(axes, LATENCIES, strict=True):
            panel = [(run, samples[run.name][latency.key], looks[run.name]) for run in runs]
            _panel(ax, latency, [(run, values, look) for run, values, look in panel if len(values)])
        axes[0].set_ylabel("share of finished requests")
        handles: list[Line2D] = [Line2D([], [], label=run.name, **looks[run.name]) for run in runs]
        handles += [
            Line2D([], [], color=style.INK, marker=marker, linestyle="none", markersize=5.5, label=label)
            for marker, label in (("o", "p95"), ("D", "p99"))
        ]
        style.legend_below(fig, handles, 4)
        return style.to_svg(fig, key, f"Latency distributions of {', '.join(run.name for run in runs)}")


def latencies_ms(run: Run) -> dict[str, Floats]:
    """TTFT, TPOT and E2E of finished, measured requests of all replications, in ms; sorted; empty where undefined."""
    done: Table = select(run.requests, (run.requests["status"] == "finished") & run.requests["measured"].astype(bool))
    columns: dict[str, Floats] = {name: done[name].astype(float) for name in COLUMNS}
    found: dict[str, Floats] = {}
    for latency in LATENCIES:
        has = defined(columns, latency.key) & (run.streams or not latency.needs_stream)
        values = values_ns(columns, latency.key)[has]
        found[latency.key] = np.sort(values[np.isfinite(values)]) / NS_PER_MS
    return found


def arm_looks(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Line properties per arm: colour by batcher and dash by allocator where that tells arms apart, else in turn.

    Arms with equal latencies must all stay visible: solid lines are pale, each narrower than the one before, and dashed
    ones lie on top of them with their dashes in each other's gaps.
    """
    colors = {"static": style.VERMILLION, "dynamic": style.ORANGE, "continuous": style.LINE_BLUE}
    kinds = [(run.engine.get("batching"), run.engine.get("kv_allocator")) for run in runs]
    by_kind = len(set(kinds)) == len(kinds) and all(batching in colors for batching, _ in kinds)
    looks: dict[str, dict[str, Any]] = {}
    for i, (run, (batching, allocator)) in enumerate(zip(runs, kinds, strict=True)):
        if by_kind:
            color, dash = colors[str(batching)], int(allocator == "paged" and len(runs) > 1)
        else:
            color, dash = style.CYCLE[i % len(style.CYCLE)], i % len(style.DASHES)
        turn = {"static": 0, "dynamic": 1, "continuous": 2}.get(str(batching), i % 3) if by_kind else i % 3
        wide = dash == 0 and len(runs) > 1
        looks[run.name] = {
            "color": color,
            "linestyle": (_OFFSETS[turn], (5, 5)) if by_kind and dash else style.DASHES[dash],
            "linewidth": 5.2 - 1.5 * turn if wide else 1.6,
            "alpha": 0.7 if wide else 1.0,
            "zorder": 2.0 if wide else 3.0,
        }
    return looks


def _panel(ax: Axes, latency: Latency, lines: list[tuple[Run, Floats, dict[str, Any]]]) -> None:
    ax.set_title(latency.title)
    ax.set_ylim(0, 1.02)
    style.grid(ax)
    if not lines:
        ax.text(
            0.5, 0.5, "undefined for every arm\n(see the caption)", ha="center", va="center", transform=ax.transAxes
        )
        ax.set_xticks([])
        return
    low = min(float(values[0]) for _, values, _ in lines)
    high = max(float(values[-1]) for _, values, _ in lines)
    scale = time_axis(ax, latency.title, low, high)
    for run, values, look in lines:
        ax.plot(np.quantile(values, LEVELS) / scale, LEVELS, solid_capstyle="butt", **look)
        for percentile, marker in (("p95", "o"), ("p99", "D")):
            at = run.value(latency.key, percentile)
            if at is not None:
                share = float(percentile[1:]) / 100
                ax.plot(
                    [at / scale],
                    [share],
                    marker=marker,
                    markersize=5.5,
                    color=look["color"],
                    linestyle="none",
                    zorder=4,
                )


def time_axis(ax: Axes, name: str, low_ms: float, high_ms: float) -> float:
    """Scale and label the x axis for these latencies; gives the ms in its unit."""
    scale, unit = (1000.0, "s") if high_ms >= 10_000 else (1.0, "ms")
    if low_ms > 0 and high_ms / low_ms > WIDE:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high_ms / low_ms > 200 else (1.0, 2.0, 5.0), numticks=9))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6))
    ax.set_xlabel(f"{name} [{unit}]")
    return scale
