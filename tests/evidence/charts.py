"""The charts of the evidence page, each from the curves of validation.json alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from evidence import off_pct
from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.figures.style import WIDTH, Fill, Look, entry

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", "h")
WITHIN_PCT = 10.0
"""The dashed lines beside y = x."""

EQUAL: Look = {"color": style.INK, "linewidth": 0.7}
BESIDE: Look = EQUAL | {"linestyle": style.DASHES[1]}
SHORT: Look = {"linestyle": "--"}
"""Of a dashed line in a legend."""

MEASURED: Look = {"color": style.INK, "linewidth": 1.6}
PREDICTED: Look = {"color": style.VERMILLION, "linewidth": 1.6, "linestyle": style.DASHES[1]}
ALL_ON: Look = {"color": style.INK, "linewidth": 1.2}
BIAS: Look = {"color": style.VERMILLION, "marker": "D", "markersize": 4, "linestyle": "none"}
AT_ZERO: Look = {"color": style.VERMILLION, "marker": "x", "linestyle": "none"}
AS_JUDGED: Look = {"color": style.LINE_BLUE, "marker": "o", "linestyle": "none"}

Content = Mapping[str, Any]
"""The curves of validation.json, or one of them."""


def drawn(curves: Content) -> dict[str, Figure]:
    """Every chart that the curves have something for, by its key."""
    found = {draw.__name__: draw(curves) for draw in (scatter, errors, ablation, run, kernels, memory)}
    charts = {key: chart(each, key) for key, each in (curves.get("charts") or {}).items()}
    return {key: figure for key, figure in found.items() if figure is not None} | charts


def standalone(svg: str) -> str:
    """An inline picture as a file of its own, dark on white wherever it is shown."""
    svg = re.sub(r"var\(--blue, (#[0-9A-Fa-f]{6})\)", r"\1", svg)
    head = '<svg xmlns="http://www.w3.org/2000/svg" style="background:#ffffff;color:#1b1f24" '
    return head + svg.removeprefix("<svg ") + "\n"


# --- aggregate rows ---------------------------------------------------------------------------------------------------
def scatter(curves: Content) -> Figure | None:
    """Predicted over measured, a panel a metric, a mark a row."""
    sets = curves.get("sets") or {}
    units = list(dict.fromkeys(found["unit"] for found in sets.values()))
    if not units:
        return None
    with style.drawing(WIDTH, 3.7 + 0.12 * len(sets)) as drawn:
        for ax, unit in zip(drawn.panels(len(units), len(units)), units, strict=True):
            shown = {turn: found for turn, found in enumerate(sets.values()) if found["unit"] == unit}
            points = [point for found in shown.values() for point in found["points"]]
            _diagonal(ax, [point[key] for point in points for key in ("measured", "predicted")])
            for turn, found in shown.items():
                _rows(ax, found["points"], _turn(turn))
            ax.set(xlabel=f"measured {unit}", ylabel=f"predicted {unit}")
            style.grid(ax)
        names = [entry(name, **_turn(turn)) for turn, name in enumerate(sets)]
        hollow: Look = {"color": style.GREY, "marker": MARKERS[0], "markerfacecolor": "none", "linestyle": "none"}
        fitted = entry("rows that terms were fitted on: hollow", **hollow)
        drawn.legend([*names, fitted, *_diagonal_handles()], 2)
        caption = "Every aggregate row, host terms as the set says. Above the line: predicted larger than measured."
        return drawn.figure("scatter", "Predicted over measured for every aggregate row, by set", caption)


def _diagonal(ax: Axes, values: Sequence[float]) -> None:
    """y = x and the lines beside it on log axes around the values."""
    low, high = min(values) / 1.25, max(values) * 1.25
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    for share, look in ((1.0, EQUAL), (1 + WITHIN_PCT / 100, BESIDE), (1 - WITHIN_PCT / 100, BESIDE)):
        ax.plot([low, high], [low * share, high * share], **look)
    for axis in (ax.xaxis, ax.yaxis):
        style.ticks(axis, LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))


def _diagonal_handles() -> list[Line2D]:
    return [entry("predicted = measured", **EQUAL), entry(f"± {WITHIN_PCT:g} %", **BESIDE | SHORT)]


def _turn(index: int) -> Look:
    """Colour and marker of a set among others."""
    color, marker = style.CYCLE[index % len(style.CYCLE)], MARKERS[index % len(MARKERS)]
    return {"color": color, "marker": marker, "markerfacecolor": color, "linestyle": "none"}


def _rows(ax: Axes, points: Sequence[Content], look: Look) -> None:
    """The rows of a set: filled where they test, hollow where terms were fitted on them."""
    for test in (True, False):
        chosen = [point for point in points if point["test"] is test]
        measured, predicted = ([point[key] for point in chosen] for key in ("measured", "predicted"))
        face: Look = look if test else look | {"markerfacecolor": "none"}
        ax.plot(measured, predicted, markersize=5, markeredgewidth=0.9, **face)


def errors(curves: Content) -> Figure | None:
    """Error of every row against its concurrency, with the terms at 0 and as fitted."""
    sets = curves.get("sets") or {}
    if not sets:
        return None
    columns = 3
    with style.drawing(WIDTH, 2.7 * -(-len(sets) // columns) + 0.6) as drawn:
        for index, (ax, (name, found)) in enumerate(zip(drawn.panels(len(sets), columns), sets.items(), strict=True)):
            _errors(ax, name, found)
            ax.set_ylabel("error [%]" if index % columns == 0 else "")
        handles = [
            entry("host terms at 0", **AT_ZERO),
            entry("as judged, test rows", **AS_JUDGED),
            entry("as judged, fit rows", **AS_JUDGED | {"markerfacecolor": "none"}),
            Patch(color=style.GREEN, alpha=0.15, label="within the bar"),
        ]
        drawn.legend(handles, 4)
        caption = "Predicted / measured - 1 of every row. The band is the bar, which holds for the mean of the sizes."
        return drawn.figure("errors", "Error by concurrency, by set", caption)


def _errors(ax: Axes, name: str, found: Content) -> None:
    """Errors of the rows of one set against concurrency, with its bar."""
    points = found["points"]
    if found["bar_pct"] is not None:
        ax.axhspan(-found["bar_pct"], found["bar_pct"], color=style.GREEN, alpha=0.15, linewidth=0)
    ax.axhline(0, **EQUAL)
    tested, fitted = ([point for point in points if point["test"] is test] for test in (True, False))
    hollow: Look = AS_JUDGED | {"markerfacecolor": "none"}
    for chosen, key, look in (
        (points, "at_zero", AT_ZERO),
        (tested, "predicted", AS_JUDGED),
        (fitted, "predicted", hollow),
    ):
        off = [off_pct(point[key], point["measured"]) for point in chosen]
        ax.plot([point["by"] for point in chosen], off, markersize=4, **look)
    ax.set_xscale("log", base=2)
    style.ticks(ax.xaxis, form="g")
    ax.set_xlabel(found["by"])
    _title(ax, name, 34)
    style.grid(ax)


def _title(ax: Axes, name: str, width: int) -> None:
    """A name in lines of at most so many characters."""
    ax.set_title(textwrap.fill(name, width, break_long_words=False, break_on_hyphens=False), fontsize=8.5)


# --- effects ----------------------------------------------------------------------------------------------------------
def ablation(curves: Content) -> Figure | None:
    """How each effect, off alone, changes the error: a panel a judged set."""
    found = curves.get("ablation") or {}
    if not found:
        return None
    effects = list(dict.fromkeys(effect for arms in found.values() for effect in arms["without"]))
    with style.drawing(WIDTH, (0.24 * len(effects) + 0.9) * -(-len(found) // 2) + 0.4) as drawn:
        for ax, (name, arms) in zip(drawn.panels(len(found), 2, sharey=True), found.items(), strict=True):
            _bars(ax, arms, effects)
            _title(ax, name, 48)
        drawn.legend([entry("all effects on", **ALL_ON), Fill("this effect off alone", style.SKY, None).patch()], 2)
        caption = "Mean error with its sign. The further a bar ends from the line, the more its effect contributes."
        return drawn.figure("ablation", "Signed error with each effect off alone, by set", caption)


def _bars(ax: Axes, arms: Content, effects: Sequence[str]) -> None:
    """How far the mean error of one set moves without each effect."""
    at = arms["all_on"]
    ends = {effect.replace("_", " "): arms["without"].get(effect) for effect in reversed(effects)}
    moved = [0.0 if end is None else end - at for end in ends.values()]
    ax.barh(list(ends), moved, left=at, color=style.SKY, edgecolor=style.HATCH_INK, linewidth=0.5)
    ax.axvline(at, **ALL_ON)
    ax.axvline(0, color=style.INK, linewidth=0.6, linestyle=style.DASHES[2])
    for effect, end in ends.items():
        if end is None:
            ax.annotate("not in here", (at, effect), (4, 0), textcoords="offset points", va="center", fontsize=7)
    extent = [0.0, at, *(end for end in ends.values() if end is not None)]
    pad = 0.08 * (max(extent) - min(extent)) or 1.0
    ax.set_xlim(min(extent) - pad, max(extent) + 2 * pad)
    ax.set_xlabel("mean error [%]")
    style.grid(ax, "x")


# --- a run, lines, kernels, memory ------------------------------------------------------------------------------------
def run(curves: Content) -> Figure | None:
    """Measured and predicted distributions of the run with a record for each request, a panel a metric."""
    found = curves.get("run") or {}
    if not found:
        return None
    with style.drawing(WIDTH, 3.4) as drawn:
        panels = drawn.panels(len(found), len(found), sharey=True)
        for ax, (metric, curve) in zip(panels, found.items(), strict=True):
            ax.plot(curve["measured"], curve["share"], **MEASURED)
            ax.plot(curve["predicted"], curve["share"], **PREDICTED)
            ax.set_xlabel(f"{metric.removesuffix('_ms').upper()} [ms]")
            ax.set_ylim(0, 1)
            ax.set_xlim(left=0)
            style.ticks(ax.xaxis, MaxNLocator(5))
            style.grid(ax)
        panels[0].set_ylabel("share of requests at most so long")
        drawn.legend([entry("measured", **MEASURED), entry("predicted", **PREDICTED | SHORT)], 2)
        caption = "The run with a record for each request: nothing was fitted to it."
        return drawn.figure("run", "Distributions of the measured and the predicted run", caption)


def chart(found: Content, key: str) -> Figure:
    """Lines over a common axis: `x`, `y_by_name` (None where a line has no point), labels, a title, `log` axes."""
    with style.drawing(WIDTH, 3.8) as drawn:
        ax = drawn.fig.subplots()
        for index, (name, values) in enumerate(found["y_by_name"].items()):
            points = [(x, y) for x, y in zip(found["x"], values, strict=True) if y is not None]
            x, y = zip(*points, strict=True) if points else ((), ())
            look = _turn(index) | {"linestyle": style.DASHES[index % len(style.DASHES)]}
            ax.plot(x, y, label=name, **look)
        if found["log"]:
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            style.ticks(ax.yaxis, LogLocator(subs=(1.0, 2.0, 5.0)))
        else:
            ax.set_ylim(bottom=0)
        style.ticks(ax.xaxis)
        ax.set(xlabel=found["x_label"], ylabel=found["y_label"])
        style.grid(ax)
        drawn.legend(ax.get_legend_handles_labels()[0], 2)
        return drawn.figure(key, found["title"], f"{found['title']}.")


def kernels(curves: Content) -> Figure | None:
    """Held-out error by op, a panel a profile."""
    found = curves.get("kernels") or {}
    if not found:
        return None
    size = Fill("mean of the sizes (MAPE)", style.SKY, None)
    with style.drawing(WIDTH, 2 * (0.25 * max(map(len, found.values())) + 0.9) + 0.3) as drawn:
        panels = drawn.panels(len(found), 2, sharex=True)
        for ax, (profile, ops) in zip(panels, found.items(), strict=True):
            names = list(ops)[::-1]
            ax.barh(names, [ops[name]["mape_pct"] for name in names], **size.look(0.5))
            ax.plot([ops[name]["bias_pct"] for name in names], names, **BIAS)
            ax.axvline(0, **EQUAL)
            ax.set_title(profile)
            style.grid(ax, "x")
            ax.tick_params(labelbottom=True)
        for ax in panels[-2:]:
            ax.set_xlabel("error on held-out rows [%]")
        drawn.legend([size.patch(), entry("mean with sign (bias)", **BIAS)], 2)
        caption = "Between measured sizes; no row of these was seen by the fit."
        return drawn.figure("kernels", "Held-out errors of the shipped profiles by op", caption)


def memory(curves: Content) -> Figure | None:
    """Logged and predicted KV tokens of start-ups, by group of versions."""
    groups = {name: points for name, points in (curves.get("kv_tokens") or {}).items() if points}
    if not groups:
        return None
    with style.drawing(WIDTH * 0.62, 4.9) as drawn:
        ax = drawn.fig.subplots()
        _diagonal(ax, [value for points in groups.values() for point in points for value in point])
        for index, points in enumerate(groups.values()):
            x, y = zip(*points, strict=True)
            ax.plot(x, y, markeredgecolor=style.INK, markeredgewidth=0.4, **_turn(index))
        ax.set(xlabel="logged KV cache [tokens]", ylabel="predicted KV cache [tokens]")
        style.grid(ax)
        drawn.legend([*(entry(name, **_turn(i)) for i, name in enumerate(groups)), *_diagonal_handles()], 2)
        return drawn.figure("memory", "Predicted over logged KV tokens", "A mark a start-up log.")
