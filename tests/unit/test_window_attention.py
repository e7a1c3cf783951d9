"""Attention with a sliding window by its own measured launches: against rows of the table, and to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_scalar_latency import plan_of

from simkit.latency.calibrated import Calibrated
from simkit.latency.deployment import Deployment
from simkit.latency.physics import work_of
from simkit.latency.profile import load_profile
from simkit.specs.hardware import load_gpu
from simkit.specs.models import load_model
from simkit.types import StepShapes

GPT_OSS, GEMMA = load_model("gpt-oss-20b"), load_model("gemma-3-12b")


def calibrated(model: Any = GPT_OSS, name: str = "h200-sxm-141gb") -> Calibrated:
    deployment = Deployment(
        model, load_gpu(name), tensor_parallel_size=1, interconnect="nvlink", dtype="bfloat16", quantization=None,
        kv_cache_dtype="auto", async_scheduling=True,
    )  # fmt: skip
    return Calibrated(deployment, load_profile(name))


@pytest.mark.parametrize(("seqs", "window_us", "full_us"), [(1, 14.4, 14.6), (32, 20.6, 79.3)])
def test_decodes_beyond_a_window_take_what_was_measured(seqs: int, window_us: float, full_us: float) -> None:
    """64 heads of 64, 8 KV heads, a window of 128 and 4,096 tokens: rows of the H200 table, 12 layers of each kind.

    A window costs more than as many tokens of full attention, which are 10.4 and 14.2 us.
    """
    model = calibrated()
    shapes = [
        StepShapes.of(1, decode_seqs=seqs, decode_context_sum=seqs * each, decode_context_max=each, sampled_seqs=seqs)
        for each in (128, 4096)
    ]
    within, beyond = (float(model.gpu_ns(part)[0]) for part in shapes)
    both_at_128 = 2 * {1: 10.4, 32: 14.0}[seqs]
    assert (beyond - within) / 12e3 == pytest.approx(window_us + full_us - both_at_128, abs=0.6)


def test_prompts_longer_than_a_window_take_what_was_measured() -> None:
    """8 prompts of 1,024 tokens: 277.5 us in full, 184.2 us with a window of 128, in 12 layers each."""
    model, tokens = calibrated(), 8 * 1024
    pairs = 8 * 1024 * 1025 // 2
    shapes = StepShapes.of(1, prefill_tokens=tokens, prefill_pairs=pairs, sampled_seqs=8)
    alone = StepShapes.of(1, decode_seqs=tokens, decode_context_sum=tokens, decode_context_max=1, sampled_seqs=8)
    more = float(model.gpu_ns(shapes)[0]) - float(model.gpu_ns(alone)[0])
    assert more < 12e3 * (277.5 + 184.2)
    assert float(model.gpu_ns(shapes)[0]) > 12e3 * (277.5 + 184.2)


@pytest.mark.parametrize("name", ["h200-sxm-141gb", "l40s-48gb", "rtx-pro-6000", "a100-sxm4-80gb"])
@pytest.mark.parametrize("model", [GPT_OSS, GEMMA], ids=["gpt-oss", "gemma-3"])
def test_single_steps_and_arrays_price_windows_to_the_same_bits(name: str, model: Any) -> None:
    latency = calibrated(model, name)
    rng = np.random.default_rng(1)
    for _ in range(300):
        seqs, tokens = int(rng.integers(0, 300)), int(rng.choice([0, 0, 1, 100, 2000, 9000]))
        if not seqs + tokens:
            continue
        each, before = int(rng.integers(1, 3000)), int(rng.choice([0, 60, 5000])) if tokens else 0
        plan = plan_of(
            num_decode=seqs, decode_context_sum=seqs * each, decode_context_max=each, prefill_tokens=tokens,
            prefill_context_tokens=before, prefill_pairs=tokens * before + tokens * (tokens + 1) // 2, num_sampled=seqs,
        )  # fmt: skip
        assert latency.step_ns(plan.shapes(1))[0] == latency.one_ns(plan)


def test_a_window_counts_the_keys_that_its_queries_see() -> None:
    """By adding them up, query by query: min(position, window) keys each."""
    for q, before, window in ((1, 0, 4), (3, 0, 4), (10, 0, 4), (5, 2, 4), (6, 100, 4)):
        keys = sum(min(before + i, window) for i in range(1, q + 1))
        heads = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64}
        sizes = {"batch": 2, "q_len": q, "kv_len": before, "window": window, **heads}
        work = work_of("attention_prefill_window", "bfloat16", {k: np.asarray(float(v)) for k, v in sizes.items()})
        assert work.flops == 4 * 64 * 8 * 2 * (keys if before <= window else q * window)
