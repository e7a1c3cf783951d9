"""From GPU memory to KV blocks, stage by stage: the arithmetic of the engine's start-up, which refuses nothing.

requested = ceil(total x gpu_memory_utilization); KV = requested - weights - activation peak - non-torch - CUDA graphs
(the last only since engine 0.21); blocks = floor(KV / bytes of a block), the fewest of any stage (vLLM scheduler notes
of 0.33, section 9). Knows no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simkit.errors import InputError
from simkit.memory import rules
from simkit.memory.groups import Group, Kind, block_bytes, reserved_blocks, settled_blocks
from simkit.memory.layers import FIRST_ASYNC, FIRST_TOKENS_AT_LENGTH, in_flight_tokens, kv_groups
from simkit.memory.mxfp4 import expert_bytes, layout_of
from simkit.memory.rules import Rule, Version
from simkit.memory.weights import Stage, split_stages, weight_parts
from simkit.specs.dtypes import element_bytes
from simkit.specs.hardware import GpuSpec
from simkit.specs.models import ModelSpec
from simkit.units import gib_to_bytes

HIGHEST_UTILIZATION = 0.98
"""Above it the driver's own memory leaves too little free on any GPU; A010 ran at 0.98, no log shows more."""
LATENT_BLOCK = 64

# Stages whose weights differ by less (a final norm) are equally full; the first of them is shown.
_SAME_WEIGHTS = 1.001


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What decides the memory of each GPU; names and meanings are vLLM's.

    `max_model_len` None asks about no length. `num_gpu_blocks` replaces the number that memory gives, `activation_gib`
    the rule; `gpu_memory_used_gib` is what others use on each GPU. `num_dummy_blocks`, `enable_chunked_prefill` and
    `async_scheduling` None: by engine version. Where prompts are not chunked the token budget must hold max_model_len.
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
    gpu_memory_used_gib: float = 0.0
    num_gpu_blocks: int | None = None
    num_dummy_blocks: int | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    enable_prefix_caching: bool = True

    @property
    def version(self) -> Version:
        """The engine version as numbers."""
        return rules.parse_version(self.engine_version)

    @property
    def in_flight_tokens(self) -> int:
        """Tokens of one sequence that the engine may have under way."""
        is_async = self.version >= FIRST_ASYNC if self.async_scheduling is None else self.async_scheduling
        return in_flight_tokens(self.max_num_batched_tokens, is_async, self.version)

    @property
    def kernel_block_size(self) -> int:
        """Tokens of a block: kernels for latent caches on Hopper and Blackwell take multiples of 64 (FlashMLA)."""
        major = (rules.capability(self.gpu.compute_capability) or (0, 0))[0]
        latent = self.model.attention == "mla" and self.version >= rules.FIRST_V1 and major in (9, 10)
        return LATENT_BLOCK if latent and self.block_size % LATENT_BLOCK else self.block_size

    @property
    def budget_holds_prompts(self) -> bool:
        """Whether max_num_batched_tokens cannot be below max_model_len."""
        if self.enable_chunked_prefill is not None:
            return not self.enable_chunked_prefill
        return self.version < rules.FIRST_V1 and (self.max_model_len or 0) <= rules.LONGEST_WHOLE_PROMPT


@dataclass(frozen=True, slots=True)
class StageSizing:
    """Memory in bytes of one GPU of a stage.

    `kv_bytes` is what is left for KV, below 0 when the rest does not fit. `bytes_per_block` are those of a block of the
    pool, `kv_bytes_per_token` those of a token that every layer of the stage keeps.
    """

    stage: Stage
    weights: Mapping[str, float]
    activation: Rule
    non_torch: Rule
    cuda_graphs: Rule
    kv_bytes: float
    bytes_per_block: int
    kv_bytes_per_token: int

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
    groups: tuple[Group, ...]
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
        """Tokens that the pool holds; with several groups, or windows, in sequences as long as max_model_len."""
        length = self.settings.max_model_len
        if self.is_counted or length is None:
            return self.usable_blocks // len(self.groups) * self.block_size
        return int(self.usable_blocks / self.blocks_of(length) * length)

    @property
    def logged_tokens(self) -> int:
        """The engine's "GPU KV cache size", which counts the dummy block."""
        length, pool = self.settings.max_model_len, self.num_gpu_blocks
        if self.is_counted or length is None or self.settings.version < FIRST_TOKENS_AT_LENGTH:
            return pool // len(self.groups) * self.block_size
        return int(pool / self.blocks_of(length) * length)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that fits alone."""
        low, high = 0, self.usable_blocks * self.block_size
        if not self.is_counted:
            high = max(high, self.settings.max_model_len or 0)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.blocks_of(middle) <= self.usable_blocks else (low, middle - 1)
        return low

    @property
    def is_counted(self) -> bool:
        """Whether every token takes its share of a block, whatever the length: one group without a window."""
        return len(self.groups) == 1 and self.groups[0].cache.kind is Kind.FULL

    @property
    def block_size(self) -> int:
        """Tokens of a block; the fewest of any group."""
        return min(group.block_size for group in self.groups)

    @property
    def outside_bytes(self) -> int:
        """Memory of a GPU that the engine does not ask for."""
        return self.total_bytes - self.requested_bytes

    @property
    def free_bytes(self) -> int:
        """Memory of a GPU that nobody else uses."""
        return self.total_bytes - gib_to_bytes(self.settings.gpu_memory_used_gib)

    @property
    def spare_bytes(self) -> float:
        """Memory of a GPU once the KV cache is there: outside the budget, and what activations give back."""
        activation = min(stage.activation.num_bytes for stage in self.stages)
        return self.free_bytes - self.requested_bytes + activation - rules.startup_context()

    @property
    def graph_bytes(self) -> int:
        """CUDA graphs that are captured beside the budget."""
        return 0 if self.cuda_graphs_in_budget else max(stage.cuda_graphs.num_bytes for stage in self.stages)

    @property
    def logit_bytes(self) -> int:
        """What the sampler's warm-up takes after that."""
        asked = self.settings
        return rules.startup_logits(asked.model.vocab_size, asked.max_num_seqs, asked.version)

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

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that the engine sets against a sequence of that many tokens."""
        return reserved_blocks(self.groups, num_tokens, self.settings.in_flight_tokens)

    def settled_blocks_of(self, num_tokens: int) -> int:
        """Blocks that a sequence of that many tokens holds while it decodes."""
        return settled_blocks(self.groups, num_tokens)


def size(settings: MemorySettings) -> Sizing:
    """Split the memory of each GPU. Raises InputError when GPUs cannot split the model, or for an unknown name."""
    _check_parallel(settings.model, settings.tensor_parallel_size)
    total = gib_to_bytes(settings.gpu.memory_gib)
    requested = math.ceil(total * settings.gpu_memory_utilization)
    in_budget = rules.graphs_in_budget(settings.version)
    dummies = settings.num_dummy_blocks
    cached_bytes = kv_dtype_bytes(settings.kv_cache_dtype, settings.dtype)
    ranks, version = settings.tensor_parallel_size, settings.version
    groups = kv_groups(
        settings.model, ranks, settings.kernel_block_size, cached_bytes, version, settings.enable_prefix_caching
    )
    stages, first = [], 0
    for stage in split_stages(settings.model, settings.pipeline_parallel_size):
        held = range(first, first + stage.num_layers)
        stages.append(_size_stage(settings, stage, requested, in_budget, block_bytes(groups, held)))
        first = held.stop
    return Sizing(
        settings=settings,
        total_bytes=total,
        requested_bytes=requested,
        cuda_graphs_in_budget=in_budget,
        num_dummy_blocks=rules.num_dummy_blocks(settings.version) if dummies is None else dummies,
        groups=groups,
        stages=tuple(stages),
    )


def left_for_kv(
    requested: float, weights: float, activation: float, non_torch: float, cuda_graphs: float, graphs_in_budget: bool
) -> float:
    """What the engine leaves for KV, in the unit of its arguments."""
    return requested - weights - activation - non_torch - (cuda_graphs if graphs_in_budget else 0.0)


def kv_dtype_bytes(kv_cache_dtype: str, dtype: str) -> float:
    """Bytes of one cached element; "auto" caches in the model's dtype."""
    return element_bytes(dtype if kv_cache_dtype == "auto" else kv_cache_dtype)


def _size_stage(
    settings: MemorySettings, stage: Stage, requested: int, in_budget: bool, bytes_per_block: int
) -> StageSizing:
    model, ranks, version = settings.model, settings.tensor_parallel_size, settings.version
    experts = None
    if settings.quantization == "mxfp4" and model.is_moe:
        experts = expert_bytes(model, ranks, layout_of(settings.gpu.compute_capability, version))
    weights = weight_parts(model, stage, ranks, settings.dtype, settings.quantization, experts)
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
    non_torch = rules.non_torch(ranks, settings.pipeline_parallel_size, version, settings.gpu.compute_capability)
    if settings.enforce_eager:
        graphs = Rule(0, (), None, "none are captured")
    else:
        graphs = rules.cuda_graphs(stage.num_layers, ranks, settings.max_num_seqs, version, stage.num_moe_layers)
    others = (activation.num_bytes, non_torch.num_bytes, graphs.num_bytes)
    return StageSizing(
        stage=stage,
        weights=weights,
        activation=activation,
        non_torch=non_torch,
        cuda_graphs=graphs,
        kv_bytes=left_for_kv(requested, sum(weights.values()), *others, in_budget),
        bytes_per_block=bytes_per_block,
        kv_bytes_per_token=round(
            (stage.num_layers - stage.num_layers * model.num_stateful_layers // model.num_layers)
            * model.kv_elements_per_layer(ranks)
            * kv_dtype_bytes(settings.kv_cache_dtype, settings.dtype)
        ),
    )


def _check_parallel(model: ModelSpec, tensor_parallel_size: int) -> None:
    if not model.splits(tensor_parallel_size):
        heads = f"{model.num_attention_heads} attention heads and {model.num_kv_heads} KV heads"
        what = f"{tensor_parallel_size} GPUs cannot split the {heads} of {model.name} evenly"
        raise InputError(what, key="hardware.tensor_parallel_size")
