"""What one GPU computes in a forward pass: the shapes of its GEMMs, elementwise kernels and attention, without times.

Owns the mapping from (model, tensor parallel size, number formats) to FLOPs and bytes. Knows no GPU and no step.
Tensor parallelism is the usual column/row split: heads, MLP and vocabulary are divided (rounded up), KV heads are
repeated when there are fewer of them than ranks, norms and the router run on every rank, every expert is split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simkit.errors import InputError
from simkit.specs.dtypes import KV_DTYPES, MODEL_DTYPES, element_bytes
from simkit.specs.dtypes import quantization as quantization_of
from simkit.specs.model_spec import Latent, ModelSpec

_LOGIT_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Formats:
    """Bytes of an element: activations, dense weights, expert weights, and the KV cache."""

    activation_bytes: float
    weight_bytes: float
    expert_bytes: float
    kv_bytes: float


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product run `layers` times a pass on each GPU: `flops` and `row_bytes` a row, weights read once.

    `routed` products have `weight_bytes` for *all* experts together, read in the share of experts touched.
    `quantized` says that the product may run at the peak of the quantised format. A row times k x n gives n outputs.
    """

    name: str
    layers: int
    flops: float
    weight_bytes: float
    row_bytes: float
    quantized: bool
    n: int
    k: int
    routed: bool = False


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A kernel without reuse, run `layers` times a pass on each GPU, moving `row_bytes` a row of `width` elements."""

    name: str
    layers: int
    row_bytes: float
    width: int


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attention of one layer on one GPU: FLOPs a (query, key) pair of decodes and of prefills, and KV bytes a cached
    token."""

    flops_per_pair: float
    prefill_flops_per_pair: float
    kv_bytes_per_token: float
    full_layers: int
    sliding_layers: int
    window: int


def formats(model: ModelSpec, *, dtype: str, quantization: str | None, kv_cache_dtype: str) -> Formats:
    """Element sizes. mxfp4 checkpoints of MoE models hold only their experts in 4 bits.

    Scales of quantised weights are left out. Raises InputError for a format that is not known.
    """
    activation = element_bytes(dtype, MODEL_DTYPES, "engine.dtype")
    kv = activation
    if kv_cache_dtype != "auto":
        kv = element_bytes(kv_cache_dtype, KV_DTYPES, "engine.kv_cache_dtype")
    if quantization is None:
        return Formats(activation, activation, activation, kv)
    weight = quantization_of(quantization).weight_bytes
    own_experts = model.experts_only and quantization == model.quantization
    experts_only = (quantization == "mxfp4" or own_experts) and model.num_experts > 0
    return Formats(activation, activation if experts_only else weight, weight, kv)


def check_parallel(model: ModelSpec, tensor_parallel_size: int) -> None:
    """Raise InputError when the heads cannot be split over the ranks evenly."""
    heads, kv_heads, ranks = model.num_attention_heads, model.num_kv_heads, tensor_parallel_size
    if not model.splits(ranks):
        raise InputError(
            f"expected a divisor of the {heads} attention heads of {model.name} that"
            f" divides or is a multiple of its {kv_heads} KV heads, got {ranks}",
            key="hardware.tensor_parallel_size",
        )


def check_experts(model: ModelSpec, ranks: int) -> None:
    """Raise InputError where ranks cannot hold as many whole experts each."""
    if not model.is_moe:
        raise InputError(f"{model.name} has no experts to share over ranks", key="hardware.expert_parallel")
    if model.num_experts % ranks:
        raise InputError(
            f"expected a hardware.tensor_parallel_size that divides the {model.num_experts} experts of {model.name},"
            f" got {ranks}",
            key="hardware.expert_parallel",
        )


def layer_gemms(model: ModelSpec, ranks: int, fmt: Formats) -> tuple[Gemm, ...]:
    """The GEMMs that every token goes through, on one of `ranks` GPUs."""
    hidden = model.hidden_size
    query, kv = _query_width(model, ranks), _kv_width(model, ranks)
    moe_layers = model.num_moe_layers
    dense_layers = model.num_layers - moe_layers
    quantized = fmt.weight_bytes < fmt.activation_bytes
    gemms = [
        _gemm("qkv", model.num_layers, hidden, query + 2 * kv, fmt.weight_bytes, fmt, quantized),
        _gemm("o", model.num_layers, query, hidden, fmt.weight_bytes, fmt, quantized),
    ]
    if model.latent is not None:
        gemms = _latent_gemms(model, model.latent, ranks, fmt, quantized)
    if dense_layers:
        gemms += _mlp_gemms(model, "mlp", dense_layers, _split(model.intermediate_size, ranks), fmt, quantized)
    if moe_layers:
        width = _split(model.moe_intermediate_size, ranks)
        gemms.append(_gemm("router", moe_layers, hidden, model.num_experts, fmt.activation_bytes, fmt, False))
        gemms += _expert_gemms(model, moe_layers, width, fmt)
        if model.num_shared_experts:
            shared = _split(model.num_shared_experts * model.moe_intermediate_size, ranks)
            gemms += _mlp_gemms(model, "shared", moe_layers, shared, fmt, quantized)
    return tuple(gemms)


def head_gemm(model: ModelSpec, ranks: int, fmt: Formats) -> Gemm:
    """The LM head, run on sequences that sample; engines keep it unquantised."""
    width = model.embedding_size or model.hidden_size
    return _gemm("lm_head", 1, width, _split(model.vocab_size, ranks), fmt.activation_bytes, fmt, False)


def layer_elementwise(model: ModelSpec, ranks: int, fmt: Formats) -> tuple[Elementwise, ...]:
    """Norms fused with the residual add (4 vectors moved), rotary, KV write, activation; no router top-k."""
    act = fmt.activation_bytes
    query, kv = _query_width(model, ranks), _kv_width(model, ranks)
    moe_layers = model.num_moe_layers
    dense_layers = model.num_layers - moe_layers
    inputs = 2 if model.gated_mlp else 1
    kernels = [Elementwise("norms", 2 * model.num_layers, 4 * model.hidden_size * act, model.hidden_size)]
    if model.latent is None:
        kernels += [
            Elementwise("rotary", model.num_layers, 2 * (query + kv) * act, query + kv),
            Elementwise("kv_write", model.num_layers, 2 * kv * (act + fmt.kv_bytes), kv),
        ]
    else:
        kernels += _latent_elementwise(model, model.latent, ranks, fmt)
    if dense_layers:
        width = _split(model.intermediate_size, ranks)
        kernels.append(Elementwise("activation", dense_layers, (inputs + 1) * width * act, width))
    if moe_layers:
        width = _split(model.moe_intermediate_size, ranks) * (model.experts_per_token + model.num_shared_experts)
        kernels.append(Elementwise("expert_activation", moe_layers, (inputs + 1) * width * act, width))
        # The outputs of the chosen experts are read, weighted and written as one vector.
        combined = (model.experts_per_token + 1) * model.hidden_size * act
        kernels.append(Elementwise("combine", moe_layers, combined, model.hidden_size))
    return tuple(kernels)


def without_experts(
    gemms: tuple[Gemm, ...], elementwise: tuple[Elementwise, ...], model: ModelSpec
) -> tuple[tuple[Gemm, ...], tuple[Elementwise, ...]]:
    """What is left of a layer where its routed experts are priced as one: of the activations those of shared experts,
    and no weighted sum."""
    active, shared = model.experts_per_token + model.num_shared_experts, model.num_shared_experts
    kept = []
    for kernel in elementwise:
        if kernel.name == "expert_activation" and shared:
            part = kernel.row_bytes * shared / active
            kept.append(replace(kernel, row_bytes=part, width=kernel.width * shared // active))
        elif kernel.name not in ("expert_activation", "combine"):
            kept.append(kernel)
    return tuple(gemm for gemm in gemms if not gemm.routed), tuple(kept)


def sampler(model: ModelSpec, fmt: Formats) -> Elementwise:
    """Logits of the whole vocabulary: read, written in 32 bits, read again to choose a token. Every rank does it."""
    row_bytes = model.vocab_size * (fmt.activation_bytes + 2 * _LOGIT_BYTES)
    return Elementwise("sampler", 1, row_bytes, model.vocab_size)


def attention_shape(model: ModelSpec, ranks: int, fmt: Formats) -> AttentionShape:
    """Q.K and A.V are 2 FLOPs each per head element, so 4 per pair; K and V are read once per cached token."""
    sliding = model.num_sliding_layers if model.sliding_window else 0
    decode = prefill = 4.0 * _query_width(model, ranks)
    if model.latent is not None:
        heads, latent = _split(model.num_attention_heads, ranks), model.latent
        # Decodes attend to the latents, prefills to the keys and values that come of them.
        decode = 2.0 * heads * (2 * latent.kv_lora_rank + latent.qk_rope_head_dim)
        prefill = 2.0 * heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim)
    return AttentionShape(
        flops_per_pair=decode,
        prefill_flops_per_pair=prefill,
        kv_bytes_per_token=model.kv_elements_per_layer(ranks) * fmt.kv_bytes,
        full_layers=model.num_layers - sliding,
        sliding_layers=sliding,
        window=model.sliding_window or 0,
    )


def _split(width: int, ranks: int) -> int:
    return -(-width // ranks)


def _query_width(model: ModelSpec, ranks: int) -> int:
    return _split(model.num_attention_heads, ranks) * model.head_dim


def _kv_width(model: ModelSpec, ranks: int) -> int:
    return model.kv_heads_on(ranks) * model.head_dim


def _gemm(name: str, layers: int, k: int, n: int, weight_bytes: float, fmt: Formats, quantized: bool) -> Gemm:
    return Gemm(name, layers, 2.0 * k * n, k * n * weight_bytes, (k + n) * fmt.activation_bytes, quantized, n, k)


def _mlp_gemms(model: ModelSpec, name: str, layers: int, width: int, fmt: Formats, quantized: bool) -> list[Gemm]:
    inputs = 2 if model.gated_mlp else 1
    return [
        _gemm(f"{name}_up", layers, model.hidden_size, inputs * width, fmt.weight_bytes, fmt, quantized),
        _gemm(f"{name}_down", layers, width, model.hidden_size, fmt.weight_bytes, fmt, quantized),
    ]


LATENT_KERNELS = ("q_a", "q_b", "q", "kv_a", "kv_b", "o", "latent_norms", "rotary", "kv_write")
"""What of a layer with latents a measured module holds, beside attention."""


def _latent_gemms(model: ModelSpec, latent: Latent, ranks: int, fmt: Formats, quantized: bool) -> list[Gemm]:
    """Down to the latents, which every rank does whole, and up to the heads; what absorbs the keys' and values' weights
    does as much as what expands the latents, in 16 bits."""
    layers, hidden, heads = model.num_layers, model.hidden_size, _split(model.num_attention_heads, ranks)
    queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    shapes = [("q", hidden, queries)]
    if latent.q_lora_rank:
        shapes = [("q_a", hidden, latent.q_lora_rank), ("q_b", latent.q_lora_rank, queries)]
    shapes += [
        ("kv_a", hidden, latent.kv_lora_rank + latent.qk_rope_head_dim),
        ("o", heads * latent.v_head_dim, hidden),
    ]
    up = heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    return [
        *(_gemm(name, layers, k, n, fmt.weight_bytes, fmt, quantized) for name, k, n in shapes),
        _gemm("kv_b", layers, latent.kv_lora_rank, up, fmt.activation_bytes, fmt, False),
    ]


def _latent_elementwise(model: ModelSpec, latent: Latent, ranks: int, fmt: Formats) -> list[Elementwise]:
    layers, act = model.num_layers, fmt.activation_bytes
    turned = (_split(model.num_attention_heads, ranks) + 1) * latent.qk_rope_head_dim
    ranks_of = [rank for rank in (latent.q_lora_rank, latent.kv_lora_rank) if rank]
    cached = latent.kv_lora_rank + latent.qk_rope_head_dim
    width = sum(ranks_of) // len(ranks_of)
    return [
        Elementwise("latent_norms", len(ranks_of) * layers, 2 * width * act, width),
        Elementwise("rotary", layers, 2 * turned * act, turned),
        Elementwise("kv_write", layers, cached * (act + fmt.kv_bytes), cached),
    ]


def _expert_gemms(model: ModelSpec, layers: int, width: int, fmt: Formats) -> list[Gemm]:
    inputs = 2 if model.gated_mlp else 1
    shapes = (
        ("experts_up", model.hidden_size, inputs * width),
        ("experts_down", width, model.hidden_size),
    )
    chosen, quantized = model.experts_per_token, fmt.expert_bytes < fmt.activation_bytes
    return [
        Gemm(
            name=name,
            layers=layers,
            flops=2.0 * k * n * chosen,
            weight_bytes=k * n * fmt.expert_bytes * model.num_experts,
            row_bytes=(k + n) * fmt.activation_bytes * chosen,
            quantized=quantized,
            n=n,
            k=k,
            routed=True,
        )
        for name, k, n in shapes
    ]
