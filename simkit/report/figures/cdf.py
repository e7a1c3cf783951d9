"""Latency CDFs: TTFT, TPOT and E2E of all arms of a group, with p95 and p99 marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from simkit.metrics.latencies import defined, values_ns
from simkit.report.document import Figure
from simkit.report.figures import style
from simkit.report.figures.style import Look, entry
from simkit.report.read.run import Run, Table, select
from simkit.types import Floats
from simkit.units import NS_PER_MS

_OFFSETS = (0.0, 5.0, 2.5)  # static and dynamic dashes, often on one line, fill each other's gaps
# Body and tail get 150 points each, so that p95 and p99 lie on the line.
LEVELS = np.concatenate((np.linspace(0, 0.9, 151)[:-1], np.linspace(0.9, 1, 151)))


@dataclass(frozen=True, slots=True)
class Latency:
    """One panel: its title, its key in summary.json, and whether arms that deliver at batch end have it."""

    title: str
    key: str
    needs_stream: bool


COLUMNS = ("arrival_ns", "first_token_ns", "last_token_ns", "output_tokens")

PERCENTILES = {"p95": "o", "p99": "D"}
"""What is marked on a line, and by which marker."""

LATENCIES = (
    Latency("TTFT", "ttft_ms", False),
    Latency("TPOT", "tpot_ms", True),
    Latency("E2E", "e2e_ms", False),
)


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Arms that share axes, by title: those named ``batcher+allocator``, those with an equal ``@`` suffix, the rest."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        base, _, suffix = run.name.partition("@")
        if suffix:
            title = f"Arms of {suffix}"
        elif base == f"{run.engine.get('batching')}+{run.engine.get('kv_allocator')}":
            title = "Batchers and allocators"
        else:
            title = "Variants"
        groups.setdefault(title, []).append(run)
    return groups if len(groups) > 1 else {"All arms" if len(runs) > 1 else runs[0].name: list(runs)}


def draw(runs: Sequence[Run], key: str, name: str) -> Figure | None:
    """A panel a latency of arms that go by `name` together; None when no request of any of them finished."""
    samples = {run.name: latencies_ms(run) for run in runs}
    if not any(len(values) for by_key in samples.values() for values in by_key.values()):
        return None
    looks = arm_looks(runs)
    with style.drawing(12.4, 4.0 + 0.22 * ((len(runs) + 1) // 4)) as drawn:
        panels = drawn.panels(len(LATENCIES), len(LATENCIES), sharey=True)
        for ax, latency in zip(panels, LATENCIES, strict=True):
            lines = [(run, samples[run.name][latency.key], looks[run.name]) for run in runs]
            _panel(ax, latency, [line for line in lines if len(line[1])])
        panels[0].set_ylabel("share of finished requests")
        arms = [entry(run.name, **looks[run.name]) for run in runs]
        marks = [
            entry(label, color=style.INK, marker=marker, linestyle="none", markersize=5.5)
            for label, marker in PERCENTILES.items()
        ]
        drawn.legend([*arms, *marks], 4)
        alt = f"Latency distributions of {', '.join(run.name for run in runs)}"
        return drawn.figure(key, alt, f"{name}.{_not_streamed(runs)}")


def _not_streamed(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs if not run.streams]
    if not names:
        return ""
    return (
        f" Not streamed: {', '.join(names)}. There every token is delivered when the batch ends, so TTFT equals E2E "
        "and TPOT is undefined and has no line."
    )


def latencies_ms(run: Run) -> dict[str, Floats]:
    """TTFT, TPOT and E2E of finished, measured requests of all replications, in ms; sorted; empty where undefined."""
    done: Table = select(run.requests, (run.requests["status"] == "finished") & run.requests["measured"].astype(bool))
    columns: dict[str, Floats] = {name: done[name].astype(float) for name in COLUMNS}
    found: dict[str, Floats] = {}
    for latency in LATENCIES:
        has = defined(columns, latency.key) & (run.streams or not latency.needs_stream)
        values = values_ns(columns, latency.key)[has]
        found[latency.key] = np.sort(values[np.isfinite(values)]) / NS_PER_MS
    return found


def arm_looks(runs: Sequence[Run]) -> dict[str, Look]:
    """Line properties per arm: colour by batcher and dash by allocator where that tells arms apart, else in turn.

    Arms with equal latencies must all stay visible: solid lines are pale, each narrower than the one before, and dashed
    ones lie on top of them with their dashes in each other's gaps.
    """
    colors = {"static": style.VERMILLION, "dynamic": style.ORANGE, "continuous": style.LINE_BLUE}
    kinds = [(run.engine.get("batching"), run.engine.get("kv_allocator")) for run in runs]
    by_kind = len(set(kinds)) == len(kinds) and all(batching in colors for batching, _ in kinds)
    looks: dict[str, Look] = {}
    for i, (run, (batching, allocator)) in enumerate(zip(runs, kinds, strict=True)):
        if by_kind:
            color, dash = colors[str(batching)], int(allocator == "paged" and len(runs) > 1)
        else:
            color, dash = style.CYCLE[i % len(style.CYCLE)], i % len(style.DASHES)
        turn = {"static": 0, "dynamic": 1, "continuous": 2}.get(str(batching), i % 3) if by_kind else i % 3
        wide = dash == 0 and len(runs) > 1
        looks[run.name] = {
            "color": color,
            "linestyle": (_OFFSETS[turn], (5, 5)) if by_kind and dash else style.DASHES[dash],
            "linewidth": 5.2 - 1.5 * turn if wide else 1.6,
            "alpha": 0.7 if wide else 1.0,
            "zorder": 2.0 if wide else 3.0,
        }
    return looks


def _panel(ax: Axes, latency: Latency, lines: Sequence[tuple[Run, Floats, Look]]) -> None:
    ax.set_title(latency.title)
    ax.set_ylim(0, 1.02)
    style.grid(ax)
    if not lines:
        style.empty(ax, "undefined for every arm\n(see the caption)", shares_y=True)
        return
    low = min(float(values[0]) for _, values, _ in lines)
    high = max(float(values[-1]) for _, values, _ in lines)
    scale = style.time_axis(ax, latency.title, low, high)
    for run, values, look in lines:
        ax.plot(np.quantile(values, LEVELS) / scale, LEVELS, solid_capstyle="butt", **look)
        mark: Look = {"color": look["color"], "linestyle": "none", "markersize": 5.5, "zorder": 4}
        for percentile, marker in PERCENTILES.items():
            at = run.value(f"{latency.key}.{percentile}")
            if at is not None:
                ax.plot([at / scale], [float(percentile[1:]) / 100], marker=marker, **mark)
