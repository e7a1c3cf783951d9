"""What memory holds: that of each GPU, as its budget is split, and the KV pool of a run over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from simkit.report import words
from simkit.report.document import Figure
from simkit.report.figures import style, timeline
from simkit.report.figures.style import Fill
from simkit.report.read.run import Run, Table, num_rows
from simkit.types import Floats
from simkit.units import bytes_to_gib

Content = Mapping[str, Any]
"""memory.json, or what it says of a kind of GPU."""

WEIGHTS = {
    "embedding": Fill("embedding", style.SKY, "..."),
    "attention": Fill("attention", style.BLUE, None),
    "mlp": Fill("MLP", style.SKY, None),
    "experts": Fill("experts", style.SKY, "\\\\\\"),
    "lm_head": Fill("LM head", style.BLUE, "ooo"),
    "other": Fill("other weights", style.GREY, "|||"),
}
ACTIVATION = Fill("activation peak", style.ORANGE, "///")
NON_TORCH = Fill("non-torch", style.PURPLE, "xxx")
GRAPHS = Fill("CUDA graphs", style.VERMILLION, "+++")
GRAPHS_OUTSIDE = Fill("CUDA graphs, outside the budget", style.VERMILLION, "---")
KV = Fill("KV pool", style.GREEN, None)
UNUSED = Fill("unused, outside the budget", "none", None)
FILLS = (*WEIGHTS.values(), ACTIVATION, NON_TORCH, GRAPHS, KV, GRAPHS_OUTSIDE, UNUSED)

POOL_COLUMNS = ("kv_used_tokens", "kv_reserved_tokens", "kv_internal_tokens", "kv_external_tokens")
POOL_FILLS = (
    Fill("used", style.BLUE, None),
    Fill("reserved", style.SKY, "\\\\\\"),
    Fill("internal waste", style.ORANGE, "///"),
    Fill("external waste", style.VERMILLION, "xxxx"),
    Fill("free", "none", None),
)
ZOOM_BELOW = 0.25  # of the pool


def write_budget(memory: Content, directory: Path) -> None:
    """Write memory.svg and memory.png: a bar a kind of GPU, one, or one a pipeline stage. OSError passes through."""
    stages = memory["stages"]
    with style.drawing(8.0, 2.1 + 0.5 * len(stages)) as drawn:
        ax = drawn.fig.subplots()
        used = [_bar(ax, row, memory, stage) for row, stage in enumerate(stages)]
        ax.axvline(memory["requested_gib"], color=style.INK, linewidth=1.4)
        ax.axvline(memory["total_gib"], color=style.INK, linewidth=1.4, linestyle=style.DASHES[1])
        ax.set_xlim(0, max(memory["total_gib"], *(end for _, end in used)) * 1.06)
        ax.set_ylim(len(stages) - 0.45, -0.75)
        for key, align, shift in (("requested", "right", -3), ("total", "left", 3)):
            at = (memory[f"{key}_gib"], -0.5)
            ax.annotate(key, at, (shift, 0), textcoords="offset points", ha=align, va="bottom", fontsize=8.5)
        ax.set_yticks(range(len(stages)), [_label(memory, row) for row in range(len(stages))])
        ax.set_xlabel("memory of one GPU [GiB]")
        ax.set_title(_title(memory))
        style.grid(ax, "x")
        shown = {fill for fills, _ in used for fill in fills}
        drawn.legend([fill.patch() for fill in FILLS if fill in shown], 4)
        drawn.save(directory, "memory")


def _bar(ax: Axes, row: int, memory: Content, stage: Content) -> tuple[list[Fill], float]:
    """Draw one bar; the fills it needed and where it ends."""
    end, fills = 0.0, []
    for fill, gib in _segments(memory, stage):
        if gib <= 0:
            continue
        ax.barh(row, gib, left=end, height=0.62, **fill.look(0.6))
        if fill is KV and gib > 0.12 * memory["total_gib"]:
            ax.text(end + gib / 2, row, f"KV {gib:.2f} GiB", ha="center", va="center", color=style.HATCH_INK)
        end += gib
        fills.append(fill)
    return fills, end


def _segments(memory: Content, stage: Content) -> Iterator[tuple[Fill, float]]:
    parts = stage["weights_by_part_gib"]
    for part, fill in WEIGHTS.items():
        yield fill, parts.get(part, 0.0) if part != "other" else sum(v for k, v in parts.items() if k not in WEIGHTS)
    yield ACTIVATION, stage["activation_gib"]
    yield NON_TORCH, stage["non_torch_gib"]
    if memory["cuda_graph_in_budget"]:
        yield GRAPHS, stage["cuda_graph_gib"]
    yield KV, stage["kv_gib"]
    # What does not fit in the budget is drawn beyond its line, and takes from what lies outside.
    outside = memory["outside_gib"] + min(0.0, stage["kv_gib"])
    if not memory["cuda_graph_in_budget"]:
        yield GRAPHS_OUTSIDE, stage["cuda_graph_gib"]
        outside -= stage["cuda_graph_gib"]
    yield UNUSED, outside


def _label(memory: Content, row: int) -> str:
    ranks = memory["settings"]["tensor_parallel_size"]
    each = "GPU" if ranks == 1 else f"each of {ranks} GPUs"
    return each if len(memory["stages"]) == 1 else f"stage {row + 1}\n{each}"


def _title(memory: Content) -> str:
    text = f"{memory['model']} on {memory['gpu']}: {memory['kv_tokens']:,} KV tokens"
    return text if memory["refusal"] is None else f"{text}, start-up refused"


# --- over time --------------------------------------------------------------------------------------------------------
def pool(run: Run, key: str) -> Figure | None:
    """What the KV pool of one arm holds over time, the three kinds of waste apart; None when it ran no step."""
    steps = timeline.first_replication(run)
    over = timeline.over_time(grown(steps), POOL_COLUMNS)
    if over is None:
        return None
    first_rows = np.unique(steps["replica"], return_index=True)[1]
    size = float(sum(steps[c][first_rows].sum() for c in (*POOL_COLUMNS[:3], "kv_free_tokens")))
    held = [over.values[column] for column in POOL_COLUMNS]
    peak = max(float(np.sum(held[:3], axis=0).max()), 1.0)
    zoomed = peak < ZOOM_BELOW * size
    top = 1.25 * peak if zoomed else size
    scale, unit = (1000.0, "thousand tokens") if top >= 10_000 else (1.0, "tokens")
    time = style.time_unit(float(over.times_ns[-1]))
    with style.drawing(6.3, 2.9) as drawn:
        ax = drawn.fig.subplots()
        bottom = np.zeros_like(held[0])
        for fill, values in zip(POOL_FILLS, held, strict=False):
            if not values.any():
                continue
            low, high = (_closed(edge) / scale for edge in (bottom, bottom + values))
            ax.fill_between(over.times_ns / time.ns, low, high, step="post", **fill.look(0.0))
            bottom = bottom + values
        ax.set_xlim(over.times_ns[0] / time.ns, over.times_ns[-1] / time.ns)
        ax.set_ylim(0, top / scale)
        style.grid(ax, "y")
        ax.set(title=run.name, xlabel=f"time [{time.name}]", ylabel=f"KV memory [{unit}]")
        drawn.legend([fill.patch() for fill in POOL_FILLS], 5)
        caption = _describe(run, size, len(first_rows), zoomed, over.thinned)
        return drawn.figure(key, f"KV memory of {run.name} over time by kind of use", caption)


def grown(steps: Table) -> Table:
    """Long spans cut into pieces, with the tokens that were added since the first step of the span.

    A span records its first step; while nothing changes, every live sequence adds a token a step. They come out of
    reserved room as long as that lasts, else out of free memory. Runs with many spans need no pieces.
    """
    if not num_rows(steps):
        return steps
    pieces = np.minimum(steps["num_steps"], max(1, timeline.MAX_POINTS // num_rows(steps)))
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
    peak = run.value("kv.peak_tokens")
    if peak is not None:
        where = " on one replica" if num_replicas > 1 else ""
        text += f", peak allocated{where} {words.count(peak)} ({words.percent(peak * num_replicas / pool)})"
    if zoomed:
        text += "; the axis stops just above the peak, what is above it is free"
    if thinned:
        text += f"; averages over {timeline.MAX_POINTS} equal bins"
    return text
