"""fp8 of TensorRT-LLM: which kernels quantise for the next one, what that saves, and that no product beats hardware."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_calibrated import calibrated, decodes, ns, tags
from test_roofline import SLIDING

from simkit.latency import fused_fp8
from simkit.latency.calibrated import Calibrated
from simkit.latency.physics import work_of
from simkit.latency.profile import OpFit, load_profile
from simkit.specs.models import load_model

FP8_PROFILES = ("h100-sxm5-80gb", "h200-sxm-141gb")
FP8, REDUCE = "fp8 products of another engine: formula", "all-reduce of another engine: formula"
TRT = ("trt-llm", None)
LLAMA_70B, LLAMA_8B, QWEN = (load_model(name) for name in ("llama-3.1-70b", "llama-3.1-8b", "qwen3-32b"))


def served(ranks: int, model: Any = LLAMA_70B, engine: Any = TRT, **more: Any) -> Calibrated:
    options = {"quantization": "fp8", "tensor_parallel_size": ranks, "engine": engine} | more
    return calibrated("h200-sxm-141gb", model, **options)


def step_ns(latency: Calibrated, seqs: int) -> int:
    return ns(latency, decodes(seqs, 1000))


def fits(profile: str) -> tuple[OpFit, OpFit]:
    layer, sixteen_bit = (load_profile(profile).op("gemm", dtype) for dtype in ("fp8", "bfloat16"))
    assert layer is not None
    assert sixteen_bit is not None
    return layer, sixteen_bit


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_small_batches_are_faster_where_kernels_quantise_for_the_next_one(ranks: int) -> None:
    other = served(ranks, engine=("vllm", None))
    assert 0.70 < step_ns(served(ranks), 8) / step_ns(other, 8) < 0.97
    assert FP8 not in tags(other, decodes(8, 1000))
    assert tags(served(ranks), decodes(8, 1000))[FP8] > 0.3


@pytest.mark.parametrize("engine", [("trt-llm", (1, 0)), ("sglang", None), ("vllm", (1, 1))])
def test_other_engines_and_earlier_versions_take_the_kernels_of_the_profile(engine: Any) -> None:
    assert step_ns(served(4, engine=engine), 16) == step_ns(served(4, engine=("vllm", None)), 16)


@pytest.mark.parametrize("quantization", [None, "awq"])
def test_other_formats_take_the_kernels_of_the_profile(quantization: str | None) -> None:
    found = [step_ns(served(4, engine=engine, quantization=quantization), 16) for engine in (TRT, ("vllm", None))]
    assert found[0] == found[1]


def test_each_gpu_reads_the_messages_of_all_others_up_to_128_tokens() -> None:
    """64 KiB a token to seven others at 0.58 of 450 GB/s: at 128 tokens 56 us more than nothing, 160 times a step."""
    one_by_one, ring = served(8), served(8, engine=("vllm", None))
    assert step_ns(one_by_one, 128) > step_ns(ring, 128)
    assert step_ns(one_by_one, 136) < step_ns(ring, 136)
    assert step_ns(one_by_one, 128) - step_ns(one_by_one, 64) > 160 * 20_000
    assert REDUCE in tags(one_by_one, decodes(128, 1000))
    assert REDUCE not in tags(one_by_one, decodes(136, 1000))


@pytest.mark.parametrize("model", [LLAMA_8B, QWEN, SLIDING])
def test_other_models_add_up_and_normalise_in_kernels_of_their_own(model: Any) -> None:
    assert REDUCE not in tags(served(2, model), decodes(64, 1000))
    assert FP8 in tags(served(2, model), decodes(64, 1000))


def test_over_pcie_nothing_is_read_from_others() -> None:
    assert REDUCE not in tags(served(8, interconnect="pcie"), decodes(128, 1000))


def test_kernels_that_others_hold_take_no_time() -> None:
    """Of the five elementwise kernels of a layer, 2.5 us each at few rows, that of rotary writes the cache, too; where
    the all-reduce is fused no norm is left, either."""
    name = "elementwise kernels: roofline"
    for model, ranks, left in ((QWEN, 1, 4), (LLAMA_70B, 1, 4), (QWEN, 2, 4), (LLAMA_70B, 2, 2)):
        us = [
            tags(latency, decodes(8, 1000))[name] * latency.gpu_ns(decodes(8, 1000))[0] / 1e3
            for latency in (served(ranks, model), served(ranks, model, ("vllm", None)))
        ]
        assert us == pytest.approx([2.5 * left * model.num_layers, 2.5 * 5 * model.num_layers], rel=0.01)


@pytest.mark.parametrize("profile", FP8_PROFILES)
@pytest.mark.parametrize("quantised", [True, False])
def test_no_product_beats_hardware_and_none_is_slower_than_the_layer(profile: str, quantised: bool) -> None:
    layer, sixteen_bit = fits(profile)
    m = np.arange(1.0, 4097.0)
    for n, k in ((1280.0, 8192.0), (8192.0, 3584.0), (57344.0, 8192.0), (256.0, 256.0)):
        found = fused_fp8.predict(layer, sixteen_bit, 2.5, m, n, k, quantised=quantised)
        work = work_of("gemm", "fp8", {"m": m, "n": np.asarray(n), "k": np.asarray(k)})
        assert (found.us >= layer.limits.fastest_us(work)).all()
        assert (found.us <= layer.predict({"m": m, "n": np.asarray(n), "k": np.asarray(k)}).us).all()


@pytest.mark.parametrize("profile", FP8_PROFILES)
def test_weights_are_read_at_the_share_of_bandwidth_of_16_bit_products(profile: str) -> None:
    layer, sixteen_bit = fits(profile)
    found = fused_fp8.predict(layer, sixteen_bit, 2.5, np.array([16.0]), 57344.0, 8192.0, quantised=True)
    share = 57344 * 8192 / layer.limits.bytes_per_s * 1e6 / found.us[0]
    assert share == pytest.approx(sixteen_bit.physics.bandwidth_fraction, abs=0.05)
