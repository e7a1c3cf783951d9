"""How far a fit is from shapes that it was not fitted to: one row of dots an op."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from calib.fit.score import MIN_ROWS, Errors, HeldOut, errors_of
from calib.plots.style import CYCLE, INK
from calib.table import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINEAR_PCT = 10.0
"""The axis is linear up to here and logarithmic beyond, so that both the bulk and the worst shape can be read."""

CROWDED_PCT = 500.0
"""An axis that reaches this far has fewer ticks."""

MAX_DOTS = 1500
"""Dots of an op, evenly chosen by error so that the extremes are among them; numbers are of all shapes."""

DOTS_HIGH = 0.3
"""Half the height of a row of dots."""


@dataclass(frozen=True, slots=True)
class Row:
    """Held-out shapes of one op; None when there were too few to hold any out."""

    label: str
    held: HeldOut | None


def draw_residuals(ax: Axes, rows: Seq[Row]) -> None:
    """Signed errors of held-out shapes by op, first on top, with their numbers at the right."""
    from matplotlib.ticker import NullLocator

    reach = max([LINEAR_PCT, *(float(np.abs(_percent(row.held)).max()) for row in rows if row.held is not None)])
    for place, row in enumerate(rows):
        if row.held is None:
            text = f"fewer than {MIN_ROWS} shapes: none held out"
        else:
            _draw_dots(ax, place, row.held)
            text = describe(row.held)
        ax.annotate(text, (1.0, place), xycoords=("axes fraction", "data"), xytext=(8, 0),
                    textcoords="offset points", va="center", fontsize=9.5)  # fmt: skip
    ax.axvline(0.0, color=INK, linewidth=0.8)
    ax.set_xscale("symlog", linthresh=LINEAR_PCT, linscale=1.2)
    ax.set_xlim(-reach * 1.15, reach * 1.15)
    ticks = _ticks(reach * 1.15)
    ax.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [row.label for row in rows])
    ax.grid(False, axis="y")
    ax.set(title="Held-out shapes, by a fit on the other 80 %", xlabel="predicted / measured - 1 (%)")


def _ticks(reach: float) -> list[int]:
    """1, 2 and 5 times powers of ten; powers alone where the others would run into each other."""
    digits = (1, 2, 5) if reach < CROWDED_PCT else (1,)
    outer = [d * 10**power for power in range(1, 7) for d in digits if d * 10**power <= reach]
    return [*(-tick for tick in reversed(outer)), -5, 0, 5, *outer]


def describe(held: HeldOut) -> str:
    """The errors of an op in words: of shapes inside the measured grid and of the others, as `fit.score` has it."""
    parts = []
    for name, errors in (("inside", _errors(held, held.inside)), ("outside", _errors(held, ~held.inside))):
        if errors.num:
            parts.append(f"{name} {errors.mape_pct:.1f} % (p95 {errors.p95_pct:.0f} %, n {errors.num:,})")
    return "MAPE " + ", ".join(parts)


def _draw_dots(ax: Axes, place: int, held: HeldOut) -> None:
    error = _percent(held)
    order = np.argsort(error, kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), MAX_DOTS)).astype(int))]
    # Spread by the golden ratio instead of at random: even, and the same each time.
    heights = place + DOTS_HIGH * (2.0 * ((np.arange(len(shown)) * 0.618034) % 1.0) - 1.0)
    for inside, color in ((held.inside[shown], CYCLE[0]), (~held.inside[shown], CYCLE[4])):
        ax.scatter(error[shown][inside], heights[inside], s=6, color=color, alpha=0.55, linewidths=0)
    median, p95 = float(np.median(error)), float(np.percentile(np.abs(error), 95))
    ax.plot([median, median], [place - 0.4, place + 0.4], color=INK, linewidth=2.0)
    for edge in (-p95, p95):
        ax.plot([edge, edge], [place - 0.4, place + 0.4], color=INK, linewidth=1.2, linestyle=(0, (2, 1.2)))


def _percent(held: HeldOut) -> Floats:
    error: Floats = (held.us / held.rows.us - 1.0) * 100.0
    return error


def _errors(held: HeldOut, chosen: npt.NDArray[np.bool_]) -> Errors:
    return errors_of(held.us[chosen], held.rows.us[chosen])
