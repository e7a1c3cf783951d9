"""The pictures of a comparison with a measured run: distributions, requests one by one, over time, and effects.

Each is None where the content has nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from simkit.metrics.catalogue import MEASURED_LATENCIES
from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.figures.style import WIDTH, Fill, Look, entry
from simkit.report.read.validation import HEADLINE, SERIES, Content, counts, effect_name, error_of, key_name, things
from simkit.report.words import count, error, known, or_nan
from simkit.types import Floats, Ints

MAX_DOTS = 1_500
"""Requests that are drawn in a panel; the numbers are over all of them."""

MAX_INSTANTS = 1_000
"""Instants that are drawn of a longer series."""

PERCENTILES = (("p95", 0.95, "o"), ("p99", 0.99, "D"))

MEASURED: Look = {"color": style.VERMILLION, "linestyle": "-", "linewidth": 3.0, "alpha": 0.65}
PREDICTED: Look = {"color": style.LINE_BLUE, "linestyle": style.DASHES[1], "linewidth": 1.6}
SIDES = (("measured", MEASURED), ("predicted", PREDICTED))
"""Measured is a broad pale line, so that it is seen where the prediction lies on it."""


def distributions(content: Content) -> Figure | None:
    """A panel a latency: the shares of requests that took no longer, measured and predicted."""
    curves = {metric: found for metric, found in _by_latency(content, "curves").items() if len(found["share"])}
    if not curves:
        return None
    lines, columns = _grid(len(curves))
    with style.drawing(WIDTH, 2.9 * lines + 0.6) as drawn:
        panels = drawn.panels(len(curves), columns, sharey=True)
        for ax, (metric, curve) in zip(panels, curves.items(), strict=True):
            _distribution(ax, content, metric, curve)
        for ax in panels[::columns]:
            ax.set_ylabel("share")
        marks = [
            entry(stat, color=style.INK, marker=mark, linestyle="none", markersize=5) for stat, _, mark in PERCENTILES
        ]
        drawn.legend([*_sides(), *marks], 4)
        pooled = " ITL: over all gaps between tokens together." if "itl_ms" in curves else ""
        caption = f"Broad line: measured. Dashed line: predicted. Over the requests that have both times.{pooled}"
        return drawn.figure("distributions", "Distributions of measured and predicted latencies", caption)


def _grid(panels: int) -> tuple[int, int]:
    """(lines, panels in each): four would be too narrow side by side."""
    return (2, 2) if panels == 4 else (1, panels)


def _distribution(ax: Axes, content: Content, metric: str, curve: Mapping[str, Sequence[Any]]) -> None:
    lines = {side: _floats(curve[side]) for side, _ in SIDES}
    share = _floats(curve["share"])
    finite = np.concatenate([line[np.isfinite(line)] for line in lines.values()])
    ax.set_title(MEASURED_LATENCIES[metric])
    ax.set_ylim(0, 1.02)
    style.grid(ax)
    if not len(finite):
        return
    scale = style.time_axis(ax, MEASURED_LATENCIES[metric], float(finite.min()), float(finite.max()))
    for side, look in SIDES:
        ax.plot(lines[side] / scale, share, zorder=2, **look)
        for stat, at, mark in PERCENTILES:
            value = known(((content["errors"].get(metric) or {}).get(stat) or {}).get(side))
            if value is not None:
                dot: Look = {"color": look["color"], "marker": mark, "markersize": 5, "linestyle": "none", "zorder": 4}
                ax.plot([value / scale], [at], **dot)


def requests(content: Content) -> Figure | None:
    """A panel a latency: predicted over measured, a dot a request."""
    pairs = {metric: found for metric, rows in _by_latency(content, "requests").items() if len(found := _pairs(rows))}
    if not pairs:
        return None
    lines, columns = _grid(len(pairs))
    with style.drawing(WIDTH, min(0.85 * WIDTH / columns + 0.5, 4.6) * lines + 0.6) as drawn:
        for ax, (metric, found) in zip(drawn.panels(len(pairs), columns), pairs.items(), strict=True):
            scale, unit = (1000.0, "s") if found.max() >= 10_000 else (1.0, "ms")
            shown = found[_thinned(len(found), MAX_DOTS)] / scale
            style.square(ax, shown.ravel().tolist(), f"{MEASURED_LATENCIES[metric]} [{unit}]")
            ax.plot(shown[:, 0], shown[:, 1], zorder=3, **_DOTS)
            ax.set_title(MEASURED_LATENCIES[metric])
        dot = entry("request", **_DOTS | {"alpha": 1.0, "markersize": 4})
        drawn.legend([dot, *style.square_handles()], 3)
        return drawn.figure(
            "requests", "Predicted against measured latency of each request", _drawn_text(content, pairs)
        )


_DOTS: Look = {
    "color": style.LINE_BLUE, "marker": "o", "markersize": 2.6, "markeredgewidth": 0, "linestyle": "none", "alpha": 0.4,
}  # fmt: skip


def _thinned(number: int, most: int) -> Ints:
    """Positions of at most so many of a list, evenly over it."""
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(np.int64))


def _drawn_text(content: Content, pairs: Mapping[str, Floats]) -> str:
    _, by_metric = counts(content)
    said = []
    for metric, found in pairs.items():
        drawn, total = min(len(found), MAX_DOTS), max(len(found), by_metric.get(metric, 0))
        near = np.abs(found[:, 1] - found[:, 0]) <= style.NEAR_PCT / 100 * found[:, 0]
        of = f"{count(drawn)} of {count(total)} drawn, evenly thinned" if drawn < total else f"{count(total)} drawn"
        said.append(f"{MEASURED_LATENCIES[metric]}: {of}; {100 * near.mean():.0f} % within {style.NEAR_PCT:g} %")
    return f"{'. '.join(said)}."


# --- over time --------------------------------------------------------------------------------------------------------
def series(content: Content) -> Figure | None:
    """Running, waiting and KV use over time, one above the other."""
    found = content.get("series")
    if not found:
        return None
    shown = [key for key in SERIES if found["measured"].get(key) is not None or found["predicted"].get(key) is not None]
    if not shown or not len(found["t_s"]):
        return None
    at = _thinned(len(found["t_s"]), MAX_INSTANTS)
    times = _floats(found["t_s"])[at]
    total = len(found["t_s"])
    thinned = (
        f"{count(len(at))} of {count(total)} instants, evenly thinned" if len(at) < total else things(total, "instant")
    )
    with style.drawing(WIDTH, 1.6 * len(shown) + 0.9) as drawn:
        panels = drawn.panels(len(shown), 1, sharex=True)
        for ax, key in zip(panels, shown, strict=True):
            for side, look in SIDES:
                values = found[side].get(key)
                if values is not None:
                    ax.plot(times, _floats(values)[at], zorder=2, **look | {"linewidth": 0.7 * look["linewidth"]})
            ax.set_ylim(bottom=0)
            ax.set_xlim(float(times[0]), max(float(times[-1]), float(times[0]) + 1e-9))
            ax.set_ylabel(SERIES[key].replace(" [", "\n["))
            ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=key != "kv_pct"))
            style.grid(ax)
        panels[-1].set_xlabel("time since the first arrival [s]")
        drawn.fig.align_ylabels(panels)
        drawn.legend(_sides(), 2)
        alt = f"{', '.join(SERIES[key] for key in shown)} over time"
        return drawn.figure("series", alt, f"{thinned}, joined by straight lines.")


# --- effects ----------------------------------------------------------------------------------------------------------
def ablation(content: Content) -> Figure | None:
    """A panel a number: its error with each effect off, beside that with all on."""
    effects = content.get("ablation")
    keys = [key for key in HEADLINE if error_of(content, key) is not None]
    if not effects or not keys:
        return None
    bands = {band["key"]: band["limit_pct"] for band in content.get("bands") or ()}
    with style.drawing(WIDTH, 1.5 + 0.26 * (len(effects) + 1)) as drawn:
        panels = drawn.panels(len(keys), len(keys), sharey=True)
        for ax, key in zip(panels, keys, strict=True):
            errors = [error_of(content, key), *(known(values.get(key)) for values in effects.values())]
            _bars(ax, errors, bands.get(key))
            ax.set_title(key_name(key))
            ax.set_xlabel("error [%]")
        names = ["all on", *(f"no {style.label(effect_name(name), 40)}" for name in effects)]
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylim(len(effects) + 0.6, -0.6)
        handles = [_ALL_ON.patch(), _ONE_OFF.patch(), entry("error, all on", **_BASE)]
        if any(key in bands for key in keys):
            handles.append(Patch(facecolor=style.GREY, alpha=0.5, label="band asked for"))
        drawn.legend(handles, 4)
        caption = "A bar that ends at the dashed line: the effect does nothing in this run."
        return drawn.figure("ablation", "Errors with one effect switched off", caption)


_ALL_ON = Fill("all effects on", style.LINE_BLUE, None)
_ONE_OFF = Fill("one effect off", style.ORANGE, "////")
_BASE: Look = {"color": style.INK, "linestyle": style.DASHES[1], "linewidth": 1.0}


def _bars(ax: Axes, errors: Sequence[float | None], limit: float | None) -> None:
    """All on first; the length of each bar as a number at the right."""
    given = [value for value in errors if value is not None]
    low, high = min(0.0, *given, -(limit or 0.0)), max(0.0, *given, limit or 0.0)
    span = (high - low) or 1.0
    if limit is not None:
        ax.axvspan(-limit, limit, color=style.GREY, alpha=0.28, linewidth=0, zorder=0)
    ax.axvline(0, color=style.INK, linewidth=0.8)
    for index, value in enumerate(errors):
        fill = _ONE_OFF if index else _ALL_ON
        if value is not None:
            look = fill.look(0.4) if fill.hatch else fill.look(0.4) | {"edgecolor": "none"}
            ax.barh(index, value, height=0.62, zorder=2, **look)
        right = ("axes fraction", "data")
        ax.annotate(error(value), (1, index), xycoords=right, va="center", ha="right", fontsize=7.5)
    if errors[0] is not None:
        ax.axvline(errors[0], zorder=3, **_BASE)
    # Room for the numbers at the right.
    ax.set_xlim(low - 0.06 * span, high + 0.62 * span)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
    style.grid(ax, "x")


# --- values -----------------------------------------------------------------------------------------------------------
def _by_latency(content: Content, key: str) -> dict[str, Any]:
    found = content.get(key) or {}
    return {metric: found[metric] for metric in MEASURED_LATENCIES if found.get(metric)}


def _floats(values: Sequence[Any]) -> Floats:
    """Numbers, NaN where there is none."""
    return np.array([or_nan(value) for value in values], dtype=np.float64)


def _pairs(rows: Sequence[Sequence[Any]]) -> Floats:
    """float64[n, 2] (measured, predicted), those that have both."""
    found = np.stack([_floats([row[0] for row in rows]), _floats([row[1] for row in rows])], axis=1)
    kept: Floats = found[np.isfinite(found).all(axis=1)]
    return kept


def _sides() -> list[Line2D]:
    return [entry(side, **look) for side, look in SIDES]
