"""Axes on which a prediction is set against a measurement: equal scales, the line of no error, 10 % to either side.

Knows matplotlib and style, not what is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from simkit.report.figures import style

NEAR_PCT = 10.0
"""Half the width of the band around the line, in per cent of what was measured."""

WIDE = 8.0
"""Largest over smallest value from which axes are logarithmic."""

EQUAL: dict[str, Any] = {"color": style.INK, "linewidth": 1.0}
_BAND: dict[str, Any] = {"color": style.GREY, "alpha": 0.3, "linewidth": 0}


def square(ax: Axes, values: Sequence[float], name: str, *, always_log: bool = False) -> None:
    """Equal axes around `values` (both coordinates, unit as in `name`) with line and band.

    Axes are logarithmic where the values spread, or `always_log`, and all are positive.
    """
    low, high = min(values), max(values)
    log = low > 0 and (always_log or high / low > WIDE)
    if log:
        ax.set_xscale("log")
        ax.set_yscale("log")
        low, high = low / 1.25, high * 1.25
    else:
        pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = min(low - pad, high - pad), high + pad
    ends = np.array([low, high])
    share = NEAR_PCT / 100
    line = np.geomspace(low, high, 60) if log else np.linspace(low, high, 60)
    ax.fill_between(line, line * (1 - share), line * (1 + share), zorder=0, **_BAND)
    ax.plot(ends, ends, zorder=1, **EQUAL)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_box_aspect(1)
    for axis in (ax.xaxis, ax.yaxis):
        if log:
            axis.set_major_locator(LogLocator(subs=_subs(high / low), numticks=12))
            axis.set_minor_formatter(NullFormatter())
        else:
            axis.set_major_locator(MaxNLocator(nbins=5))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.set_xlabel(f"measured {name}")
    ax.set_ylabel(f"predicted {name}")
    style.grid(ax)


def _subs(ratio: float) -> tuple[float, ...]:
    """Which multiples of a power of ten are labelled on a small axis whose ends have this ratio."""
    if ratio > 1000:
        return (1.0,)
    if ratio > 60:
        return (1.0, 3.0)
    return (1.0, 2.0, 5.0) if ratio > 4 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


def handles() -> list[Line2D | Patch]:
    """What line and band look like in a legend."""
    return [
        Line2D([], [], label="no error", **EQUAL),
        Patch(label=f"within {NEAR_PCT:g} %", facecolor=style.GREY, alpha=0.5),
    ]
