"""What the engine takes besides weights and KV, by version: `simkit/data/engine_memory.yaml` applied to a model.

Owns the shapes of the rules; their constants and source rows are in the data file. Knows no GPU.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from simkit.errors import InputError
from simkit.memory.weights import Stage
from simkit.specs.dtypes import computed_in
from simkit.specs.hardware import GpuSpec
from simkit.specs.models import ModelSpec
from simkit.units import gib_to_bytes

Version = tuple[int, int, int]

_LOGIT_BYTES = 4  # the sampler works in float32
_LARGE_LOGITS = 1 << 26  # elements from which on some engines sample in more memory
_SWITCHED = (9, 10)  # major compute capabilities of GPUs in boxes with NVLink switches
_SMALL_BATCH = 256  # sequences up to which CUDA graphs are the smaller kind
FIRST_V1: Version = (0, 8, 0)
"""The engine whose scheduler chunks prompts as a matter of course."""
LONGEST_WHOLE_PROMPT = 32768
"""Engines before 0.8 chunk prompts, unless told otherwise, where max_model_len is above it."""
FEW_ROWS = 5
"""A rule that stands on fewer start-up logs is said to be unsure."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Bytes of one GPU that a rule gives, the logs it stands on, its largest error there, and remarks."""

    num_bytes: int
    rows: tuple[str, ...]
    error_gib: float | None
    about: str


def parse_version(text: str) -> Version:
    """(major, minor, patch) of an engine version such as "0.33" or "0.10.1.1". Raises InputError when it is not one."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[.\w+-]*)$", text)
    if match is None:
        raise InputError(f'expected a version such as "0.33", got {text!r}', key="engine.version")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def graphs_in_budget(version: Version) -> bool:
    """Whether CUDA graphs are taken from the requested memory, and not on top of it."""
    return version >= parse_version(_table()["cuda_graphs_in_budget_since"])


def num_dummy_blocks(version: Version) -> int:
    """Blocks of the pool that the engine never hands out."""
    return 1 if version >= parse_version(_table()["dummy_block_since"]) else 0


def activation(
    model: ModelSpec,
    stage: Stage,
    *,
    tensor_parallel_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    element_bytes: float,
    version: Version,
) -> Rule:
    """Peak of temporary activations in the start-up's dummy pass.

    The larger of two moments, plus the workspace of a MoE layer:

    - sampling (last stage only): c x max_num_seqs x vocab x 4 bytes (logits are gathered, so TP does not divide them),
      the hidden states of the budget, and 0.07 GiB; c by version.
    - the MLP of the budget's tokens: 3 x (hidden + intermediate / TP) elements a token, which fits A001 and A002
      (20,000 and 29,000 tokens, 2.07 and 2.99 GiB) and A021. A stage that hands on holds hidden states and residual
      too, and 0.07 GiB (A054, A055).
    - MoE: experts_per_token x (max(2 x moe_intermediate / TP, hidden) + max(moe_intermediate / TP, hidden)) elements a
      token, kept while sampling up to 0.25; fits A072 and A079 to 0.02 GiB.
    """
    entry = _entry("activation", version)
    token_bytes = max_num_batched_tokens * element_bytes
    base = gib_to_bytes(_table()["activation_base_gib"])
    # A MoE model without dense layers never runs a dense MLP; its experts are counted in the workspace.
    has_dense = not model.is_moe or model.num_dense_layers > 0
    width = model.intermediate_size / tensor_parallel_size if has_dense else 0.0
    peak = 3 * (model.hidden_size + width) * token_bytes
    if stage.last:
        is_large = max_num_seqs * model.vocab_size > _LARGE_LOGITS
        copies = entry.get("large_logit_copies", entry["logit_copies"]) if is_large else entry["logit_copies"]
        copies += 0 if model.is_moe else entry.get("state_copies", 0)
        logits = copies * max_num_seqs * model.vocab_size * _LOGIT_BYTES
        peak = max(peak, logits + model.hidden_size * token_bytes + base)
    else:
        peak += 2 * model.hidden_size * token_bytes + base
    kept = 0 if entry.get("without_workspace") else 1
    workspace = kept * _moe_workspace_elements(model, tensor_parallel_size) * token_bytes
    rows = tuple(entry["rows"]) if stage.last else ("A054", "A055")
    error, about = (entry["error_gib"], entry.get("about", "")) if stage.last else (0.1, "")
    return Rule(round(peak + workspace), rows, error, about)


def non_torch(
    tensor_parallel_size: int, pipeline_parallel_size: int, version: Version, compute_capability: str = ""
) -> Rule:
    """Memory outside torch (contexts, communication buffers); PP without a figure of its own is taken as one GPU."""
    entry = _entry("non_torch", version)
    kind = "tensor" if tensor_parallel_size > 1 else "single"
    if kind == "single" and pipeline_parallel_size > 1 and "pipeline_gib" in entry:
        kind = "pipeline"
    if kind == "tensor" and "hopper_gib" in entry and (capability(compute_capability) or (0, 0))[0] in _SWITCHED:
        kind = "hopper"
    gib = entry[f"{kind}_gib"]
    if kind == "tensor":
        gib = min(gib + entry.get("rank_gib", 0.0) * (tensor_parallel_size - 2), entry.get("most_gib", gib))
    return Rule(gib_to_bytes(gib), tuple(entry["rows"][kind]), entry["error_gib"][kind], entry.get("about", ""))


def cuda_graphs(
    num_layers: int, tensor_parallel_size: int, max_num_seqs: int, version: Version, num_moe_layers: int = 0
) -> Rule:
    """CUDA graphs of a stage: proportional to layers, more above 256 sequences (larger graphs) and with TP.

    Layers of experts have a figure of their own where engines estimate graphs instead of capturing them.
    """
    entry = _entry("cuda_graphs", version)
    size = "small" if max_num_seqs <= _SMALL_BATCH else "large"
    own = num_moe_layers if "experts_gib_per_layer" in entry else 0
    has_ranks = tensor_parallel_size > 1
    gib = (num_layers - own) * entry[f"{size}_gib_per_layer"] * (entry["tensor_factor"] if has_ranks else 1.0)
    if own:
        gib += own * entry["experts_gib_per_layer"] * (entry["experts_tensor_factor"] if has_ranks else 1.0)
    of = "experts_" if own else ""
    return Rule(gib_to_bytes(gib), tuple(entry[f"{of}rows"]), entry[f"{of}error_gib"], entry.get("about", ""))


def outside(vocab_size: int, max_num_seqs: int, graph_bytes: int, version: Version) -> int:
    """Bytes of a GPU that a start-up needs beside its budget: context, sampler's warm-up, graphs while they lie there.

    On the safe side, for advice; what other processes use comes on top.
    """
    entry = _entry("outside", version)
    logits = entry["logit_copies"] * max_num_seqs * vocab_size * _LOGIT_BYTES
    graphs = 0 if graphs_in_budget(version) else graph_bytes
    return gib_to_bytes(entry["context_gib"]) + int(logits) + graphs


def startup_logits(vocab_size: int, max_num_seqs: int, version: Version) -> int:
    """Bytes of logits alive at once in the sampler's warm-up, after the KV cache is there; 0 in engines without."""
    if version < parse_version(_table()["startup_logits_since"]):
        return 0
    copies: int = _table()["startup_logit_copies"]
    return copies * max_num_seqs * vocab_size * _LOGIT_BYTES


def startup_context() -> int:
    """Bytes in use on a GPU before the engine looks how much is free."""
    return gib_to_bytes(_table()["startup_context_gib"])


def takes_any_block(version: Version) -> bool:
    """Whether the engine takes blocks of any multiple of 16 tokens."""
    return version >= parse_version(_table()["any_block_size_since"])


def newest_row() -> str:
    """The newest engine version that a log is from."""
    newest: str = _table()["newest_row"]
    return newest


def newest_engine() -> str:
    """The newest engine version that any rule is about."""
    newest: str = _table()["newest_engine"]
    return newest


def quantizations(compute_capability: str, version: Version | None = None) -> tuple[str, ...]:
    """Formats of quantised weights that the engine has for a GPU, preferred ones first.

    `compute_capability` is CUDA's ("8.9") or an AMD architecture ("gfx942"). Without `version` that of any engine.
    """
    names = [
        entry["name"]
        for entry in _table()["quantizations"]
        if (version is None or parse_version(entry["since"]) <= version) and _has_kernels(entry, compute_capability)
    ]
    return tuple(dict.fromkeys(names))


def check_kernels(quantization: str | None, gpu: GpuSpec) -> None:
    """Raise InputError for a format that the engine has no kernels for on a CUDA GPU; others are taken on trust."""
    have = quantizations(gpu.compute_capability)
    if computed_in(quantization) not in (None, *have) and capability(gpu.compute_capability) is not None:
        others = f"; it has {', '.join(have)}" if have else ""
        raise InputError(
            f"the engine has no {quantization} weights for {gpu.name} (compute capability {gpu.compute_capability})"
            f"{others}",
            key="engine.quantization",
        )


BLOCK_SIDE = 128


def check_blocks(model: ModelSpec, ranks: int, quantization: str | None, *, whole_experts: bool) -> None:
    """Raise InputError where ranks would cut an expert's weights within a block that shares a scale: vLLM's loader
    refuses such a checkpoint (`output_size of gate's and up's weight ... is not divisible by weight quantization
    block_n`)."""
    if quantization != "fp8_block" or not model.is_moe or whole_experts or ranks == 1:
        return
    width = model.moe_intermediate_size
    if width % ranks or width // ranks % BLOCK_SIDE:
        raise InputError(
            f"the experts of {model.name} are {width} wide in blocks of {BLOCK_SIDE}, which {ranks} GPUs cannot split: "
            "use fewer, or hardware.expert_parallel: true",
            key="hardware.tensor_parallel_size",
        )


def block_sizes(compute_capability: str) -> tuple[tuple[int, ...], int | None]:
    """The engine's block sizes, and the largest that CUDA GPUs are documented to take (None: no such limit)."""
    largest: int = _table()["largest_cuda_block_size"]
    return tuple(_table()["block_sizes"]), None if capability(compute_capability) is None else largest


def sureness(rule: Rule, version: Version) -> str:
    """How sure a rule is, in words."""
    if not rule.rows:
        return rule.about
    count = "1 log" if len(rule.rows) == 1 else f"{len(rule.rows)} logs"
    few = "few rows: " if len(rule.rows) < FEW_ROWS else ""
    text = f"{few}{count}, largest error {rule.error_gib:g} GiB"
    if version[:2] > parse_version(newest_row())[:2]:
        text += f"; none is newer than {newest_row()}"
    return text


def _moe_workspace_elements(model: ModelSpec, tensor_parallel_size: int) -> float:
    """Elements a token of the two scratch buffers of a fused MoE layer on one rank; 0 in a dense model."""
    width, hidden = model.moe_intermediate_size / tensor_parallel_size, model.hidden_size
    return model.experts_per_token * (max(2 * width, hidden) + max(width, hidden))


def _has_kernels(entry: Mapping[str, Any], compute_capability: str) -> bool:
    have = capability(compute_capability)
    if have is None:
        return compute_capability in entry.get("architectures", ())
    needed = capability(entry.get("compute_capability", ""))
    return needed is not None and have >= needed


def capability(text: str) -> tuple[int, int] | None:
    """A compute capability as numbers: CUDA's (major, minor); None for another maker's architecture."""
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", text)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def _entry(rule: str, version: Version) -> Mapping[str, Any]:
    """The last entry of a rule that had begun by `version`."""
    begun = [entry for entry in _table()[rule] if parse_version(entry["since"]) <= version]
    found: Mapping[str, Any] = begun[-1]
    return found


@functools.cache
def _table() -> Mapping[str, Any]:
    text = resources.files("simkit").joinpath("data/engine_memory.yaml").read_text(encoding="utf-8")
    table: Mapping[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return table
