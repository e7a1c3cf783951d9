"""The memory budget against arithmetic and against public start-up logs."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simkit.errors import InputError
from simkit.hardware import load_gpu
from simkit.memory import (
    MemoryBudget,
    default_limits,
    dtype_bytes,
    kv_block_bytes,
    kv_dtype_bytes,
    memory_budget,
    parse_version,
    weight_bytes,
)
from simkit.models import load_model

EVIDENCE = Path(__file__).resolve().parents[3] / "shared/data/evidence/kv_capacity.csv"
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
}


def budget(model: str = "llama-3-8b", gpu: str = "a100-sxm4-80gb", **changes: Any) -> MemoryBudget:
    return memory_budget(load_model(model), load_gpu(gpu), **DEFAULTS | changes)


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
    assert four.weights_gib == pytest.approx(one.weights_gib / 4)
    assert four.bytes_per_block == one.bytes_per_block // 4
    # Eight KV heads over 16 ranks: every rank still holds one.
    spec = load_model("llama-3-8b")
    assert kv_block_bytes(spec, 16, 16, 2) == kv_block_bytes(spec, 8, 16, 2) == 32 * 2 * 16 * 128 * 2


def test_latent_cache_is_whole_on_every_rank() -> None:
    spec = load_model("deepseek-v3")
    assert kv_block_bytes(spec, 1, 64, 2) == kv_block_bytes(spec, 8, 64, 2) == 64 * 61 * 576 * 2


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
        "gpu_memory_utilization 0.9: raise hardware.tensor_parallel_size to 4 or quantize"
    )
    assert budget("llama-3-70b", tensor_parallel_size=4).num_gpu_blocks > 10_000
    assert refusal("llama-3-70b", quantization="fp8", gpu_memory_utilization=0.5).endswith(
        "raise hardware.tensor_parallel_size to 4"
    )


def test_weights_fit_but_nothing_else_does() -> None:
    message = refusal("llama-3-70b", tensor_parallel_size=2, max_num_seqs=1024)
    assert message.startswith("model llama-3-70b leaves no memory for KV: a100-sxm4-80gb offers 71.3 GiB")
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
    assert dtype_bytes("bfloat16") == 2
    with pytest.raises(InputError, match="expected one of float32, float16"):
        dtype_bytes("fp12")
    assert parse_version("0.10.1.1") == (0, 10)
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


# Row of kv_capacity.csv -> (our model, our GPU, quantization, engine version, allowed error of the KV GiB).
# H100 rows left max_num_seqs and the token budget at the server's defaults.
ROWS: dict[str, tuple[str, str, str | None, str, float]] = {
    "A001": ("llama-3.1-8b", "rtx-3090", None, "0.6.4", 0.02),
    "A042": ("qwen3-32b", "h100-sxm5-80gb", None, "0.11.0", 0.01),
    "A047": ("llama-3.1-8b", "h100-sxm5-80gb", None, "0.19.0", 0.002),
    "A053": ("llama-3.1-8b", "h100-sxm5-80gb", None, "0.19.0", 0.002),
    "A058": ("llama-3.1-8b", "h100-sxm5-80gb", "fp8", "0.19.0", 0.002),
    "A059": ("qwen2.5-7b", "h100-sxm5-80gb", None, "0.19.0", 0.002),
    "A064": ("qwen2.5-7b", "h100-sxm5-80gb", None, "0.19.0", 0.002),
    "A067": ("qwen3-14b", "h100-sxm5-80gb", None, "0.15.0", 0.002),
    "A070": ("qwen3-14b", "h100-sxm5-80gb", None, "0.18.0", 0.002),
    "A072": ("qwen3-30b-a3b", "h100-sxm5-80gb", None, "0.19.0", 0.01),
    "A076": ("gemma-2-9b", "h100-sxm5-80gb", None, "0.19.0", 0.002),
    "A079": ("mixtral-8x7b", "h100-sxm5-80gb", None, "0.19.0", 0.01),
    "A080": ("qwen2.5-72b", "h100-sxm5-80gb", None, "0.19.0", 0.03),
    "A086": ("qwen2-7b", "a100-sxm4-80gb", None, "0.10.1.1", 0.03),
    "A089": ("qwen2-7b", "a100-sxm4-80gb", None, "0.10.1.1", 0.002),
    "A092": ("llama-3.1-8b", "rtx-4090", None, "0.19.0", 0.08),
    "A102": ("llama-3.1-70b", "h100-sxm5-80gb", "fp8", "0.19.0", 0.005),
}


@pytest.mark.skipif(not EVIDENCE.exists(), reason="the shared evidence folder is not beside this clone")
@pytest.mark.parametrize("row_id", ROWS)
def test_budget_agrees_with_start_up_logs(row_id: str) -> None:
    with EVIDENCE.open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["id"] == row_id)
    model, gpu_name, quantization, version, tolerance = ROWS[row_id]
    gpu = replace(load_gpu(gpu_name), memory_gib=float(row["gpu_mem_gib"]))
    default_budget, default_seqs = default_limits(gpu)
    result = memory_budget(
        load_model(model),
        gpu,
        tensor_parallel_size=int(row["tp"]),
        gpu_memory_utilization=float(row["gmu"]),
        max_num_seqs=int(row["max_num_seqs"] or default_seqs),
        max_num_batched_tokens=int(row["max_num_batched_tokens"] or default_budget),
        block_size=int(row["block_size"]),
        dtype="bfloat16",
        kv_cache_dtype=row["kv_dtype"],
        quantization=quantization,
        engine_version=version,
    )
    assert result.kv_gib == pytest.approx(float(row["kv_gib"]), rel=tolerance)
    if row["kv_tokens"]:
        # The engine's figure counts the dummy block.
        assert result.kv_tokens + 16 == pytest.approx(int(row["kv_tokens"]), rel=tolerance)
    if row["weights_gib"]:
        assert result.weights_gib == pytest.approx(float(row["weights_gib"]), abs=0.09)
