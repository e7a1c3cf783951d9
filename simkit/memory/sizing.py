"""From GPU memory to KV blocks, stage by stage: the arithmetic of the engine's start-up, which refuses nothing.

requested = ceil(total x gpu_memory_utilization); KV = requested - weights - activation peak - non-torch - CUDA graphs
(the last only since engine 0.20); blocks = floor(KV / bytes of a block), the fewest of any stage (vLLM scheduler notes
of 0.33, section 9). Knows no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simkit.errors import InputError
from simkit.memory import rules
from simkit.memory.rules import Rule, Version
from simkit.memory.weights import Stage, split_stages, weight_parts
from simkit.specs.dtypes import element_bytes
from simkit.specs.hardware import GpuSpec
from simkit.specs.models import ModelSpec
from simkit.units import gib_to_bytes

HIGHEST_UTILIZATION = 0.98
"""Above it the driver's own memory leaves too little free on any GPU; A010 ran at 0.98, no log shows more."""

# Stages whose weights differ by less (a final norm) are equally full; the first of them is shown.
_SAME_WEIGHTS = 1.001


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What decides the memory of each GPU; names and meanings are vLLM's.

    `max_model_len` None asks about no length. `num_gpu_blocks` replaces the number that memory gives. `activation_gib`
    replaces the rule. `num_dummy_blocks` None: by engine version. `enable_chunked_prefill` None: by engine
    version. Where prompts are not chunked the token budget must hold max_model_len.
    """

    model: ModelSpec
    gpu: GpuSpec
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    gpu_memory_utilization: float = 0.92
    block_size: int = 16
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    engine_version: str = "0.33"
    enforce_eager: bool = False
    activation_gib: float | None = None
    num_gpu_blocks: int | None = None
    num_dummy_blocks: int | None = None
    enable_chunked_prefill: bool | None = None

    @property
    def version(self) -> Version:
        """The engine version as numbers."""
        return rules.parse_version(self.engine_version)

    @property
    def budget_holds_prompts(self) -> bool:
        """Whether max_num_batched_tokens cannot be below max_model_len."""
        if self.enable_chunked_prefill is not None:
            return not self.enable_chunked_prefill
        return self.version < rules.FIRST_V1 and (self.max_model_len or 0) <= rules.LONGEST_WHOLE_PROMPT


@dataclass(frozen=True, slots=True)
class StageSizing:
    """Memory in bytes of one GPU of a stage. `kv_bytes` is what is left for KV, below 0 when the rest does not fit."""

    stage: Stage
    weights: Mapping[str, float]
    activation: Rule
    non_torch: Rule
    cuda_graphs: Rule
    kv_bytes: float
    bytes_per_block: int

    @property
    def weight_bytes(self) -> float:
        """All parts together."""
        return sum(self.weights.values())

    @property
    def num_blocks(self) -> int:
        """Blocks that its memory holds."""
        return max(0, int(self.kv_bytes // self.bytes_per_block))


@dataclass(frozen=True, slots=True)
class Sizing:
    """All stages of a replica. Blocks and tokens are those of the replica: every GPU holds its share of each block."""

    settings: MemorySettings
    total_bytes: int
    requested_bytes: int
    cuda_graphs_in_budget: bool
    num_dummy_blocks: int
    stages: tuple[StageSizing, ...]

    @property
    def fullest(self) -> StageSizing:
        """The stage with most weights, the first of equals."""
        most = max(stage.weight_bytes for stage in self.stages)
        return next(stage for stage in self.stages if stage.weight_bytes * _SAME_WEIGHTS >= most)

    @property
    def limiting(self) -> int:
        """Position of the stage that decides how many blocks there are."""
        return min(range(len(self.stages)), key=lambda position: self.stages[position].num_blocks)

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks of the pool, the dummy among them."""
        return self.settings.num_gpu_blocks or self.stages[self.limiting].num_blocks

    @property
    def usable_blocks(self) -> int:
        """Blocks that can be handed out."""
        return max(0, self.num_gpu_blocks - self.num_dummy_blocks)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.usable_blocks * self.settings.block_size

    @property
    def outside_bytes(self) -> int:
        """Memory of a GPU that the engine does not ask for."""
        return self.total_bytes - self.requested_bytes

    @property
    def graphs_fit(self) -> bool:
        """Whether CUDA graphs that are not in the budget have room outside it."""
        return self.cuda_graphs_in_budget or self.fullest.cuda_graphs.num_bytes <= self.outside_bytes

    @property
    def outside_needed_bytes(self) -> int:
        """Memory of a GPU that advice leaves beside the budget."""
        asked = self.settings
        graphs = max(stage.cuda_graphs.num_bytes for stage in self.stages)
        return rules.outside(asked.model.vocab_size, asked.max_num_seqs, graphs, asked.version)

    @property
    def highest_utilization(self) -> float:
        """gpu_memory_utilization, in whole percent, up to which the rest of the GPU holds that; 0 where none does."""
        free = max(0, self.total_bytes - self.outside_needed_bytes)
        return min(round(HIGHEST_UTILIZATION * 100), 100 * free // self.total_bytes) / 100

    def holds_at_best(self, num_tokens: int) -> bool:
        """Whether a sequence fits when a sliding-window layer keeps its window and nothing more, a lower bound.

        Which layers of a stage slide is not known: as many as can be.
        """
        model, whole = self.settings.model, self.blocks_of(num_tokens)
        window = self.blocks_of(min(num_tokens, model.sliding_window or 0))
        for stage in self.stages:
            layers = stage.stage.num_layers
            sliding = min(layers, model.num_sliding_layers)
            # Memory is counted in blocks of one layer; the pool then wastes nothing on layers that keep less.
            pool = self.settings.num_gpu_blocks or stage.kv_bytes / stage.bytes_per_block
            if (layers - sliding) * whole + sliding * window > pool * layers:
                return False
        return True

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks of a sequence of that many tokens."""
        return -(-num_tokens // self.settings.block_size)


def size(settings: MemorySettings) -> Sizing:
    """Split the memory of each GPU. Raises InputError when GPUs cannot split the model, or for an unknown name."""
    _check_parallel(settings.model, settings.tensor_parallel_size)
    total = gib_to_bytes(settings.gpu.memory_gib)
    requested = math.ceil(total * settings.gpu_memory_utilization)
    in_budget = rules.graphs_in_budget(settings.version)
    dummies = settings.num_dummy_blocks
    stages = split_stages(settings.model, settings.pipeline_parallel_size)
    return Sizing(
        settings=settings,
        total_bytes=total,
        requested_bytes=requested,
        cuda_graphs_in_budget=in_budget,
        num_dummy_blocks=rules.num_dummy_blocks(settings.version) if dummies is None else dummies,
        stages=tuple(_size_stage(settings, stage, requested, in_budget) for stage in stages),
    )


def left_for_kv(
    requested: float, weights: float, activation: float, non_torch: float, cuda_graphs: float, graphs_in_budget: bool
) -> float:
    """What the engine leaves for KV, in the unit of its arguments."""
    return requested - weights - activation - non_torch - (cuda_graphs if graphs_in_budget else 0.0)


def kv_dtype_bytes(kv_cache_dtype: str, dtype: str) -> float:
    """Bytes of one cached element; "auto" caches in the model's dtype."""
    return element_bytes(dtype if kv_cache_dtype == "auto" else kv_cache_dtype)


def kv_block_bytes(
    model: ModelSpec,
    tensor_parallel_size: int,
    block_size: int,
    bytes_per_element: float,
    num_layers: int | None = None,
) -> int:
    """Bytes of a block of `num_layers` (default: all) on one rank.

    Sliding-window layers count as full ones, an upper bound.
    """
    layers = model.num_layers if num_layers is None else num_layers
    layers -= layers * model.num_stateful_layers // model.num_layers
    return round(layers * block_size * model.kv_elements_per_layer(tensor_parallel_size) * bytes_per_element)


def _size_stage(settings: MemorySettings, stage: Stage, requested: int, in_budget: bool) -> StageSizing:
    model, ranks, version = settings.model, settings.tensor_parallel_size, settings.version
    weights = weight_parts(model, stage, ranks, settings.dtype, settings.quantization)
    if settings.activation_gib is None:
        activation = rules.activation(
            model,
            stage,
            tensor_parallel_size=ranks,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            element_bytes=element_bytes(settings.dtype),
            version=version,
        )
    else:
        activation = Rule(gib_to_bytes(settings.activation_gib), (), None, "given")
    non_torch = rules.non_torch(ranks, settings.pipeline_parallel_size, version)
    if settings.enforce_eager:
        graphs = Rule(0, (), None, "none are captured")
    else:
        graphs = rules.cuda_graphs(stage.num_layers, ranks, settings.max_num_seqs, version)
    others = (activation.num_bytes, non_torch.num_bytes, graphs.num_bytes)
    cached_bytes = kv_dtype_bytes(settings.kv_cache_dtype, settings.dtype)
    return StageSizing(
        stage=stage,
        weights=weights,
        activation=activation,
        non_torch=non_torch,
        cuda_graphs=graphs,
        kv_bytes=left_for_kv(requested, sum(weights.values()), *others, in_budget),
        bytes_per_block=kv_block_bytes(model, ranks, settings.block_size, cached_bytes, stage.num_layers),
    )


def _check_parallel(model: ModelSpec, tensor_parallel_size: int) -> None:
    if not model.splits(tensor_parallel_size):
        heads = f"{model.num_attention_heads} attention heads and {model.num_kv_heads} KV heads"
        what = f"{tensor_parallel_size} GPUs cannot split the {heads} of {model.name} evenly"
        raise InputError(what, key="hardware.tensor_parallel_size")
