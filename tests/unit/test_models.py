"""The model registry and the reading of Hugging Face configs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from simkit.errors import InputError
from simkit.specs.models import list_models, load_model

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
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
}
GLM_AIR: dict[str, Any] = {
    "model_type": "glm4_moe",
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "use_qk_norm": False,
    "vocab_size": 151552,
}
MINIMAX: dict[str, Any] = {
    "model_type": "minimax_m2",
    "num_hidden_layers": 62,
    "hidden_size": 3072,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 1536,
    "vocab_size": 200064,
    "num_experts_per_tok": 8,
    "num_local_experts": 256,
    "max_position_embeddings": 196608,
    "use_qk_norm": True,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
KIMI: dict[str, Any] = {
    "model_type": "kimi_k2",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "intermediate_size": 18432,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
LLAMA4: dict[str, Any] = {
    "model_type": "llama4_text",
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "interleave_moe_layer_step": 2,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 1048576,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "vocab_size": 202048,
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
    assert len(names) == 94
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
        "qwen2.5-3b": 3_085_938_688,
        "qwen3-1.7b": 1_720_574_976,
        "qwen3-4b": 4_022_468_096,
        "qwen3-coder-30b-a3b": 30_532_122_624,
        "qwen3-coder-480b-a35b": 480_154_875_392,
        "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
        "deepseek-r1-distill-llama-70b": 70_553_706_496,
        "gemma-3-1b": 999_885_952,
        "phi-4-mini": 3_836_021_760,
        "mistral-7b-v0.3": 7_248_023_552,
        "tinyllama-1.1b": 1_100_048_384,
        "opt-125m": 125_239_296,
    }
    assert {name: load_model(name).num_params for name in counts} == counts


def test_published_counts_with_what_text_does_not_use() -> None:
    with_images = {
        "llama-4-scout": 108_641_793_536,
        "llama-4-maverick": 401_583_781_376,
        "gemma-3-4b": 4_300_079_472,
    }
    found = {name: load_model(name) for name in with_images}
    assert {name: spec.num_params + spec.image_tower_params for name, spec in found.items()} == with_images
    # The published count of GLM-4.5 holds one layer more, which predicts ahead: with an embedding and an LM head of its
    # own, and what joins it, a product of 2 x hidden and three norms.
    for name, published in {"glm-4.5": 358_337_791_296, "glm-4.5-air": 110_468_824_832}.items():
        spec = load_model(name)
        layer = spec.attention_params_per_layer + spec.mlp_params_per_layer + spec.num_experts + 2 * spec.hidden_size
        layer += (spec.num_attention_heads + 2 * spec.num_kv_heads) * spec.head_dim  # biases
        layer += 2 * spec.head_dim if name == "glm-4.5" else 0  # norms of queries and keys
        ahead = layer + 2 * spec.hidden_size**2 + 3 * spec.hidden_size + 2 * spec.embedding_params
        assert spec.num_params + ahead == published, name


def test_latent_attention_is_counted_from_a_config(tmp_path: Path) -> None:
    v3 = {"num_attention_heads": 128, "vocab_size": 129280, "n_routed_experts": 256, "first_k_dense_replace": 3}
    spec = load_model(write(tmp_path, KIMI | v3 | {"model_type": "deepseek_v3", "max_position_embeddings": 163840}))
    assert spec.num_params == load_model("deepseek-v3").num_params == 671_026_419_200
    lite = {
        "model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
        "intermediate_size": 10944, "vocab_size": 102400, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "q_lora_rank": None,
    }  # fmt: skip
    spec = load_model(write(tmp_path, KIMI | lite))
    assert spec.num_params == load_model("deepseek-v2-lite").num_params
    assert spec.not_modelled is None


def test_layers_with_a_state_hold_no_kv() -> None:
    assert load_model("qwen3-next-80b-a3b").kv_bytes_per_token(2) == 12 * 2 * 2 * 256 * 2
    assert load_model("qwen3-next-80b-a3b").not_modelled


def test_models_that_exist_quantised_alone() -> None:
    names = ("gpt-oss-20b", "gpt-oss-120b", "deepseek-v3", "deepseek-r1", "kimi-k2", "minimax-m2")
    assert {name: load_model(name).quantization for name in names} == {
        "gpt-oss-20b": "mxfp4",
        "gpt-oss-120b": "mxfp4",
        "deepseek-v3": "fp8_block",
        "deepseek-r1": "fp8_block",
        "kimi-k2": "fp8_block",
        "minimax-m2": "fp8_block",
    }


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


def test_latent_attention_is_counted_as_published() -> None:
    """671,026,419,200 and 15,706,484,224 parameters; a token's latent is 576 elements in every layer."""
    spec = load_model("deepseek-v3")
    assert spec.not_modelled is None
    assert (spec.num_params, load_model("deepseek-v2-lite").num_params) == (671_026_419_200, 15_706_484_224)
    assert spec.kv_bytes_per_token(2) == 61 * 576 * 2
    assert load_model("deepseek-ai/DeepSeek-R1") is spec


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
    assert "did you mean 'llama-3-8b'?" in refusal("somebody/Lama-3-8B")


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
        (GLM_AIR, "glm-4.5-air"),
        (MINIMAX, "minimax-m2"),
        (KIMI, "kimi-k2"),
        (LLAMA4, "llama-4-maverick"),
    ],
)
def test_config_gives_the_shapes_of_the_registry(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    read, known = load_model(write(tmp_path, config)), load_model(name)
    for field in known.__slots__:
        if field not in ("name", "hf_id", "source", "image_tower_params"):
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
        ({"kv_lora_rank": 512}, "kv_lora_rank: latent attention of model_type 'llama' is not modelled"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size: chunked attention is not modelled"),
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
