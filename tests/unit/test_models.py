"""The model registry and the reading of Hugging Face configs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from simkit.errors import InputError
from simkit.specs.models import NOT_MODELLED, list_models, load_model

EVIDENCE = Path(__file__).resolve().parents[3] / "shared/data/evidence/models.csv"

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 48,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "sliding_window": None,
    "use_sliding_window": False,
}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "hidden_size": 5120,
    "ffn_dim": 20480,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 5120,
    "do_layer_norm_before": True,
}
GEMMA2: dict[str, Any] = {
    "model_type": "gemma2",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "head_dim": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 42,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}


def write(folder: Path, config: dict[str, Any]) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return str(file)


def refusal(name_or_path: str) -> str:
    with pytest.raises(InputError) as caught:
        load_model(name_or_path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_kv_bytes_per_token_of_the_llamas() -> None:
    small, large = load_model("llama-3-8b"), load_model("llama-3-70b")
    assert small.kv_bytes_per_token(2) == 131_072
    assert large.kv_bytes_per_token(2) == 2.5 * small.kv_bytes_per_token(2)
    assert 8192 * 64 * small.kv_bytes_per_token(2) == 64 * 2**30
    assert (80_000_000_000 - 2 * small.num_params) // (8192 * small.kv_bytes_per_token(2)) == 59


def test_registry_is_sorted_unique_and_large_enough() -> None:
    names = [spec.name for spec in list_models()]
    assert names == sorted(set(names))
    assert len(names) == 52
    assert {"llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "mixtral-8x7b", "opt-13b", "mistral-7b", "phi-2"} <= set(names)
    assert all(spec.source for spec in list_models())


def test_published_parameter_counts() -> None:
    counts = {
        "llama-2-7b": 6_738_415_616,
        "llama-3-8b": 8_030_261_248,
        "qwen2.5-7b": 7_615_616_512,
        "qwen3-30b-a3b": 30_532_122_624,
        "mixtral-8x7b": 46_702_792_704,
        "gemma-2-9b": 9_241_705_984,
        "phi-2": 2_779_683_840,
        "opt-13b": 12_853_473_280,
        "gpt-oss-20b": 20_914_757_184,
    }
    assert {name: load_model(name).num_params for name in counts} == counts


@pytest.mark.skipif(not EVIDENCE.exists(), reason="the shared evidence folder is not beside this clone")
def test_registry_agrees_with_the_evidence() -> None:
    with EVIDENCE.open(encoding="utf-8") as file:
        rows = {row["model"].replace(" (text)", ""): row for row in csv.DictReader(file)}
    assert len(rows) == 46
    for hf_id, row in rows.items():
        spec = load_model(hf_id)
        assert spec.kv_bytes_per_token(2) == int(row["kv_bytes_per_token_16bit"]), hf_id
        assert spec.num_params == pytest.approx(int(row["params"]), rel=0.005), hf_id
        assert spec.max_position == int(row["max_position"]), hf_id


def test_ids_and_aliases_in_any_case() -> None:
    assert load_model("META-LLAMA/meta-llama-3-8b-instruct") is load_model("llama-3-8b")
    assert load_model("Qwen/Qwen2.5-7B-Instruct") is load_model("Qwen2.5-7B")
    assert load_model("meta-llama/Llama-3.3-70B-Instruct") is load_model("llama-3.1-70b")


def test_moe_counts_of_mixtral() -> None:
    spec = load_model("mixtral-8x7b")
    per_expert = 3 * 4096 * 14336
    assert spec.mlp_params_per_layer == 8 * per_expert + 8 * 4096
    assert spec.active_mlp_params_per_layer == 2 * per_expert + 8 * 4096
    assert spec.active_params == spec.num_params - 32 * 6 * per_expert
    assert spec.attention_params_per_layer == 4096 * (4096 + 1024 + 1024 + 4096)


def test_opt_mlp_is_not_gated() -> None:
    spec = load_model("opt-13b")
    assert not spec.gated_mlp
    assert spec.mlp_params_per_layer == 2 * 5120 * 20480
    assert spec.lm_head_params == 0


def test_mla_is_listed_but_not_modelled() -> None:
    spec = load_model("deepseek-v3")
    assert spec.not_modelled
    assert "MLA" in spec.not_modelled
    assert spec.kv_bytes_per_token(2) == 61 * 576 * 2
    assert any("latent attention" in line for line in NOT_MODELLED)


def test_attention_kinds_and_sliding_windows() -> None:
    assert [load_model(name).attention for name in ("llama-2-7b", "llama-3-8b", "deepseek-v3")] == ["mha", "gqa", "mla"]
    windows = {
        name: (load_model(name).sliding_window, load_model(name).num_sliding_layers)
        for name in ("mistral-7b", "gemma-2-9b", "gemma-3-27b", "gpt-oss-20b", "llama-3-8b")
    }
    assert windows == {
        "mistral-7b": (4096, 32),
        "gemma-2-9b": (4096, 21),
        "gemma-3-27b": (1024, 52),
        "gpt-oss-20b": (128, 12),
        "llama-3-8b": (None, 0),
    }


def test_unknown_name_gives_the_nearest() -> None:
    assert refusal("lama-3-8b") == "model: 'lama-3-8b' is not known; did you mean 'llama-3-8b'? (list: simkit models)"
    assert "did you mean 'meta-llama/llama-3-8b'?" in refusal("meta-lama/Llama-3-8B")


def test_missing_file(tmp_path: Path) -> None:
    assert refusal("./nowhere/config.json") == "model: ./nowhere/config.json: file not found"
    assert refusal(str(tmp_path)) == f"model: {tmp_path}/config.json: no such file or directory"


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama-3-8b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (OPT, "opt-13b"),
        (GEMMA2, "gemma-2-9b"),
        (GPT_OSS, "gpt-oss-20b"),
    ],
)
def test_config_gives_the_shapes_of_the_registry(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    read, known = load_model(write(tmp_path, config)), load_model(name)
    for field in known.__slots__:
        if field not in ("name", "hf_id", "source"):
            assert getattr(read, field) == getattr(known, field), field
    assert load_model(str(tmp_path)) == read
    assert read.name == tmp_path.name


def test_opt_with_projected_embeddings(tmp_path: Path) -> None:
    small = {"hidden_size": 1024, "ffn_dim": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
    spec = load_model(write(tmp_path, OPT | small | {"word_embed_proj_dim": 512, "do_layer_norm_before": False}))
    assert spec.num_params == 331_196_416  # opt-350m


def test_qwen2_window_is_off_unless_asked_for(tmp_path: Path) -> None:
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert load_model(write(tmp_path, qwen)).num_sliding_layers == 0
    spec = load_model(write(tmp_path, qwen | {"use_sliding_window": True}))
    assert (spec.sliding_window, spec.num_sliding_layers) == (4096, 4)


def test_mistral_window_is_on_every_layer(tmp_path: Path) -> None:
    spec = load_model(write(tmp_path, LLAMA | {"model_type": "mistral", "sliding_window": 4096}))
    assert (spec.sliding_window, spec.num_sliding_layers) == (4096, 32)


def test_qwen2_moe_shared_experts_and_dense_layers(tmp_path: Path) -> None:
    config = QWEN3_MOE | {
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 3072,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    }
    spec = load_model(write(tmp_path, config))
    assert spec.num_shared_experts == 4
    assert spec.num_dense_layers == 25
    assert spec.num_moe_layers == 23


def test_text_part_of_a_multimodal_model(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": dict(LLAMA)}
    assert load_model(write(tmp_path, config)).num_params == load_model("llama-3-8b").num_params


def test_unknown_type_is_read_as_llama_like_and_says_so(tmp_path: Path) -> None:
    spec = load_model(write(tmp_path, LLAMA | {"model_type": "nova"}))
    assert spec.num_params == load_model("llama-3-8b").num_params
    assert "not a known type: read as Llama-like" in spec.source


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder: encoder-decoder and encoder-only models are not modelled"),
        ({"model_type": "bert"}, "model_type: encoder-decoder"),
        ({"state_size": 16}, "state_size: Mamba is not modelled"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types: 'linear_attention' layers"),
        ({"vision_config": {"depth": 2}}, "vision_config: a multimodal model without text_config is not modelled"),
        ({"kv_lora_rank": 512}, "kv_lora_rank: multi-head latent attention is not modelled"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "set engine.quantization (fp8, fp8_block, int8, awq, gptq, mxfp4)",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
            "set engine.quantization: fp8_block",
        ),
        ({"model_type": "olmoe", "num_experts": 64}, "num_experts: a mixture of experts of model_type 'olmoe'"),
        ({"model_type": "gpt_neox", "hidden_act": "gelu"}, "hidden_act: model_type 'gpt_neox' is not known"),
        ({"model_type": "nova", "num_key_value_heads": None}, "num_key_value_heads: missing (model_type 'nova')"),
        ({"model_type": ""}, "model_type: missing"),
        ({"hidden_size": None}, "hidden_size: missing (model_type 'llama')"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers: expected an integer >= 1, got '32'"),
        ({"vocab_size": True}, "vocab_size: expected an integer >= 1, got True"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false, got 1"),
        ({"num_key_value_heads": 7}, "num_key_value_heads: 7 does not divide num_attention_heads 32"),
        ({"model_type": "nova", "sliding_window": 512}, "sliding_window: model_type 'nova' has no layer_types"),
        ({"model_type": "mistral", "sliding_window": 9, "layer_types": ["full_attention"]}, "1 entries for 32 layers"),
    ],
)
def test_refused_configs_name_file_and_field(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    file = write(tmp_path, LLAMA | change)
    message = refusal(file)
    assert message.startswith(f"model: {file}: ")
    assert expected in message


def test_broken_config_files(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text("{", encoding="utf-8")
    assert refusal(str(file)).startswith(f"model: {file}: not JSON: ")
    file.write_text("[1]", encoding="utf-8")
    assert refusal(str(file)) == f"model: {file}: expected a JSON object, got list"
