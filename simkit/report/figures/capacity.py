"""The figures of a plan that compare settings: capacity against max_num_seqs, chance to pass, sensitivity.

Figures against the rate are in `curves`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.read.plan import Content, combinations, ends, several_gpus
from simkit.report.sections.plan_choice import variation_name
from simkit.report.words import known

MAX_LINES = 4
"""Combinations of further settings that share axes; more get a panel each."""

PANELS_A_ROW = 3
WIDTH = 9.4
"""Inches of every figure, so that letters are of one size."""

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

Points = Sequence[Mapping[str, Any]]


def capacity(content: Content) -> Figure | None:
    """Capacity against max_num_seqs with its interval; None when no point has a capacity."""
    lines = {name: [p for p in points if p["capacity"]] for name, points in combinations(content).items()}
    drawn = {name: points for name, points in lines.items() if points}
    if not drawn:
        return None
    if len({point["max_num_seqs"] for points in drawn.values() for point in points}) == 1 and len(drawn) > 1:
        return _combinations(content, {name: points[0] for name, points in drawn.items()})
    panels = len(drawn) > MAX_LINES
    rows = math.ceil(len(drawn) / PANELS_A_ROW) if panels else 1
    with style.drawing():
        fig = style.new_figure(WIDTH, 2.6 * rows + 1.1) if panels else style.new_figure(WIDTH, 4.9)
        axes = fig.subplots(rows, PANELS_A_ROW if panels else 1, sharex=True, sharey=True, squeeze=False).flatten()
        same = len({_bound(points) for points in drawn.values()}) == 1
        for index, (name, points) in enumerate(drawn.items()):
            ax = axes[index if panels else 0]
            if panels or index == 0 or not same:
                color = style.INK if panels or same else style.CYCLE[index]
                ax.axvline(_bound(points), zorder=2, **(_BOUND | {"color": color}))
            _line(ax, content, points, 0 if panels else index)
            if panels:
                ax.set_title(name)
        unit = "capacity a GPU [requests/s]" if several_gpus(content) else "capacity [requests/s]"
        for index, ax in enumerate(axes):
            if panels and index >= len(drawn):
                ax.set_visible(False)
                continue
            _slots_axis(ax, [point["max_num_seqs"] for points in drawn.values() for point in points], panels)
            ax.set_ylim(bottom=0)
            style.grid(ax)
            ax.set_ylabel(unit if not panels or index % PANELS_A_ROW == 0 else "")
            ax.set_xlabel("max_num_seqs [sequences]" if not panels or index + PANELS_A_ROW >= len(drawn) else "")
            if panels and index + PANELS_A_ROW >= len(drawn):
                ax.tick_params(labelbottom=True)
        style.legend_below(fig, _legend(content, drawn, panels), 4)
        svg = style.to_svg(fig, "capacity", "Capacity against max_num_seqs")
    return Figure(svg, _capacity_caption(content, len(drawn)))


def _capacity_caption(content: Content, combined: int) -> str:
    text = "The band is the 95 % interval; the shape of a mark is the limit that binds there."
    if combined > 1:
        text += (
            " One " + ("panel" if combined > MAX_LINES else "line") + " for each combination of the further settings."
        )
    if several_gpus(content):
        text += " Points take different numbers of GPUs, so capacities are shown for one GPU."
    return text


def _line(ax: Axes, content: Content, points: Points, turn: int) -> None:
    """One combination: band, line, a mark a point, rings around the recommended point and the knee."""
    look = _turn(turn)
    color = look["color"]
    share = [point["gpus"] if several_gpus(content) else 1 for point in points]
    slots = [point["max_num_seqs"] for point in points]
    values = {
        key: [_or_nan(point["capacity"][f"{key}_per_s"]) / part for point, part in zip(points, share, strict=True)]
        for key in ("low", "estimate", "high")
    }
    ax.fill_between(slots, values["low"], values["high"], color=color, alpha=0.18, linewidth=0)
    ax.plot(slots, values["estimate"], linewidth=1.5, zorder=3, **look)
    chosen, knee = content.get("recommended"), content.get("knee")
    for point, at, value in zip(points, slots, values["estimate"], strict=True):
        if len(points) == 1:
            ax.plot([at, at], [values["low"][0], values["high"][0]], color=color, linewidth=1.2)
        ax.plot([at], [value], marker=_marker(point), color=color, markersize=6, linestyle="none", zorder=4)
        if chosen and point["name"] == chosen["name"]:
            ax.plot([at], [value], **_RECOMMENDED)
        if knee and point["name"] == knee["name"]:
            ax.plot([at], [value], **_KNEE)


_RECOMMENDED: dict[str, Any] = {
    "marker": "o", "markersize": 15, "markerfacecolor": "none", "markeredgecolor": style.INK, "markeredgewidth": 1.6,
    "linestyle": "none", "zorder": 5,
}  # fmt: skip
_BOUND: dict[str, Any] = {"color": style.INK, "linestyle": style.DASHES[2], "linewidth": 1.2}
_CAPACITY: dict[str, Any] = {"color": style.INK, "linestyle": style.DASHES[1], "linewidth": 1.0}
_KNEE: dict[str, Any] = _RECOMMENDED | {"marker": "s", "markersize": 12, "markeredgewidth": 1.0}


def _turn(index: int) -> dict[str, Any]:
    """Colour and dash of a line among others."""
    return {"color": style.CYCLE[index], "linestyle": style.DASHES[index]}


def _bound(points: Points) -> int:
    """The physical bound of a line; it falls a little where more slots take memory, and the largest is drawn."""
    return max(int(point["physical"]["bound"]) for point in points)


def _combinations(content: Content, drawn: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Capacities where only further settings differ: a line each."""
    chosen = content.get("recommended")
    with style.drawing():
        fig = style.new_figure(WIDTH, 1.6 + 0.32 * len(drawn))
        ax = fig.subplots()
        for index, point in enumerate(drawn.values()):
            part = point["gpus"] if several_gpus(content) else 1
            low, at, high = (_or_nan(point["capacity"][f"{key}_per_s"]) / part for key in ("low", "estimate", "high"))
            ax.plot([low, high], [index, index], color=style.GREY, linewidth=3, solid_capstyle="butt")
            ax.plot([at], [index], marker=_marker(point), color=style.LINE_BLUE, markersize=6, linestyle="none")
            if chosen and point["name"] == chosen["name"]:
                ax.plot([at], [index], **_RECOMMENDED)
        ax.set_yticks(range(len(drawn)), list(drawn))
        ax.set_ylim(len(drawn) - 0.4, -0.6)
        ax.set_xlim(left=0)
        style.grid(ax, "x")
        ax.set_xlabel("capacity a GPU [requests/s]" if several_gpus(content) else "capacity [requests/s]")
        # One max_num_seqs has neither a line nor a knee, and its bound is no place on this axis.
        style.legend_below(fig, _legend(content, {"": list(drawn.values())}, False)[:-1], 4)
        svg = style.to_svg(fig, "capacity", "Capacity against the further settings")
    slots = next(iter(drawn.values()))["max_num_seqs"]
    return Figure(svg, f"All at max_num_seqs {slots}. {_capacity_caption(content, 1)}".replace("band", "bar"))


def _or_nan(value: Any) -> float:
    found = known(value)
    return math.nan if found is None else found


def _marker(point: Mapping[str, Any]) -> str:
    return MARKERS.get(str((point["limit"] or {}).get("name")), ".")


def _slots_axis(ax: Axes, slots: Sequence[int], narrow: bool) -> None:
    """log2, labelled with values of the grid that do not touch each other."""
    values = sorted(set(slots))
    ax.set_xscale("log", base=2)
    apart = math.log2(max(values) / min(values)) / (6 if narrow else 13)
    labels = values[:1]
    for value in values[1:]:
        if math.log2(value / labels[-1]) >= apart:
            labels.append(value)
    ax.xaxis.set_major_locator(FixedLocator(labels))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())


def _legend(content: Content, drawn: Mapping[str, Points], panels: bool) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    if len(drawn) > 1 and not panels:
        handles += [Line2D([], [], linewidth=1.5, label=name, **_turn(i)) for i, name in enumerate(drawn)]
    points = [point for line in drawn.values() for point in line]
    names = {(point["limit"] or {}).get("name") for point in points}
    handles += [
        Line2D([], [], color=style.INK, marker=marker, linestyle="none", markersize=6, label=f"limit: {name}")
        for name, marker in MARKERS.items()
        if name in names
    ]
    handles.append(Patch(facecolor=style.GREY, alpha=0.4, label="95 % interval"))
    shown = {point["name"] for point in points}
    for key, look in (("recommended", _RECOMMENDED), ("knee", _KNEE)):
        if content.get(key) and content[key]["name"] in shown:
            handles.append(Line2D([], [], **(look | {"markersize": 0.7 * look["markersize"]}), label=key))
    handles.append(Line2D([], [], label="physical bound", **_BOUND))
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
    with style.drawing():
        fig = style.new_figure(WIDTH, 3.4)
        ax = fig.subplots()
        band(ax, found)
        steps = [1.0, *(row["chance"] for row in rows), rows[-1]["chance"]]
        left, right = max(0.0, min(extent) - pad), max(extent) + pad
        ax.step([left, *rates, right], steps, where="post", color=style.LINE_BLUE, linewidth=1.8)
        for at, level in zip(marks, (0.9, 0.1), strict=True):
            if at is not None:
                ax.plot([at], [level], marker="D", markersize=6, color=style.VERMILLION, linestyle="none", zorder=4)
        ax.set_xlim(left, right)
        ax.set_ylim(-0.03, 1.05)
        ax.set_yticks([0, 0.1, 0.25, 0.5, 0.75, 0.9, 1])
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        style.grid(ax)
        ax.set_xlabel("request rate [requests/s]")
        ax.set_ylabel("share of replications that pass")
        line = Line2D([], [], color=style.LINE_BLUE, linewidth=1.8, label="chance to pass")
        mark = Line2D([], [], color=style.VERMILLION, marker="D", linestyle="none", label="chance 0.9 and 0.1")
        style.legend_below(fig, [line, mark, *band_handles()], 4)
        svg = style.to_svg(fig, "chance", "Chance to pass against the request rate")
    return Figure(svg, f"Replications of the recommended point: {found['replications']}. Each step is one of them.")


def band(ax: Axes, found: Mapping[str, Any]) -> None:
    """The capacity of the recommended point and its interval, across the axes."""
    low, high = ends(found)
    if low is not None and high is not None:
        ax.axvspan(low, high, color=style.GREY, alpha=0.28, linewidth=0, zorder=0)
    ax.axvline(found["estimate_per_s"], zorder=1, **_CAPACITY)


def band_handles() -> list[Line2D | Patch]:
    """What `band` looks like in a legend."""
    return [
        Line2D([], [], label="capacity", **_CAPACITY),
        Patch(facecolor=style.GREY, alpha=0.5, label="its 95 % interval"),
    ]


def sensitivity(content: Content) -> Figure | None:
    """Ratios to the recommended capacity with their intervals, a line a setting."""
    rows = [row for row in content.get("sensitivity") or () if row["ratio"]]
    if not rows:
        return None
    with style.drawing():
        fig = style.new_figure(WIDTH, 1.5 + 0.32 * len(rows))
        ax = fig.subplots()
        ax.axvline(1, **_CAPACITY)
        for index, row in enumerate(rows):
            low, at, high = (known(row["ratio"][key]) for key in ("low", "estimate", "high"))
            clear = low is not None and high is not None and not low <= 1 <= high
            look = _CLEAR if clear else _UNCLEAR
            if low is not None and high is not None:
                ax.plot([low, high], [index, index], color=look["color"], linewidth=1.6, solid_capstyle="butt")
            ax.plot([_or_nan(at)], [index], linestyle="none", markersize=6.5, **look)
        ax.set_yticks(range(len(rows)), [variation_name(row) for row in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        style.grid(ax, "x")
        ax.set_xlabel("capacity as a ratio to the recommended point's, with 95 % interval")
        handles = [
            Line2D([], [], linestyle="none", markersize=6.5, label="interval without 1", **_CLEAR),
            Line2D([], [], linestyle="none", markersize=6.5, label="no clear difference", **_UNCLEAR),
            Line2D([], [], label="as the recommended point", **_CAPACITY),
        ]
        style.legend_below(fig, handles, 3)
        svg = style.to_svg(fig, "sensitivity", "Sensitivity of the capacity to neighbouring settings")
    return Figure(svg, "The same customers in every setting.")


_CLEAR: dict[str, Any] = {"color": style.VERMILLION, "marker": "D"}
_UNCLEAR: dict[str, Any] = {"color": style.LINE_BLUE, "marker": "o", "markerfacecolor": "none", "markeredgewidth": 1.5}
