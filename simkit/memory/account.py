"""Where every GiB of a GPU goes: what `simkit memory` prints and writes.

Sizes are GiB of one GPU unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simkit.memory.budget import Way, refusal_of
from simkit.memory.groups import Group, Kind
from simkit.memory.rules import (
    Rule,
    block_sizes,
    newest_engine,
    parse_version,
    quantizations,
    sureness,
    takes_any_block,
)
from simkit.memory.sizing import MemorySettings, Sizing, StageSizing, size
from simkit.specs.dtypes import computed_in
from simkit.units import bytes_to_gib

# Start-up logs whose weights agree with the counted ones, and how well.
_WEIGHT_ROWS: dict[str | None, tuple[str, str]] = {
    None: ("A042 to A055, A059 to A080, A086 to A089", "counted from shapes; within 1 % of the logs"),
    "fp8": ("A045, A058, A102, A103", "GEMMs of the layers at 1 byte; within 0.5 % of 4 logs"),
    "fp8_block": ("A045, A058, A102, A103", "as fp8, and a scale for each block; no log of its own"),
    "int8": ("A010", "GEMMs of the layers at 1 byte; few rows: 1 log, within 0.5 %"),
    "awq": ("A014", "4.16 bits a weight; few rows: 1 log (another 4-bit format), within 1 %"),
    "gptq": ("A014", "4.16 bits a weight; few rows: 1 log (another 4-bit format), within 1 %"),
    "gptq_int8": ("", "8.13 bits a weight; no log"),
    "mxfp4": ("", "4.25 bits a weight of the experts, padded as the kernels hold them; 3 other logs, within 0.4 %"),
    "nvfp4": ("", "4.5 bits a weight; no log"),
    "bitsandbytes": ("", "4.13 bits a weight; no log"),
}
_KV_ROWS = ("A001, A021, A044, A047 to A070, A086 to A092", "exact; the tokens of the logs agree to 0.2 %")


@dataclass(frozen=True, slots=True)
class PartSizes:
    """What lies on one GPU of a stage."""

    weights_gib: float
    weights_by_part_gib: Mapping[str, float]
    activation_gib: float
    non_torch_gib: float
    cuda_graph_gib: float
    kv_gib: float


@dataclass(frozen=True, slots=True)
class StageAccount:
    """A stage of a pipeline."""

    num_layers: int
    parts: PartSizes
    num_gpu_blocks: int


@dataclass(frozen=True, slots=True)
class GroupAccount:
    """Layers that share a block table, and the blocks that a sequence of max_model_len takes of it at most."""

    kind: str
    window: int | None
    num_layers: int
    block_size: int
    page_bytes: int
    blocks: int | None


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Sequences of so many tokens that fit at once when all have reached them: usable blocks / blocks of one."""

    tokens: float
    blocks: int
    sequences: float


@dataclass(frozen=True, slots=True)
class Grounds:
    """The logs that a part stands on, how sure it is, and remarks."""

    rows: str
    sureness: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """The split of each GPU, the KV pool, concurrency at several lengths, and the refusal or None.

    `parts` are those of the stage with most weights; blocks are what the stage that holds fewest has.
    `kv_tokens` leaves out the dummy block, `engine_log` has the two lines of the engine, which count it.
    """

    model: str
    gpu: str
    num_gpus: int
    settings: Mapping[str, object]
    total_gib: float
    requested_gib: float
    parts: PartSizes
    cuda_graph_in_budget: bool
    outside_gib: float
    bytes_per_block: int
    kv_bytes_per_token: int
    kv_bytes_per_token_all_gpus: int
    num_gpu_blocks: int
    num_dummy_blocks: int
    kv_tokens: int
    groups: tuple[GroupAccount, ...]
    engine_log: tuple[str, ...]
    max_concurrency: float | None
    concurrency: Mapping[str, Concurrency]
    stages: tuple[StageAccount, ...]
    limiting_stage: int
    refusal: str | None
    refusal_kind: str | None
    ways: tuple[Way, ...]
    rules: Mapping[str, Grounds]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The content of memory.json."""
        content = asdict(self)
        return _flat(content) | {"stages": [_flat(stage) for stage in content["stages"]]}


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a GPU among the other values, as one of them."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= value if key == "parts" else {key: value}
    return found


def account(settings: MemorySettings, lengths: Mapping[str, float] | None = None) -> MemoryAccount:
    """Where the memory goes. `lengths` maps a name ("mean", "p95") to tokens of a request, prompt and answer together.

    Raises InputError for settings that no GPU of any size could start.
    """
    sizing = size(settings)
    stage = sizing.fullest
    found = refusal_of(sizing)
    all_bytes = sum(s.kv_bytes_per_token for s in sizing.stages) * settings.tensor_parallel_size
    return MemoryAccount(
        model=settings.model.name,
        gpu=settings.gpu.name,
        num_gpus=settings.tensor_parallel_size * settings.pipeline_parallel_size,
        settings={name: getattr(settings, name) for name in _SETTINGS},
        total_gib=settings.gpu.memory_gib,
        requested_gib=bytes_to_gib(sizing.requested_bytes),
        parts=_parts(stage),
        cuda_graph_in_budget=sizing.cuda_graphs_in_budget,
        outside_gib=bytes_to_gib(sizing.outside_bytes),
        bytes_per_block=stage.bytes_per_block,
        kv_bytes_per_token=stage.kv_bytes_per_token,
        kv_bytes_per_token_all_gpus=all_bytes,
        num_gpu_blocks=sizing.num_gpu_blocks,
        num_dummy_blocks=sizing.num_dummy_blocks,
        kv_tokens=sizing.kv_tokens,
        groups=tuple(_group(group, sizing) for group in sizing.groups),
        engine_log=_engine_log(sizing),
        max_concurrency=_logged_concurrency(sizing),
        concurrency=_concurrency(sizing, lengths or {}),
        stages=tuple(StageAccount(s.stage.num_layers, _parts(s), s.num_blocks) for s in sizing.stages),
        limiting_stage=sizing.limiting,
        refusal=None if found is None else found.text,
        refusal_kind=None if found is None else found.kind,
        ways=() if found is None else tuple(map(_with_names, found.ways)),
        rules=_rules(sizing),
        notes=(*_notes(sizing), *_notes_of_engine(sizing.settings)),
    )


_SETTINGS = (
    "tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "block_size", "dtype", "kv_cache_dtype", "quantization", "engine_version",
    "enforce_eager", "num_gpu_blocks", "activation_gib", "gpu_memory_used_gib",
)  # fmt: skip


def _with_names(way: Way) -> Way:
    """A change after which the engine starts; a GPU by its name."""
    return Way(way.text, {key: getattr(value, "name", value) for key, value in way.changes.items()})


def _parts(stage: StageSizing) -> PartSizes:
    return PartSizes(
        weights_gib=bytes_to_gib(stage.weight_bytes),
        weights_by_part_gib={part: bytes_to_gib(num_bytes) for part, num_bytes in stage.weights.items()},
        activation_gib=bytes_to_gib(stage.activation.num_bytes),
        non_torch_gib=bytes_to_gib(stage.non_torch.num_bytes),
        cuda_graph_gib=bytes_to_gib(stage.cuda_graphs.num_bytes),
        kv_gib=bytes_to_gib(stage.kv_bytes),
    )


def _logged_concurrency(sizing: Sizing) -> float | None:
    """The engine's "maximum concurrency": it counts the dummy block (vLLM scheduler notes of 0.33, section 9)."""
    length = sizing.settings.max_model_len
    return None if length is None else sizing.num_gpu_blocks / sizing.blocks_of(length)


def _engine_log(sizing: Sizing) -> tuple[str, ...]:
    """The lines of the engine's log that say how much the pool holds."""
    length, at_once = sizing.settings.max_model_len, _logged_concurrency(sizing)
    lines = [f"GPU KV cache size: {sizing.logged_tokens:,} tokens"]
    if at_once is not None:
        lines.append(f"Maximum concurrency for {length:,} tokens per request: {at_once:.2f}x")
    return tuple(lines)


def _group(group: Group, sizing: Sizing) -> GroupAccount:
    length, ahead = sizing.settings.max_model_len, sizing.settings.in_flight_tokens
    return GroupAccount(
        kind=group.cache.kind.value,
        window=group.cache.window or None,
        num_layers=len(group.layers),
        block_size=group.block_size,
        page_bytes=group.page_bytes,
        blocks=None if length is None else group.reserved(length, ahead),
    )


def _concurrency(sizing: Sizing, lengths: Mapping[str, float]) -> dict[str, Concurrency]:
    """At the longest that a sequence may be, and at the lengths asked about."""
    longest = sizing.settings.max_model_len
    asked = ({} if longest is None else {"max_model_len": float(longest)}) | dict(lengths)
    blocks = {name: sizing.blocks_of(_whole(tokens)) for name, tokens in asked.items()}
    return {
        name: Concurrency(tokens, blocks[name], sizing.usable_blocks / blocks[name]) for name, tokens in asked.items()
    }


def _whole(tokens: float) -> int:
    return max(1, -int(-tokens // 1))


def _rules(sizing: Sizing) -> dict[str, Grounds]:
    """For each part the logs it stands on and how sure it is."""
    stage, version = sizing.fullest, sizing.settings.version
    rows, sure = _WEIGHT_ROWS[sizing.settings.quantization]
    if sizing.settings.model.attention == "mla":
        rows, sure = "", "as published; no log of a model with a latent cache"

    def grounds(rule: Rule) -> Grounds:
        return Grounds(", ".join(rule.rows), sureness(rule, version), rule.about if rule.rows else "")

    sources = sizing.settings.gpu.sources
    return {
        "total": Grounds("", sources.get("memory_gib") or sources.get("all", "")),
        "weights": Grounds(rows, sure),
        "activation": grounds(stage.activation),
        "non_torch": grounds(stage.non_torch),
        "cuda_graphs": grounds(stage.cuda_graphs),
        "kv_bytes_per_token": Grounds(*_KV_ROWS),
    }


def _notes_of_engine(settings: MemorySettings) -> list[str]:
    """Settings that are sized although the engine, or what is known of it, does not have them."""
    notes, gpu, size_of_block = [], settings.gpu, settings.block_size
    if settings.version[:2] > parse_version(newest_engine())[:2]:
        notes.append(
            f"engine {settings.engine_version}: no rule is that new; those of the newest, {newest_engine()}, are used"
        )
    if computed_in(settings.quantization) not in (None, *quantizations(gpu.compute_capability)):
        notes.append(
            f"the engine documents no {settings.quantization} weights for {gpu.name} ({gpu.compute_capability})"
        )
    sizes, largest = block_sizes(gpu.compute_capability)
    if takes_any_block(settings.version):
        if size_of_block % 16:
            notes.append(f"block size {size_of_block}: most attention kernels of the engine take multiples of 16")
    elif size_of_block not in sizes:
        listed = ", ".join(str(size) for size in sizes)
        notes.append(f"the engine has no block size {size_of_block}: it takes {listed}")
    elif largest is not None and size_of_block > largest:
        notes.append(f"block size {size_of_block}: older engines take at most {largest} on a CUDA GPU")
    return notes


def _notes(sizing: Sizing) -> list[str]:
    settings, model = sizing.settings, sizing.settings.model
    notes = []
    if settings.activation_gib is not None:
        notes.append(f"activation {settings.activation_gib:g} GiB as given, in place of the table")
    if settings.pipeline_parallel_size > 1:
        last = bytes_to_gib(sizing.stages[sizing.limiting].kv_bytes)
        notes.append(
            f"parts are of the stage with most weights; stage {sizing.limiting + 1} of {len(sizing.stages)} decides "
            f"the blocks (KV {last:.2f} GiB); runs do not simulate pipeline parallelism"
        )
    notes += _of_windows(sizing)
    if model.attention == "mla":
        notes.append("the cache holds one latent a token, whole on every TP rank")
        if settings.kernel_block_size != settings.block_size:
            notes.append(f"blocks of {settings.kernel_block_size} tokens, as the kernels for latents take them")
    if model.num_stateful_layers:
        kept = "which blocks are large enough to hold" if model.state_bytes else "which is not known and not counted"
        notes.append(
            f"{model.num_stateful_layers} of {model.num_layers} layers keep a state for each sequence instead of KV, "
            f"{kept}; a run refuses this model"
        )
    if settings.num_gpu_blocks is not None:
        notes.append(f"num_gpu_blocks {settings.num_gpu_blocks:,} as given, in place of what memory holds")
    return notes


def _of_windows(sizing: Sizing) -> list[str]:
    """What windows leave a sequence to hold."""
    model = sizing.settings.model
    if not model.num_sliding_layers or not model.sliding_window:
        return []
    kept = f"{model.num_sliding_layers} of {model.num_layers} layers see a window of {model.sliding_window:,} tokens"
    if all(group.cache.kind is Kind.FULL for group in sizing.groups):
        return [f"{kept}; engine {sizing.settings.engine_version} keeps every layer in full all the same"]
    ahead = f"{sizing.settings.in_flight_tokens:,} tokens that may be under way"
    return [f"{kept}, and a sequence keeps that and {ahead}: tokens and blocks of it depend on its length"]
