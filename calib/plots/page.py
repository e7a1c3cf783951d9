"""The page of plots of a calibration: what was measured, the fit through it, and how wrong the fit is elsewhere.

Owns what is on the page and where.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from calib.fit.checks import merge_equal, split_by_limit
from calib.fit.fit import FitResult
from calib.fit.score import hold_out
from calib.plots.curves import KINDS, Panel, draw_panel, panels
from calib.plots.residuals import Row, draw_residuals
from calib.plots.style import CYCLE, DASHED, DOTTED, DPI, INK, WIDTH_IN, drawing
from calib.table import Rows, Table
from simkit.latency.profile import OpFit

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase

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
