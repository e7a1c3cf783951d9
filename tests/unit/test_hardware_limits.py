"""No step is faster than the hardware.

The bound: the weights that a step touches and the keys and values it attends to are read once at the bandwidth of the
memory, and its FLOPs are done at peak. Activations are left out: they may stay in the L2 cache.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from test_calibrated import SHIPPED, calibrated, chunk, decodes
from test_effects import SIZES
from test_roofline import LLAMA, MIXTRAL

from simkit.latency.calibrated import Calibrated
from simkit.latency.profile import load_profile
from simkit.latency.profile.residuals import OpFit, ResidualGrid
from simkit.latency.profile.values import Mixed, Profile
from simkit.specs.hardware import load_gpu
from simkit.types import Floats, StepShapes

RAISED = "mixed launches: raised to what the hardware allows"
MODELS = {
    "llama": LLAMA,
    "no groups": replace(LLAMA, name="no-groups", num_kv_heads=32),
    "wide groups": replace(LLAMA, name="wide-groups", num_attention_heads=28, num_kv_heads=4),
    "experts": MIXTRAL,
}
ON = [
    *((name, name, model) for name in SHIPPED for model in ("llama", "wide groups")),
    ("a100-sxm4-80gb", "a100-sxm4-80gb", "no groups"),
    ("rtx-pro-6000", "rtx-pro-6000", "no groups"),
    ("h100-sxm5-80gb", "h100-sxm5-80gb", "experts"),
    ("a100-sxm4-80gb", "a100-sxm4-40gb", "llama"),
    ("a100-sxm4-80gb", "l40s-48gb", "experts"),
    ("h100-sxm5-80gb", "v100-sxm2-32gb", "wide groups"),
    ("rtx-pro-6000", "rtx-4090", "no groups"),
]


@functools.lru_cache(maxsize=8)
def timed(profile: str, gpu: str, model: str, **more: Any) -> Calibrated:
    dtype = "bfloat16" if "bfloat16" in load_gpu(gpu).peak_flops_per_s else "float16"
    return calibrated(profile, MODELS[model], gpu=gpu, dtype=dtype, graph_sizes=SIZES, interconnect="pcie", **more)


def least_ns(model: Calibrated, shapes: StepShapes) -> Floats:
    """What the hardware allows, by the kernels' own weights and FLOPs; of experts, those that tokens touch."""
    kernels = model.kernels
    rows, samples = shapes.decode_seqs + shapes.prefill_tokens, shapes.sampled_seqs
    moved = np.zeros(len(shapes))
    for gemm, count in (*((gemm, rows) for gemm in kernels.gemms), (kernels.head, samples)):
        touched = np.minimum(count, 1.0)
        if gemm.routed:
            touched = 1.0 - (1.0 - MIXTRAL.experts_per_token / MIXTRAL.num_experts) ** count
        moved += gemm.layers * gemm.weight_bytes * touched
    tokens = shapes.decode_context_sum + shapes.prefill_context_tokens + shapes.prefill_tokens
    moved += kernels.attention.kv_bytes_per_token * kernels.attention.full_layers * tokens
    assert model.peak_bytes_per_s is not None
    assert model.peak_flops_per_s is not None
    flops, _ = model.work(shapes)
    found: Floats = np.maximum(moved * kernels.ranks / model.peak_bytes_per_s, flops / model.peak_flops_per_s) * 1e9
    return found


@st.composite
def shapes(draw: st.DrawFn) -> StepShapes:
    """Steps that an engine can make: decodes of equal and unequal length, chunks, both, also beyond the tables."""
    rows = []
    for _ in range(60):
        seqs = draw(st.one_of(st.just(0), st.integers(1, 40), st.integers(1, 2500)))
        each = draw(st.one_of(st.integers(1, 300), st.integers(1, 131_072)))
        longest = min(each * draw(st.integers(1, 50)), each * seqs)
        number = draw(st.integers(0 if seqs else 1, 6))
        tokens = draw(st.one_of(st.integers(1, 64), st.integers(1, 9000)))
        before = draw(st.one_of(st.just(0), st.integers(0, 131_072)))
        pairs = number * (tokens * before + tokens * (tokens + 1) // 2)
        sampled = seqs + draw(st.integers(0, number))
        rows.append((seqs, seqs * each, longest, number * tokens, number * before, pairs, sampled, 0, 0, 0, 0))
    return StepShapes(*np.array(rows, dtype=np.int64).T)


@pytest.mark.parametrize(("profile", "gpu", "model"), ON, ids=[f"{model}: {own} on {gpu}" for own, gpu, model in ON])
@settings(max_examples=3, derandomize=True, deadline=None)
@given(drawn=shapes())
def test_no_step_beats_memory_or_peak(profile: str, gpu: str, model: str, drawn: StepShapes) -> None:
    priced = timed(profile, gpu, model)
    # Tables are rounded to a hundredth of a nanosecond a layer.
    assert (priced.gpu_ns(drawn) >= least_ns(priced, drawn) - priced.kernels.layers).all()
    assert (priced.step_ns(drawn) >= priced.gpu_ns(drawn)).all()


OTHERWISE = ({"kv_cache_dtype": "fp8"}, {"tensor_parallel_size": 2}, {"quantization": "fp8"})


@pytest.mark.parametrize("more", OTHERWISE, ids=lambda more: next(iter(more)))
@settings(max_examples=3, derandomize=True, deadline=None)
@given(drawn=shapes())
def test_nor_in_other_formats_and_on_several_gpus(more: dict[str, Any], drawn: StepShapes) -> None:
    for gpu in ("h100-sxm5-80gb", "a100-sxm4-80gb"):  # A100 has no fp8: it computes in 16 bits
        priced = timed("h100-sxm5-80gb", gpu, "llama", **more)
        assert (priced.gpu_ns(drawn) >= least_ns(priced, drawn) - priced.kernels.layers).all()


def flawless(fit: OpFit) -> OpFit:
    """Kernels at the limits of the hardware, and a launch for nothing: whatever is taken off beats them."""
    physics = replace(
        fit.physics, compute_fraction=1.0, bandwidth_fraction=1.0, chain_us=0.0, piece_us=0.0, floor_us=0.0
    )
    grids = {key: ResidualGrid(grid.axes, grid.residuals * 0) for key, grid in fit.grids.items()}
    return replace(fit, physics=physics, grids=grids)


def too_good(profile: Profile, mixed: Mixed) -> Profile:
    ops = {key: flawless(fit) if fit.op.startswith("attention") else fit for key, fit in profile.ops.items()}
    return replace(profile, ops=ops, mixed=mixed)


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("rule", ["sum", "varlen"])
def test_launches_put_together_are_raised_to_the_limits_and_named(rule: str, measured: bool) -> None:
    """With both parts at the limits, taking one floor off the sum, or the larger of the two, would beat them."""
    base = load_profile("rtx-pro-6000")
    varlen = None
    if rule == "varlen":
        assert base.mixed.varlen is not None
        varlen = replace(
            base.mixed.varlen, bytes_per_us=1e9, block_us=0.0, cta_us=0.0, empty_cta_us=0.0, lone_block_us=0.0
        )
    heads, largest = base.mixed.heads, base.mixed.largest
    mixed = Mixed(varlen, 50.0, measured, heads if measured else frozenset(), largest)
    model = calibrated(too_good(base, mixed))
    launch = decodes(64, 4000, **chunk(16, 16_000))
    assert model.gpu_ns(launch)[0] >= least_ns(model, launch)[0] - model.kernels.layers
    gpu, parts = model.gpu_and_extrapolated_ns(launch)
    tagged = {name: float(part[0]) for name, part in parts.items() if part[0]}
    if measured:
        assert 0 < tagged[RAISED] < gpu[0]
    else:  # all of the launch is named already
        assert RAISED not in tagged
        assert tagged["mixed launches: rule not measured on this GPU"] > 0
    for alone in (decodes(64, 4000), StepShapes.of(1, **chunk(16, 16_000))):
        assert not model.gpu_and_extrapolated_ns(alone)[1][RAISED].any()


def test_kernels_of_the_tables_are_raised_and_counted() -> None:
    """Attention twice as fast as the memory: every knot of its tables that memory binds is raised."""
    base = load_profile("rtx-pro-6000")
    assert calibrated(base).num_clamped == 0
    ops = dict(base.ops)
    fit = ops["attention_decode", "bfloat16"]
    ops["attention_decode", "bfloat16"] = replace(fit, physics=replace(fit.physics, bandwidth_fraction=2.0))
    quick = calibrated(replace(base, ops=ops))
    assert quick.num_clamped > 100
    launch = decodes(256, 8000)
    assert quick.gpu_ns(launch)[0] >= least_ns(quick, launch)[0] - quick.kernels.layers


def test_rows_beyond_the_tables_do_not_beat_the_peak() -> None:
    """The slope that goes on is that of kernels which get more efficient with size, and would beat it in the end."""
    for profile in SHIPPED:
        model = calibrated(profile)
        rows = np.array([20_000, 200_000, 2_000_000, 20_000_000])
        huge = StepShapes.of(4, prefill_tokens=rows, prefill_pairs=rows, sampled_seqs=rows)
        flops, _ = model.work(huge)
        assert model.peak_flops_per_s is not None
        assert (model.gpu_ns(huge) >= flops / model.peak_flops_per_s * 1e9 * (1 - 1e-9)).all()
