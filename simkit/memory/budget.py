"""The memory budget of one GPU, as a run needs it, or the refusal of a start-up: why, and what would let it start.

A change is named only after the start-up has been sized again with it. Knows no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simkit.errors import InputError
from simkit.memory.rules import FIRST_V1, LONGEST_WHOLE_PROMPT, parse_version, quantizations
from simkit.memory.sizing import MemorySettings, Sizing, size
from simkit.specs.dtypes import computed_in
from simkit.specs.hardware import GpuSpec, list_gpus
from simkit.units import bytes_to_gib

__all__ = ["MemoryBudget", "MemorySettings", "default_limits", "memory_budget", "refusal_of"]

_LARGEST_TP = 16
_BESIDE = ("gpu_memory_used", "cuda_graphs", "sampler")  # less of the budget helps
_FIRST_FP8 = (0, 5, 0)  # older engines are not advised to use an fp8 cache, which they lack or had on trial
_FIRST_CHUNKED = (0, 5, 0)  # nor to chunk prompts, for the same reason


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory of one GPU. `cuda_graph_gib` is inside the budget since engine 0.21 and outside it (on top) before.

    `num_gpu_blocks` includes the dummy block, `kv_tokens` does not. `bytes_per_block` and `kv_bytes_per_token` are of
    one GPU; blocks and tokens are those of the replica, since every TP rank holds its share of each block.
    `highest_gpu_memory_utilization` leaves room for what the engine keeps beside the budget; advice stays below it.
    """

    total_gib: float
    requested_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    cuda_graph_gib: float
    cuda_graph_in_budget: bool
    kv_gib: float
    bytes_per_block: int
    num_gpu_blocks: int
    kv_tokens: int
    kv_bytes_per_token: int
    highest_gpu_memory_utilization: float


def default_limits(gpu: GpuSpec, engine_version: str = "0.33", max_model_len: int | None = None) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) that the API server takes when they are not given.

    By GPU class (vLLM scheduler notes of 0.33, section 8). Engines before 0.8 took whole prompts, up to 32,768 tokens:
    their budget was max_model_len (A001, A021).
    """
    if parse_version(engine_version) < FIRST_V1:
        whole = max_model_len if max_model_len is not None and max_model_len <= LONGEST_WHOLE_PROMPT else 0
        return max(2048, whole), 256
    if gpu.memory_gib >= 160:
        return 16384, 1024
    if gpu.memory_gib >= 70 and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256


def memory_budget(settings: MemorySettings) -> MemoryBudget:
    """How the engine splits the memory of each GPU, and how many KV blocks that leaves.

    Raises InputError when the engine would not start: the weights do not fit, nothing is left for KV, one sequence
    of `max_model_len` (where given) does not fit, or the token budget is below it where prompts are not chunked.
    `num_gpu_blocks` of the result is what memory gives, whatever the settings replace it with.
    """
    sizing = size(settings)
    refused = refusal_of(sizing)
    if refused is not None:
        of_engine = refused.kind in ("max_model_len", "max_num_batched_tokens")
        key = f"engine.{refused.kind}" if of_engine else "model"
        raise InputError(refused.text, key=key, says_key=of_engine)
    stage = sizing.stages[sizing.limiting]
    return MemoryBudget(
        total_gib=settings.gpu.memory_gib,
        requested_gib=bytes_to_gib(sizing.requested_bytes),
        weights_gib=bytes_to_gib(stage.weight_bytes),
        activation_gib=bytes_to_gib(stage.activation.num_bytes),
        non_torch_gib=bytes_to_gib(stage.non_torch.num_bytes),
        cuda_graph_gib=bytes_to_gib(stage.cuda_graphs.num_bytes),
        cuda_graph_in_budget=sizing.cuda_graphs_in_budget,
        kv_gib=bytes_to_gib(stage.kv_bytes),
        bytes_per_block=stage.bytes_per_block,
        num_gpu_blocks=stage.num_blocks,
        kv_tokens=size(replace(settings, num_gpu_blocks=None)).kv_tokens,
        kv_bytes_per_token=stage.kv_bytes_per_token,
        highest_gpu_memory_utilization=sizing.highest_utilization,
    )


# --- refusals ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Way:
    """A change that makes the engine start: the words, and the settings it changes."""

    text: str
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine does not start, and ways out.

    `kind`: "weights" (they do not fit), "kv" (nothing is left for KV), "max_model_len" (one sequence too long) or
    "max_num_batched_tokens" (below max_model_len where prompts are not chunked), "gpu_memory_used" (others use too much
    of the GPU), "cuda_graphs" or "sampler" (too little is left beside the budget: the start-up dies after sizing).
    """

    kind: str
    reason: str
    ways: tuple[Way, ...]

    @property
    def text(self) -> str:
        """Reason and ways out in one line."""
        if not self.ways:
            return f"{self.reason}: no single change makes it start"
        texts = [way.text for way in self.ways]
        if len(texts) < 3:
            return f"{self.reason}: {' or '.join(texts)}"
        return f"{self.reason}: {', '.join(texts[:-1])}, or {texts[-1]}"


def refusal_of(sizing: Sizing) -> Refusal | None:
    """Why the engine would not start, with single changes after which it would; None when it starts."""
    found = _reason(sizing)
    if found is None:
        return None
    kind, reason = found
    if kind == "max_num_batched_tokens":
        return Refusal(kind, reason, tuple(_ways_to_hold_prompts(sizing.settings)))
    if sizing.settings.num_gpu_blocks is not None and kind == "max_model_len":
        return Refusal(kind, reason, tuple(_ways_with_override(sizing)))
    ways = tuple(_ways(sizing, kind))
    if not [way for way in ways if "max_model_len" not in way.changes]:
        ways += tuple(_larger_gpu(sizing.settings))
    return Refusal(kind, reason, ways)


def _reason(sizing: Sizing) -> tuple[str, str] | None:
    settings = sizing.settings
    model, full = settings.model, sizing.stages[sizing.limiting]
    length, budget = settings.max_model_len, settings.max_num_batched_tokens
    if length is not None and settings.budget_holds_prompts and budget < length:
        whole = f"is below max_model_len {length}, and engine {settings.engine_version} takes prompts whole"
        return "max_num_batched_tokens", f"max_num_batched_tokens {budget} {whole}"
    if sizing.free_bytes < sizing.requested_bytes:
        free = f"free memory on {settings.gpu.name} ({bytes_to_gib(sizing.free_bytes):.2f}/"
        free += f"{settings.gpu.memory_gib:.2f} GiB) is less than gpu_memory_utilization asks for"
        asked = f"({settings.gpu_memory_utilization:g}, {bytes_to_gib(sizing.requested_bytes):.2f} GiB)"
        return "gpu_memory_used", f"{free} {asked}"
    utilization = f"gpu_memory_utilization {settings.gpu_memory_utilization:g}"
    offer = f"{settings.gpu.name} offers {bytes_to_gib(sizing.requested_bytes):.1f} GiB at {utilization}"
    if sizing.fullest.weight_bytes >= sizing.requested_bytes:
        need = f"model {model.name} needs {bytes_to_gib(sizing.fullest.weight_bytes):.1f} GiB of weights per GPU"
        return "weights", f"{need}; {offer}"
    # Memory must give a usable block even where num_gpu_blocks then replaces the number.
    if full.num_blocks - sizing.num_dummy_blocks < 1:
        parts = f"weights {bytes_to_gib(full.weight_bytes):.1f}"
        parts += f", activations {bytes_to_gib(full.activation.num_bytes):.1f}"
        parts += f", non-torch {bytes_to_gib(full.non_torch.num_bytes):.1f}"
        if sizing.cuda_graphs_in_budget:
            parts += f", CUDA graphs {bytes_to_gib(full.cuda_graphs.num_bytes):.1f}"
        return "kv", f"model {model.name} leaves no memory for KV: {offer}, used: {parts} GiB"
    if length is not None and sizing.blocks_of(length) > sizing.usable_blocks:
        need = f"needs {sizing.blocks_of(length):,} blocks{_of_groups(sizing)}, {sizing.usable_blocks:,} fit"
        return "max_model_len", f"max_model_len {length} {need}"
    return _too_little_beside(sizing)


def _too_little_beside(sizing: Sizing) -> tuple[str, str] | None:
    """What runs out of memory after the KV cache is there: capturing graphs, and the warm-up of the sampler."""
    spare, graphs, logits = sizing.spare_bytes, sizing.graph_bytes, sizing.logit_bytes
    share = f"gpu_memory_utilization {sizing.settings.gpu_memory_utilization:g}"
    left = f"{max(0.0, bytes_to_gib(spare)):.2f} GiB that {share} leaves beside the KV cache"
    if graphs and graphs > spare:
        return "cuda_graphs", f"capturing CUDA graphs needs {bytes_to_gib(graphs):.2f} GiB of the {left}"
    if logits + graphs > spare:
        settings = sizing.settings
        shape = f"{settings.max_num_seqs} x {settings.model.vocab_size:,} logits"
        also = f" and CUDA graphs {bytes_to_gib(graphs):.2f}" if graphs else ""
        need = f"warming up the sampler needs {bytes_to_gib(logits):.2f} GiB (copies of {shape}){also}"
        return "sampler", f"{need} of the {left}"
    return None


def _of_groups(sizing: Sizing) -> str:
    """How many block tables a sequence has, where it is not one."""
    return "" if len(sizing.groups) == 1 else f" in {len(sizing.groups)} groups of layers"


def _starts(settings: MemorySettings) -> bool:
    sizing = size(settings)
    return _reason(sizing) is None


def _ways_with_override(sizing: Sizing) -> Iterator[Way]:
    """Memory changes nothing while num_gpu_blocks stands."""
    yield _shorter(sizing)
    blocks = sizing.blocks_of(sizing.settings.max_model_len or 1) + sizing.num_dummy_blocks
    yield Way(f"raise num_gpu_blocks to {blocks:,}", {"num_gpu_blocks": blocks})


def _ways(sizing: Sizing, kind: str) -> Iterator[Way]:
    settings = sizing.settings
    if kind == "max_model_len":
        yield _shorter(sizing)
    if kind in _BESIDE:
        yield from _first(settings, _less_utilization(settings))
    if kind in _BESIDE and not settings.enforce_eager:
        yield from _first(settings, iter([Way("set enforce_eager to true", {"enforce_eager": True})]))
    for candidates in (_utilization(settings), _fp8_cache(settings), _fewer_seqs(settings), _smaller_budget(settings),
                       _quantized(settings), _more_ranks(settings)):  # fmt: skip
        yield from _first(settings, candidates)


def _shorter(sizing: Sizing) -> Way:
    """A shorter max_model_len may be one up to which prompts are taken whole."""
    settings, tokens = sizing.settings, sizing.longest
    if replace(settings, max_model_len=tokens).budget_holds_prompts:
        tokens = min(tokens, settings.max_num_batched_tokens)
    return Way(f"lower it to {tokens:,}", {"max_model_len": tokens})


def _ways_to_hold_prompts(settings: MemorySettings) -> Iterator[Way]:
    length, budget = settings.max_model_len, settings.max_num_batched_tokens
    ways = [
        Way(f"raise it to {length}", {"max_num_batched_tokens": length}),
        Way(f"lower max_model_len to {budget}", {"max_model_len": budget}),
    ]
    if settings.version >= _FIRST_CHUNKED:
        ways.append(Way("set enable_chunked_prefill to true", {"enable_chunked_prefill": True}))
    for way in ways:
        yield from _first(settings, iter([way]))


def _first(settings: MemorySettings, candidates: Iterator[Way]) -> Iterator[Way]:
    """The first candidate that starts, if any."""
    for way in candidates:
        if _starts(replace(settings, **way.changes)):
            yield way
            return


def _utilization(settings: MemorySettings) -> Iterator[Way]:
    lowest = int(settings.gpu_memory_utilization * 100 + 1e-9) + 1
    for percent in range(lowest, round(size(settings).highest_utilization * 100) + 1):
        share = percent / 100
        yield Way(f"raise gpu_memory_utilization to {share:g}", {"gpu_memory_utilization": share})


def _less_utilization(settings: MemorySettings) -> Iterator[Way]:
    """In whole percent, the most first."""
    for percent in range(math.ceil(settings.gpu_memory_utilization * 100 - 1e-9) - 1, 0, -1):
        yield Way(f"lower gpu_memory_utilization to {percent / 100:g}", {"gpu_memory_utilization": percent / 100})


def _fp8_cache(settings: MemorySettings) -> Iterator[Way]:
    if not settings.kv_cache_dtype.startswith("fp8") and settings.version >= _FIRST_FP8:
        yield Way("set kv_cache_dtype to fp8", {"kv_cache_dtype": "fp8"})


def _fewer_seqs(settings: MemorySettings) -> Iterator[Way]:
    """Powers of two from 8 on, the largest first: fewer sequences sample at once."""
    if settings.activation_gib is None:
        for power in range((settings.max_num_seqs - 1).bit_length() - 1, 2, -1):
            yield Way(f"lower max_num_seqs to {1 << power}", {"max_num_seqs": 1 << power})


def _smaller_budget(settings: MemorySettings) -> Iterator[Way]:
    """Powers of two from 128 on, the largest first, not below max_num_seqs, which the engine refuses."""
    if settings.activation_gib is None and not settings.budget_holds_prompts:
        for power in range((settings.max_num_batched_tokens - 1).bit_length() - 1, 6, -1):
            if 1 << power >= settings.max_num_seqs:
                changes = {"max_num_batched_tokens": 1 << power}
                yield Way(f"lower max_num_batched_tokens to {1 << power}", changes)


def _quantized(settings: MemorySettings) -> Iterator[Way]:
    if settings.quantization is None:
        for name in quantizations(settings.gpu.compute_capability, settings.version):
            if name not in ("fp8", "int8", "awq", "gptq"):  # published with a model, or as small as one of these
                continue
            yield Way(f"quantize to {name}", {"quantization": name})


def _more_ranks(settings: MemorySettings) -> Iterator[Way]:
    for ranks in range(settings.tensor_parallel_size + 1, _LARGEST_TP + 1):
        if settings.model.splits(ranks):
            yield Way(f"raise tensor_parallel_size to {ranks}", {"tensor_parallel_size": ranks})


def _larger_gpu(settings: MemorySettings) -> Iterator[Way]:
    """The smallest registered GPU that starts with the limits as they are and with those it would bring along."""
    for gpu in sorted(list_gpus(), key=lambda gpu: (gpu.memory_gib, gpu.name)):
        if gpu.memory_gib <= settings.gpu.memory_gib or settings.dtype not in gpu.peak_flops_per_s:
            continue
        if computed_in(settings.quantization) not in (None, *quantizations(gpu.compute_capability)):
            continue
        moved = replace(settings, gpu=gpu)
        budget, seqs = default_limits(gpu, settings.engine_version, settings.max_model_len)
        if _starts(moved) and _starts(replace(moved, max_num_batched_tokens=budget, max_num_seqs=seqs)):
            yield Way(f"use a larger GPU such as {gpu.name}", {"gpu": gpu})
            return
