"""How figures look: palette, line styles, shared axes, and SVG in the page's colours. Knows matplotlib, not runs.

Figures are transparent and draw text, axes and grid in a sentinel colour that becomes ``currentColor``, so one SVG
serves the light and the dark page. Data colours are from the Okabe-Ito palette and are always doubled by a hatch or
a line style.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import matplotlib as mpl
import numpy as np
from matplotlib import figure
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter

from simkit.report.document import Figure
from simkit.units import NS_PER_MS, NS_PER_S

INK = "#010203"  # replaced by currentColor
LINE_BLUE = "#0072B3"  # replaced by var(--blue), which is lighter on the dark page
HATCH_INK = "#1c1c1c"  # on the data colours, which are the same in both themes
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#9A9A9A"
CYCLE = (LINE_BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
Dash = Literal["-", "--", "none"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", (0, (4, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)))
WIDTH = 9.4
"""Inches of a chart that stands alone, so that letters are of one size."""

_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "simkit",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "hatch.linewidth": 0.6,
    "path.simplify": False,
    "text.parse_math": False,  # a name may hold dollar signs
}
_ID = re.compile(r'\sid="([^"]*)"')
_REFERENCE = re.compile(r'(?:url\(#|href="#)([^)"]+)')
_GEOMETRY = re.compile(r'(\s(?:d|x|y|x1|x2|y1|y2|points|transform|width|height)=")([^"]*)(")')
_PATH_GAPS = re.compile(r"\s*([MLHVCQSTAZz])\s*")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_FONTS = re.compile(r"'DejaVu Sans'[^;\"]*")


class Look(TypedDict, total=False):
    """How a line or a mark is drawn, in the words of matplotlib."""

    color: str
    linestyle: Dash
    linewidth: float
    marker: str
    markersize: float
    markerfacecolor: str
    markeredgecolor: str
    markeredgewidth: float
    alpha: float
    zorder: float


class FillLook(TypedDict):
    """How an area is drawn, in the words of matplotlib."""

    facecolor: str
    edgecolor: str
    hatch: str | None
    linewidth: float


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit for a time axis: `name` as printed and how many ns it has."""

    name: str
    ns: int


@dataclass(frozen=True, slots=True)
class Fill:
    """How an area is drawn: label in the legend, colour and hatch."""

    label: str
    color: str
    hatch: str | None

    def look(self, linewidth: float) -> FillLook:
        """How it is drawn, with an outline so wide."""
        edge = INK if self.color == "none" else HATCH_INK
        return {"facecolor": self.color, "edgecolor": edge, "hatch": self.hatch, "linewidth": linewidth}

    def patch(self) -> Patch:
        """Its legend entry."""
        return Patch(label=self.label, **self.look(0.5))


@dataclass(frozen=True, slots=True)
class Canvas:
    """A picture that is being drawn; see `drawing`."""

    fig: figure.Figure

    def panels(self, count: int, columns: int, *, sharex: bool = False, sharey: bool = False) -> list[Axes]:
        """So many axes, `columns` of them side by side."""
        lines = math.ceil(count / columns)
        found: list[Axes] = list(
            self.fig.subplots(lines, columns, squeeze=False, sharex=sharex, sharey=sharey).flatten()
        )
        for ax in found[count:]:
            ax.set_visible(False)
        return found[:count]

    def legend(self, handles: Sequence[object], columns: int) -> None:
        """One legend under all axes, outside of the data."""
        if handles:
            self.fig.legend(handles=list(handles), loc="outside lower center", ncol=columns, handlelength=2.4)

    def figure(self, key: str, alt: str, caption: str) -> Figure:
        """The picture as a page shows it, with `alt` as its accessible name. `key` is unique in the page."""
        return Figure(_inline(self.fig, key, alt), caption)

    def save(self, directory: Path, name: str) -> None:
        """Write it as SVG and PNG, on white. OSError passes through."""
        self.fig.savefig(directory / f"{name}.svg", dpi=150, facecolor="white", metadata={"Date": None})
        self.fig.savefig(directory / f"{name}.png", dpi=150, facecolor="white")


@contextmanager
def drawing(width: float, height: float) -> Iterator[Canvas]:
    """An empty picture of that many inches whose layout keeps labels and legend apart.

    Inside of the block hold matplotlib's own defaults plus the house style, whatever the user's matplotlibrc says, so
    that it is drawn and written there.
    """
    rc: dict[Any, Any] = {key: mpl.rcParamsDefault[key] for key in mpl.rcParamsDefault if "backend" not in key}
    with mpl.rc_context(rc | _RC):
        yield Canvas(figure.Figure(figsize=(width, height), layout="constrained"))


def entry(name: str, **look: Unpack[Look]) -> Line2D:
    """The legend entry of a line or a mark."""
    return Line2D([], [], label=name, **look)


def time_unit(span_ns: float) -> TimeUnit:
    """Milliseconds for spans under 2 s, else seconds."""
    return TimeUnit("ms", NS_PER_MS) if span_ns < 2 * NS_PER_S else TimeUnit("s", NS_PER_S)


def label(text: str, longest: int = 60) -> str:
    """A name for a picture: what no font can draw as ``?``, and cut, with an ellipsis, where it is too long."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


# --- axes that several charts share -----------------------------------------------------------------------------------
NEAR_PCT = 10.0
"""Half the width of the band around no error, in per cent of what was measured."""

SQUARE_WIDE = 8.0
"""Largest over smallest value from which `square` axes are logarithmic."""

TIME_WIDE = 20
"""Largest over smallest time beyond which its axis is logarithmic."""

PLAIN = ",.10g"
"""A number without exponent, thousands apart."""

EQUAL: Look = {"color": INK, "linewidth": 1.0}


def grid(ax: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """A faint grid behind the data."""
    ax.grid(True, axis=axis)
    ax.set_axisbelow(True)


def empty(ax: Axes, text: str, *, shares_y: bool = False) -> None:
    """A panel without data says why."""
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
    ax.set_xticks([])
    if not shares_y:
        ax.set_yticks([])


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
    ax.fill_between(line, line * (1 - share), line * (1 + share), zorder=0, color=GREY, alpha=0.3, linewidth=0)
    ax.plot([low, high], [low, high], zorder=1, **EQUAL)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_box_aspect(1)
    for axis in (ax.xaxis, ax.yaxis):
        ticks(axis, LogLocator(subs=_labelled(high / low), numticks=12) if log else MaxNLocator(nbins=5), ",g")
    ax.set_xlabel(f"measured {name}")
    ax.set_ylabel(f"predicted {name}")
    grid(ax)


def _labelled(ratio: float) -> tuple[float, ...]:
    """Which multiples of a power of ten are labelled on a small axis whose ends have this ratio."""
    if ratio > 1000:
        return (1.0,)
    if ratio > 60:
        return (1.0, 3.0)
    return (1.0, 2.0, 5.0) if ratio > 4 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


def square_handles() -> list[Line2D | Patch]:
    """What line and band look like in a legend."""
    return [
        entry("no error", **EQUAL),
        Patch(label=f"within {NEAR_PCT:g} %", facecolor=GREY, alpha=0.5),
    ]


# --- SVG --------------------------------------------------------------------------------------------------------------
def _inline(fig: figure.Figure, key: str, alt: str) -> str:
    """The SVG of a picture for a page.

    Ids get the key as prefix (a page holds many figures), those that nothing refers to are dropped, coordinates are
    rounded to 0.01 pt, and nothing refers to the network.
    """
    buffer = io.StringIO()
    fig.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    used = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda m: f' id="{key}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{key}-", svg).replace("xlink:href", "href")
    svg = _GEOMETRY.sub(_compact, svg)
    svg = _FONTS.sub("sans-serif", svg).replace(INK, "currentColor").replace(LINE_BLUE.lower(), f"var(--blue, {BLUE})")
    svg = re.sub(r"\n\s*", "\n", svg)
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box is not None
    head = f'<svg {view_box[0]} role="img" aria-label="{html.escape(alt)}">'
    return head + svg[svg.index(">") + 1 :].strip()


def _compact(match: re.Match[str]) -> str:
    """A geometry attribute with short numbers and, in paths, without spaces around commands."""
    text = _LONG_NUMBER.sub(_rounded, match[2])
    if match[1].strip() == 'd="':
        text = _PATH_GAPS.sub(r"\1", text).strip()
    return match[1] + text + match[3]


def _rounded(match: re.Match[str]) -> str:
    text = f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
