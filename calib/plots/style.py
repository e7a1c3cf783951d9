"""How the page of plots looks: palette, fonts, number formats. Knows no fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

# The palette of simkit.report.figures.style (Okabe-Ito), which calib may not import.
INK, GREY = "#1c1c1c", "#9A9A9A"
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DOTTED, DASHED = (0, (1, 1.6)), (0, (5, 3))

WIDTH_IN, DPI = 14.0, 100
"""1,400 pixels wide: what fits a README and a screen."""

LEGEND_BELOW_IN = 0.5
"""From the axes down past tick labels and axis label."""

_RC: dict[Any, Any] = {
    "figure.facecolor": "white",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.0,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
}


@contextmanager
def drawing() -> Iterator[None]:
    """matplotlib's own defaults plus the house style, whatever the user's matplotlibrc says."""
    import matplotlib as mpl

    rc: dict[Any, Any] = {key: mpl.rcParamsDefault[key] for key in mpl.rcParamsDefault if "backend" not in key}
    with mpl.rc_context(rc | _RC):
        yield


def legend_below(ax: Axes, columns: int) -> Legend:
    """The legend under the axis label, outside of the data whatever the curves do."""
    from matplotlib.transforms import ScaledTranslation

    below = ax.transAxes + ScaledTranslation(0, -LEGEND_BELOW_IN, ax.figure.dpi_scale_trans)
    return ax.legend(
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        bbox_transform=below,
        ncol=columns,
        borderaxespad=0.0,
        handlelength=2.2,
        columnspacing=1.2,
    )


def plain(value: float) -> str:
    """A tick label without exponent: 0.5, 100, 20k, 3M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"
