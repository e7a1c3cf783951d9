"""What the layers of a Hugging Face config have beside a dense transformer: experts, windows, a latent cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simkit.specs.config_fields import Fields
from simkit.specs.model_spec import Latent, ModelSpec

EXPERT_FIELDS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
LATENT_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2")
"""Families with multi-head latent attention."""

_FULL_LAYER_EVERY = 4
"""Llama 4: the layers that look at the whole context (`no_rope_layer_interval` of its configuration class)."""


@dataclass(frozen=True, slots=True)
class _Experts:
    """The fields in which a family says how many experts a layer has, and how wide they are."""

    count: str
    width: str


_ROUTED = _Experts("n_routed_experts", "moe_intermediate_size")
_LOCAL = _Experts("num_local_experts", "intermediate_size")
_QWEN = _Experts("num_experts", "moe_intermediate_size")
_MOE_TYPES = {
    "mixtral": _LOCAL,
    "gpt_oss": _LOCAL,
    "llama4_text": _LOCAL,
    "minimax_m2": _LOCAL,
    "qwen2_moe": _QWEN,
    "qwen3_moe": _QWEN,
    "glm4_moe": _ROUTED,
    **dict.fromkeys(LATENT_TYPES, _ROUTED),
}


def with_experts(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The model with its experts, where it has some."""
    named = next((field for field in EXPERT_FIELDS if fields.get(field)), None)
    if named is None:
        return spec
    experts = _MOE_TYPES.get(fields.type)
    if experts is None:
        raise fields.error(named, f"a mixture of experts of model_type {fields.type!r} is not modelled")
    num_experts, width = fields.int(experts.count), fields.int(experts.width)
    num_active = fields.int("num_experts_per_tok")
    if num_active > num_experts:
        raise fields.error("num_experts_per_tok", f"{num_active} is more than the {num_experts} experts")
    return replace(
        spec,
        num_experts=num_experts,
        experts_per_token=num_active,
        moe_intermediate_size=width,
        num_shared_experts=_shared(fields, experts.width, width),
        num_dense_layers=_num_dense_layers(fields, spec.num_layers),
        intermediate_size=fields.int("intermediate_size_mlp", spec.intermediate_size),
    )


def _shared(fields: Fields, own_size: str, width: int) -> int:
    """Experts that every token goes through."""
    if fields.type == "qwen2_moe":
        shared = fields.int("shared_expert_intermediate_size")
        if shared % width:
            raise fields.error("shared_expert_intermediate_size", f"{shared} is not a multiple of {own_size} {width}")
        return shared // width
    if fields.type == "llama4_text":
        return 1
    return fields.int("n_shared_experts", 0, least=0)


def _num_dense_layers(fields: Fields, num_layers: int) -> int:
    """Layers without experts."""
    first = fields.int("first_k_dense_replace", 0, least=0)
    step = fields.int("interleave_moe_layer_step" if fields.type == "llama4_text" else "decoder_sparse_step", 1)
    dense = fields.list("mlp_only_layers")
    return sum(layer < first or layer in dense or (layer + 1) % step != 0 for layer in range(num_layers))


def sliding(fields: Fields, num_layers: int) -> tuple[int | None, int]:
    """(window in tokens, layers it applies to); (None, 0) when every layer sees the whole context.

    A chunk of Llama 4 counts as a window of its length, which is never shorter.
    """
    if fields.type == "llama4_text":
        return _chunked(fields, num_layers)
    if fields.get("sliding_window") is None or fields.get("use_sliding_window") is False:
        return None, 0
    if fields.type in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe") and fields.get("use_sliding_window") is None:
        return None, 0
    window, kinds = fields.int("sliding_window"), fields.list("layer_types")
    if kinds:
        if len(kinds) != num_layers:
            raise fields.error("layer_types", f"{len(kinds)} entries for {num_layers} layers")
        count = kinds.count("sliding_attention")
    elif fields.type in ("mistral", "mixtral", "phi3"):
        count = num_layers
    elif fields.type in ("gemma2", "gpt_oss"):
        count = (num_layers + 1) // 2
    elif fields.type == "gemma3_text":
        count = num_layers - num_layers // fields.int("sliding_window_pattern", 6)
    elif fields.type.startswith("qwen"):
        count = max(0, num_layers - fields.int("max_window_layers"))
    else:
        what = f"model_type {fields.type!r} has no layer_types, which layers it applies to is not known"
        raise fields.error("sliding_window", what)
    return (window, count) if count else (None, 0)


def _chunked(fields: Fields, num_layers: int) -> tuple[int | None, int]:
    if fields.get("attention_chunk_size") is None:
        return None, 0
    positions = fields.list("no_rope_layers")  # 1: a layer with positions, whose attention is chunked
    count = sum(map(bool, positions)) if positions else num_layers - num_layers // _FULL_LAYER_EVERY
    return (fields.int("attention_chunk_size"), count) if count else (None, 0)


def with_latent(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The model with one latent a token in place of keys and values."""
    if fields.type not in LATENT_TYPES:
        raise fields.error("kv_lora_rank", f"latent attention of model_type {fields.type!r} is not modelled")
    latent = Latent(
        q_lora_rank=fields.int("q_lora_rank", 0, least=0),
        kv_lora_rank=fields.int("kv_lora_rank"),
        qk_nope_head_dim=fields.int("qk_nope_head_dim"),
        qk_rope_head_dim=fields.int("qk_rope_head_dim"),
        v_head_dim=fields.int("v_head_dim"),
    )
    width = latent.kv_lora_rank + latent.qk_rope_head_dim
    return replace(spec, attention="mla", num_kv_heads=1, head_dim=width, latent=latent)
