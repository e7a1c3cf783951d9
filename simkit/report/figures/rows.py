"""The pictures of a study of aggregate rows: predicted over measured, and the error against concurrency.

Each is None where the content has nothing for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.figures.style import WIDTH, Look, entry
from simkit.report.read import rows as rows_data
from simkit.report.read.rows import ROLES, Content, Row, metric_name, metric_unit
from simkit.report.words import count, known

MAX_METRICS = 4
"""Metrics that are drawn; the tables have all."""

MAX_GROUPS = 9
"""Groups of rows that are told apart by colour and marker."""

FAR_PCT = 150.0
"""Errors beyond which the axis of errors is linear only around 0."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*")
LONGEST = 46
NAMES_A_LINE = 3
"""Of the legend."""


Panel = tuple[str, bool]
"""A metric, and whether its host terms are at 0."""


def agreement(content: Content) -> Figure | None:
    """Predicted over measured, both logarithmic, a panel a metric; beside it with the host terms at 0."""

    def draw(ax: Axes, metric: str, zero: bool) -> None:
        key = "predicted_zero" if zero else "predicted"
        # Both panels of a metric have the same axes.
        ends = ("predicted", "predicted_zero")
        values = [value for row in _with(content, metric, zero) for end in ends for value in _pair(row, metric, end)]
        values = [value for value in values if value > 0]
        unit = f" [{metric_unit(metric)}]" if metric_unit(metric) else ""
        style.square(ax, values, f"{_name(metric)}{unit}", always_log=True)
        for rows, look in _marks(content, metric, zero):
            measured, predicted = zip(*(_pair(row, metric, key) for row in rows), strict=True)
            ax.plot(measured, predicted, zorder=3, **look)

    return _figure(content, "agreement", "Predicted against measured rows", draw, square=True)


def concurrency(content: Content) -> Figure | None:
    """Errors over the requests under way, a panel a metric; beside it with the host terms at 0."""
    if not any(_concurrency(row) for row in content["rows"]):
        return None

    def draw(ax: Axes, metric: str, zero: bool) -> None:
        key = "error_zero_pct" if zero else "error_pct"
        for rows, look in _marks(content, metric, zero):
            found = [(_concurrency(row), known(row["metrics"][metric].get(key))) for row in rows]
            placed = [(at, error) for at, error in found if at is not None and error is not None]
            ax.plot([at for at, _ in placed], [error for _, error in placed], zorder=3, **look)
        ax.axhspan(-style.NEAR_PCT, style.NEAR_PCT, color=style.GREY, alpha=0.3, linewidth=0, zorder=0)
        ax.axhline(0, zorder=1, **style.EQUAL)
        _error_axis(ax, _all_errors(content, metric))
        _concurrency_axis(ax, [at for row in content["rows"] if (at := _concurrency(row))])
        ax.set_ylabel("error [%]")
        style.grid(ax)

    return _figure(content, "concurrency", "Error of each row against its concurrency", draw, square=False)


# --- panels -----------------------------------------------------------------------------------------------------------
def _figure(
    content: Content, key: str, alt: str, draw: Callable[[Axes, str, bool], None], *, square: bool
) -> Figure | None:
    drawable = [metric for metric in rows_data.metrics(content) if any(_with(content, metric, False))]
    chosen = drawable[:MAX_METRICS]
    if not chosen:
        return None
    zeros = rows_data.has_zero(content)
    columns = 2 if zeros or len(chosen) > 1 else 1
    panels: list[Panel] = [(metric, zero) for metric in chosen for zero in ((True, False) if zeros else (False,))]
    groups = rows_data.labels(content["rows"], MAX_GROUPS)
    height = ((4.1 if columns == 2 else 4.6) if square else 3.0) * math.ceil(len(panels) / columns)
    legend = 0.24 * math.ceil((len(groups) + 4) / NAMES_A_LINE)
    with style.drawing(WIDTH, height + legend + 0.2) as drawn:
        for ax, (metric, zero) in zip(drawn.panels(len(panels), columns), panels, strict=True):
            if any(_with(content, metric, zero)):
                draw(ax, metric, zero)
            else:
                style.empty(ax, "not predicted")
            ax.set_title(f"{_name(metric)}{_side(content, zero)}")
        engine = drawn.fig.get_layout_engine()
        assert engine is not None
        engine.set(h_pad=0.1)  # type: ignore[call-arg]
        drawn.legend(_legend(content), NAMES_A_LINE)
        return drawn.figure(key, alt, _caption(content, drawable, key))


def _name(metric: str) -> str:
    return style.label(metric_name(metric), LONGEST)


def _side(content: Content, zero: bool) -> str:
    """Which host terms a panel has, where there are two for each metric."""
    if zero:
        return ": host terms at 0"
    if not rows_data.has_zero(content):
        return ""
    return ": host terms fitted" if any(fit["fitted"] for fit in rows_data.fits(content)) else ": host terms on"


def _caption(content: Content, drawable: Sequence[str], key: str) -> str:
    said = []
    for metric in drawable[:MAX_METRICS]:
        rows = [row for row in _with(content, metric, False) if key != "concurrency" or _concurrency(row)]
        left = sum(1 for row in content["rows"] if metric in row["metrics"]) - len(rows)
        why = (
            f", {count(left)} without {'a concurrency or ' if key == 'concurrency' else ''}both numbers" if left else ""
        )
        said.append(f"{metric_name(metric)}: {count(len(rows))} rows{why}")
    if drawable[MAX_METRICS:]:
        said.append(f"Not drawn: {', '.join(map(metric_name, drawable[MAX_METRICS:]))}")
    if key == "concurrency" and any(error > FAR_PCT for error in _all_errors(content)):
        said.append(f"Where errors exceed {FAR_PCT:g} % their axis is logarithmic outside of ± {style.NEAR_PCT:g} %")
    return f"{'. '.join(said)}."


def _all_errors(content: Content, only: str | None = None) -> list[float]:
    """Errors of rows with a concurrency, with and without host terms, of all metrics or of one."""
    return [
        error
        for row in content["rows"]
        if _concurrency(row)
        for metric, values in row["metrics"].items()
        if only in (None, metric)
        for name in ("error_pct", "error_zero_pct")
        if (error := known(values.get(name))) is not None
    ]


def _with(content: Content, metric: str, zero: bool) -> list[Row]:
    """Rows that have this metric measured and predicted, both above 0."""
    key = "predicted_zero" if zero else "predicted"
    return [
        row
        for row in content["rows"]
        if metric in row["metrics"] and all(value > 0 for value in _pair(row, metric, key))
    ]


def _pair(row: Row, metric: str, key: str) -> tuple[float, float]:
    """(measured, predicted), 0 where there is none."""
    values = row["metrics"][metric]
    return known(values.get("measured")) or 0.0, known(values.get(key)) or 0.0


def _concurrency(row: Row) -> float | None:
    found = known(row.get("concurrency"))
    return found if found and found > 0 else None


# --- marks ------------------------------------------------------------------------------------------------------------
def _look(index: int, role: str) -> Look:
    """Colour and marker of a group; hollow where the row was fitted on."""
    color = style.CYCLE[index % len(style.CYCLE)]
    fill = "none" if role == "fit" else color
    return {
        "color": color, "marker": MARKERS[index % len(MARKERS)], "markersize": 5.5, "markerfacecolor": fill,
        "markeredgewidth": 1.1, "linestyle": "none", "alpha": 0.85,
    }  # fmt: skip


def _marks(content: Content, metric: str, zero: bool) -> Iterator[tuple[list[Row], Look]]:
    """Rows that look alike, those that were fitted on first, and their look."""
    shown = {id(row) for row in _with(content, metric, zero)}
    for role in ROLES:
        for index, rows in enumerate(rows_data.labels(content["rows"], MAX_GROUPS).values()):
            alike = [row for row in rows if id(row) in shown and row["role"] == role]
            if alike:
                yield alike, _look(index, role)


def _legend(content: Content) -> list[Line2D | Patch]:
    groups = rows_data.labels(content["rows"], MAX_GROUPS)
    handles = [
        entry(f"{style.label(name, LONGEST)} ({count(len(rows))})", **_look(index, "all"))
        for index, (name, rows) in enumerate(groups.items())
    ]
    if "fit" in rows_data.roles(content):
        mark: Look = {"color": style.INK, "marker": "o", "markersize": 5.5, "linestyle": "none"}
        hollow: Look = mark | {"markerfacecolor": "none"}
        handles += [entry(f"hollow: {ROLES['fit']}", **hollow), entry(f"filled: {ROLES['test']}", **mark)]
    return [*handles, *style.square_handles()]


# --- axes -------------------------------------------------------------------------------------------------------------
def _error_axis(ax: Axes, errors: Sequence[float]) -> None:
    """The same for both panels of a metric."""
    low, high = min(-style.NEAR_PCT, *errors), max(style.NEAR_PCT, *errors)
    if high > FAR_PCT:
        ax.set_yscale("symlog", linthresh=style.NEAR_PCT)
        ax.set_ylim(min(1.4 * low, -2 * style.NEAR_PCT), 1.4 * high)
        style.ticks(ax.yaxis, form=",g")
        return
    pad = 0.08 * (high - low)
    ax.set_ylim(low - pad, high + pad)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=7))


def _concurrency_axis(ax: Axes, values: Sequence[float]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xlim(min(values) / 1.4, max(values) * 1.4)
    style.ticks(ax.xaxis, LogLocator(base=2, numticks=12), "g")
    ax.set_xlabel("concurrency [requests]")
