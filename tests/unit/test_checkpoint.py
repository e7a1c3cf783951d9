"""Formats of weights: what checkpoints and engines call them, and which one holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from simkit.errors import InputError
from simkit.memory.weights import weight_bytes
from simkit.scenario.engine import Engine, Quantization
from simkit.specs.checkpoint import format_of, leaves_attention
from simkit.specs.dtypes import ALIASES, NOT_QUANTIZED, OF_CHECKPOINT, QUANTIZATIONS, chosen, engine_word
from simkit.specs.hf_config import read_config
from simkit.specs.models import load_model

FIELD = Path(__file__).resolve().parents[3] / "shared/field/h05_names.yaml"
DENSE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
MOE = DENSE | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def groups(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    """A config of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8"),
        (groups(FP8, {"num_bits": 8, "type": "float", "dynamic": True}), "fp8"),
        (groups(FP8 | {"strategy": "block", "block_structure": [128, 128]}, FP8), "fp8_block"),
        (groups(INT8, INT8), "int8"),
        (groups(INT8), "gptq_int8"),
        (groups(INT4), "gptq"),
        (groups(FP4, FP4), "nvfp4"),
        (groups(FP4 | {"group_size": 32}), "mxfp4"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "awq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "gptq_int8"),
        ({"quant_method": "auto-round", "bits": 4}, "gptq"),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4"),
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, "nvfp4"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "fp8"),
        ({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}, "quant_method": "modelopt"}, None),
        (
            {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "NVFP4"}}}},
            "nvfp4",
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
    ],
)
def test_formats_of_checkpoints(config: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    assert format_of(config, "here") == expected
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MOE | {"quantization_config": config}), encoding="utf-8")
    assert read_config(file).quantization == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "quark"}, "here: quant_method: expected one of fp8, fbgemm_fp8, compressed-tensors, awq"),
        ({"quant_method": "bitsandbites"}, "got 'bitsandbites'; did you mean 'bitsandbytes'?"),
        ({}, "here: quant_method: expected one of"),
        ({"quant_method": "awq", "bits": 3}, "here: bits: expected 4 with awq, got 3"),
        ({"quant_method": "gptq", "bits": [4]}, "here: bits: expected 4 or 8 with gptq, got [4]"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP44"}, "got 'NVFP44'; did you mean 'NVFP4'?"),
        (
            groups(INT4, INT8),
            "here: config_groups.group_0: expected fp8, int8, w4a16, w8a16 or nvfp4, got 4-bit int weights with 8-bit "
            "activations",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": FP8}, "b": {"weights": FP4}}},
            "here: config_groups: fp8 and nvfp4 in one model is not modelled",
        ),
        (groups(FP8) | {"sparsity_config": {"format": "sparse-24"}}, "here: sparsity_config: sparse weights are not"),
    ],
)
def test_formats_that_are_not_known(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        format_of(config, "here")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ignore", "expected"),
    [
        (["lm_head"], False),
        (["model.layers.*.self_attn", "lm_head"], True),
        (["re:.*self_attn.*", "re:.*shared_experts.*"], True),
        (["*self_attn*"], True),
        (["self_attn.q_proj", "self_attn.o_proj"], True),
        (["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj"], False),
        (["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.o_proj"], True),
        (["model.layers.1.mlp.gate"], False),
        (["re:["], False),
    ],
)
def test_attention_that_is_left_in_16_bits(ignore: list[str], expected: bool) -> None:
    assert leaves_attention({"quant_method": "compressed-tensors", "ignore": ignore}) is expected


def test_experts_alone(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = groups(INT4) | {"ignore": ["lm_head", "re:.*self_attn.*"]}
    file.write_text(json.dumps(MOE | {"quantization_config": config}), encoding="utf-8")
    spec = read_config(file)
    assert spec.experts_only
    attention = spec.num_layers * spec.attention_params_per_layer
    whole = weight_bytes(load_model("mixtral-8x7b"), "bfloat16", "gptq")
    left = weight_bytes(spec, "bfloat16", "gptq") - 2 * 2 * (128256 - 32000) * 4096
    assert left - whole == pytest.approx(attention * (2 - 4.15625 / 8), rel=1e-6)
    file.write_text(json.dumps(DENSE | {"quantization_config": config}), encoding="utf-8")
    with pytest.raises(InputError, match="a dense model whose attention is left in 16 bits is not modelled"):
        read_config(file)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("nvfp4", 4.5), ("mxfp4", 4.25), ("gptq_int8", 8.125), ("bitsandbytes", 4.127), ("fp8", 8), ("awq", 4.15625)],
)
def test_bits_of_a_weight(name: str, bits: float) -> None:
    assert 8 * QUANTIZATIONS[name].held_bytes == pytest.approx(bits, abs=0.001)


def test_nvfp4_is_of_dense_models_too() -> None:
    spec = load_model("llama-3.1-8b")
    kept = spec.embedding_params + spec.lm_head_params + 65 * spec.hidden_size
    assert weight_bytes(spec, "bfloat16", "nvfp4") == pytest.approx(4.5 / 8 * spec.linear_params + 2 * kept)


# --- words of engines
def test_the_schema_takes_every_format_and_every_word() -> None:
    assert set(get_args(Quantization)) == {*QUANTIZATIONS, *ALIASES, NOT_QUANTIZED, OF_CHECKPOINT}


@pytest.mark.parametrize(
    ("asked", "own", "expected"),
    [
        (None, None, None),
        (None, "mxfp4", "mxfp4"),
        ("none", "mxfp4", "none"),
        ("awq_marlin", None, "awq"),
        ("awq_marlin", "awq", "awq"),
        ("gptq_marlin", None, "gptq"),
        ("gptq_marlin", "gptq_int8", "gptq_int8"),
        ("gptq", "gptq_int8", "gptq_int8"),
        ("compressed-tensors", "int8", "int8"),
        ("compressed-tensors", "gptq", "gptq"),
        ("modelopt", None, "fp8"),
        ("modelopt", "nvfp4", "nvfp4"),
        ("modelopt_fp4", None, "nvfp4"),
        ("gpt_oss_mxfp4", "mxfp4", "mxfp4"),
        ("nvfp4", None, "nvfp4"),
        ("bitsandbytes", None, "bitsandbytes"),
        ("bitsandbytes", "int8", "int8"),
        ("fp8", "fp8_block", "fp8_block"),
        ("fp8", "awq", "fp8"),
    ],
)
def test_which_format_holds(asked: str | None, own: str | None, expected: str | None) -> None:
    assert chosen(asked, own) == expected


def test_the_engines_words_for_formats() -> None:
    words = {name: engine_word(name) for name in ("fp8_block", "nvfp4", "gptq_int8", "mxfp4", "bitsandbytes")}
    assert words == {
        "fp8_block": "fp8",
        "nvfp4": "modelopt_fp4",
        "gptq_int8": "gptq",
        "mxfp4": "mxfp4",
        "bitsandbytes": "bitsandbytes",
    }


@pytest.mark.skipif(not FIELD.exists(), reason="the shared folder of names from the field is not beside this clone")
def test_names_that_were_seen_in_the_field() -> None:
    """Each alias stands for the format that the list says; the word that needs a checkpoint says so."""
    listed = yaml.safe_load(FIELD.read_text(encoding="utf-8"))["quantization"]
    meant = {"awq": "awq", "gptq": "gptq", "fp8": "fp8", "mxfp4": "mxfp4", "4-bit nf4": "bitsandbytes"}
    for name, means in listed.items():
        assert Engine(quantization=name).quantization == name
        if name == OF_CHECKPOINT:
            with pytest.raises(InputError, match="expected fp8, int8, w4a16 or nvfp4"):
                chosen(name, None)
        elif name == "nvfp4":
            assert chosen(name, None) == "nvfp4"
        else:
            assert chosen(name, None) == meant[means], name
