"""The figures of a plan against the request rate: throughput, latencies, memory and preemptions.

All of the recommended point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from simkit.metrics.catalogue import LATENCIES
from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.figures.capacity import WIDTH, band, band_handles
from simkit.report.read.plan import (
    STATS,
    Content,
    Row,
    ci_of,
    mean_of,
    means_text,
    metrics_shown,
    preemptions_per_1000,
    stat_label,
    targets,
)
from simkit.report.words import known

WIDE = 6.0
"""Largest over smallest tried rate, as a multiple of the capacity, beyond which the axis of rates is logarithmic."""

FLAT = 30.0
"""Largest over smallest TPOT beyond which its axis is logarithmic."""

VERDICTS: dict[str, dict[str, Any]] = {
    "accepted": {"marker": "o"},
    "undecided": {"marker": "o", "markerfacecolor": "none", "markeredgewidth": 1.3},
    "refused": {"marker": "x", "markeredgewidth": 1.6},
}
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": style.LINE_BLUE, "linestyle": style.DASHES[0]},
    {"color": style.GREEN, "linestyle": style.DASHES[1]},
    {"color": style.VERMILLION, "linestyle": style.DASHES[2]},
)
SLO_LOOK: dict[str, Any] = {"color": style.PURPLE, "linestyle": style.DASHES[3], "linewidth": 1.8}
OFFERED: dict[str, Any] = {"color": style.ORANGE, "linestyle": style.DASHES[2]}
SLOTS_LOOK: dict[str, Any] = {"color": style.GREEN, "linestyle": style.DASHES[3], "linewidth": 1.5}
Pair = tuple[float | None, float | None]


def rows_of(content: Content) -> Sequence[Row]:
    """The rates at which the recommended point was looked at."""
    return content.get("curve") or ()


def _number(key: str) -> Callable[[Row], Pair]:
    return lambda row: (mean_of(row, key), ci_of(row, key))


def _line(ax: Axes, content: Content, number: Callable[[Row], Pair], look: dict[str, Any]) -> bool:
    """A line over all rates with intervals and a mark a verdict; False when no rate has the number."""
    rows = rows_of(content)
    pairs = [number(row) for row in rows]
    if all(mean is None for mean, _ in pairs):
        return False
    rates = [row["rate_per_s"] for row in rows]
    ax.plot(rates, [math.nan if mean is None else mean for mean, _ in pairs], linewidth=1.5, zorder=3, **look)
    for row, (mean, half) in zip(rows, pairs, strict=True):
        if mean is None:
            continue
        if half:
            ends = [mean - half, mean + half]
            ax.plot([row["rate_per_s"]] * 2, ends, color=look["color"], linewidth=1.0, alpha=0.8, zorder=2)
        shape = VERDICTS.get(row["verdict"], VERDICTS["undecided"])
        ax.plot([row["rate_per_s"]], [mean], color=look["color"], markersize=5, linestyle="none", zorder=4, **shape)
    return True


def _rate_axis(ax: Axes, content: Content) -> None:
    rates = [row["rate_per_s"] for row in rows_of(content)]
    band(ax, content["recommended"]["capacity"])
    style.grid(ax)
    ax.set_xlabel("request rate [requests/s]")
    if max(rates) > WIDE * content["recommended"]["capacity"]["estimate_per_s"]:
        ax.set_xscale("log")
        plain_log(ax, "x")
    else:
        ax.set_xlim(0, 1.05 * max(rates))


def plain_log(ax: Axes, which: str) -> None:
    """A logarithmic axis with plain numbers, closer where it spans little."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e5 else f"{value:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


def _verdict_handles() -> list[Line2D]:
    return [
        Line2D([], [], color=style.INK, linestyle="none", markersize=5, label=name, **shape)
        for name, shape in VERDICTS.items()
    ]


def throughput(content: Content) -> Figure | None:
    """Requests that are served and that run at once, against the rate."""
    rows = rows_of(content)
    if not rows:
        return None
    point = content["recommended"]
    slots = point["max_num_seqs"] * point["replicas"]
    with style.drawing():
        fig = style.new_figure(WIDTH, 3.9)
        left, right = fig.subplots(1, 2)
        for ax, key in ((left, "throughput.requests_per_s"), (right, "concurrency_mean")):
            _line(ax, content, _number(key), LOOKS[0])
            _rate_axis(ax, content)
        rates = [row["rate_per_s"] for row in rows]
        offered = np.linspace(min(rates), max(rates), 200)  # bent where the axis is logarithmic
        left.plot(offered, offered, **OFFERED)
        left.set_title("Throughput")
        left.set_ylabel("finished [requests/s]")
        right.set_title("Concurrency")
        right.set_ylabel("running at once, mean [requests]")
        right.axhline(slots, **SLOTS_LOOK)
        for ax in (left, right):
            ax.set_ylim(bottom=0)
        handles = [
            Line2D([], [], label="simulated", **LOOKS[0]),
            Line2D([], [], label="all that is offered", **OFFERED),
            Line2D([], [], label="slots (max_num_seqs)", **SLOTS_LOOK),
            *_verdict_handles(),
            *band_handles(),
        ]
        style.legend_below(fig, handles, 4)
        svg = style.to_svg(fig, "throughput", "Throughput and concurrency against the request rate")
    text = (
        "Throughput is counted over the measured window, from the first measured arrival to the last: where everything "
        "is served in time it is the rate at which requests arrived in it, which chance moves about the one offered."
    )
    return Figure(svg, f"{means_text(rows_of(content), drawn=True)} {text}")


def latency(content: Content) -> Figure | None:
    """Percentiles of TTFT (log axis) and TPOT against the rate, with the lines of the SLO."""
    if not rows_of(content):
        return None
    metrics = metrics_shown(content)
    with style.drawing():
        rows = math.ceil(len(metrics) / 2)
        fig = style.new_figure(WIDTH, 0.9 + 3.4 * rows)
        axes = fig.subplots(rows, 2, squeeze=False).flatten()
        for ax in axes[len(metrics) :]:
            ax.set_visible(False)
        for ax, metric in zip(axes, metrics, strict=False):
            name = LATENCIES[metric]
            drawn = [
                _line(ax, content, _number(f"{metric}.{stat}"), look) for stat, look in zip(STATS, LOOKS, strict=True)
            ]
            asked = [f"{stat} ≤ {target:,g} ms" for stat, target in targets(content, metric)]
            ax.set_title(f"{name}, SLO {' and '.join(asked)}" if asked else name)
            if not any(drawn):
                ax.text(0.5, 0.5, "undefined: not streamed", ha="center", va="center", transform=ax.transAxes)
                ax.set_xticks([])
                ax.set_yticks([])
                continue
            for _, target in targets(content, metric):
                ax.axhline(target, **SLO_LOOK)
            _rate_axis(ax, content)
            ax.set_ylabel(f"{name} [ms]")
            _latency_axis(ax, content, metric)
        handles = [
            Line2D([], [], label=stat_label(content, stat), **look) for stat, look in zip(STATS, LOOKS, strict=True)
        ]
        handles += [Line2D([], [], label="SLO", **SLO_LOOK), *_verdict_handles()]
        style.legend_below(fig, [*handles, *band_handles()], 5)
        svg = style.to_svg(fig, "latency", "TTFT and TPOT against the request rate")
    text = (
        "A rate is accepted or refused by the requests of all replications together, among which the worst "
        "replications count most, so it can be refused where the mean of a percentile still lies below its line. "
        "An interval that reaches below the logarithmic axis is cut at its edge."
    )
    return Figure(svg, f"{means_text(rows_of(content), drawn=True)} {text}")


def _latency_axis(ax: Axes, content: Content, metric: str) -> None:
    """From 0 for a TPOT that hardly changes; else logarithmic around the means, with intervals cut at the edge."""
    means = [mean_of(row, f"{metric}.{stat}") for row in rows_of(content) for stat in STATS]
    tops = [(mean_of(row, f"{metric}.p99") or 0) + (ci_of(row, f"{metric}.p99") or 0) for row in rows_of(content)]
    shown = [value for value in (*means, *(target for _, target in targets(content, metric))) if value]
    if not shown or (metric == "tpot_ms" and max(shown) < FLAT * min(shown)):
        ax.set_ylim(bottom=0)
        return
    ax.set_yscale("log")
    ax.set_ylim(0.7 * min(shown), 1.3 * max(*shown, *tops))
    plain_log(ax, "y")


def pressure(content: Content) -> Figure | None:
    """KV memory in use and preemptions, against the rate."""
    if not rows_of(content):
        return None
    with style.drawing():
        fig = style.new_figure(WIDTH, 3.7)
        left, right = fig.subplots(1, 2)
        _line(left, content, _number("kv.utilization"), LOOKS[0])
        _line(left, content, lambda row: (known(row["waits"].get("peak_kv")), None), LOOKS[2])
        _line(right, content, preemptions_per_1000, LOOKS[0])
        for ax in (left, right):
            _rate_axis(ax, content)
        left.set_title("KV memory in use")
        left.set_ylabel("share of the pool")
        left.set_ylim(0, 1.05)
        left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        right.set_title("Preemptions")
        right.set_ylabel("per 1,000 finished requests")
        right.set_ylim(0, max(1.0, right.get_ylim()[1]))
        handles = [
            Line2D([], [], label="mean", **LOOKS[0]),
            Line2D([], [], label="peak", **LOOKS[2]),
            *_verdict_handles(),
            *band_handles(),
        ]
        style.legend_below(fig, handles, 7)
        svg = style.to_svg(fig, "pressure", "KV memory in use and preemptions against the request rate")
    text = "The peak is the largest share of a replica's pool at any moment, a mean over replications too."
    return Figure(svg, f"{means_text(rows_of(content), drawn=True)} {text}")
