"""The terminal's tables of `simkit memory`, 80 columns wide at most. Reads the content of memory.json."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simkit.plain import Json
from simkit.report.words import percent

if TYPE_CHECKING:
    from rich.console import RenderableType

PART_NAMES = {
    "embedding": "embedding",
    "attention": "attention",
    "mlp": "MLP",
    "experts": "experts",
    "router": "router",
    "norms": "norms, biases",
    "image_tower": "image tower",
    "lm_head": "LM head",
}
_RULE_NAMES = {
    "total": "total memory",
    "non_torch": "non-torch",
    "cuda_graphs": "CUDA graphs",
    "kv_bytes_per_token": "KV bytes a token",
}
_LENGTH_NAMES = {"max_model_len": "max_model_len", "mean": "mean request", "p95": "p95 request"}


def memory_tables(memory: Json, width: int = 100) -> list[RenderableType]:
    """What was asked, where the memory of a GPU goes, the KV pool, concurrency, how sure it is, and notes."""
    parts: list[RenderableType] = [_title(memory), _split_table(memory), _pool_table(memory)]
    parts += [*_group_table(memory), _concurrency(memory), _logged(memory)]
    parts.append(Text("\nHow sure (rows of kv_capacity.csv, public start-up logs):"))
    parts += [
        _hanging(f"{_RULE_NAMES.get(name, name)}: {_told(rule)}", width) for name, rule in memory["rules"].items()
    ]
    parts += [_hanging(f"note: {note}", width) for note in memory["notes"]]
    return parts


def split_rows(memory: Json) -> Iterator[tuple[str, float, int]]:
    """(name, GiB, depth) of everything on a GPU; what has depth 0 adds up to its memory."""
    in_budget = memory["cuda_graph_in_budget"]
    yield "weights", memory["weights_gib"], 0
    for part, gib in memory["weights_by_part_gib"].items():
        if gib:
            yield PART_NAMES[part], gib, 1
    yield "activation peak", memory["activation_gib"], 0
    yield "non-torch", memory["non_torch_gib"], 0
    if in_budget:
        yield "CUDA graphs", memory["cuda_graph_gib"], 0
    yield "KV pool" if memory["kv_gib"] >= 0 else "missing for KV", memory["kv_gib"], 0
    outside = memory["outside_gib"]
    if not in_budget:
        yield "CUDA graphs, outside the budget", memory["cuda_graph_gib"], 0
        outside -= memory["cuda_graph_gib"]
    yield "unused, outside the budget" if outside >= 0 else "missing outside the budget", outside, 0


def _title(memory: Json) -> Text:
    asked = memory["settings"]
    gpus = "1 GPU" if memory["num_gpus"] == 1 else f"each of {memory['num_gpus']} GPUs"
    ranks = [
        f"{short} {asked[key]}"
        for short, key in (("TP", "tensor_parallel_size"), ("PP", "pipeline_parallel_size"))
        if asked[key] > 1
    ]
    flags = [
        f"gpu_memory_utilization {asked['gpu_memory_utilization']:g}",
        f"max_model_len {asked['max_model_len']}",
        f"max_num_seqs {asked['max_num_seqs']}",
        f"max_num_batched_tokens {asked['max_num_batched_tokens']}",
        f"dtype {asked['dtype']}",
        f"quantization {asked['quantization'] or 'none'}",
        f"kv_cache_dtype {asked['kv_cache_dtype']}",
        f"engine {asked['engine_version']}",
    ]
    head = ", ".join([f"{memory['model']} on {memory['gpu']}", gpus, *ranks])
    return Text(f"{head}\n{', '.join(flags)}\n")


def _split_table(memory: Json) -> Table:
    table = _table("memory of a GPU", "GiB", "share")
    for name, gib, depth in split_rows(memory):
        table.add_row("  " * depth + name, f"{gib:.2f}", percent(gib / memory["total_gib"]))
    table.add_section()
    table.add_row("requested", f"{memory['requested_gib']:.2f}", percent(memory["requested_gib"] / memory["total_gib"]))
    table.add_row("total", f"{memory['total_gib']:.2f}", percent(1.0))
    return table


def _pool_table(memory: Json) -> Table:
    table = _table("\nKV pool of a replica", "")
    table.add_row("bytes a token, each GPU", f"{memory['kv_bytes_per_token']:,}")
    if memory["num_gpus"] > 1:
        table.add_row("bytes a token, all GPUs", f"{memory['kv_bytes_per_token_all_gpus']:,}")
    dummy = f", {memory['num_dummy_blocks']} of them never handed out" if memory["num_dummy_blocks"] else ""
    table.add_row(f"blocks of {memory['groups'][0]['block_size']} tokens{dummy}", f"{memory['num_gpu_blocks']:,}")
    groups = memory["groups"]
    at_length = len(groups) > 1 or groups[0]["kind"] != "full"
    table.add_row("tokens, at max_model_len" if at_length else "tokens", f"{memory['kv_tokens']:,}")
    return table


def _group_table(memory: Json) -> list[RenderableType]:
    """The groups of layers with a block table of their own, alike ones in a line; none where there is only one."""
    groups = memory["groups"]
    if len(groups) == 1 and groups[0]["kind"] == "full":
        return []
    table = _table("\ngroups of layers", "layers", "window", "block", "blocks of the longest")
    alike: dict[tuple[object, ...], list[int]] = {}
    for group in groups:
        alike.setdefault(tuple(group[key] for key in ("kind", "window", "block_size", "blocks")), []).append(
            group["num_layers"]
        )
    for (kind, window, block_size, blocks), layers in alike.items():
        name = f"{kind} ({len(layers)} of them)" if len(layers) > 1 else str(kind)
        sizes = ", ".join(str(count) for count in layers)
        cells = ("" if value is None else f"{value:,}" for value in (window, block_size, blocks))
        table.add_row(name, sizes, *cells)
    return [table]


def _logged(memory: Json) -> Text:
    return Text("\nThe engine logs:\n" + "\n".join(memory["engine_log"]))


def _concurrency(memory: Json) -> Table:
    table = _table("\nsequences that fit at full length", "tokens", "blocks", "at once")
    table.add_row("as many as max_num_seqs allows", "", "", f"{memory['settings']['max_num_seqs']:,}")
    for name, at in memory["concurrency"].items():
        label = _LENGTH_NAMES.get(name, name)
        table.add_row(label, f"{at['tokens']:,.0f}", f"{at['blocks']:,}", f"{at['sequences']:,.2f}")
    if memory["max_concurrency"] is not None:
        logged = "max concurrency, as the engine logs it"
        table.add_row(logged, "", "", f"{memory['max_concurrency']:,.2f}")
    return table


def condensed(rows: str) -> str:
    """ "A047, A048, A049, A053" as "A047-A049, A053"; other texts stay."""
    found = rows.split(", ")
    if not all(re.fullmatch(r"A\d+", row) for row in found):
        return rows
    runs: list[list[str]] = []
    for row in found:
        if runs and int(row[1:]) == int(runs[-1][-1][1:]) + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _told(rule: Mapping[str, str]) -> str:
    parts = [
        rule["sureness"],
        f"({condensed(rule['rows'])})" if rule["rows"] else "",
        f"- {rule['about']}" if rule["about"] else "",
    ]
    return " ".join(part for part in parts if part)


def _hanging(text: str, width: int) -> RenderableType:
    """A line that wraps under itself."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(max_width=max(20, min(width, 100) - 4))
    table.add_row("-", Text(text))
    return Padding(table, (0, 0, 0, 0))


def _table(*headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for position, header in enumerate(headers):
        table.add_column(Text(header), justify="right" if position else "left", no_wrap=True)
    return table
