"""Bytes of weights by part, as one GPU of a replica holds them. Knows no GPU and no engine.

Row numbers (A058 ...) are those of kv_capacity.csv, a collection of public start-up logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simkit.errors import InputError
from simkit.specs import dtypes
from simkit.specs.models import ModelSpec

PARTS = ("embedding", "attention", "mlp", "experts", "router", "norms", "image_tower", "lm_head")


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of one pipeline stage, and whether it embeds (first) and samples (last)."""

    num_layers: int
    num_moe_layers: int
    first: bool
    last: bool


def split_stages(model: ModelSpec, pipeline_parallel_size: int) -> list[Stage]:
    """Layers in equal numbers; what is left over goes to the stages before the last, one each, from the back.

    The last stage has the LM head and the first the embedding, so with two stages too the last stays small. Dense
    layers of a MoE model are its first ones. Raises InputError for more stages than layers.
    """
    if not 1 <= pipeline_parallel_size <= model.num_layers:
        expected = f"expected 1 to {model.num_layers} (the layers of {model.name})"
        raise InputError(f"{expected}, got {pipeline_parallel_size}", key="pipeline_parallel_size")
    each, left = divmod(model.num_layers, pipeline_parallel_size)
    counts = [each] * pipeline_parallel_size
    for stage in range(left):
        counts[-2 - stage] += 1
    stages, begin = [], 0
    for position, count in enumerate(counts):
        num_dense = max(0, min(model.num_layers - model.num_moe_layers - begin, count))
        stages.append(Stage(count, count - num_dense, position == 0, position == len(counts) - 1))
        begin += count
    return stages


def weight_bytes(model: ModelSpec, dtype: str, quantization: str | None) -> float:
    """Bytes of all weights on one GPU without any parallelism."""
    whole = split_stages(model, 1)[0]
    return sum(weight_parts(model, whole, 1, dtype, quantization).values())


def weight_parts(
    model: ModelSpec,
    stage: Stage,
    tensor_parallel_size: int,
    dtype: str,
    quantization: str | None,
    expert_bytes: float | None = None,
) -> Mapping[str, float]:
    """Bytes of each of `PARTS` on one TP rank of a stage.

    Quantised: the GEMMs of the layers, routers left out (mxfp4, and where a checkpoint says so: the experts only).
    Embedding, LM head, norms, biases and an image tower keep `dtype`. Agrees with A058 (8.49 GiB for Llama-3.1-8B in
    fp8), A045 and A102 (70B in fp8). Norms, routers and biases are whole on every rank, and so is a KV head that
    several ranks share. A shared embedding is held once, but by the first and the last stage of a pipeline.
    `expert_bytes` replaces what one expert takes on the rank.
    """
    full = dtypes.element_bytes(dtype)
    gemm, expert = _quantized_bytes(model, full, quantization)
    ranks = tensor_parallel_size
    num_dense = stage.num_layers - stage.num_moe_layers
    router = stage.num_moe_layers * model.router_params_per_layer
    copied_head = model.tie_word_embeddings and stage.last and not stage.first
    lm_head = model.embedding_params if copied_head else model.lm_head_params * stage.last
    params = {
        "embedding": model.embedding_params / ranks * stage.first,
        "attention": _attention_params(model, ranks) * stage.num_layers,
        "mlp": model.dense_mlp_params_per_layer * num_dense / ranks,
        "experts": model.expert_params_per_layer * stage.num_moe_layers / ranks,
        "router": float(router),
        "norms": _other_params(model) * stage.num_layers / model.num_layers,
        "image_tower": model.image_tower_params / ranks * stage.first,
        "lm_head": lm_head / ranks,
    }
    element = {"attention": gemm, "mlp": gemm, "experts": expert}
    sizes = {part: params[part] * element.get(part, full) for part in PARTS}
    # The latents' way up is split into two products, which engines keep in `dtype` beside the weights.
    sizes["attention"] += model.latent_up_params / ranks * full * stage.num_layers
    if expert_bytes is not None:
        sizes["experts"] = expert_bytes * (model.num_experts + model.num_shared_experts) * stage.num_moe_layers
    return sizes


def _quantized_bytes(model: ModelSpec, full: float, quantization: str | None) -> tuple[float, float]:
    """(bytes of a weight of attention and dense MLPs, of experts)."""
    if quantization is None:
        return full, full
    quantized = dtypes.quantization(quantization).held_bytes
    if quantization == "mxfp4":
        if not model.is_moe:
            raise InputError(
                f"mxfp4 is for the experts of a MoE model; {model.name} is dense", key="engine.quantization"
            )
        return full, quantized
    return (full if model.experts_only and quantization == model.quantization else quantized), quantized


def _attention_params(model: ModelSpec, ranks: int) -> float:
    """Projections of a layer on one rank; ranks beyond the number of KV heads hold copies of them."""
    if model.attention == "mla":
        down = model.latent_down_params
        return down + (model.attention_params_per_layer - down) / ranks
    heads = model.num_attention_heads / ranks + model.kv_heads_on(ranks)
    return 2 * model.hidden_size * model.head_dim * heads


def _other_params(model: ModelSpec) -> int:
    """Norms, biases, learned positions and the like, of the whole model."""
    return model.num_params - model.linear_params - model.embedding_params - model.lm_head_params
