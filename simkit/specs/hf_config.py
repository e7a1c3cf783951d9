"""Reads a Hugging Face `config.json` into a `ModelSpec`, or says in one line why not.

What a field means differs by `model_type`; what is not recognised is refused with the field's name rather than
guessed. Defaults of fields that are left out are those of the transformers configuration class of the family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simkit.errors import InputError
from simkit.specs import checkpoint
from simkit.specs.config_fields import Fields
from simkit.specs.hf_layers import LATENT_TYPES, sliding, with_experts, with_latent
from simkit.specs.model_spec import FAMILIES, Family, ModelSpec, complete

_FAMILY_OF = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "granite": "llama",
    "phi3": "llama",
    "gemma": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi": "phi",
    "opt": "opt",
    "gpt_oss": "gpt_oss",
    "llama4_text": "llama4",
    "glm4_moe": "glm4_moe",
    "minimax_m2": "minimax_m2",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "kimi_k2": "deepseek_v3",
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
    },
    "glm4_moe": {"attention_bias": False, "use_qk_norm": False},
}
_TIED_BY_DEFAULT = {"gemma", "gemma2", "gemma3_text", "opt"}
_ENCODERS = {"t5", "mt5", "bart", "mbart", "whisper", "pegasus", "marian", "bert", "roberta", "xlm-roberta", "albert"}
_GATED_ACTIVATIONS = {"silu", "swish", "swiglu"}
_REFUSED_FIELDS = {
    "index_topk": "sparse attention is not modelled",
    "attention_chunk_size": "chunked attention is not modelled",
    "num_kv_shared_layers": "KV shared between layers is not modelled",
    "block_configs": "layers of unequal shape are not modelled",
    "ssm_cfg": "Mamba is not modelled",
    "state_size": "Mamba is not modelled",
    "mamba_d_state": "Mamba hybrids are not modelled",
    "mamba_num_heads": "Mamba hybrids are not modelled",
    "layers_block_type": "hybrid layers are not modelled",
    "hybrid_override_pattern": "hybrid layers are not modelled",
    "block_types": "hybrid layers are not modelled",
    "linear_num_key_heads": "linear attention is not modelled",
    "linear_conv_kernel_dim": "linear attention is not modelled",
    "attn_layer_period": "hybrid layers are not modelled",
}
_OF_TYPE = {"attention_chunk_size": ("llama4_text",)}
"""Fields that are refused but in these families."""


def read_config(path: Path, hf_id: str = "") -> ModelSpec:
    """The model of a config.json, or of a directory that holds one; `hf_id` is its id on the hub, where it has one.

    Raises InputError naming file and field.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _json(file)
    name = hf_id.rpartition("/")[2] or (file.resolve().parent.name if file.name == "config.json" else file.stem)
    text = _text_part(file, config)
    spec = _Reader(Fields(file, text, _DEFAULTS.get(str(text.get("model_type"))))).spec(name)
    if hf_id:
        spec = replace(spec, hf_id=hf_id)
    return _with_format(file, config, spec)


def _json(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: {(error.strerror or str(error)).lower()}", key="model") from None
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}", key="model") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: expected a JSON object, got {type(config).__name__}", key="model")
    return config


def _with_format(file: Path, config: Mapping[str, Any], spec: ModelSpec) -> ModelSpec:
    """The model with the format that its weights were published in, if they are quantised."""
    inner, beside = config.get("text_config"), file.with_name("hf_quant_config.json")
    found = config.get("quantization_config") or (inner or {}).get("quantization_config")
    where = f"{file}: quantization_config"
    if not found and file.name == "config.json" and beside.is_file():
        found, where = _json(beside), str(beside)
    if not found:
        return spec
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected a JSON object, got {type(found).__name__}", key="model")
    quantization = checkpoint.format_of(found, where)
    alone = quantization is not None and checkpoint.leaves_attention(found)
    if alone and not spec.is_moe:
        raise InputError(f"{where}: a dense model whose attention is left in 16 bits is not modelled", key="model")
    return replace(spec, quantization=quantization, experts_only=alone and quantization != "mxfp4")


def _text_part(file: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model; refuses multimodal configs without one."""
    text = config.get("text_config")
    if isinstance(text, dict):
        outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        return outer | text
    for key in ("vision_config", "audio_config", "vision_tower", "mm_vision_tower"):
        if config.get(key):
            raise InputError(f"{file}: {key}: a multimodal model without text_config is not modelled", key="model")
    return config


class _Reader:
    """From the fields of one config to a model."""

    def __init__(self, fields: Fields) -> None:
        self._in = fields
        self._type = fields.type

    def spec(self, name: str) -> ModelSpec:
        """The model; every check of what is not modelled comes first."""
        self._refuse_not_modelled()
        family = self._family()
        spec = self._dense(name, family)
        if self._in.get("kv_lora_rank"):
            return complete(with_experts(self._in, with_latent(self._in, spec)), family)
        spec = with_experts(self._in, spec)
        window, num_sliding = sliding(self._in, spec.num_layers)
        return complete(replace(spec, sliding_window=window, num_sliding_layers=num_sliding), family)

    def _refuse_not_modelled(self) -> None:
        if self._in.get("is_encoder_decoder") or self._type in _ENCODERS:
            field = "is_encoder_decoder" if self._in.get("is_encoder_decoder") else "model_type"
            raise self._in.error(field, "encoder-decoder and encoder-only models are not modelled")
        for field, reason in _REFUSED_FIELDS.items():
            if self._in.get(field) and self._type not in _OF_TYPE.get(field, ()):
                raise self._in.error(field, reason)
        for kind in self._in.list("layer_types"):
            if kind not in ("full_attention", "sliding_attention"):
                raise self._in.error(
                    "layer_types", f"{str(kind)!r} layers (linear attention, hybrids) are not modelled"
                )

    def _family(self) -> Family:
        if self._type in _FAMILY_OF:
            family = FAMILIES[_FAMILY_OF[self._type]]
        elif not self._type:
            raise self._in.error("model_type", "missing")
        else:
            # A type that is not known is read as Llama-like only when its activation says that the MLP is gated.
            activation = self._in.get("hidden_act")
            if activation is None:
                raise self._in.error("model_type", f"{self._type!r} is not modelled (known: {', '.join(_FAMILY_OF)})")
            if activation not in _GATED_ACTIVATIONS:
                what = f"model_type {self._type!r} is not known and activation {activation!r} does not say whether"
                raise self._in.error("hidden_act", f"{what} the MLP is gated")
            family = FAMILIES["llama"]
        if self._type == "glm4_moe":
            bias, norm = self._in.flag("attention_bias", False), self._in.flag("use_qk_norm", False)
            family = replace(family, qkv_bias=bias, qk_norm=norm)
        elif self._in.get("attention_bias") and self._type != "gpt_oss":
            family = replace(family, qkv_bias=True, out_bias=True)
        if self._in.get("mlp_bias"):
            family = replace(family, mlp_bias=True)
        if self._type == "opt":
            family = self._opt_family(family)
        return family

    def _opt_family(self, family: Family) -> Family:
        """OPT switches: biases, norms without parameters, and no final norm where norms come after the blocks."""
        bias, affine = self._in.flag("enable_bias", True), self._in.flag("layer_norm_elementwise_affine", True)
        final = self._in.flag("do_layer_norm_before", True) and not self._in.flag("_remove_final_layer_norm", False)
        return replace(
            family,
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=bias,
            norms_per_layer=2 if affine else 0,
            final_norm=final and affine,
        )

    def _dense(self, name: str, family: Family) -> ModelSpec:
        hidden, heads = self._in.int("hidden_size"), self._in.int("num_attention_heads")
        if self._in.get("head_dim") is None and hidden % heads:
            raise self._in.error("num_attention_heads", f"{heads} does not divide hidden_size {hidden}")
        if self._type in LATENT_TYPES:
            kv_heads = heads
        else:
            alike = self._type in ("llama", "phi", "opt", "phi3")
            kv_heads = self._in.int("num_key_value_heads", heads if alike else None)
        if heads % kv_heads:
            raise self._in.error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
        tied = None
        if self._type in _FAMILY_OF:
            tied = self._type in _TIED_BY_DEFAULT
        embedding = self._in.int("word_embed_proj_dim", hidden) if self._type == "opt" else hidden
        known = "" if self._type in _FAMILY_OF else ", not a known type: read as Llama-like"
        return ModelSpec(
            name=name,
            hf_id=str(self._in.get("_name_or_path") or name),
            num_layers=self._in.int("num_hidden_layers"),
            hidden_size=hidden,
            num_attention_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=self._in.int("head_dim", hidden // heads),
            intermediate_size=self._in.int("ffn_dim" if self._type == "opt" else "intermediate_size"),
            vocab_size=self._in.int("vocab_size"),
            num_params=0,
            max_position=self._in.int("max_position_embeddings"),
            gated_mlp=family.gated_mlp,
            tie_word_embeddings=self._in.flag("tie_word_embeddings", tied),
            source=f"{self._in.file} (model_type {self._type}{known})",
            embedding_size=0 if embedding == hidden else embedding,
            family=_FAMILY_OF.get(self._type, ""),
        )
