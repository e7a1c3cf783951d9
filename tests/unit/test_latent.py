"""Latent attention: what is counted against closed forms, and how a step is put together from measured modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_calibrated import chunk, decodes
from test_scalar_latency import plan_of
from typer.testing import CliRunner

from simkit.cli.app import app
from simkit.engine.build import set_up
from simkit.errors import InputError
from simkit.latency.calibrated import Calibrated
from simkit.latency.deployment import Deployment
from simkit.latency.latent_work import OF_DEEPSEEK_V3, decode, prefill
from simkit.latency.profile import load_profile
from simkit.latency.roofline import Roofline
from simkit.scenario import from_dict
from simkit.specs.hardware import load_gpu
from simkit.specs.hf_config import read_config
from simkit.specs.models import load_model
from simkit.types import StepShapes

DEEPSEEK, LITE = load_model("deepseek-v3"), load_model("deepseek-v2-lite")
CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280, "max_position_embeddings": 163840, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


def deployment(model: Any = DEEPSEEK, gpu: str = "h200-sxm-141gb", ranks: int = 8, **more: Any) -> Deployment:
    values: dict[str, Any] = {
        "tensor_parallel_size": ranks, "interconnect": "nvlink", "dtype": "bfloat16", "quantization": "fp8_block",
        "kv_cache_dtype": "auto", "async_scheduling": True,
    }  # fmt: skip
    return Deployment(model, load_gpu(gpu), **values | more)


def calibrated(name: str = "h200-sxm-141gb", **more: Any) -> Calibrated:
    return Calibrated(deployment(**more), load_profile(name))


def gpu_us(model: Any, shapes: StepShapes) -> float:
    return float(model.gpu_ns(shapes)[0]) / 1e3


def test_a_module_counts_its_projections_and_its_attention() -> None:
    """DeepSeek-V3 whole: 187,105,280 weights a layer; a pair of a decode is 128 x 2 x 1,088 FLOPs."""
    assert DEEPSEEK.attention_params_per_layer == 187_105_280
    sizes = {name: np.asarray(float(size)) for name, size in {**OF_DEEPSEEK_V3, "num_heads": 128, "batch": 4}.items()}
    one, many = (decode(2.0, 2.0, {**sizes, "kv_len": np.asarray(float(n))}) for n in (1, 1001))
    assert one[0] == 4 * (2 * 187_105_280 + 128 * 2 * 1088)
    assert many[0] - one[0] == 4 * 1000 * 128 * 2 * 1088
    assert many[1] - one[1] == 4 * 1000 * 576 * 2
    whole = prefill(2.0, 2.0, {**sizes, "q_len": np.asarray(1000.0), "kv_len": np.asarray(0.0)})
    assert whole[0] == 4000 * 2 * 187_105_280 + 4 * 500_500 * 128 * 640


@pytest.mark.parametrize(("seqs", "measured_us"), [(8, (59.0, 76.0)), (32, (71.0, 131.0)), (128, (103.0, 342.0))])
def test_decodes_take_what_the_modules_take(seqs: int, measured_us: tuple[float, float]) -> None:
    """From 1,024 to 8,192 tokens of context, 16 heads on a GPU: by rows of the H200 table, in 61 layers."""
    model = calibrated()
    more = gpu_us(model, decodes(seqs, 8192)) - gpu_us(model, decodes(seqs, 1024))
    assert more == pytest.approx(61 * (measured_us[1] - measured_us[0]), rel=0.03)


@pytest.mark.parametrize("model", [DEEPSEEK, LITE], ids=["v3", "v2-lite"])
@pytest.mark.parametrize("name", ["h200-sxm-141gb", "l40s-48gb", "a100-sxm4-80gb"])
def test_single_steps_and_arrays_price_to_the_same_bits(name: str, model: Any) -> None:
    gpu = {"gpu": name, "interconnect": "pcie"} if name == "l40s-48gb" else {"gpu": name}
    latency = calibrated(name, model=model, **gpu, quantization=None)
    rng = np.random.default_rng(0)
    for _ in range(200):
        seqs, tokens = int(rng.integers(0, 400)), int(rng.choice([0, 1, 16, 700, 5000]))
        if not seqs + tokens:
            continue
        each = int(rng.integers(1, 9000))
        before = int(rng.choice([0, 900])) if tokens else 0
        pairs = tokens * before + tokens * (tokens + 1) // 2
        plan = plan_of(
            num_decode=seqs, decode_context_sum=seqs * each, decode_context_max=each, prefill_tokens=tokens,
            prefill_context_tokens=before, prefill_pairs=pairs, num_sampled=seqs,
        )  # fmt: skip
        assert latency.step_ns(plan.shapes(1))[0] == latency.one_ns(plan)


def test_chunks_beside_decodes_take_more_than_either_and_less_than_both() -> None:
    model = calibrated()
    alone, beside = chunk(2048), decodes(64, 4096)
    both = StepShapes.of(
        1, **alone, decode_seqs=64, decode_context_sum=64 * 4096, decode_context_max=4096, sampled_seqs=64
    )
    parts = gpu_us(model, StepShapes.of(1, **alone, sampled_seqs=1)), gpu_us(model, beside)
    assert max(parts) < gpu_us(model, both) < sum(parts)
    found = model.gpu_and_extrapolated_ns(both)[1]
    assert found["latent attention: chunks beside decodes, put together from modules"][0] > 0


def test_a_chunk_over_cached_tokens_takes_longer_the_more_there_are() -> None:
    model = calibrated()
    times = []
    for before in (0, 1000, 8000, 60_000):
        pairs = 1024 * before + 1024 * 1025 // 2
        times.append(gpu_us(model, StepShapes.of(
            1, prefill_tokens=1024, prefill_context_tokens=before, prefill_pairs=pairs, sampled_seqs=1
        )))  # fmt: skip
    assert times == sorted(times)
    # At most 989 TFLOP/s: expanding 60,000 latents to 16 heads, and attending to them, in 61 layers.
    least = 61 * 60_000 * (2 * 512 * 16 * 256 + 1024 * 16 * 640) / 989e12 * 1e6
    assert times[-1] - times[0] > least


def test_a_gpu_without_a_table_is_priced_by_the_counts_and_says_so() -> None:
    shapes = decodes(32, 2048)
    model = calibrated("a100-sxm4-80gb", gpu="a100-sxm4-80gb", quantization=None)
    ns, found = model.gpu_and_extrapolated_ns(shapes)
    assert 0 < found["latent attention: formula, no table of this GPU"][0] < ns[0]
    roofline = Roofline(deployment(gpu="a100-sxm4-80gb", quantization=None))
    assert 0.5 < gpu_us(model, shapes) / gpu_us(roofline, shapes) < 2.0


def test_a_config_with_latents_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    found = read_config(path)
    same = ("num_params", "latent", "head_dim", "num_kv_heads", "num_dense_layers", "num_shared_experts", "attention")
    assert [getattr(found, name) for name in same] == [getattr(DEEPSEEK, name) for name in same]
    path.write_text(json.dumps(CONFIG | {"index_topk": 2048}))
    with pytest.raises(InputError, match="index_topk: sparse attention is not modelled"):
        read_config(path)
    path.write_text(json.dumps(CONFIG | {"model_type": "minicpm3"}))
    with pytest.raises(InputError, match="kv_lora_rank: latent attention of model_type 'minicpm3'"):
        read_config(path)


def test_a_run_of_deepseek_tells_how_much_of_it_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps({
        "name": "latent", "model": "deepseek-r1", "hardware": {"gpu": "h200-sxm-141gb", "tensor_parallel_size": 8},
        "engine": {"quantization": "fp8_block", "max_model_len": 4096},
        "workload": {
            "num_requests": 8, "finite": True, "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"dist": "fixed", "value": 600}, "output_tokens": {"dist": "fixed", "value": 20},
        },
    }))  # fmt: skip
    told = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "out"), "--no-report"])
    assert told.exit_code == 0, told.output
    assert "step times: profile h200-sxm-141gb (calibrated)" in told.stdout
    assert "not measured: " in told.stdout


def test_a_pool_of_latents_is_of_the_blocks_that_their_kernels_take() -> None:
    """64 tokens on H200: as many tokens as `simkit memory` says, not a quarter of them."""
    setup = set_up(from_dict({
        "name": "pool", "model": "deepseek-v3", "hardware": {"gpu": "h200-sxm-141gb", "tensor_parallel_size": 8},
        "engine": {"max_model_len": 4096},
        "workload": {
            "num_requests": 2, "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"dist": "fixed", "value": 10}, "output_tokens": {"dist": "fixed", "value": 2},
        },
    }))  # fmt: skip
    assert setup.scenario.engine.block_size == 64
    per_token = setup.memory.kv_bytes_per_token
    assert setup.capacity_tokens == pytest.approx(setup.memory.kv_gib * 2**30 / per_token, rel=0.001)
