"""What the pictures of the evidence page are made of: marks, panels and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from simkit.report.figures import style

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", "h")
WITHIN_PCT = 10.0
"""The dashed lines beside y = x."""


def diagonal(ax: Axes, low: float, high: float) -> None:
    """y = x and the lines beside it on log axes of the same range."""
    low, high = low / 1.25, high * 1.25
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    for share, dash in ((1.0, "-"), (1 + WITHIN_PCT / 100, style.DASHES[1]), (1 - WITHIN_PCT / 100, style.DASHES[1])):
        ax.plot([low, high], [low * share, high * share], color=style.INK, linewidth=0.7, linestyle=dash)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())


def diagonal_handles() -> list[Line2D]:
    """Their legend entries."""
    return [
        Line2D([], [], color=style.INK, linewidth=0.7, label="predicted = measured"),
        Line2D([], [], color=style.INK, linewidth=0.7, linestyle="--", label=f"± {WITHIN_PCT:g} %"),
    ]


def rows(ax: Axes, points: Sequence[Mapping[str, Any]], turn: int) -> None:
    """The rows of a set: filled where they test, hollow where terms were fitted on them."""
    color, marker = style.CYCLE[turn % len(style.CYCLE)], MARKERS[turn % len(MARKERS)]
    for test in (True, False):
        chosen = [point for point in points if point["test"] is test]
        ax.plot(
            [point["measured"] for point in chosen],
            [point["predicted"] for point in chosen],
            linestyle="none", marker=marker, color=color, mfc=color if test else "none", markersize=5, mew=0.9,
        )  # fmt: skip


def mark(turn: int, label: str, hollow: bool = False) -> Line2D:
    """The legend entry of a set, or of hollow marks."""
    color = style.GREY if hollow else style.CYCLE[turn % len(style.CYCLE)]
    face = "none" if hollow else color
    return Line2D([], [], linestyle="none", marker=MARKERS[turn % len(MARKERS)], color=color, mfc=face, label=label)


def error_panel(ax: Axes, name: str, found: Mapping[str, Any]) -> None:
    """Errors of the rows of one set against concurrency, with its bar."""
    points = found["points"]
    if found["bar_pct"] is not None:
        ax.axhspan(-found["bar_pct"], found["bar_pct"], color=style.GREEN, alpha=0.15, linewidth=0)
    ax.axhline(0, color=style.INK, linewidth=0.7)
    ax.plot([p["by"] for p in points], [off(p, "at_zero") for p in points], "x", color=style.VERMILLION, markersize=4)
    for test in (True, False):
        chosen = [p for p in points if p["test"] is test]
        face = style.LINE_BLUE if test else "none"
        y = [off(p, "predicted") for p in chosen]
        ax.plot([p["by"] for p in chosen], y, "o", color=style.LINE_BLUE, mfc=face, markersize=4)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel(found["by"])
    ax.set_title("\n".join(wrapped(name, 34)), fontsize=8.5)
    style.grid(ax)


def bars(ax: Axes, name: str, arms: Mapping[str, Any], effects: list[str]) -> None:
    """How far the mean error of one set moves without each effect."""
    values = [arms["without"].get(effect) for effect in effects][::-1]
    known = [0.0 if value is None else value - arms["all_on"] for value in values]
    names = [effect.replace("_", " ") for effect in effects][::-1]
    ax.barh(names, known, left=arms["all_on"], color=style.SKY, edgecolor=style.HATCH_INK, linewidth=0.5)
    ax.axvline(arms["all_on"], color=style.INK, linewidth=1.2)
    ax.axvline(0, color=style.INK, linewidth=0.6, linestyle=style.DASHES[2])
    for effect, value in zip(names, values, strict=True):
        if value is None:
            ax.annotate(
                "not in here", (arms["all_on"], effect), (4, 0), textcoords="offset points", va="center", fontsize=7
            )
    ends = [0.0, arms["all_on"], *(value for value in values if value is not None)]
    pad = 0.08 * (max(ends) - min(ends)) or 1.0
    ax.set_xlim(min(ends) - pad, max(ends) + 2 * pad)
    ax.set_title("\n".join(wrapped(name, 48)), fontsize=8.5)
    ax.set_xlabel("mean error [%]")
    style.grid(ax, "x")


def off(point: Mapping[str, Any], key: str) -> float:
    """A prediction of a row over what was measured, percent off."""
    found: float = 100.0 * (point[key] / point["measured"] - 1.0)
    return found


def wrapped(text: str, width: int) -> list[str]:
    """Words in lines of at most `width` characters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
