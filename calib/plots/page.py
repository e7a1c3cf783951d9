"""The page of plots of a calibration: what was measured, the fit through it, and how wrong the fit is elsewhere.

Owns what is on the page and where.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from calib.fit.fit import FitResult
from calib.fit.score import MIN_ROWS, Errors, HeldOut, errors_of, hold_out
from calib.plots.curves import KINDS, Panel, draw_panel, panels
from calib.plots.style import CYCLE, DASHED, DOTTED, DPI, INK, WIDTH_IN, drawing
from calib.table import Floats, Rows, Table, merge_equal, split_by_limit
from simkit.latency.profile import OpFit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase


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


ORDER = (*KINDS,)
PANELS_A_ROW = 3
MARGINS = {"w_pad": 0.1, "h_pad": 0.1, "wspace": 0.03}
PANEL_IN, HEAD_IN, FOOT_IN, STRIP_IN = 4.0, 0.6, 1.5, 0.42
"""Heights: of a row of panels, the title, what is around the residuals, and one op among them."""


def plot_page(table: Table, result: FitResult, path: Path) -> None:
    """Write the page of `result`, which was fitted to `table`, as one PNG."""
    with drawing():
        page_figure(table, result).savefig(path, format="png", dpi=DPI)


def page_figure(table: Table, result: FitResult) -> Figure:
    """The page as a figure: a panel of curves for each main op, then the residuals of all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = sorted(_measured(table, result), key=lambda found: ORDER.index(found[0].op))
    rows = _in_rows(panels(measured))
    heights = [HEAD_IN + PANEL_IN * len(rows), FOOT_IN + STRIP_IN * len(measured)]
    with drawing():
        figure = Figure(figsize=(WIDTH_IN, sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        figure.get_layout_engine().set(**MARGINS)  # type: ignore[union-attr]
        # Apart, so that the labels of the residuals do not narrow the panels.
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
        heading = title(table, result).encode("ascii", "replace").decode("ascii")
        top.suptitle(heading, x=0.01, ha="left", fontsize=12, parse_math=False)
        # Six columns: one, two or three panels share a row evenly.
        places = top.add_gridspec(len(rows), 6)
        for y, row in enumerate(rows):
            width = 6 // len(row)
            for x, panel in enumerate(row):
                draw_panel(top.add_subplot(places[y, x * width : (x + 1) * width]), panel)
        held = [Row(f"{fit.op} {fit.dtype}", hold_out(rows, fit.limits)) for fit, rows in measured]
        draw_residuals(bottom.add_subplot(), held)
        _key(bottom)
    return figure


def title(table: Table, result: FitResult) -> str:
    """Profile, GPU, number of rows, and who measured them."""
    profile = result.profile
    source = "; ".join(table.sources) or "no source named"
    lines = [f"Profile {profile.name} for {profile.gpu['name']}, fitted to {table.num_rows:,} measurements"]
    return "\n".join(lines + textwrap.wrap(f"Source: {source}", 150, max_lines=2, placeholder=" ..."))


def _measured(table: Table, result: FitResult) -> Iterator[tuple[OpFit, Rows]]:
    """The ops of the profile with the rows that were fitted: without refused ones, one a shape."""
    for key, rows in table.rows.items():
        fit = result.profile.op(*key)
        if fit is not None:
            yield fit, merge_equal(split_by_limit(rows, fit.limits)[0]).rows


def _in_rows(curves: list[Panel]) -> list[list[Panel]]:
    """Panels by row, at most three in one, the first rows no shorter than the last."""
    num_rows = -(-len(curves) // PANELS_A_ROW)
    rows, start = [], 0
    for left in range(num_rows, 0, -1):
        count = -(-(len(curves) - start) // left)
        rows.append(curves[start : start + count])
        start += count
    return rows


def _key(figure: FigureBase) -> None:
    """What the signs of all panels mean, at the foot of the page."""
    from matplotlib.lines import Line2D

    def line(label: str, **look: object) -> Line2D:
        return Line2D([], [], label=label, **{"color": INK, "linewidth": 1.3, **look})  # type: ignore[arg-type]

    dots = {"marker": "o", "linestyle": "none", "markersize": 5}
    figure.legend(
        handles=[
            line("measured", **dots),
            line("fitted"),
            line("fitted, extrapolated", linestyle=DOTTED),
            line("physical limit", linestyle=DASHED, linewidth=0.9),
            line("held out, inside the measured grid", **dots | {"color": CYCLE[0]}),
            line("held out, outside of it", **dots | {"color": CYCLE[4]}),
            line("median error", linewidth=2.0),
            line("p95 of absolute errors", linestyle=(0, (2, 1.2)), linewidth=1.2),
        ],
        loc="outside lower center",
        ncol=4,
    )
