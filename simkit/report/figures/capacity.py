"""The charts of a plan that compare settings: capacity against max_num_seqs, chance to pass, sensitivity.

Charts against the rate are in `curves`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.figures.style import Look, entry
from simkit.report.read.plan import Content, Row, combinations, ends, several_gpus
from simkit.report.sections.plan_choice import variation_name
from simkit.report.words import known, or_nan

MAX_LINES = 4
"""Combinations of further settings that share axes; more get a panel each."""

PANELS_A_ROW = 3

MARKERS = {
    "slots": "o",
    "KV blocks": "s",
    "token budget": "^",
    "compute": "D",
    "TTFT": "v",
    "TPOT": "P",
    "E2E": "X",
}
"""What binds at a point, by the shape of its marker."""

RECOMMENDED: Look = {
    "marker": "o", "markersize": 15, "markerfacecolor": "none", "markeredgecolor": style.INK, "markeredgewidth": 1.6,
    "linestyle": "none", "zorder": 5,
}  # fmt: skip
RINGS: dict[str, Look] = {
    "recommended": RECOMMENDED,
    "knee": RECOMMENDED | {"marker": "s", "markersize": 12, "markeredgewidth": 1.0},
}
BOUND: Look = {"color": style.INK, "linestyle": style.DASHES[2], "linewidth": 1.2}
CAPACITY: Look = {"color": style.INK, "linestyle": style.DASHES[1], "linewidth": 1.0}
CLEAR: Look = {"color": style.VERMILLION, "marker": "D"}
UNCLEAR: Look = {"color": style.LINE_BLUE, "marker": "o", "markerfacecolor": "none", "markeredgewidth": 1.5}


@dataclass(frozen=True, slots=True)
class _Point:
    """A point with a capacity and its interval, in requests/s: of one GPU, where points differ in how many they take.

    `bound` is how many sequences it can hold at most, `limit` names what binds.
    """

    name: str
    slots: int
    bound: int
    limit: str | None
    low: float
    at: float
    high: float

    @property
    def marker(self) -> str:
        return MARKERS.get(str(self.limit), ".")


Lines = Mapping[str, Sequence[_Point]]
"""The points of each combination of further settings, by max_num_seqs."""


def capacity(content: Content) -> Figure | None:
    """Capacity against max_num_seqs with its interval; None when no point has a capacity."""
    lines = _lines(content)
    slots = sorted({point.slots for points in lines.values() for point in points})
    if not lines:
        return None
    if len(slots) == 1 and len(lines) > 1:
        return _at_one_slots(content, {name: points[0] for name, points in lines.items()})
    in_panels = len(lines) > MAX_LINES
    columns = PANELS_A_ROW if in_panels else 1
    height = 2.6 * math.ceil(len(lines) / columns) + 1.1 if in_panels else 4.9
    with style.drawing(style.WIDTH, height) as drawn:
        panels = drawn.panels(len(lines) if in_panels else 1, columns, sharex=True, sharey=True)
        if in_panels:
            _one_a_panel(panels, content, lines)
        else:
            _together(panels[0], content, lines)
        for index, ax in enumerate(panels):
            is_lowest = index + columns >= len(panels)
            _slots_axis(ax, slots, narrow=in_panels)
            ax.set_ylim(bottom=0)
            style.grid(ax)
            ax.set_ylabel(_unit(content) if index % columns == 0 else "")
            ax.set_xlabel("max_num_seqs [sequences]" if is_lowest else "")
            if is_lowest:
                ax.tick_params(labelbottom=True)
        several = len(lines) > 1 and not in_panels
        names = [entry(name, **_turn(index) | {"linewidth": 1.5}) for index, name in enumerate(lines) if several]
        drawn.legend([*names, *_legend(content, lines), entry("physical bound", **BOUND)], 4)
        return drawn.figure("capacity", "Capacity against max_num_seqs", _caption(content, len(lines)))


def _lines(content: Content) -> Lines:
    """The combinations that have points with a capacity."""
    found = {
        name: [_point(point, point["gpus"] if several_gpus(content) else 1) for point in points if point["capacity"]]
        for name, points in combinations(content).items()
    }
    return {name: points for name, points in found.items() if points}


def _point(point: Row, share: int) -> _Point:
    low, at, high = (or_nan(point["capacity"][f"{key}_per_s"]) / share for key in ("low", "estimate", "high"))
    limit = (point["limit"] or {}).get("name")
    return _Point(point["name"], point["max_num_seqs"], int(point["physical"]["bound"]), limit, low, at, high)


def _caption(content: Content, combined: int, interval: str = "band") -> str:
    text = f"The {interval} is the 95 % interval; the shape of a mark is the limit that binds there."
    if combined > 1:
        text += (
            " One " + ("panel" if combined > MAX_LINES else "line") + " for each combination of the further settings."
        )
    if several_gpus(content):
        text += " Points take different numbers of GPUs, so capacities are shown for one GPU."
    return text


def _unit(content: Content) -> str:
    return "capacity a GPU [requests/s]" if several_gpus(content) else "capacity [requests/s]"


def _one_a_panel(panels: Sequence[Axes], content: Content, lines: Lines) -> None:
    for ax, (name, points) in zip(panels, lines.items(), strict=True):
        ax.axvline(_bound(points), zorder=2, **BOUND)
        _line(ax, content, points, _turn(0))
        ax.set_title(name)


def _together(ax: Axes, content: Content, lines: Lines) -> None:
    """All on the same axes; bounds in the colours of their lines, where they differ."""
    same = len({_bound(points) for points in lines.values()}) == 1
    for index, points in enumerate(lines.values()):
        if index == 0 or not same:
            ax.axvline(_bound(points), zorder=2, **BOUND | {"color": style.INK if same else style.CYCLE[index]})
        _line(ax, content, points, _turn(index))


def _line(ax: Axes, content: Content, points: Sequence[_Point], look: Look) -> None:
    """One combination: band, line, a mark a point, rings around the recommended point and the knee."""
    color, slots = look["color"], [point.slots for point in points]
    low, high = [point.low for point in points], [point.high for point in points]
    ax.fill_between(slots, low, high, color=color, alpha=0.18, linewidth=0)
    ax.plot(slots, [point.at for point in points], linewidth=1.5, zorder=3, **look)
    for point in points:
        if len(points) == 1:
            ax.plot([point.slots] * 2, [point.low, point.high], color=color, linewidth=1.2)
        ax.plot([point.slots], [point.at], marker=point.marker, color=color, markersize=6, linestyle="none", zorder=4)
        for ring in _rings(content, point.name):
            ax.plot([point.slots], [point.at], **ring)


def _turn(index: int) -> Look:
    """Colour and dash of a line among others."""
    return {"color": style.CYCLE[index], "linestyle": style.DASHES[index]}


def _bound(points: Sequence[_Point]) -> int:
    """The physical bound of a line; it falls a little where more slots take memory, and the largest is drawn."""
    return max(point.bound for point in points)


def _rings(content: Content, name: str) -> list[Look]:
    """What marks a point as the recommended one or the knee."""
    return [look for key, look in RINGS.items() if content.get(key) and content[key]["name"] == name]


def _at_one_slots(content: Content, points: Mapping[str, _Point]) -> Figure:
    """Capacities where only further settings differ: a line each."""
    with style.drawing(style.WIDTH, 1.6 + 0.32 * len(points)) as drawn:
        ax = drawn.fig.subplots()
        for index, point in enumerate(points.values()):
            ax.plot([point.low, point.high], [index] * 2, color=style.GREY, linewidth=3, solid_capstyle="butt")
            ax.plot([point.at], [index], marker=point.marker, color=style.LINE_BLUE, markersize=6, linestyle="none")
            if RECOMMENDED in _rings(content, point.name):
                ax.plot([point.at], [index], **RECOMMENDED)
        ax.set_yticks(range(len(points)), list(points))
        ax.set_ylim(len(points) - 0.4, -0.6)
        ax.set_xlim(left=0)
        style.grid(ax, "x")
        ax.set_xlabel(_unit(content))
        # One max_num_seqs has neither a line nor a knee, and its bound is no place on this axis.
        drawn.legend(_legend(content, {name: [point] for name, point in points.items()}), 4)
        slots = next(iter(points.values())).slots
        caption = f"All at max_num_seqs {slots}. {_caption(content, 1, 'bar')}"
        return drawn.figure("capacity", "Capacity against the further settings", caption)


def _slots_axis(ax: Axes, values: Sequence[int], *, narrow: bool) -> None:
    """log2, labelled with values of the grid, in order, that do not touch each other."""
    ax.set_xscale("log", base=2)
    apart = math.log2(max(values) / min(values)) / (6 if narrow else 13)
    labels = list(values[:1])
    for value in values[1:]:
        if math.log2(value / labels[-1]) >= apart:
            labels.append(value)
    ax.xaxis.set_minor_locator(NullLocator())
    style.ticks(ax.xaxis, FixedLocator(labels), "g")


def _legend(content: Content, lines: Lines) -> list[Line2D | Patch]:
    """What marks, rings and bands say."""
    points = [point for line in lines.values() for point in line]
    limits = {point.limit for point in points}
    mark = partial(entry, color=style.INK, linestyle="none", markersize=6)
    handles: list[Line2D | Patch] = [
        mark(f"limit: {name}", marker=marker) for name, marker in MARKERS.items() if name in limits
    ]
    handles.append(Patch(facecolor=style.GREY, alpha=0.4, label="95 % interval"))
    shown = {point.name for point in points}
    for key, look in RINGS.items():
        if content.get(key) and content[key]["name"] in shown:
            handles.append(entry(key, **look | {"markersize": 0.7 * look["markersize"]}))
    return handles


def chance(content: Content) -> Figure | None:
    """The chance of a single run to pass against the rate, for the recommended point."""
    rows = content.get("chance") or ()
    if not rows:
        return None
    found = content["recommended"]["capacity"]
    rates = [row["rate_per_s"] for row in rows]
    marks = [known(found["likely_per_s"]), known(found["unlikely_per_s"])]
    extent = [*rates, *(at for at in (*marks, *ends(found)) if at)]
    pad = 0.06 * (max(extent) - min(extent)) or 0.05 * max(extent)
    left, right = max(0.0, min(extent) - pad), max(extent) + pad
    line: Look = {"color": style.LINE_BLUE, "linewidth": 1.8}
    mark: Look = {"color": style.VERMILLION, "marker": "D", "linestyle": "none"}
    with style.drawing(style.WIDTH, 3.4) as drawn:
        ax = drawn.fig.subplots()
        band(ax, found)
        steps = [1.0, *(row["chance"] for row in rows), rows[-1]["chance"]]
        ax.step([left, *rates, right], steps, where="post", **line)
        for at, level in zip(marks, (0.9, 0.1), strict=True):
            if at is not None:
                ax.plot([at], [level], markersize=6, zorder=4, **mark)
        ax.set_xlim(left, right)
        ax.set_ylim(-0.03, 1.05)
        style.ticks(ax.yaxis, FixedLocator([0, 0.1, 0.25, 0.5, 0.75, 0.9, 1]), "g")
        style.grid(ax)
        ax.set_xlabel("request rate [requests/s]")
        ax.set_ylabel("share of replications that pass")
        handles = [entry("chance to pass", **line), entry("chance 0.9 and 0.1", **mark), *band_handles()]
        drawn.legend(handles, 4)
        caption = f"Replications of the recommended point: {found['replications']}. Each step is one of them."
        return drawn.figure("chance", "Chance to pass against the request rate", caption)


def band(ax: Axes, found: Row) -> None:
    """The capacity of the recommended point and its interval, across the axes."""
    low, high = ends(found)
    if low is not None and high is not None:
        ax.axvspan(low, high, color=style.GREY, alpha=0.28, linewidth=0, zorder=0)
    ax.axvline(found["estimate_per_s"], zorder=1, **CAPACITY)


def band_handles() -> list[Line2D | Patch]:
    """What `band` looks like in a legend."""
    return [entry("capacity", **CAPACITY), Patch(facecolor=style.GREY, alpha=0.5, label="its 95 % interval")]


def sensitivity(content: Content) -> Figure | None:
    """Ratios to the recommended capacity with their intervals, a line a setting."""
    rows = [row for row in content.get("sensitivity") or () if row["ratio"]]
    if not rows:
        return None
    with style.drawing(style.WIDTH, 1.5 + 0.32 * len(rows)) as drawn:
        ax = drawn.fig.subplots()
        ax.axvline(1, **CAPACITY)
        for index, row in enumerate(rows):
            low, at, high = (known(row["ratio"][key]) for key in ("low", "estimate", "high"))
            clear = low is not None and high is not None and not low <= 1 <= high
            look = CLEAR if clear else UNCLEAR
            if low is not None and high is not None:
                ax.plot([low, high], [index, index], color=look["color"], linewidth=1.6, solid_capstyle="butt")
            ax.plot([or_nan(at)], [index], linestyle="none", markersize=6.5, **look)
        ax.set_yticks(range(len(rows)), [variation_name(row) for row in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        style.grid(ax, "x")
        ax.set_xlabel("capacity as a ratio to the recommended point's, with 95 % interval")
        mark = partial(entry, linestyle="none", markersize=6.5)
        handles = [mark("interval without 1", **CLEAR), mark("no clear difference", **UNCLEAR)]
        drawn.legend([*handles, entry("as the recommended point", **CAPACITY)], 3)
        alt = "Sensitivity of the capacity to neighbouring settings"
        return drawn.figure("sensitivity", alt, "The same customers in every setting.")
