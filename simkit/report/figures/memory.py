"""The picture of `simkit memory`: a stacked bar of each GPU's memory. Reads the content of memory.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simkit.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WEIGHTS = {
    "embedding": style.Fill("embedding", style.SKY, "..."),
    "attention": style.Fill("attention", style.BLUE, None),
    "mlp": style.Fill("MLP", style.SKY, None),
    "experts": style.Fill("experts", style.SKY, "\\\\\\"),
    "lm_head": style.Fill("LM head", style.BLUE, "ooo"),
    "other": style.Fill("other weights", style.GREY, "|||"),
}
ACTIVATION = style.Fill("activation peak", style.ORANGE, "///")
NON_TORCH = style.Fill("non-torch", style.PURPLE, "xxx")
GRAPHS = style.Fill("CUDA graphs", style.VERMILLION, "+++")
GRAPHS_OUTSIDE = style.Fill("CUDA graphs, outside the budget", style.VERMILLION, "---")
KV = style.Fill("KV pool", style.GREEN, None)
UNUSED = style.Fill("unused, outside the budget", "none", None)
FILLS = (*WEIGHTS.values(), ACTIVATION, NON_TORCH, GRAPHS, KV, GRAPHS_OUTSIDE, UNUSED)


def write_figure(memory: Mapping[str, Any], directory: Path) -> None:
    """Write memory.svg and memory.png, on white. OSError passes through."""
    with style.drawing():
        fig = draw(memory)
        for suffix in ("svg", "png"):
            metadata = {"Date": None} if suffix == "svg" else None
            fig.savefig(directory / f"memory.{suffix}", dpi=150, facecolor="white", metadata=metadata)


def draw(memory: Mapping[str, Any]) -> Figure:
    """One bar a kind of GPU: one, or one a pipeline stage. Call it inside `style.drawing`."""
    stages = memory["stages"]
    fig = style.new_figure(8.0, 2.1 + 0.5 * len(stages))
    ax = fig.add_subplot()
    used = [_bar(ax, row, memory, stage) for row, stage in enumerate(stages)]
    ax.axvline(memory["requested_gib"], color=style.INK, linewidth=1.4)
    ax.axvline(memory["total_gib"], color=style.INK, linewidth=1.4, linestyle=style.DASHES[1])
    ax.set_xlim(0, max(memory["total_gib"], *(end for _, end in used)) * 1.06)
    ax.set_ylim(len(stages) - 0.45, -0.75)
    for x, text, align, shift in (
        (memory["requested_gib"], "requested", "right", -3),
        (memory["total_gib"], "total", "left", 3),
    ):
        ax.annotate(text, (x, -0.5), xytext=(shift, 0), textcoords="offset points", ha=align, va="bottom", fontsize=8.5)
    ax.set_yticks(range(len(stages)), [_label(memory, row) for row in range(len(stages))])
    ax.set_xlabel("memory of one GPU [GiB]")
    ax.set_title(_title(memory))
    style.grid(ax, "x")
    shown = {fill for fills, _ in used for fill in fills}
    style.legend_below(fig, [fill.patch() for fill in FILLS if fill in shown], 4)
    return fig


def _bar(ax: Axes, row: int, memory: Mapping[str, Any], stage: Mapping[str, Any]) -> tuple[list[style.Fill], float]:
    """Draw one bar; the fills it needed and where it ends."""
    end, fills = 0.0, []
    for fill, gib in _segments(memory, stage):
        if gib <= 0:
            continue
        ax.barh(
            row, gib, left=end, height=0.62, facecolor=fill.color, hatch=fill.hatch, linewidth=0.6,
            edgecolor=style.INK if fill.color == "none" else style.HATCH_INK,
        )  # fmt: skip
        if fill is KV and gib > 0.12 * memory["total_gib"]:
            ax.text(end + gib / 2, row, f"KV {gib:.2f} GiB", ha="center", va="center", color=style.HATCH_INK)
        end += gib
        fills.append(fill)
    return fills, end


def _segments(memory: Mapping[str, Any], stage: Mapping[str, Any]) -> Iterator[tuple[style.Fill, float]]:
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


def _label(memory: Mapping[str, Any], row: int) -> str:
    ranks = memory["settings"]["tensor_parallel_size"]
    each = "GPU" if ranks == 1 else f"each of {ranks} GPUs"
    return each if len(memory["stages"]) == 1 else f"stage {row + 1}\n{each}"


def _title(memory: Mapping[str, Any]) -> str:
    text = f"{memory['model']} on {memory['gpu']}: {memory['kv_tokens']:,} KV tokens"
    if memory["refusal_upper_bound"] is not None:
        return f"{text} at least, cannot tell whether it starts"
    return text if memory["refusal"] is None else f"{text}, start-up refused"
