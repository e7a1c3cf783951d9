"""Axes that several charts share: what is labelled where, time, and a prediction set against a measurement.

Knows matplotlib and the house style, not what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter

from simkit.report.figures import style
from simkit.report.figures.style import Look

NEAR_PCT = 10.0
"""Half the width of the band around no error, in per cent of what was measured."""

SQUARE_WIDE = 8.0
"""Largest over smallest value from which `square` axes are logarithmic."""

TIME_WIDE = 20
"""Largest over smallest time beyond which its axis is logarithmic."""

PLAIN = ",.10g"
"""A number without exponent, thousands apart."""

EQUAL: Look = {"color": style.INK, "linewidth": 1.0}


def grid(ax: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """A faint grid behind the data."""
    ax.grid(True, axis=axis)
    ax.set_axisbelow(True)


def empty(ax: Axes, text: str) -> None:
    """A panel without data says why."""
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
    ax.set_xticks([])


def ticks(axis: Axis, locator: Locator | None = None, form: str = PLAIN) -> None:
    """Numbers of that format at the places of `locator`, and none between."""
    if locator is not None:
        axis.set_major_locator(locator)
    axis.set_major_formatter(FuncFormatter(lambda value, _: format(value, form)))
    axis.set_minor_formatter(NullFormatter())


def time_axis(ax: Axes, name: str, low_ms: float, high_ms: float) -> float:
    """Scale and label the x axis for these latencies; gives the ms in its unit."""
    scale, unit = (1000.0, "s") if high_ms >= 10_000 else (1.0, "ms")
    if low_ms > 0 and high_ms / low_ms > TIME_WIDE:
        ax.set_xscale("log")
        subs = (1.0,) if high_ms / low_ms > 200 else (1.0, 2.0, 5.0)
        ticks(ax.xaxis, LogLocator(subs=subs, numticks=9), "g")
    else:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6))
    ax.set_xlabel(f"{name} [{unit}]")
    return scale


def square(ax: Axes, values: Sequence[float], name: str, *, always_log: bool = False) -> None:
    """Equal axes around `values` (both coordinates, unit as in `name`) with the line of no error and 10 % about it.

    Axes are logarithmic where the values spread, or `always_log`, and all are positive.
    """
    low, high = min(values), max(values)
    log = low > 0 and (always_log or high / low > SQUARE_WIDE)
    if log:
        ax.set_xscale("log")
        ax.set_yscale("log")
        low, high = low / 1.25, high * 1.25
    else:
        pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = min(low - pad, high - pad), high + pad
    share = NEAR_PCT / 100
    line = np.geomspace(low, high, 60) if log else np.linspace(low, high, 60)
    ax.fill_between(line, line * (1 - share), line * (1 + share), zorder=0, color=style.GREY, alpha=0.3, linewidth=0)
    ax.plot([low, high], [low, high], zorder=1, **EQUAL)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_box_aspect(1)
    for axis in (ax.xaxis, ax.yaxis):
        ticks(axis, LogLocator(subs=_subs(high / low), numticks=12) if log else MaxNLocator(nbins=5), ",g")
    ax.set_xlabel(f"measured {name}")
    ax.set_ylabel(f"predicted {name}")
    grid(ax)


def _subs(ratio: float) -> tuple[float, ...]:
    """Which multiples of a power of ten are labelled on a small axis whose ends have this ratio."""
    if ratio > 1000:
        return (1.0,)
    if ratio > 60:
        return (1.0, 3.0)
    return (1.0, 2.0, 5.0) if ratio > 4 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


def square_handles() -> list[Line2D | Patch]:
    """What line and band look like in a legend."""
    return [
        style.entry("no error", **EQUAL),
        Patch(label=f"within {NEAR_PCT:g} %", facecolor=style.GREY, alpha=0.5),
    ]
