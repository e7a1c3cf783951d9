"""From GPU memory to KV blocks, per GPU: what the engine's start-up does. Imports models, hardware; knows no clock.

requested = ceil(total x gpu_memory_utilization); KV = requested - weights - activation peak - non-torch - CUDA graphs
(the last only since engine 0.20); blocks = floor(KV / bytes of a block). Row numbers (A047 ...) are those of
kv_capacity.csv, a collection of public start-up logs; the constants below were fitted to them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from simkit.errors import InputError
from simkit.hardware import GpuSpec
from simkit.models import ModelSpec
from simkit.units import bytes_to_gib, gib_to_bytes

_DTYPE_BYTES = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
}
# Bytes of a quantised weight. awq, gptq: 4 bits and a 16-bit scale and a 4-bit zero point a group of 128.
# mxfp4: 4 bits and an 8-bit scale a group of 32, on experts only.
_QUANTIZED_BYTES = {
    "fp8": 1.0,
    "int8": 1.0,
    "awq": (4 + 20 / 128) / 8,
    "gptq": (4 + 20 / 128) / 8,
    "mxfp4": (4 + 8 / 32) / 8,
}
_LOGIT_BYTES = 4  # the sampler works in float32
_ACTIVATION_BASE_GIB = 0.07
# Suggest a TP at which weights leave at least a fifth of the requested memory to everything else.
_COMFORTABLE_WEIGHT_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory of one GPU. `cuda_graph_gib` is inside the budget since engine 0.20 and outside it (on top) before.

    `num_gpu_blocks` includes the dummy block, `kv_tokens` does not. `bytes_per_block` and `kv_bytes_per_token` are of
    one GPU; blocks and tokens are those of the replica, since every TP rank holds its share of each block.
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


def dtype_bytes(name: str) -> float:
    """Bytes of one element of a dtype. Raises InputError for an unknown name."""
    if name not in _DTYPE_BYTES:
        raise InputError(f"dtype: expected one of {', '.join(_DTYPE_BYTES)}, got {name!r}")
    return _DTYPE_BYTES[name]


def kv_dtype_bytes(kv_cache_dtype: str, dtype: str) -> float:
    """Bytes of one cached element; "auto" caches in the model's dtype."""
    return dtype_bytes(dtype if kv_cache_dtype == "auto" else kv_cache_dtype)


def default_limits(gpu: GpuSpec) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) that the API server takes when they are not given."""
    if gpu.memory_gib >= 160:
        return 16384, 1024
    if gpu.memory_gib >= 70 and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256


def memory_budget(
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
    dtype: str,
    kv_cache_dtype: str,
    quantization: str | None,
    engine_version: str,
) -> MemoryBudget:
    """How the engine splits the memory of each GPU, and how many KV blocks that leaves.

    Raises InputError when the weights do not fit, when nothing is left for KV, or when `tensor_parallel_size` cannot
    split the model.
    """
    _check_parallel(model, tensor_parallel_size)
    version = parse_version(engine_version)
    total = gib_to_bytes(gpu.memory_gib)
    requested = math.ceil(total * gpu_memory_utilization)
    weights = weight_bytes(model, dtype, quantization) / tensor_parallel_size
    offer = f"{gpu.name} offers {bytes_to_gib(requested):.1f} GiB at gpu_memory_utilization {gpu_memory_utilization:g}"
    if weights >= requested:
        advice = _advice(model, weights * tensor_parallel_size, requested, tensor_parallel_size, quantization)
        need = f"model {model.name} needs {bytes_to_gib(weights):.1f} GiB of weights per GPU"
        raise InputError(f"{need}; {offer}: {advice}")

    activation = _activation_bytes(
        model, tensor_parallel_size, max_num_seqs, max_num_batched_tokens, dtype_bytes(dtype), version
    )
    non_torch = gib_to_bytes(_non_torch_gib(tensor_parallel_size, version))
    graphs = gib_to_bytes(_cuda_graph_gib(model, tensor_parallel_size, max_num_seqs))
    in_budget = version >= (0, 20)
    available = requested - weights - activation - non_torch - (graphs if in_budget else 0)
    block = kv_block_bytes(model, tensor_parallel_size, block_size, kv_dtype_bytes(kv_cache_dtype, dtype))
    num_blocks = int(available // block)
    if num_blocks < 2:
        parts = f"weights {bytes_to_gib(weights):.1f}, activations {bytes_to_gib(activation):.1f}"
        parts += f", non-torch {bytes_to_gib(non_torch):.1f}"
        parts += f", CUDA graphs {bytes_to_gib(graphs):.1f}" if in_budget else ""
        advice = _advice(model, weights * tensor_parallel_size, requested, tensor_parallel_size, quantization)
        raise InputError(f"model {model.name} leaves no memory for KV: {offer}, used: {parts} GiB: {advice}")
    return MemoryBudget(
        total_gib=gpu.memory_gib,
        requested_gib=bytes_to_gib(requested),
        weights_gib=bytes_to_gib(weights),
        activation_gib=bytes_to_gib(activation),
        non_torch_gib=bytes_to_gib(non_torch),
        cuda_graph_gib=bytes_to_gib(graphs),
        cuda_graph_in_budget=in_budget,
        kv_gib=bytes_to_gib(available),
        bytes_per_block=block,
        num_gpu_blocks=num_blocks,
        kv_tokens=(num_blocks - 1) * block_size,
        kv_bytes_per_token=block // block_size,
    )


def weight_bytes(model: ModelSpec, dtype: str, quantization: str | None) -> float:
    """Bytes of all weights, all TP ranks together.

    Quantised: the GEMMs of the layers, routers left out (mxfp4: the experts only). Embedding, LM head, norms and
    biases keep `dtype`. Agrees with A058 (8.49 GiB for Llama-3.1-8B in fp8), A045 and A102 (70B in fp8).
    """
    full = dtype_bytes(dtype)
    if quantization is None:
        return model.num_params * full
    if quantization not in _QUANTIZED_BYTES:
        names = ", ".join(_QUANTIZED_BYTES)
        raise InputError(f"engine.quantization: expected one of {names}, got {quantization!r}")
    quantized = model.linear_params - model.num_moe_layers * model.router_params_per_layer
    if quantization == "mxfp4":
        if not model.is_moe:
            raise InputError(f"engine.quantization: mxfp4 is for the experts of a MoE model; {model.name} is dense")
        quantized = model.num_moe_layers * model.expert_params_per_layer
    return quantized * _QUANTIZED_BYTES[quantization] + (model.num_params - quantized) * full


def kv_block_bytes(model: ModelSpec, tensor_parallel_size: int, block_size: int, bytes_per_element: float) -> int:
    """Bytes of a block on one rank: layers x 2 x block_size x kv_heads_on_rank x head_dim x bytes.

    Ranks beyond the number of KV heads hold copies; the latent of MLA is held whole by every rank.
    """
    if model.attention == "mla":
        return block_size * model.kv_bytes_per_token(bytes_per_element)
    heads = max(1, model.num_kv_heads // tensor_parallel_size)
    return round(model.num_layers * 2 * block_size * heads * model.head_dim * bytes_per_element)


def parse_version(text: str) -> tuple[int, int]:
    """(major, minor) of an engine version such as "0.33" or "0.10.1.1". Raises InputError when it is not one."""
    match = re.match(r"(\d+)\.(\d+)(?:[.\w+-]*)$", text)
    if match is None:
        raise InputError(f'engine.version: expected a version such as "0.33", got {text!r}')
    return int(match[1]), int(match[2])


def _activation_bytes(
    model: ModelSpec,
    tensor_parallel_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    element_bytes: float,
    version: tuple[int, int],
) -> float:
    """Peak of temporary activations in the start-up's dummy pass, per GPU.

    The larger of two moments, plus the workspace of a MoE layer:

    - sampling: c x max_num_seqs x vocab x 4 bytes (logits are gathered, so TP does not divide them), the hidden states
      of the budget, and 0.07 GiB. c = 3.6 since 0.17 fits A047 to A080 and A102 (dense, 1024 sequences) to 0.02 GiB but
      for A057 (float32, 0.25 too low); A092 (256 sequences, RTX 4090) held 0.35 more outside KV. 9.5 before fits
      A042, A067 and A068 (5.64 GiB) and A003, A014 and A022, though not A044 (2.1 GiB, estimate 4.9); 2.0 in 0.8
      to 0.10 fits the one engine seen there (A086, A088, A089).
    - the MLP of the budget's tokens: 3 x (hidden + intermediate / TP) elements a token, which fits A001 and A002
      (20,000 and 29,000 tokens, 2.07 and 2.99 GiB) and A021.
    - MoE: experts_per_token x (max(2 x moe_intermediate / TP, hidden) + max(moe_intermediate / TP, hidden)) elements a
      token, kept while sampling; fits A072 and A079 to 0.02 GiB.
    """
    token_bytes = max_num_batched_tokens * element_bytes
    logits = max_num_seqs * model.vocab_size * _LOGIT_BYTES
    base = gib_to_bytes(_ACTIVATION_BASE_GIB)
    sampling = _logit_copies(version) * logits + model.hidden_size * token_bytes + base
    # A MoE model without dense layers never runs a dense MLP; its experts are counted in the workspace.
    has_dense = not model.is_moe or model.num_dense_layers > 0
    width = model.intermediate_size / tensor_parallel_size if has_dense else 0.0
    forward = 3 * (model.hidden_size + width) * token_bytes
    return max(sampling, forward) + _moe_workspace_elements(model, tensor_parallel_size) * token_bytes


def _moe_workspace_elements(model: ModelSpec, tensor_parallel_size: int) -> float:
    """Elements a token of the two scratch buffers of a fused MoE layer on one rank; 0 in a dense model."""
    width, hidden = model.moe_intermediate_size / tensor_parallel_size, model.hidden_size
    return model.experts_per_token * (max(2 * width, hidden) + max(width, hidden))


def _logit_copies(version: tuple[int, int]) -> float:
    """How many float32 copies of the logits the sampler holds at its peak."""
    if version >= (0, 17):
        return 3.6
    return 2.0 if (0, 8) <= version <= (0, 10) else 9.5


def _non_torch_gib(tensor_parallel_size: int, version: tuple[int, int]) -> float:
    """Memory outside torch (contexts, communication buffers), per GPU.

    One GPU: 0.25 since 0.18 (A047, A070), 0.13 in 0.8 to 0.17 (A042, A067), 0.35 before (A001). More: 2.1 since 0.18
    (A053, A064, A079, A102), 0.3 in 0.8 to 0.17 (A088, A089, what their KV leaves), 3.58 before (A004).
    """
    if version >= (0, 18):
        return 0.25 if tensor_parallel_size == 1 else 2.1
    if version >= (0, 8):
        return 0.13 if tensor_parallel_size == 1 else 0.3
    return 0.35 if tensor_parallel_size == 1 else 3.58


def _cuda_graph_gib(model: ModelSpec, tensor_parallel_size: int, max_num_seqs: int) -> float:
    """CUDA graphs, per GPU: proportional to layers, more above 256 sequences (larger graphs) and with TP.

    A086 (28 layers, 256 sequences: 0.5 GiB), A088 (the same with TP 2: 0.65) and A047 (32 layers, 1024: 0.91).
    """
    per_layer = 0.018 if max_num_seqs <= 256 else 0.028
    return model.num_layers * per_layer * (1.0 if tensor_parallel_size == 1 else 1.3)


def _check_parallel(model: ModelSpec, tensor_parallel_size: int) -> None:
    if not _splits(model, tensor_parallel_size):
        heads = f"{model.num_attention_heads} attention heads and {model.num_kv_heads} KV heads"
        what = f"{tensor_parallel_size} GPUs cannot split the {heads} of {model.name} evenly"
        raise InputError(f"hardware.tensor_parallel_size: {what}")


def _splits(model: ModelSpec, tensor_parallel_size: int) -> bool:
    if tensor_parallel_size < 1 or model.num_attention_heads % tensor_parallel_size:
        return False
    kv_heads = model.num_kv_heads
    return kv_heads % tensor_parallel_size == 0 or tensor_parallel_size % kv_heads == 0


def _advice(
    model: ModelSpec, weights: float, requested: int, tensor_parallel_size: int, quantization: str | None
) -> str:
    """What would make the model fit: the smallest larger TP at which the weights leave room, and quantisation."""
    larger = range(tensor_parallel_size + 1, 65)
    room = requested * _COMFORTABLE_WEIGHT_SHARE
    fitting = next((size for size in larger if _splits(model, size) and weights / size <= room), None)
    raise_tp = f"raise hardware.tensor_parallel_size to {fitting}" if fitting else "use a larger GPU"
    return raise_tp if quantization else f"{raise_tp} or quantize"
