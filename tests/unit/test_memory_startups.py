"""Start-ups that other reports describe: pools, refusals, and those that die after sizing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simkit.memory.account import account
from simkit.memory.budget import MemorySettings, refusal_of
from simkit.memory.groups import Kind, LayerCache, block_bytes, group_layers, reserved_blocks
from simkit.memory.sizing import size
from simkit.specs.hardware import load_gpu
from simkit.specs.model_spec import FAMILIES, ModelSpec, complete
from simkit.specs.models import load_model
from simkit.units import bytes_to_gib


def l4(**changes: Any) -> MemorySettings:
    """gpt-oss-20b on L4s, 0.29 (akamaslabs/vllm-benchmark, study 10)."""
    given = {
        "max_num_seqs": 256, "max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.85, "engine_version": "0.29",
    }  # fmt: skip
    return MemorySettings(
        model=load_model("gpt-oss-20b"), gpu=load_gpu("l4-24gb"), quantization="mxfp4",
        max_model_len=32768, **given | changes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "tokens", "at_once", "pool_gib"),
    [
        ({"max_num_seqs": 512, "max_num_batched_tokens": 8192, "kv_cache_dtype": "fp8", "tensor_parallel_size": 2},
         1_125_105, 34.34, 9.69),
        ({"max_num_batched_tokens": 4096, "block_size": 96}, 82_453, 2.52, 2.377),
        ({"max_num_batched_tokens": 4096}, 82_819, 2.53, 2.378),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 8192, "kv_cache_dtype": "fp8", "block_size": 64},
         130_986, 4.00, 2.257),
    ],
)  # fmt: skip
def test_pools_of_windows(changes: dict[str, Any], tokens: int, at_once: float, pool_gib: float) -> None:
    """Tokens, concurrency and GiB as the engine printed them (GiB: blocks that give just these tokens)."""
    found = account(l4(**changes))
    assert found.refusal is None
    assert found.kv_tokens == pytest.approx(tokens, rel=0.02)
    assert found.max_concurrency == pytest.approx(at_once, rel=0.02)
    assert found.parts.kv_gib == pytest.approx(pool_gib, rel=0.02)
    assert found.engine_log[0].startswith("GPU KV cache size: ")
    assert found.engine_log[1].startswith("Maximum concurrency for 32,768 tokens per request: ")


def test_a_block_of_any_multiple_of_16_is_no_news() -> None:
    assert not [note for note in account(l4(block_size=96)).notes if "block size" in note]
    assert [note for note in account(l4(block_size=24)).notes if "multiples of 16" in note]
    assert [note for note in account(l4(block_size=96, engine_version="0.10.2")).notes if "no block size 96" in note]


def test_the_warm_up_of_the_sampler_runs_out_of_memory() -> None:
    """The start-up died with 786 MiB a copy of the logits; both others ran."""
    dies = l4(enforce_eager=True, gpu_memory_utilization=0.9, max_num_seqs=1024)
    found = refusal_of(size(dies))
    assert found is not None
    assert found.kind == "sampler"
    assert found.text == (
        "warming up the sampler needs 3.07 GiB (copies of 1024 x 201,088 logits) of the 2.22 GiB that "
        "gpu_memory_utilization 0.9 leaves beside the KV cache: lower gpu_memory_utilization to 0.86 or lower "
        "max_num_seqs to 512"
    )
    for way in found.ways:
        assert refusal_of(size(replace(dies, **way.changes))) is None
    for seqs in (256, 512):
        assert refusal_of(size(replace(dies, gpu_memory_utilization=0.85, max_num_seqs=seqs))) is None


def test_graphs_that_do_not_fit_beside_the_budget() -> None:
    """Up to 0.20 they are captured after the KV cache has taken the rest of the budget."""
    dies = MemorySettings(
        model=load_model("llama-3.1-8b"), gpu=load_gpu("l4-24gb"), max_num_seqs=64, max_num_batched_tokens=2048,
        gpu_memory_utilization=0.98, engine_version="0.19",
    )  # fmt: skip
    found = refusal_of(size(dies))
    assert found is not None
    assert found.kind == "cuda_graphs"
    assert found.text.startswith("capturing CUDA graphs needs 0.58 GiB of the ")
    assert "set enforce_eager to true" in found.text
    for way in found.ways:
        assert refusal_of(size(replace(dies, **way.changes))) is None
    assert refusal_of(size(replace(dies, engine_version="0.33", max_num_seqs=32))) is None, "they are in its budget"


def test_tensor_parallelism_on_small_gpus_before_0_6() -> None:
    """deepseek-coder-6.7b on two T4, 0.4.3: 507 blocks (vllm-project/vllm#5248)."""
    llama = ModelSpec(
        name="deepseek-coder-6.7b", hf_id="", num_layers=32, hidden_size=4096, num_attention_heads=32, num_kv_heads=32,
        head_dim=128, intermediate_size=11008, vocab_size=32256, num_params=0, max_position=16384, gated_mlp=True,
        tie_word_embeddings=False,
    )  # fmt: skip
    settings = MemorySettings(
        model=complete(llama, FAMILIES["llama"]), gpu=load_gpu("t4-16gb"), max_num_seqs=256,
        max_num_batched_tokens=16384, max_model_len=16384, tensor_parallel_size=2, gpu_memory_utilization=0.9,
        dtype="float16", engine_version="0.4.3",
    )  # fmt: skip
    sizing = size(settings)
    assert sizing.num_gpu_blocks == pytest.approx(507, rel=0.01)
    assert bytes_to_gib(sizing.fullest.non_torch.num_bytes) == pytest.approx(3.96)
    found = refusal_of(sizing)
    assert found is not None
    assert found.kind == "max_model_len"


def test_communication_takes_more_where_gpus_are_switched() -> None:
    """All logs of 2.1 GiB are of H100; an A100 of 0.10 and two L4 of 0.29 had 0.3."""
    taken = {
        gpu: bytes_to_gib(size(replace(l4(tensor_parallel_size=2), gpu=load_gpu(gpu))).fullest.non_torch.num_bytes)
        for gpu in ("h100-sxm5-80gb", "a100-sxm4-80gb", "l4-24gb", "rtx-pro-6000")
    }
    assert taken == pytest.approx({"h100-sxm5-80gb": 2.1, "a100-sxm4-80gb": 0.3, "l4-24gb": 0.3, "rtx-pro-6000": 0.3})


def test_a_gpu_that_others_use() -> None:
    """79.12 of 94.97 GiB free, 0.95 asked for (ls1intum/edutelligence#570)."""
    settings = MemorySettings(
        model=load_model("llama-3.1-8b"), gpu=replace(load_gpu("rtx-pro-6000"), memory_gib=94.97), max_num_seqs=256,
        max_num_batched_tokens=8192, gpu_memory_utilization=0.95, tensor_parallel_size=2, gpu_memory_used_gib=15.85,
    )  # fmt: skip
    found = refusal_of(size(settings))
    assert found is not None
    assert found.kind == "gpu_memory_used"
    assert found.text == (
        "free memory on rtx-pro-6000 (79.12/94.97 GiB) is less than gpu_memory_utilization asks for (0.95, 90.22 GiB): "
        "lower gpu_memory_utilization to 0.82"
    )
    assert refusal_of(size(replace(settings, gpu_memory_used_gib=2.0))) is None


@pytest.mark.parametrize(
    ("model", "gpu", "version", "logged_gib"),
    [
        ("gpt-oss-120b", "h100-sxm5-80gb", "0.10.1", 65.97),  # Marlin
        ("gpt-oss-120b", "h100-sxm5-80gb", "0.14.1", 64.38),  # Triton, with the scales as loaded
        ("gpt-oss-20b", "a100-sxm4-80gb", "0.19", 13.72),  # Marlin
    ],
)
def test_mxfp4_weights_as_the_kernels_hold_them(model: str, gpu: str, version: str, logged_gib: float) -> None:
    settings = replace(l4(), model=load_model(model), gpu=load_gpu(gpu), engine_version=version)
    assert bytes_to_gib(size(settings).fullest.weight_bytes) == pytest.approx(logged_gib, rel=0.004)


def test_ranks_share_an_expert_in_blocks_of_scales() -> None:
    """2,880 over 4 ranks: 736 of 32 a block, padded to 768; the hidden size to 3,072."""
    experts = size(l4(tensor_parallel_size=4)).fullest.weights["experts"]
    assert experts == 24 * 32 * 3 * 768 * 3072 * (0.5 + 1 / 32)


# --- latents and states -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "ranks", "quantization", "weights_gib", "kv_gib"),
    [("deepseek-v3", 8, "fp8_block", 79.74, 41.60), ("llama-3.3-70b", 4, "fp8", 16.96, 106.17)],
)
def test_weights_and_pools_of_large_models(
    model: str, ranks: int, quantization: str, weights_gib: float, kv_gib: float
) -> None:
    """DeepSeek-R1 and Llama-3.3-70B in fp8 on H200, 0.11.2: figures of a public test of a reader of logs.

    Its utilisation is not stated; 0.92 is assumed, and memory outside torch fitted to these two.
    """
    sizing = size(
        MemorySettings(
            model=load_model(model), gpu=load_gpu("h200-sxm-141gb"), max_num_seqs=1024, max_num_batched_tokens=8192,
            max_model_len=8192, tensor_parallel_size=ranks, quantization=quantization, engine_version="0.11.2",
        )
    )  # fmt: skip
    assert bytes_to_gib(sizing.fullest.weight_bytes) == pytest.approx(weights_gib, rel=0.004)
    assert bytes_to_gib(sizing.fullest.kv_bytes) == pytest.approx(kv_gib, rel=0.006)


@pytest.mark.parametrize(
    ("version", "share", "budget", "kv_gib"), [("0.10.1", 0.9, 8192, -2.14), ("0.11.0", 0.95, 1024, 1.71)]
)
def test_a_large_model_with_experts_of_4_bits(version: str, share: float, budget: int, kv_gib: float) -> None:
    """gpt-oss-120b on an H100, refused both times (vllm-project/vllm#23278, #27508)."""
    settings = replace(
        l4(gpu_memory_utilization=share, max_num_seqs=1024, max_num_batched_tokens=budget, engine_version=version),
        model=load_model("gpt-oss-120b"), gpu=load_gpu("h100-sxm5-80gb"), max_model_len=131072,
    )  # fmt: skip
    sizing = size(settings)
    assert bytes_to_gib(sizing.fullest.kv_bytes) == pytest.approx(kv_gib, abs=0.6)
    assert refusal_of(sizing) is not None


def test_the_way_down_to_latents_is_whole_on_every_rank() -> None:
    """And the way up is kept once more, in 16 bits: 7,168 x 2,112 and 512 x 128 x 256 weights of 61 layers."""
    model = load_model("deepseek-v3")
    one, eight = (
        size(replace(l4(tensor_parallel_size=ranks), model=model, quantization=None)).fullest.weights["attention"]
        for ranks in (1, 8)
    )
    down, up = 7168 * (1536 + 576), 512 * 128 * 256
    per_layer = model.attention_params_per_layer
    assert one == pytest.approx(61 * 2 * (per_layer + up))
    assert eight == pytest.approx(61 * 2 * (down + (per_layer - down + up) / 8))


def test_states_of_linear_layers() -> None:
    """Qwen3-Next: blocks of 544 tokens, and two states in each of three groups; 242,534 tokens, 3.70 x (A026)."""
    settings = replace(
        l4(num_gpu_blocks=470), model=load_model("qwen3-next-80b-a3b"), gpu=load_gpu("h200-sxm-141gb"),
        quantization="gptq", max_model_len=65536,
    )  # fmt: skip
    sizing = size(settings)
    assert [(group.cache.kind.value, len(group.layers), group.block_size) for group in sizing.groups] == [
        ("linear", 12, 544), ("linear", 12, 544), ("linear", 12, 544), ("full", 12, 544),
    ]  # fmt: skip
    assert (sizing.logged_tokens, sizing.blocks_of(65536)) == (242_534, 127)
    assert sizing.stages[0].bytes_per_block == 13_369_344
    assert int(5.85 * 2**30 / 13_369_344) == 469, "5.85 GiB, to two digits"
    assert size(replace(settings, enable_prefix_caching=False)).blocks_of(65536) == 124


def test_states_in_float32_beside_a_cache_of_8_bits() -> None:
    """Qwen3.8-27B, TP 2: 16 of 64 layers keep 1,024 bytes a token, the others 1,603,584; 4.99 GiB, 302,921 (A028)."""
    state = (2 * 16 * 128 + 48 * 128) * 3 * 2 // 2 + 48 * 128 * 128 * 4 // 2
    linear = LayerCache(Kind.LINEAR, state_bytes=state, states=2)
    groups = group_layers([linear, linear, linear, LayerCache(Kind.FULL, 2 * 2 * 256)] * 16, 16)
    blocks = int(4.99 * 2**30 / block_bytes(groups, range(64)))
    need = reserved_blocks(groups, 131072, 16384)
    assert (groups[-1].block_size, need) == (1568, 90)
    assert (int(blocks / need * 131072), round(blocks / need, 2)) == (302_921, 2.31)
