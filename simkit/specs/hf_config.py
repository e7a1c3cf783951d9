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
}
_MOE_TYPES = {"mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"}
_TIED_BY_DEFAULT = {"gemma", "gemma2", "gemma3_text", "opt"}
_ENCODERS = {"t5", "mt5", "bart", "mbart", "whisper", "pegasus", "marian", "bert", "roberta", "xlm-roberta", "albert"}
_GATED_ACTIVATIONS = {"silu", "swish", "swiglu"}
_EXPERT_FIELDS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_REFUSED_FIELDS = {
    "kv_lora_rank": "multi-head latent attention is not modelled",
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
_QUANTIZED = (
    "a quantised checkpoint is not read: remove this field and set engine.quantization "
    "(fp8, fp8_block, int8, awq, gptq, mxfp4)"
)
_BLOCK_SCALED = "a quantised checkpoint is not read: remove this field and set engine.quantization: fp8_block"


def read_config(path: Path) -> ModelSpec:
    """The model of a config.json, or of a directory that holds one. Raises InputError naming file and field."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: {(error.strerror or str(error)).lower()}", key="model") from None
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}", key="model") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: expected a JSON object, got {type(config).__name__}", key="model")
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return _Reader(file, _text_part(file, config)).spec(name)


def _text_part(file: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model; refuses quantised and multimodal configs without one."""
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and part.get("quantization_config"):
            by_block = "weight_block_size" in part["quantization_config"]
            advice = _BLOCK_SCALED if by_block else _QUANTIZED
            raise InputError(f"{file}: quantization_config: {advice}", key="model")
    text = config.get("text_config")
    if isinstance(text, dict):
        outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        return outer | text
    for key in ("vision_config", "audio_config", "vision_tower", "mm_vision_tower"):
        if config.get(key):
            raise InputError(f"{file}: {key}: a multimodal model without text_config is not modelled", key="model")
    return config


class _Reader:
    """Checked access to the fields of one config."""

    def __init__(self, file: Path, config: Mapping[str, Any]) -> None:
        self._file = file
        self._config = config
        self._type = str(config.get("model_type", ""))

    def spec(self, name: str) -> ModelSpec:
        """The model; every check of what is not modelled comes first."""
        self._refuse_not_modelled()
        family = self._family()
        spec = self._dense(name, family)
        if any(self._config.get(field) for field in _EXPERT_FIELDS):
            spec = self._with_experts(spec)
        window, num_sliding = self._sliding(spec.num_layers)
        return complete(replace(spec, sliding_window=window, num_sliding_layers=num_sliding), family)

    def _refuse_not_modelled(self) -> None:
        if self._config.get("is_encoder_decoder") or self._type in _ENCODERS:
            field = "is_encoder_decoder" if self._config.get("is_encoder_decoder") else "model_type"
            raise self._error(field, "encoder-decoder and encoder-only models are not modelled")
        for field, reason in _REFUSED_FIELDS.items():
            if self._config.get(field):
                raise self._error(field, reason)
        for kind in self._layer_types():
            if kind not in ("full_attention", "sliding_attention"):
                raise self._error("layer_types", f"{str(kind)!r} layers (linear attention, hybrids) are not modelled")

    def _family(self) -> Family:
        if self._type in _FAMILY_OF:
            family = FAMILIES[_FAMILY_OF[self._type]]
        elif not self._type:
            raise self._error("model_type", "missing")
        else:
            # A type that is not known is read as Llama-like only when its activation says that the MLP is gated.
            activation = self._config.get("hidden_act")
            if activation is None:
                raise self._error("model_type", f"{self._type!r} is not modelled (known: {', '.join(_FAMILY_OF)})")
            if activation not in _GATED_ACTIVATIONS:
                what = f"model_type {self._type!r} is not known and activation {activation!r} does not say whether"
                raise self._error("hidden_act", f"{what} the MLP is gated")
            family = FAMILIES["llama"]
        if self._config.get("attention_bias") and self._type != "gpt_oss":
            family = replace(family, qkv_bias=True, out_bias=True)
        if self._config.get("mlp_bias"):
            family = replace(family, mlp_bias=True)
        if self._type == "opt":
            family = self._opt_family(family)
        return family

    def _opt_family(self, family: Family) -> Family:
        """OPT switches: biases, norms without parameters, and no final norm where norms come after the blocks."""
        bias, affine = self._flag("enable_bias", True), self._flag("layer_norm_elementwise_affine", True)
        final = self._flag("do_layer_norm_before", True) and not self._flag("_remove_final_layer_norm", False)
        return replace(
            family,
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=bias,
            norms_per_layer=2 if affine else 0,
            final_norm=final and affine,
        )

    def _dense(self, name: str, family: Family) -> ModelSpec:
        hidden, heads = self._int("hidden_size"), self._int("num_attention_heads")
        if self._config.get("head_dim") is None and hidden % heads:
            raise self._error("num_attention_heads", f"{heads} does not divide hidden_size {hidden}")
        kv_heads = self._int("num_key_value_heads", heads if self._type in ("llama", "phi", "opt", "phi3") else None)
        if heads % kv_heads:
            raise self._error("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
        tied = None
        if self._type in _FAMILY_OF:
            tied = self._type in _TIED_BY_DEFAULT
        embedding = self._int("word_embed_proj_dim", hidden) if self._type == "opt" else hidden
        known = "" if self._type in _FAMILY_OF else ", not a known type: read as Llama-like"
        return ModelSpec(
            name=name,
            hf_id=str(self._config.get("_name_or_path") or name),
            num_layers=self._int("num_hidden_layers"),
            hidden_size=hidden,
            num_attention_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=self._int("head_dim", hidden // heads),
            intermediate_size=self._int("ffn_dim" if self._type == "opt" else "intermediate_size"),
            vocab_size=self._int("vocab_size"),
            num_params=0,
            max_position=self._int("max_position_embeddings"),
            gated_mlp=family.gated_mlp,
            tie_word_embeddings=self._flag("tie_word_embeddings", tied),
            source=f"{self._file} (model_type {self._type}{known})",
            embedding_size=0 if embedding == hidden else embedding,
            family=_FAMILY_OF.get(self._type, ""),
        )

    def _with_experts(self, spec: ModelSpec) -> ModelSpec:
        if self._type not in _MOE_TYPES:
            field = next(field for field in _EXPERT_FIELDS if self._config.get(field))
            raise self._error(field, f"a mixture of experts of model_type {self._type!r} is not modelled")
        own_size = "moe_intermediate_size" if self._type in ("qwen2_moe", "qwen3_moe") else "intermediate_size"
        num_experts = self._int("num_experts" if self._type.startswith("qwen") else "num_local_experts")
        width = self._int(own_size)
        num_active = self._int("num_experts_per_tok")
        if num_active > num_experts:
            raise self._error("num_experts_per_tok", f"{num_active} is more than the {num_experts} experts")
        shared = self._int("shared_expert_intermediate_size") if self._type == "qwen2_moe" else 0
        if shared % width:
            raise self._error("shared_expert_intermediate_size", f"{shared} is not a multiple of {own_size} {width}")
        return replace(
            spec,
            num_experts=num_experts,
            experts_per_token=num_active,
            moe_intermediate_size=width,
            num_shared_experts=shared // width,
            num_dense_layers=self._num_dense_layers(spec.num_layers),
        )

    def _num_dense_layers(self, num_layers: int) -> int:
        step, dense = self._int("decoder_sparse_step", 1), self._config.get("mlp_only_layers") or []
        if not isinstance(dense, list):
            raise self._error("mlp_only_layers", f"expected a list of layer numbers, got {dense!r}")
        return sum(layer in dense or (layer + 1) % step != 0 for layer in range(num_layers))

    def _sliding(self, num_layers: int) -> tuple[int | None, int]:
        """(window in tokens, layers it applies to); (None, 0) when every layer sees the whole context."""
        if self._config.get("sliding_window") is None or self._config.get("use_sliding_window") is False:
            return None, 0
        if self._type in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe") and "use_sliding_window" not in self._config:
            return None, 0
        window, kinds = self._int("sliding_window"), self._layer_types()
        if kinds:
            if len(kinds) != num_layers:
                raise self._error("layer_types", f"{len(kinds)} entries for {num_layers} layers")
            count = kinds.count("sliding_attention")
        elif self._type in ("mistral", "mixtral", "phi3"):
            count = num_layers
        elif self._type in ("gemma2", "gpt_oss"):
            count = (num_layers + 1) // 2
        elif self._type == "gemma3_text":
            count = num_layers - num_layers // self._int("sliding_window_pattern", 6)
        elif self._type.startswith("qwen"):
            count = max(0, num_layers - self._int("max_window_layers"))
        else:
            what = f"model_type {self._type!r} has no layer_types, which layers it applies to is not known"
            raise self._error("sliding_window", what)
        return (window, count) if count else (None, 0)

    def _layer_types(self) -> list[Any]:
        kinds = self._config.get("layer_types") or []
        if not isinstance(kinds, list):
            raise self._error("layer_types", f"expected a list, got {kinds!r}")
        return kinds

    def _required(self, field: str) -> Any:
        value = self._config.get(field)
        if value is None:
            raise self._error(field, f"missing (model_type {self._type!r})")
        return value

    def _int(self, field: str, default: int | None = None) -> int:
        value = self._config.get(field)
        if value is None:
            value = default if default is not None else self._required(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._error(field, f"expected an integer >= 1, got {value!r}")
        return value

    def _flag(self, field: str, default: bool | None) -> bool:
        value = self._config.get(field)
        if value is None:
            value = default if default is not None else self._required(field)
        if not isinstance(value, bool):
            raise self._error(field, f"expected true or false, got {value!r}")
        return value

    def _error(self, field: str, what: str) -> InputError:
        return InputError(f"{self._file}: {field}: {what}", key="model")
