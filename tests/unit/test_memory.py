"""The memory budget against arithmetic; against public start-up logs: test_memory_evidence.py."""

from __future__ import annotations

from typing import Any

import pytest

from simkit.errors import InputError
from simkit.memory.budget import MemoryBudget, MemorySettings, default_limits, memory_budget
from simkit.memory.groups import block_bytes
from simkit.memory.layers import kv_groups
from simkit.memory.rules import parse_version
from simkit.memory.sizing import kv_dtype_bytes, left_for_kv, size
from simkit.memory.weights import split_stages, weight_bytes, weight_parts
from simkit.specs.dtypes import element_bytes
from simkit.specs.hardware import load_gpu
from simkit.specs.models import load_model

DEFAULTS: dict[str, Any] = {
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.9,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "block_size": 16,
    "dtype": "bfloat16",
    "kv_cache_dtype": "auto",
    "quantization": None,
    "engine_version": "0.33",
    "num_dummy_blocks": 1,
}


def settings(model: str = "llama-3-8b", gpu: str = "a100-sxm4-80gb", **changes: Any) -> MemorySettings:
    return MemorySettings(model=load_model(model), gpu=load_gpu(gpu), **DEFAULTS | changes)


def budget(model: str = "llama-3-8b", gpu: str = "a100-sxm4-80gb", **changes: Any) -> MemoryBudget:
    return memory_budget(settings(model, gpu, **changes))


def refusal(model: str, **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        budget(model, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_llama_3_8b_on_an_a100() -> None:
    result = budget()
    assert result.bytes_per_block == 2 * 2**20
    assert result.kv_bytes_per_token == 131_072
    assert 53 <= result.kv_tokens // 8192 <= 56
    assert result.kv_tokens == (result.num_gpu_blocks - 1) * 16
    assert result.num_gpu_blocks == int(result.kv_gib * 2**30 // result.bytes_per_block)


def test_parts_add_up_to_what_was_requested() -> None:
    new, old = budget(), budget(engine_version="0.19")
    for result in (new, old):
        parts = result.weights_gib + result.activation_gib + result.non_torch_gib + result.kv_gib
        parts += result.cuda_graph_gib if result.cuda_graph_in_budget else 0.0
        assert parts == pytest.approx(result.requested_gib, abs=1e-6)
    assert new.cuda_graph_in_budget
    assert not old.cuda_graph_in_budget
    assert old.kv_gib - new.kv_gib == pytest.approx(new.cuda_graph_gib)


def test_fp8_cache_halves_the_bytes_of_a_block() -> None:
    assert budget(kv_cache_dtype="fp8").bytes_per_block == budget().bytes_per_block // 2
    assert kv_dtype_bytes("auto", "float32") == 4
    assert kv_dtype_bytes("fp8_e5m2", "bfloat16") == 1


def test_tensor_parallelism_splits_weights_and_kv_heads() -> None:
    one, four = budget(), budget(tensor_parallel_size=4)
    # The norms, 65 x 4096 weights, are whole on every rank.
    norms_gib = 65 * 4096 * 2 / 2**30
    assert four.weights_gib == pytest.approx((one.weights_gib - norms_gib) / 4 + norms_gib)
    assert four.bytes_per_block == one.bytes_per_block // 4
    # Eight KV heads over 16 ranks: every rank still holds one.
    spec = load_model("llama-3-8b")
    blocks = {ranks: kv_groups(spec, ranks, 16, 2.0, (0, 33, 0)) for ranks in (8, 16)}
    assert {block_bytes(groups, range(32)) for groups in blocks.values()} == {32 * 2 * 16 * 128 * 2}


def test_latent_cache_is_whole_on_every_rank() -> None:
    spec = load_model("deepseek-v3")
    blocks = {ranks: kv_groups(spec, ranks, 64, 2.0, (0, 33, 0)) for ranks in (1, 8)}
    assert {block_bytes(groups, range(61)) for groups in blocks.values()} == {64 * 61 * 576 * 2}


def test_quantised_weights() -> None:
    spec = load_model("llama-3.1-8b")
    embeddings = 2 * 128256 * 4096
    linear = spec.num_params - embeddings - 65 * 4096
    assert weight_bytes(spec, "bfloat16", None) == 2 * spec.num_params
    assert weight_bytes(spec, "bfloat16", "fp8") == linear + 2 * (spec.num_params - linear)
    assert weight_bytes(spec, "bfloat16", "awq") == linear * 0.51953125 + 2 * (spec.num_params - linear)
    gpt_oss = load_model("gpt-oss-20b")
    experts = 24 * 32 * 3 * 2880 * 2880
    assert weight_bytes(gpt_oss, "bfloat16", "mxfp4") == experts * 0.53125 + 2 * (gpt_oss.num_params - experts)
    assert "mxfp4 is for the experts of a MoE model; llama-3.1-8b is dense" in refusal(
        "llama-3.1-8b", quantization="mxfp4"
    )


def test_weights_that_do_not_fit() -> None:
    assert refusal("llama-3-70b") == (
        "model llama-3-70b needs 131.4 GiB of weights per GPU; a100-sxm4-80gb offers 71.3 GiB at "
        "gpu_memory_utilization 0.9: quantize to fp8 or raise tensor_parallel_size to 2"
    )
    assert budget("llama-3-70b", tensor_parallel_size=4).num_gpu_blocks > 10_000
    # Two GPUs hold the weights and little else: where communication takes more, a long sequence asks for four.
    assert "raise tensor_parallel_size to 2" in refusal("llama-3-70b", max_model_len=8192)
    assert "raise tensor_parallel_size to 4" in refusal("llama-3-70b", gpu="h100-sxm5-80gb", max_model_len=8192)
    assert refusal("llama-3-70b", quantization="fp8", gpu_memory_utilization=0.5).endswith(
        "raise gpu_memory_utilization to 0.89 or raise tensor_parallel_size to 2"
    )


def test_weights_fit_but_nothing_else_does() -> None:
    message = refusal("llama-3-70b", gpu="h100-sxm5-80gb", tensor_parallel_size=2, max_num_seqs=1024)
    assert message.startswith("model llama-3-70b leaves no memory for KV: h100-sxm5-80gb offers 71.3 GiB")
    assert "weights 65.7, activations 1.9, non-torch 2.1, CUDA graphs 2.9 GiB" in message


def test_tensor_parallel_size_must_split_the_heads() -> None:
    assert refusal("llama-3-8b", tensor_parallel_size=3) == (
        "hardware.tensor_parallel_size: 3 GPUs cannot split the 32 attention heads and 8 KV heads of llama-3-8b evenly"
    )
    assert "10 KV heads" in refusal("phi-4", tensor_parallel_size=4)


def test_activations_follow_sequences_vocabulary_and_budget() -> None:
    base = budget(max_num_seqs=1024).activation_gib
    assert base - budget(max_num_seqs=512).activation_gib == pytest.approx(3.6 * 512 * 128256 * 4 / 2**30)
    # With few sequences the MLP of a large budget is the peak: 3 x (4096 + 14336) elements a token.
    few = budget(max_num_seqs=8, max_num_batched_tokens=16384)
    assert few.activation_gib == pytest.approx(3 * (4096 + 14336) * 2 * 16384 / 2**30)


def test_names_and_versions() -> None:
    assert element_bytes("bfloat16") == 2
    with pytest.raises(InputError, match="expected one of float32, float16"):
        element_bytes("fp12")
    assert parse_version("0.10.1.1") == (0, 10, 1)
    assert parse_version("0.33") > parse_version("0.9.2")
    with pytest.raises(InputError, match=r"engine\.version: expected a version"):
        parse_version("latest")


def test_default_limits_by_device_class() -> None:
    limits = {
        name: default_limits(load_gpu(name))
        for name in ("b200-sxm-180gb", "mi300x", "h200-sxm-141gb", "h100-sxm5-80gb", "a100-sxm4-80gb", "l40s-48gb")
    }
    assert limits == {
        "b200-sxm-180gb": (16384, 1024),
        "mi300x": (16384, 1024),
        "h200-sxm-141gb": (8192, 1024),
        "h100-sxm5-80gb": (8192, 1024),
        "a100-sxm4-80gb": (2048, 256),
        "l40s-48gb": (2048, 256),
    }


def test_limits_before_chunked_prompts_hold_the_whole_prompt() -> None:
    gpu = load_gpu("h100-sxm5-80gb")
    assert default_limits(gpu, "0.6.4", 20000) == (20000, 256)
    assert default_limits(gpu, "0.6.4", 1024) == default_limits(gpu, "0.6.4", 131072) == (2048, 256)
    assert default_limits(gpu, "0.8.0", 20000) == (8192, 1024)


def test_parts_of_the_weights_add_up() -> None:
    for name in ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "opt-13b", "gemma-2-9b", "mistral-small-3.2-24b"):
        spec = load_model(name)
        whole = weight_parts(spec, split_stages(spec, 1)[0], 1, "bfloat16", None)
        params = spec.num_params + spec.image_tower_params + spec.num_layers * spec.latent_up_params
        assert sum(whole.values()) == pytest.approx(2 * params, rel=1e-12), name
        assert whole["embedding"] == 2 * spec.embedding_params
        assert bool(whole["experts"]) == bool(whole["router"]) == spec.is_moe
        assert bool(whole["lm_head"]) is not spec.tie_word_embeddings


def test_ranks_that_share_a_kv_head_copy_its_projections() -> None:
    spec = load_model("qwen2.5-7b")  # 28 heads, 4 KV heads
    stage = split_stages(spec, 1)[0]
    attention = [weight_parts(spec, stage, ranks, "bfloat16", None)["attention"] for ranks in (4, 28)]
    layers, head = 28, 2 * 3584 * 128 * 2  # bytes of Q and output, or of K and V, of one head
    assert attention == [layers * head * (7 + 1), layers * head * (1 + 1)]


def test_pipeline_stages_share_layers_and_keep_the_ends() -> None:
    spec = load_model("llama-3.1-8b")
    assert [stage.num_layers for stage in split_stages(spec, 5)] == [6, 6, 7, 7, 6]
    four = size(settings("llama-3.1-8b", "h100-sxm5-80gb", pipeline_parallel_size=4))
    assert [stage.weights["embedding"] > 0 for stage in four.stages] == [True, False, False, False]
    assert [stage.weights["lm_head"] > 0 for stage in four.stages] == [False, False, False, True]
    one = size(settings("llama-3.1-8b", "h100-sxm5-80gb"))
    assert sum(s.weight_bytes for s in four.stages) == pytest.approx(one.fullest.weight_bytes)
    assert four.stages[0].bytes_per_block == one.fullest.bytes_per_block // 4
    assert four.num_gpu_blocks == min(stage.num_blocks for stage in four.stages)
    assert four.limiting == 3, "the last stage samples"
    # A shared embedding is needed at both ends.
    tied = size(settings("qwen2.5-0.5b", "l4-24gb", pipeline_parallel_size=2))
    assert tied.stages[0].weights["embedding"] == tied.stages[1].weights["lm_head"] > 0
    with pytest.raises(InputError, match="expected 1 to 32"):
        split_stages(spec, 33)


def test_dense_layers_of_a_moe_model_come_first() -> None:
    spec = load_model("deepseek-v3")
    stages = split_stages(spec, 4)
    assert [stage.num_layers - stage.num_moe_layers for stage in stages] == [3, 0, 0, 0]
    assert sum(stage.num_layers for stage in stages) == 61


def test_eager_has_no_graphs_and_a_given_activation_replaces_the_rule() -> None:
    plain, eager = size(settings()), size(settings(enforce_eager=True))
    assert eager.fullest.cuda_graphs.num_bytes == 0
    assert eager.fullest.kv_bytes - plain.fullest.kv_bytes == plain.fullest.cuda_graphs.num_bytes
    given = size(settings(activation_gib=3.0))
    assert given.fullest.activation.num_bytes == 3 * 2**30


def test_what_is_left_for_kv() -> None:
    assert left_for_kv(10.0, 5.0, 1.0, 0.5, 0.25, graphs_in_budget=False) == 3.5
    assert left_for_kv(10.0, 5.0, 1.0, 0.5, 0.25, graphs_in_budget=True) == 3.25


@pytest.mark.parametrize(
    ("version", "activation", "non_torch", "inside", "dummies"),
    [
        ("0.2.3", 2.0, 0.25, False, 0),
        ("0.2.7", 13.0, 0.85, False, 0),
        ("0.6.4", 9.5, 0.35, False, 0),
        ("0.10.1.1", 9.5, 0.13, False, 1),
        ("0.11", 9.5, 0.13, False, 1),
        ("0.17.0", 3.6, 0.13, False, 1),
        ("0.19.0", 3.6, 0.25, False, 1),
        ("0.20", 3.6, 0.25, False, 1),
        ("0.21", 3.6, 0.25, True, 1),
        ("0.26", 1.5, 0.25, True, 1),
        ("0.33", 3.6, 0.25, True, 1),
    ],
)
def test_rules_by_version(version: str, activation: float, non_torch: float, inside: bool, dummies: int) -> None:
    sizing = size(settings(engine_version=version, max_num_seqs=1024, num_dummy_blocks=None))
    stage = sizing.fullest
    logits = 1024 * 128256 * 4
    hidden = 2048 * 4096 * 2
    assert stage.activation.num_bytes == pytest.approx(activation * logits + hidden + 0.07 * 2**30, rel=1e-6)
    assert stage.non_torch.num_bytes == pytest.approx(non_torch * 2**30, rel=1e-6)
    assert sizing.cuda_graphs_in_budget is inside
    assert sizing.num_dummy_blocks == dummies
    assert sizing.usable_blocks == sizing.num_gpu_blocks - dummies
