"""The charts of a plan against the request rate, of the recommended point: throughput, latencies, memory, trade-off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, PercentFormatter

from simkit.metrics.catalogue import LATENCIES
from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.figures.capacity import band, band_handles
from simkit.report.figures.style import Look, entry
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
from simkit.report.words import known, plain

WIDE = 6.0
"""Largest over smallest tried rate, as a multiple of the capacity, beyond which the axis of rates is logarithmic."""

FLAT = 30.0
"""Largest over smallest TPOT beyond which its axis is logarithmic."""

NEAR = 0.09
"""Distance of two named marks, as a share of the axes, under which the second name is left out."""

VERDICTS: dict[str, Look] = {
    "accepted": {"marker": "o"},
    "undecided": {"marker": "o", "markerfacecolor": "none", "markeredgewidth": 1.3},
    "refused": {"marker": "x", "markeredgewidth": 1.6},
}
LOOKS: tuple[Look, ...] = (
    {"color": style.LINE_BLUE, "linestyle": style.DASHES[0]},
    {"color": style.GREEN, "linestyle": style.DASHES[1]},
    {"color": style.VERMILLION, "linestyle": style.DASHES[2]},
)
SLO: Look = {"color": style.PURPLE, "linestyle": style.DASHES[3], "linewidth": 1.8}
OFFERED: Look = {"color": style.ORANGE, "linestyle": style.DASHES[2]}
SLOTS: Look = {"color": style.GREEN, "linestyle": style.DASHES[3], "linewidth": 1.5}
FRONT: Look = {"color": style.LINE_BLUE, "linestyle": "-", "marker": "o", "markersize": 6}
BEHIND: Look = {
    "color": style.VERMILLION, "linestyle": "none", "marker": "x", "markeredgewidth": 1.6, "markersize": 6,
}  # fmt: skip

Pair = tuple[float | None, float | None]
"""A mean over replications and half the width of its interval."""

Tradeoff = tuple[float, float, float]
"""Output tokens a second and GPU, latency in ms, and the rate."""


def _rows(content: Content) -> Sequence[Row]:
    """The rates at which the recommended point was looked at."""
    return content.get("curve") or ()


def _number(key: str) -> Callable[[Row], Pair]:
    return lambda row: (mean_of(row, key), ci_of(row, key))


def _line(ax: Axes, content: Content, number: Callable[[Row], Pair], look: Look) -> bool:
    """A line over all rates with intervals and a mark a verdict; False when no rate has the number."""
    rows = _rows(content)
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
    rates = [row["rate_per_s"] for row in _rows(content)]
    band(ax, content["recommended"]["capacity"])
    style.grid(ax)
    ax.set_xlabel("request rate [requests/s]")
    if max(rates) > WIDE * content["recommended"]["capacity"]["estimate_per_s"]:
        ax.set_xscale("log")
        _plain_log(ax.xaxis)
    else:
        ax.set_xlim(0, 1.05 * max(rates))


def _plain_log(axis: Axis) -> None:
    """A logarithmic axis with plain numbers, closer where it spans little."""
    low, high = axis.get_view_interval()
    style.ticks(axis, LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,), numticks=12))


def _verdict_handles() -> list[Line2D]:
    mark: Look = {"color": style.INK, "linestyle": "none", "markersize": 5}
    return [entry(name, **mark | shape) for name, shape in VERDICTS.items()]


def throughput(content: Content) -> Figure | None:
    """Requests that are served and that run at once, against the rate."""
    rows = _rows(content)
    if not rows:
        return None
    point = content["recommended"]
    with style.drawing(style.WIDTH, 3.9) as drawn:
        left, right = drawn.panels(2, 2)
        for ax, key in ((left, "throughput.requests_per_s"), (right, "concurrency_mean")):
            _line(ax, content, _number(key), LOOKS[0])
            _rate_axis(ax, content)
        rates = [row["rate_per_s"] for row in rows]
        offered = np.linspace(min(rates), max(rates), 200)  # bent where the axis is logarithmic
        left.plot(offered, offered, **OFFERED)
        left.set(title="Throughput", ylabel="finished [requests/s]")
        right.set(title="Concurrency", ylabel="running at once, mean [requests]")
        right.axhline(point["max_num_seqs"] * point["replicas"], **SLOTS)
        for ax in (left, right):
            ax.set_ylim(bottom=0)
        named = {"simulated": LOOKS[0], "all that is offered": OFFERED, "slots (max_num_seqs)": SLOTS}
        lines = [entry(name, **look) for name, look in named.items()]
        drawn.legend([*lines, *_verdict_handles(), *band_handles()], 4)
        text = (
            "Throughput is counted over the measured window, from the first measured arrival to the last: where "
            "everything is served in time it is the rate at which requests arrived in it, which chance moves about the "
            "one offered."
        )
        alt = "Throughput and concurrency against the request rate"
        return drawn.figure("throughput", alt, f"{means_text(rows, drawn=True)} {text}")


def latency(content: Content) -> Figure | None:
    """Percentiles of TTFT (log axis) and TPOT against the rate, with the lines of the SLO."""
    rows = _rows(content)
    if not rows:
        return None
    metrics = metrics_shown(content)
    with style.drawing(style.WIDTH, 0.9 + 3.4 * math.ceil(len(metrics) / 2)) as drawn:
        for ax, metric in zip(drawn.panels(len(metrics), 2), metrics, strict=True):
            _latency_panel(ax, content, metric)
        stats = [entry(stat_label(content, stat), **look) for stat, look in zip(STATS, LOOKS, strict=True)]
        drawn.legend([*stats, entry("SLO", **SLO), *_verdict_handles(), *band_handles()], 5)
        text = (
            "A rate is accepted or refused by the requests of all replications together, among which the worst "
            "replications count most, so it can be refused where the mean of a percentile still lies below its line. "
            "An interval that reaches below the logarithmic axis is cut at its edge."
        )
        alt = "TTFT and TPOT against the request rate"
        return drawn.figure("latency", alt, f"{means_text(rows, drawn=True)} {text}")


def _latency_panel(ax: Axes, content: Content, metric: str) -> None:
    name = LATENCIES[metric]
    lines = [_line(ax, content, _number(f"{metric}.{stat}"), look) for stat, look in zip(STATS, LOOKS, strict=True)]
    asked = [f"{stat} ≤ {target:,g} ms" for stat, target in targets(content, metric)]
    ax.set_title(f"{name}, SLO {' and '.join(asked)}" if asked else name)
    if not any(lines):
        style.empty(ax, "undefined: not streamed")
        return
    for _, target in targets(content, metric):
        ax.axhline(target, **SLO)
    _rate_axis(ax, content)
    ax.set_ylabel(f"{name} [ms]")
    _latency_axis(ax, content, metric)


def _latency_axis(ax: Axes, content: Content, metric: str) -> None:
    """From 0 for a TPOT that hardly changes; else logarithmic around the means, with intervals cut at the edge."""
    means = [mean_of(row, f"{metric}.{stat}") for row in _rows(content) for stat in STATS]
    tops = [(mean_of(row, f"{metric}.p99") or 0) + (ci_of(row, f"{metric}.p99") or 0) for row in _rows(content)]
    shown = [value for value in (*means, *(target for _, target in targets(content, metric))) if value]
    if not shown or (metric == "tpot_ms" and max(shown) < FLAT * min(shown)):
        ax.set_ylim(bottom=0)
        return
    ax.set_yscale("log")
    ax.set_ylim(0.7 * min(shown), 1.3 * max(*shown, *tops))
    _plain_log(ax.yaxis)


def pressure(content: Content) -> Figure | None:
    """KV memory in use and preemptions, against the rate."""
    rows = _rows(content)
    if not rows:
        return None
    with style.drawing(style.WIDTH, 3.7) as drawn:
        left, right = drawn.panels(2, 2)
        _line(left, content, _number("kv.utilization"), LOOKS[0])
        _line(left, content, lambda row: (known(row["waits"].get("peak_kv")), None), LOOKS[2])
        _line(right, content, preemptions_per_1000, LOOKS[0])
        for ax in (left, right):
            _rate_axis(ax, content)
        left.set(title="KV memory in use", ylabel="share of the pool", ylim=(0, 1.05))
        left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        right.set(title="Preemptions", ylabel="per 1,000 finished requests")
        right.set_ylim(0, max(1.0, right.get_ylim()[1]))
        lines = [entry("mean", **LOOKS[0]), entry("peak", **LOOKS[2])]
        drawn.legend([*lines, *_verdict_handles(), *band_handles()], 7)
        text = "The peak is the largest share of a replica's pool at any moment, a mean over replications too."
        alt = "KV memory in use and preemptions against the request rate"
        return drawn.figure("pressure", alt, f"{means_text(rows, drawn=True)} {text}")


# --- throughput against latency ---------------------------------------------------------------------------------------
def pareto(content: Content) -> Figure | None:
    """Output tokens a second and a GPU against latency; the rates of the front are joined.

    It shows at which rates more throughput costs latency, and which rates are beaten in both.
    """
    found = {metric: _tradeoffs(content, metric) for metric in ("tpot_ms", "ttft_ms")}
    metrics = [metric for metric, tradeoffs in found.items() if tradeoffs]
    if not metrics:
        return None
    with style.drawing(style.WIDTH, 4.1) as drawn:
        for ax, metric in zip(drawn.panels(len(metrics), len(metrics)), metrics, strict=True):
            _front_panel(ax, metric, found[metric])
        drawn.legend([entry("on the front", **FRONT), entry("not on it", **BEHIND)], 2)
        caption = "One mark a rate of the recommended point, named by its rate in requests/s. Lower right is better."
        return drawn.figure("pareto", "Throughput against latency", caption)


def _tradeoffs(content: Content, metric: str) -> list[Tradeoff]:
    """Of the rates that have both numbers."""
    found = []
    for row in _rows(content):
        tokens, value = mean_of(row, "throughput.output_tokens_per_s"), mean_of(row, f"{metric}.p95")
        if tokens is not None and value is not None:
            found.append((tokens / content["recommended"]["gpus"], value, row["rate_per_s"]))
    return found


def front(found: Sequence[Tradeoff]) -> list[Tradeoff]:
    """Those that no other beats in both throughput and latency, by throughput."""
    kept: list[Tradeoff] = []
    for item in sorted(found, key=lambda item: (-item[0], item[1])):
        if not kept or item[1] < kept[-1][1]:
            kept.append(item)
    return kept[::-1]


def _front_panel(ax: Axes, metric: str, found: Sequence[Tradeoff]) -> None:
    best = front(found)
    rest = [item for item in found if item not in best]
    ax.plot([item[0] for item in best], [item[1] for item in best], linewidth=1.5, zorder=3, **FRONT)
    ax.plot([item[0] for item in rest], [item[1] for item in rest], zorder=3, **BEHIND)
    ax.set_xlim(left=0, right=1.12 * max(item[0] for item in found))
    low, high = min(item[1] for item in found), max(item[1] for item in found)
    if metric == "tpot_ms" and high < FLAT * low:
        ax.set_ylim(0, 1.15 * high)
    else:
        ax.set_yscale("log")
        ax.set_ylim(0.7 * low, 1.8 * high)
        _plain_log(ax.yaxis)
    _name_rates(ax, found)
    style.grid(ax)
    ax.set_title(f"{LATENCIES[metric]} p95")
    ax.set_xlabel("output tokens/s a GPU")
    ax.set_ylabel(f"{LATENCIES[metric]} p95 [ms]")


def _name_rates(ax: Axes, found: Sequence[Tradeoff]) -> None:
    """Rates beside their marks, as far as names do not touch."""
    placed: list[tuple[float, float]] = []
    for tokens, value, rate in sorted(found, key=lambda item: item[2]):
        x, y = ax.transAxes.inverted().transform(ax.transData.transform((tokens, value)))
        if all(math.hypot(x - a, y - b) >= NEAR for a, b in placed):
            placed.append((float(x), float(y)))
            text = plain(float(rate))
            ax.annotate(text, (tokens, value), (-4, 5), textcoords="offset points", ha="right", fontsize=8)
