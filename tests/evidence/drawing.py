"""The pictures of the evidence page, each from the curves of validation.json alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from evidence import marks
from simkit.report.document import Figure
from simkit.report.figures import style

WIDTH = 9.4
"""Inches of every picture, so that letters are of one size."""

Curves = Mapping[str, Any]


def drawn(curves: Curves) -> dict[str, Figure]:
    """Every picture that the curves have something for, by its key."""
    found = {key: draw(curves) for key, draw in FIGURES.items()}
    charts = {key: chart(each, key) for key, each in (curves.get("charts") or {}).items()}
    return {key: figure for key, figure in found.items() if figure is not None} | charts


def standalone(svg: str) -> str:
    """An inline picture as a file of its own, dark on white wherever it is shown."""
    svg = re.sub(r"var\(--blue, (#[0-9A-Fa-f]{6})\)", r"\1", svg)
    head = '<svg xmlns="http://www.w3.org/2000/svg" style="background:#ffffff;color:#1b1f24" '
    return head + svg.removeprefix("<svg ") + "\n"


def scatter(curves: Curves) -> Figure | None:
    """Predicted over measured, a panel a metric, a mark a row."""
    by_metric: dict[str, dict[str, Any]] = {}
    for name, found in (curves.get("sets") or {}).items():
        by_metric.setdefault(found["unit"], {})[name] = found
    if not by_metric:
        return None
    names = list(curves["sets"])
    with style.drawing():
        fig = style.new_figure(WIDTH, 3.7 + 0.12 * len(names))
        axes = fig.subplots(1, len(by_metric), squeeze=False).flatten()
        for ax, (unit, sets) in zip(axes, by_metric.items(), strict=True):
            ends = [
                value for found in sets.values() for p in found["points"] for value in (p["measured"], p["predicted"])
            ]
            marks.diagonal(ax, min(ends), max(ends))
            for name, found in sets.items():
                marks.rows(ax, found["points"], names.index(name))
            ax.set_xlabel(f"measured {unit}")
            ax.set_ylabel(f"predicted {unit}")
            style.grid(ax)
        handles = [marks.mark(names.index(name), name) for name in names]
        handles += [marks.mark(0, "rows that terms were fitted on: hollow", hollow=True), *marks.diagonal_handles()]
        style.legend_below(fig, handles, 2)
        svg = style.to_svg(fig, "scatter", "Predicted over measured for every aggregate row, by set")
    return Figure(
        svg, "Every aggregate row, host terms as the set says. Above the line: predicted larger than measured."
    )


def errors(curves: Curves) -> Figure | None:
    """Error of every row against its concurrency, with the terms at 0 and as fitted."""
    sets = curves.get("sets") or {}
    if not sets:
        return None
    columns = 3
    rows = -(-len(sets) // columns)
    with style.drawing():
        fig = style.new_figure(WIDTH, 2.7 * rows + 0.6)
        axes = fig.subplots(rows, columns, squeeze=False).flatten()
        for ax in axes[len(sets) :]:
            ax.set_visible(False)
        for index, (ax, (name, found)) in enumerate(zip(axes, sets.items(), strict=False)):
            marks.error_panel(ax, name, found)
            ax.set_ylabel("error [%]" if index % columns == 0 else "")
        handles: list[object] = [
            Line2D([], [], color=style.VERMILLION, marker="x", linestyle="none", label="host terms at 0"),
            Line2D([], [], color=style.LINE_BLUE, marker="o", linestyle="none", label="as judged, test rows"),
            Line2D(
                [], [], color=style.LINE_BLUE, marker="o", mfc="none", linestyle="none", label="as judged, fit rows"
            ),
            Patch(color=style.GREEN, alpha=0.15, label="within the bar"),
        ]
        style.legend_below(fig, handles, 4)
        svg = style.to_svg(fig, "errors", "Error by concurrency, by set")
    return Figure(
        svg, "Predicted / measured - 1 of every row. The band is the bar, which holds for the mean of the sizes."
    )


def ablation(curves: Curves) -> Figure | None:
    """How each effect, off alone, changes the error: a panel a judged set."""
    found = curves.get("ablation") or {}
    if not found:
        return None
    columns = 2
    rows = -(-len(found) // columns)
    effects = list(dict.fromkeys(effect for arms in found.values() for effect in arms["without"]))
    with style.drawing():
        fig = style.new_figure(WIDTH, (0.24 * len(effects) + 0.9) * rows + 0.4)
        axes = fig.subplots(rows, columns, squeeze=False, sharey=True).flatten()
        for ax in axes[len(found) :]:
            ax.set_visible(False)
        for ax, (name, arms) in zip(axes, found.items(), strict=False):
            marks.bars(ax, name, arms, effects)
        handles: list[object] = [
            Line2D([], [], color=style.INK, linewidth=1.2, label="all effects on"),
            Patch(facecolor=style.SKY, edgecolor=style.HATCH_INK, linewidth=0.5, label="this effect off alone"),
        ]
        style.legend_below(fig, handles, 2)
        svg = style.to_svg(fig, "ablation", "Signed error with each effect off alone, by set")
    return Figure(
        svg, "Mean error with its sign. The further a bar ends from the line, the more its effect contributes."
    )


def run_cdfs(curves: Curves) -> Figure | None:
    """Measured and predicted distributions of the run with a record for each request, a panel a metric."""
    run = curves.get("run") or {}
    if not run:
        return None
    with style.drawing():
        fig = style.new_figure(WIDTH, 3.4)
        axes = fig.subplots(1, len(run), squeeze=False, sharey=True).flatten()
        for ax, (metric, curve) in zip(axes, run.items(), strict=True):
            ax.plot(curve["measured"], curve["share"], color=style.INK, linewidth=1.6)
            ax.plot(
                curve["predicted"], curve["share"], color=style.VERMILLION, linewidth=1.6, linestyle=style.DASHES[1]
            )
            ax.set_xlabel(f"{metric.removesuffix('_ms').upper()} [ms]")
            ax.set_ylim(0, 1)
            ax.set_xlim(left=0)
            ax.xaxis.set_major_locator(MaxNLocator(5))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            style.grid(ax)
        axes[0].set_ylabel("share of requests at most so long")
        handles = [
            Line2D([], [], color=style.INK, linewidth=1.6, label="measured"),
            Line2D([], [], color=style.VERMILLION, linewidth=1.6, linestyle="--", label="predicted"),
        ]
        style.legend_below(fig, handles, 2)
        svg = style.to_svg(fig, "run", "Distributions of the measured and the predicted run")
    return Figure(svg, "The run with a record for each request: nothing was fitted to it.")


def chart(found: Mapping[str, Any], key: str) -> Figure:
    """Lines over a common axis: `x`, `y_by_name` (None where a line has no point), labels, a title, `log` axes."""
    with style.drawing():
        fig = style.new_figure(WIDTH, 3.8)
        ax = fig.subplots()
        for index, (name, values) in enumerate(found["y_by_name"].items()):
            points = [(x, y) for x, y in zip(found["x"], values, strict=True) if y is not None]
            color, dash = style.CYCLE[index % len(style.CYCLE)], style.DASHES[index % len(style.DASHES)]
            x, y = zip(*points, strict=True) if points else ((), ())
            ax.plot(x, y, color=color, linestyle=dash, marker=marks.MARKERS[index % len(marks.MARKERS)], label=name)
        if found["log"]:
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            ax.yaxis.set_minor_formatter(NullFormatter())
        else:
            ax.set_ylim(bottom=0)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        ax.set_xlabel(found["x_label"])
        ax.set_ylabel(found["y_label"])
        style.grid(ax)
        style.legend_below(fig, ax.get_legend_handles_labels()[0], 2)
        svg = style.to_svg(fig, key, found["title"])
    return Figure(svg, f"{found['title']}.")


def kernels(curves: Curves) -> Figure | None:
    """Held-out error by op, a panel a profile."""
    found = curves.get("kernels") or {}
    if not found:
        return None
    tallest = max(map(len, found.values()))
    with style.drawing():
        fig = style.new_figure(WIDTH, 2 * (0.25 * tallest + 0.9) + 0.3)
        axes = fig.subplots(-(-len(found) // 2), 2, squeeze=False, sharex=True).flatten()
        for ax, (profile, ops) in zip(axes, found.items(), strict=False):
            names = list(ops)[::-1]
            ax.barh(
                names, [ops[n]["mape_pct"] for n in names], color=style.SKY, edgecolor=style.HATCH_INK, linewidth=0.5
            )
            ax.plot([ops[n]["bias_pct"] for n in names], names, "D", color=style.VERMILLION, markersize=4)
            ax.axvline(0, color=style.INK, linewidth=0.7)
            ax.set_title(profile)
            style.grid(ax, "x")
            ax.tick_params(labelbottom=True)
        for ax in axes[-2:]:
            ax.set_xlabel("error on held-out rows [%]")
        handles: list[object] = [
            Patch(facecolor=style.SKY, edgecolor=style.HATCH_INK, linewidth=0.5, label="mean of the sizes (MAPE)"),
            Line2D(
                [],
                [],
                color=style.VERMILLION,
                marker="D",
                markersize=4,
                linestyle="none",
                label="mean with sign (bias)",
            ),
        ]
        style.legend_below(fig, handles, 2)
        svg = style.to_svg(fig, "kernels", "Held-out errors of the shipped profiles by op")
    return Figure(svg, "Between measured sizes; no row of these was seen by the fit.")


def memory(curves: Curves) -> Figure | None:
    """Logged and predicted KV tokens of start-ups, by group of versions."""
    groups = {name: points for name, points in (curves.get("kv_tokens") or {}).items() if points}
    if not groups:
        return None
    with style.drawing():
        fig = style.new_figure(WIDTH * 0.62, 4.9)
        ax = fig.subplots()
        ends = [value for points in groups.values() for point in points for value in point]
        marks.diagonal(ax, min(ends), max(ends))
        for index, points in enumerate(groups.values()):
            x, y = zip(*points, strict=True)
            ax.plot(
                x, y, linestyle="none", marker=marks.MARKERS[index], color=style.CYCLE[index], mec=style.INK, mew=0.4
            )
        ax.set_xlabel("logged KV cache [tokens]")
        ax.set_ylabel("predicted KV cache [tokens]")
        style.grid(ax)
        style.legend_below(fig, [*(marks.mark(i, name) for i, name in enumerate(groups)), *marks.diagonal_handles()], 2)
        svg = style.to_svg(fig, "memory", "Predicted over logged KV tokens")
    return Figure(svg, "A mark a start-up log.")


FIGURES: dict[str, Callable[[Curves], Figure | None]] = {
    "scatter": scatter,
    "errors": errors,
    "ablation": ablation,
    "run": run_cdfs,
    "kernels": kernels,
    "memory": memory,
}
"""Key to what draws it."""
