"""The KV memory map: what the pool of one arm holds over time, the three kinds of waste apart."""

from __future__ import annotations

import numpy as np

from simkit.report import words
from simkit.report.figures import series, style
from simkit.report.read.run import Run, Table, num_rows
from simkit.types import Floats
from simkit.units import bytes_to_gib

COLUMNS = ("kv_used_tokens", "kv_reserved_tokens", "kv_internal_tokens", "kv_external_tokens")
FILLS = (
    style.Fill("used", style.BLUE, None),
    style.Fill("reserved", style.SKY, "\\\\\\"),
    style.Fill("internal waste", style.ORANGE, "///"),
    style.Fill("external waste", style.VERMILLION, "xxxx"),
    style.Fill("free", "none", None),
)
ZOOM_BELOW = 0.25  # of the pool


def draw(run: Run, key: str) -> tuple[str, str] | None:
    """(SVG, what is shown) of one arm; None when it ran no step."""
    steps = series.first_replication(run)
    over = series.over_time(grown(steps), COLUMNS)
    if over is None:
        return None
    first_rows = np.unique(steps["replica"], return_index=True)[1]
    pool = float(sum(steps[c][first_rows].sum() for c in (*COLUMNS[:3], "kv_free_tokens")))
    held = [over.values[column] for column in COLUMNS]
    peak = max(float(np.sum(held[:3], axis=0).max()), 1.0)
    zoomed = peak < ZOOM_BELOW * pool
    top = 1.25 * peak if zoomed else pool
    scale, unit = (1000.0, "thousand tokens") if top >= 10_000 else (1.0, "tokens")
    time = style.time_unit(float(over.times_ns[-1]))
    with style.drawing():
        fig = style.new_figure(6.3, 2.9)
        ax = fig.add_subplot()
        bottom = np.zeros_like(held[0])
        for fill, values in zip(FILLS, held, strict=False):
            if not values.any():
                continue
            ax.fill_between(
                over.times_ns / time.ns,
                _closed(bottom) / scale,
                _closed(bottom + values) / scale,
                step="post",
                facecolor=fill.color,
                edgecolor=style.HATCH_INK,
                hatch=fill.hatch,
                linewidth=0.0,
            )
            bottom = bottom + values
        ax.set_xlim(over.times_ns[0] / time.ns, over.times_ns[-1] / time.ns)
        ax.set_ylim(0, top / scale)
        style.grid(ax, "y")
        ax.set_xlabel(f"time [{time.name}]")
        ax.set_ylabel(f"KV memory [{unit}]")
        ax.set_title(run.name)
        style.legend_below(fig, [fill.patch() for fill in FILLS], 5)
        svg = style.to_svg(fig, key, f"KV memory of {run.name} over time by kind of use")
    return svg, _describe(run, pool, len(first_rows), zoomed, over.thinned)


def grown(steps: Table) -> Table:
    """Long spans cut into pieces, with the tokens that were added since the first step of the span.

    A span records its first step; while nothing changes, every live sequence adds a token a step. They come out of
    reserved room as long as that lasts, else out of free memory. Runs with many spans need no pieces.
    """
    if not num_rows(steps):
        return steps
    pieces = np.minimum(steps["num_steps"], max(1, series.MAX_POINTS // num_rows(steps)))
    rows = np.repeat(np.arange(num_rows(steps)), pieces)
    piece = np.arange(len(rows)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    cut = {key: column[rows] for key, column in steps.items()}
    first_step = piece * cut["num_steps"] // pieces[rows]
    next_step = (piece + 1) * cut["num_steps"] // pieces[rows]
    span_ns = cut["t_end_ns"] - cut["t_start_ns"]
    live = cut["running"] - cut["dead_slots"]
    added = live * first_step
    reserved_lasts = cut["kv_reserved_tokens"] >= live * (cut["num_steps"] - 1)
    used = cut["kv_used_tokens"] + np.where(reserved_lasts, added, np.minimum(added, cut["kv_free_tokens"]))
    return {
        **cut,
        "t_start_ns": cut["t_start_ns"] + span_ns * (first_step / cut["num_steps"]),
        "t_end_ns": cut["t_start_ns"] + span_ns * (next_step / cut["num_steps"]),
        "kv_used_tokens": used,
        "kv_reserved_tokens": cut["kv_reserved_tokens"] - np.where(reserved_lasts, added, 0),
    }


def _closed(values: Floats) -> Floats:
    """The last value once more, so that the last step has a width."""
    return np.append(values, values[-1])


def _describe(run: Run, pool: float, num_replicas: int, zoomed: bool, thinned: bool) -> str:
    # The budget counts the bytes of one GPU; a token is spread over all GPUs of its replica.
    bytes_per_token = (run.manifest.get("memory") or {}).get("kv_bytes_per_token")
    gpus = (run.scenario.get("hardware") or {}).get("tensor_parallel_size") or 1
    size = f" ({bytes_to_gib(pool * bytes_per_token * gpus):.2f} GiB)" if bytes_per_token else ""
    text = f"{run.name}: pool {pool:,.0f} tokens{size}"
    peak = run.value("kv", "peak_tokens")
    if peak is not None:
        where = " on one replica" if num_replicas > 1 else ""
        text += f", peak allocated{where} {words.count(peak)} ({words.percent(peak * num_replicas / pool)})"
    if zoomed:
        text += "; the axis stops just above the peak, what is above it is free"
    if thinned:
        text += f"; averages over {series.MAX_POINTS} equal bins"
    return text
