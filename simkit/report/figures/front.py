"""The Pareto front of a plan: at which rates more throughput costs latency, and which rates are beaten in both.

Of the recommended point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from simkit.metrics.catalogue import LATENCIES
from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.figures.capacity import WIDTH
from simkit.report.figures.curves import FLAT, plain_log, rows_of
from simkit.report.read.plan import Content, Row, mean_of
from simkit.report.words import plain


def pareto(content: Content) -> Figure | None:
    """Output tokens a second and a GPU against latency; the rates of the front are joined."""
    rows = rows_of(content)
    metrics = [metric for metric in ("tpot_ms", "ttft_ms") if any(_tradeoff(content, row, metric) for row in rows)]
    if not metrics:
        return None
    with style.drawing():
        fig = style.new_figure(WIDTH, 4.1)
        for ax, metric in zip(fig.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
            _front_panel(ax, content, metric)
        handles = [
            Line2D([], [], label="on the front", markersize=6, **_FRONT),
            Line2D([], [], label="not on it", markersize=6, **_BEHIND),
        ]
        style.legend_below(fig, handles, 2)
        svg = style.to_svg(fig, "pareto", "Throughput against latency")
    return Figure(
        svg, "One mark a rate of the recommended point, named by its rate in requests/s. Lower right is better."
    )


_FRONT: dict[str, Any] = {"color": style.LINE_BLUE, "linestyle": "-", "marker": "o"}
_BEHIND: dict[str, Any] = {"color": style.VERMILLION, "linestyle": "none", "marker": "x", "markeredgewidth": 1.6}


def _tradeoff(content: Content, row: Row, metric: str) -> tuple[float, float, float] | None:
    """(output tokens a second and GPU, latency in ms, rate)."""
    tokens, value = mean_of(row, "throughput.output_tokens_per_s"), mean_of(row, f"{metric}.p95")
    return (
        None if tokens is None or value is None else (tokens / content["recommended"]["gpus"], value, row["rate_per_s"])
    )


def front(found: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Those that no other beats in both throughput (first) and latency (second), by throughput."""
    kept: list[tuple[float, float, float]] = []
    for item in sorted(found, key=lambda item: (-item[0], item[1])):
        if not kept or item[1] < kept[-1][1]:
            kept.append(item)
    return kept[::-1]


def _front_panel(ax: Axes, content: Content, metric: str) -> None:
    found = [item for row in rows_of(content) if (item := _tradeoff(content, row, metric)) is not None]
    best = front(found)
    rest = [item for item in found if item not in best]
    ax.plot([item[0] for item in best], [item[1] for item in best], markersize=6, linewidth=1.5, zorder=3, **_FRONT)
    ax.plot([item[0] for item in rest], [item[1] for item in rest], markersize=6, zorder=3, **_BEHIND)
    ax.set_xlim(left=0, right=1.12 * max(item[0] for item in found))
    low, high = min(item[1] for item in found), max(item[1] for item in found)
    if metric == "tpot_ms" and high < FLAT * low:
        ax.set_ylim(0, 1.15 * high)
    else:
        ax.set_yscale("log")
        ax.set_ylim(0.7 * low, 1.8 * high)
        plain_log(ax, "y")
    _name_rates(ax, found)
    style.grid(ax)
    ax.set_title(f"{LATENCIES[metric]} p95")
    ax.set_xlabel("output tokens/s a GPU")
    ax.set_ylabel(f"{LATENCIES[metric]} p95 [ms]")


NEAR = 0.09
"""Distance of two named marks, as a share of the axes, under which the second name is left out."""


def _name_rates(ax: Axes, found: Sequence[tuple[float, float, float]]) -> None:
    """Rates beside their marks, as far as names do not touch."""
    placed: list[tuple[float, float]] = []
    for tokens, value, rate in sorted(found, key=lambda item: item[2]):
        x, y = ax.transAxes.inverted().transform(ax.transData.transform((tokens, value)))
        if all(math.hypot(x - a, y - b) >= NEAR for a, b in placed):
            placed.append((float(x), float(y)))
            ax.annotate(
                plain(float(rate)), (tokens, value), (-4, 5), textcoords="offset points", ha="right", fontsize=8
            )
