"""The roofline against the physics it states: roofs, monotony, splitting, tensor parallelism, experts, formats."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkit.errors import InputError
from simkit.latency import kernels as rates
from simkit.latency import link as links
from simkit.latency.deployment import Deployment
from simkit.latency.effects import Origin, Source
from simkit.latency.host import TERMS, HostCosts
from simkit.latency.profile.values import HostTerms
from simkit.latency.protocol import Unit
from simkit.latency.roofline import TABLE_ROWS, Roofline
from simkit.specs.hardware import GpuSpec
from simkit.specs.models import ModelSpec
from simkit.types import StepShapes

LLAMA = ModelSpec(
    name="llama-3-8b",
    hf_id="meta-llama/Meta-Llama-3-8B",
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    num_params=8_030_261_248,
    max_position=8192,
    gated_mlp=True,
    tie_word_embeddings=False,
    num_experts=0,
    experts_per_token=0,
    moe_intermediate_size=0,
    num_shared_experts=0,
    num_dense_layers=0,
    sliding_window=None,
    num_sliding_layers=0,
    attention="gqa",
    source="test",
    not_modelled=None,
)
MIXTRAL = replace(
    LLAMA, name="mixtral-8x7b", vocab_size=32000, num_experts=8, experts_per_token=2, moe_intermediate_size=14336
)
SLIDING = replace(LLAMA, name="sliding", sliding_window=1024, num_sliding_layers=20)
SHARED = replace(
    MIXTRAL, name="shared", num_experts=64, experts_per_token=6, moe_intermediate_size=1408, num_shared_experts=2,
    num_dense_layers=1, gated_mlp=False,
)  # fmt: skip
A100 = GpuSpec(
    name="a100-sxm4-80gb",
    vendor="nvidia",
    memory_gib=79.25,
    hbm_bytes_per_s=2.039e12,
    peak_flops_per_s={"float32": 19.5e12, "float16": 312e12, "bfloat16": 312e12, "int8": 624e12},
    pcie_bytes_per_s=32e9,
    nvlink_bytes_per_s=300e9,
    num_sms=108,
    compute_capability="8.0",
    sources={"all": "test"},
)
H100 = replace(
    A100, name="h100", hbm_bytes_per_s=3.35e12, peak_flops_per_s={"bfloat16": 989e12, "float16": 989e12, "fp8": 1979e12}
)
V100 = replace(A100, name="v100-sxm2-32gb", peak_flops_per_s={"float16": 125e12, "float32": 15.7e12})
NO_NVLINK = replace(A100, name="l4-24gb", nvlink_bytes_per_s=0)


HOST_FIXED_US = 500.0
HOST_FIXED_NS = HOST_FIXED_US * 1000


TEST = Source(Origin.SCENARIO, "test")


def host_of(fixed_us: float, per_seq_us: float = 0.0) -> HostCosts:
    """Host work of a step."""
    return HostCosts(HostTerms(fixed_us, per_seq_us, 0.0), dict.fromkeys(TERMS, TEST))


def roofline(model: ModelSpec = LLAMA, gpu: GpuSpec = A100, **changes: Any) -> Roofline:
    options: dict[str, Any] = {
        "tensor_parallel_size": 1,
        "interconnect": "nvlink",
        "dtype": "bfloat16",
        "quantization": None,
        "kv_cache_dtype": "auto",
        "async_scheduling": False,
        "host": host_of(HOST_FIXED_US),
    }
    return Roofline(Deployment(model, gpu, **(options | changes)))


MODELS = {
    "dense": roofline(),
    "moe": roofline(MIXTRAL),
    "sliding": roofline(SLIDING),
    "shared": roofline(SHARED, H100, quantization="fp8"),
    "tp4": roofline(tensor_parallel_size=4, async_scheduling=True),
    "host": roofline(host=host_of(1000, 5), async_scheduling=True),
}
ANY_MODEL = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


def decode(seqs: int, context: int) -> StepShapes:
    """One step of `seqs` decodes of `context` tokens each."""
    return StepShapes.of(
        1, decode_seqs=seqs, decode_context_sum=seqs * context, decode_context_max=context, sampled_seqs=seqs
    )


def prefill(tokens: int, cached: int = 0) -> StepShapes:
    """One step with one chunk of `tokens` tokens after `cached` cached ones; no sampling."""
    pairs = tokens * cached + tokens * (tokens + 1) // 2
    return StepShapes.of(1, prefill_tokens=tokens, prefill_context_tokens=cached, prefill_pairs=pairs)


@st.composite
def steps(draw: st.DrawFn, most: int = 5) -> StepShapes:
    """A few steps of decodes and chunks with bounds that real steps obey, from one token to millions (static)."""
    rows = []
    for _ in range(draw(st.integers(1, most))):
        seqs = draw(st.integers(0, 1024))
        context = seqs * draw(st.integers(1, 131_072))
        tokens = draw(st.integers(0 if seqs else 1, 4_000_000))
        cached = draw(st.integers(0, 200_000)) if tokens else 0
        length = draw(st.integers(1, max(1, min(tokens, 32_768))))
        pairs = tokens * cached + tokens * (length + 1) // 2
        sampled = seqs + draw(st.integers(0, 16))
        swaps = draw(st.integers(0, 10**9)), draw(st.integers(0, 10**9))
        rows.append((seqs, context, context, tokens, cached, pairs, sampled, 0, 0, *swaps))
    return StepShapes(*np.array(rows, dtype=np.int64).T)


def nth(shapes: StepShapes, i: int) -> StepShapes:
    return StepShapes(*(getattr(shapes, f.name)[i : i + 1] for f in fields(StepShapes)))


@ANY_MODEL
@settings(max_examples=60, deadline=None)
@given(shapes=steps())
def test_many_steps_at_once_are_the_same_bytes_as_one_by_one(model: Roofline, shapes: StepShapes) -> None:
    for method in (model.step_ns, model.gpu_ns):
        together = method(shapes)
        assert together.dtype == np.int64
        assert together.min() >= 1
        alone = [method(nth(shapes, i)) for i in range(len(shapes))]
        assert together.tobytes() == np.concatenate(alone).tobytes()
    together_work = model.work(shapes)
    for kind in (0, 1):
        alone_work = [model.work(nth(shapes, i))[kind] for i in range(len(shapes))]
        assert together_work[kind].tobytes() == np.concatenate(alone_work).tobytes()


@ANY_MODEL
def test_the_table_and_the_formula_agree_to_the_bit(model: Roofline) -> None:
    rows = np.arange(TABLE_ROWS + 1)
    small = StepShapes.of(len(rows), decode_seqs=rows, decode_context_sum=rows * 700, sampled_seqs=rows)
    # One larger step in the call switches the whole call to the formula.
    longer = np.append(rows, TABLE_ROWS + 1)
    large = StepShapes.of(len(longer), decode_seqs=longer, decode_context_sum=longer * 700, sampled_seqs=longer)
    assert model.step_ns(small).tobytes() == model.step_ns(large)[:-1].tobytes()


@ANY_MODEL
@settings(max_examples=60, deadline=None)
@given(shapes=steps(most=1), extra=st.integers(1, 100_000), data=st.data())
def test_more_of_anything_never_takes_less_time(
    model: Roofline, shapes: StepShapes, extra: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([f.name for f in fields(StepShapes)]))
    more = replace(shapes, **{name: getattr(shapes, name) + extra})
    assert model.step_ns(more)[0] >= model.step_ns(shapes)[0]
    assert model.gpu_ns(more)[0] >= model.gpu_ns(shapes)[0]


@ANY_MODEL
@settings(max_examples=60, deadline=None)
@given(shapes=steps())
def test_no_step_beats_the_peaks_of_the_hardware(model: Roofline, shapes: StepShapes) -> None:
    assert model.peak_flops_per_s is not None
    assert model.peak_bytes_per_s is not None
    shapes = replace(shapes, swap_in_bytes=shapes.swap_in_bytes * 0, swap_out_bytes=shapes.swap_out_bytes * 0)
    flops, moved = model.work(shapes)
    gpu_s = model.gpu_ns(shapes) * 1e-9
    assert (flops <= model.peak_flops_per_s * gpu_s).all()
    assert (moved <= model.peak_bytes_per_s * gpu_s).all()
    assert (model.gpu_ns(shapes) <= model.step_ns(shapes)).all()


@pytest.mark.parametrize("model", [roofline(host=host_of(0)), roofline(MIXTRAL, host=host_of(0))], ids=["dense", "moe"])
@given(seqs=st.tuples(st.integers(1, 600), st.integers(1, 600)), context=st.integers(1, 8192))
def test_splitting_a_batch_of_decodes_is_never_cheaper(model: Roofline, seqs: tuple[int, int], context: int) -> None:
    together = model.step_ns(decode(sum(seqs), context))[0]
    apart = sum(model.step_ns(decode(n, context))[0] for n in seqs)
    assert together <= apart + 2  # two roundings


@given(chunk=st.integers(1, 4096), rest=st.integers(1, 4096))
def test_chunking_a_prompt_keeps_the_flops_and_never_saves_time(chunk: int, rest: int) -> None:
    model = MODELS["dense"]
    whole, first, second = prefill(chunk + rest), prefill(chunk), prefill(rest, cached=chunk)
    assert model.work(first)[0][0] + model.work(second)[0][0] == pytest.approx(model.work(whole)[0][0], rel=1e-12)
    assert model.work(first)[1][0] + model.work(second)[1][0] > model.work(whole)[1][0]
    assert model.step_ns(first)[0] + model.step_ns(second)[0] >= model.step_ns(whole)[0]


def test_flops_and_bytes_of_a_dense_model_are_those_of_its_parameters() -> None:
    flops, moved = MODELS["dense"].work(decode(1, 1000))
    matrices = LLAMA.num_params - 4096 * 128256 - 65 * 4096  # without the embedding table and the norms
    attention = 4 * 32 * 128 * 1000 * 32
    assert flops[0] == 2 * matrices + attention
    weights_and_kv = 2 * matrices + 131_072 * 1000
    assert weights_and_kv < moved[0] < 1.01 * weights_and_kv


def test_tiny_kernels_cost_their_floors() -> None:
    tiny = replace(LLAMA, num_layers=4, hidden_size=64, num_attention_heads=2, num_kv_heads=1, head_dim=16)
    model = roofline(replace(tiny, intermediate_size=64, vocab_size=64))
    # Per layer 4 GEMMs, 5 elementwise kernels, attention once; then LM head and sampler.
    layers = 4 * (4 * rates.GEMM_FLOOR_NS + 5 * rates.ELEMENTWISE_FLOOR_NS + rates.ATTENTION_FLOOR_NS)
    head = rates.GEMM_FLOOR_NS + rates.SAMPLER_FLOOR_NS
    assert model.gpu_ns(decode(3, 10)) == layers + head
    assert model.gpu_ns(prefill(3)) == layers


def test_an_ungated_mlp_has_two_matrices() -> None:
    # Llama-3-8B without its gate: a third of the MLP's FLOPs and weights less.
    gated, ungated = roofline().work(prefill(1)), roofline(replace(LLAMA, gated_mlp=False)).work(prefill(1))
    gate = 4096 * 14336 * 32
    assert gated[0][0] - ungated[0][0] == 2 * gate
    # Both move the gate's weights, its output, and that output again as an input of the activation.
    assert gated[1][0] - ungated[1][0] == 2 * gate + 2 * 2 * 14336 * 32


def test_a_chunk_reads_the_kv_of_itself_and_of_what_came_before() -> None:
    model = MODELS["dense"]
    as_decodes = replace(decode(1000, 1), sampled_seqs=np.array([0]))
    assert model.work(prefill(1000))[1][0] == model.work(as_decodes)[1][0]
    assert model.work(prefill(1000, cached=500))[1][0] - model.work(prefill(1000))[1][0] == 500 * 131_072


def test_a_lone_decode_is_bound_by_the_weights_and_a_prompt_by_the_flops() -> None:
    model = roofline(async_scheduling=True)
    lone = model.step_ns(decode(1, 1))[0]
    weights_ns = 15.0e9 / A100.hbm_bytes_per_s * 1e9
    assert weights_ns / rates.GEMM_BANDWIDTH_FRACTION < lone < 1.15 * weights_ns / rates.GEMM_BANDWIDTH_FRACTION
    prompt = model.step_ns(prefill(8192))[0]
    flops = model.work(prefill(8192))[0][0]
    assert rates.PREFILL_COMPUTE_FRACTION < flops / 312e12 / (prompt * 1e-9) < rates.GEMM_COMPUTE_FRACTION


def test_uneven_and_even_decodes_of_the_same_total_cost_the_same() -> None:
    # Full attention reads the sum of the contexts, whoever they belong to; it is not the mean times something.
    even = decode(4, 1000)
    uneven = replace(even, decode_context_max=np.array([3997]))
    assert MODELS["dense"].step_ns(even) == MODELS["dense"].step_ns(uneven)


def test_host_overhead_is_added_or_overlapped() -> None:
    shapes = decode(8, 500)
    sync, overlapped = roofline(), roofline(async_scheduling=True)
    gpu = sync.gpu_ns(shapes)[0]
    assert sync.step_ns(shapes)[0] == gpu + HOST_FIXED_NS
    assert overlapped.step_ns(shapes)[0] == gpu
    slow_host: dict[str, Any] = {"host": host_of(100_000, 1)}
    assert roofline(async_scheduling=True, **slow_host).step_ns(shapes)[0] == 100_008_000
    assert roofline(**slow_host).step_ns(shapes)[0] == pytest.approx(gpu + 100_008_000, abs=1)


def test_swaps_cross_the_host_link_of_each_rank_and_overlap_with_nothing() -> None:
    shapes = decode(8, 500)
    swapping = replace(shapes, swap_in_bytes=np.array([3 * 10**9]), swap_out_bytes=np.array([10**9]))
    for ranks in (1, 4):
        model = roofline(tensor_parallel_size=ranks, async_scheduling=True)
        extra = model.step_ns(swapping)[0] - model.step_ns(shapes)[0]
        assert extra == pytest.approx(4e9 / 32e9 / ranks * 1e9, abs=1)
        assert model.gpu_ns(swapping) == model.gpu_ns(shapes)


def test_sliding_layers_stop_growing_at_the_window() -> None:
    full, sliding = MODELS["dense"], MODELS["sliding"]
    assert full.gpu_ns(decode(64, 1024)) == sliding.gpu_ns(decode(64, 1024))
    grown_full = full.gpu_ns(decode(64, 8192))[0] - full.gpu_ns(decode(64, 1024))[0]
    grown_sliding = sliding.gpu_ns(decode(64, 8192))[0] - sliding.gpu_ns(decode(64, 1024))[0]
    assert grown_sliding / grown_full == pytest.approx(12 / 32, rel=1e-3)
    assert sliding.gpu_ns(prefill(2048, cached=30_000))[0] < full.gpu_ns(prefill(2048, cached=30_000))[0]
    everywhere = roofline(replace(SLIDING, num_sliding_layers=32))
    assert everywhere.gpu_ns(decode(64, 8192)) == everywhere.gpu_ns(decode(64, 1024))


def test_tensor_parallelism_divides_work_and_adds_all_reduces() -> None:
    shapes = prefill(8192)
    one, two, eight = (roofline(tensor_parallel_size=n) for n in (1, 2, 8))
    times = [m.gpu_ns(shapes)[0] for m in (one, two, eight)]
    assert times[0] / 2 < times[1] < times[0]
    assert times[0] / 8 < times[2] < times[1]
    assert eight.peak_flops_per_s == 8 * 312e12
    assert eight.peak_bytes_per_s == 8 * 2.039e12
    assert eight.work(shapes)[0][0] == pytest.approx(one.work(shapes)[0][0], rel=1e-12)
    over_pcie = roofline(tensor_parallel_size=2, interconnect="pcie")
    slower = over_pcie.gpu_ns(shapes)[0] - two.gpu_ns(shapes)[0]
    message = 8192 * 4096 * 2 * 64  # a ring of two sends the message once, 64 times a pass
    latency = 64 * (5300 - links.NVLINK_FLOOR_NS - 2 * links.NVLINK_HOP_NS)
    per_byte = 1 / (32e9 * 0.592) - 1 / (300e9 * links.NVLINK_FRACTION)
    assert slower == pytest.approx(message * per_byte * 1e9 + latency, abs=2)


def test_repeated_kv_heads_are_read_by_every_rank() -> None:
    # 16 ranks, 8 KV heads: two ranks hold the same head, so the replica reads each cached token twice.
    models = [roofline(tensor_parallel_size=n, link=links.StatedLink(10.0, 40.0)) for n in (8, 16)]
    extra = [model.work(decode(1, 2000))[1][0] - model.work(decode(1, 1000))[1][0] for model in models]
    assert extra == [131_072 * 1000, 2 * 131_072 * 1000]


def test_a_moe_step_reads_the_experts_it_touches() -> None:
    model = MODELS["moe"]
    one_expert = 3 * 4096 * 14336 * 2 * 32
    one, two, many = (model.work(decode(n, 1))[1][0] for n in (1, 2, 4096))
    # One token touches 2 of 8 experts, two tokens 8 (1 - 0.75**2) = 3.5 of them in the mean, many all.
    row_bytes = (model.work(decode(8192, 1))[1][0] - many) / 4096
    assert (two - one - row_bytes) / one_expert == pytest.approx(1.5, rel=1e-9)
    assert (many - one - 4095 * row_bytes) / one_expert == pytest.approx(6.0, rel=1e-9)
    flops = model.work(decode(1, 1))[0][0]
    dense_part = LLAMA.num_params - 65 * 4096 - 2 * 4096 * 128256 - 3 * 4096 * 14336 * 32
    active = dense_part + 4096 * 32000 + 32 * (4096 * 8 + 2 * 3 * 4096 * 14336)
    assert flops == 2 * active + 4 * 32 * 128 * 32


def test_quantization_shrinks_weights_and_uses_the_chips_own_peak() -> None:
    lone, prompt = decode(1, 1), prefill(8192)
    plain, fp8 = roofline(gpu=H100), roofline(gpu=H100, quantization="fp8")
    head = 4096 * 128256 * 2
    body = 15.0e9 - head
    assert fp8.work(lone)[1][0] == pytest.approx(head + body / 2, rel=0.01)
    assert fp8.gpu_ns(prompt)[0] < plain.gpu_ns(prompt)[0]
    assert fp8.peak_flops_per_s == 1979e12
    layers_ns = (2 * 8192 * (LLAMA.num_params - 2 * 4096 * 128256 - 65 * 4096)) / 1979e12 * 1e9
    assert fp8.gpu_ns(prompt)[0] > layers_ns / rates.GEMM_COMPUTE_FRACTION_8BIT > layers_ns
    # The A100 has no fp8: weights shrink, compute stays in 16 bits.
    weight_only = roofline(quantization="fp8")
    assert weight_only.gpu_ns(lone)[0] < roofline().gpu_ns(lone)[0]
    assert weight_only.gpu_ns(prompt) == roofline().gpu_ns(prompt)
    assert weight_only.peak_flops_per_s == 312e12
    awq = roofline(quantization="awq")
    assert awq.work(lone)[1][0] == pytest.approx(head + body / 4, rel=0.01)
    assert awq.gpu_ns(prompt) == roofline().gpu_ns(prompt)


def test_mxfp4_of_a_moe_model_leaves_attention_in_16_bits() -> None:
    plain, mxfp4, awq = (roofline(MIXTRAL, quantization=q).work(decode(1, 1))[1][0] for q in (None, "mxfp4", "awq"))
    experts = 2 * 3 * 4096 * 14336 * 32
    assert plain - mxfp4 == pytest.approx(1.5 * experts)
    assert awq < mxfp4


def test_an_fp8_cache_halves_what_decodes_read() -> None:
    grown = [
        model.work(decode(1, 3000))[1][0] - model.work(decode(1, 1000))[1][0]
        for model in (roofline(), roofline(kv_cache_dtype="fp8"))
    ]
    assert grown == [2000 * 131_072, 2000 * 65_536]


@pytest.mark.parametrize(
    ("model", "gpu", "changes", "message"),
    [
        (LLAMA, V100, {}, "engine.dtype: hardware.gpu v100-sxm2-32gb has no bfloat16; use engine.dtype: float16"),
        (LLAMA, A100, {"dtype": "bfloat61"}, "engine.dtype: .*did you mean 'bfloat16'"),
        (LLAMA, A100, {"kv_cache_dtype": "fp4"}, "engine.kv_cache_dtype: expected one of"),
        (LLAMA, A100, {"quantization": "q4"}, "engine.quantization: expected one of"),
        (LLAMA, NO_NVLINK, {"tensor_parallel_size": 2}, "hardware.interconnect: l4-24gb has no NVLink.*pcie"),
        (LLAMA, A100, {"tensor_parallel_size": 2, "interconnect": "ib"}, "hardware.interconnect: expected nvlink"),
        (LLAMA, A100, {"tensor_parallel_size": 3}, "hardware.tensor_parallel_size: .* 32 attention heads .* got 3"),
        (replace(LLAMA, not_modelled="its MLA"), A100, {}, "model: llama-3-8b cannot be simulated: its MLA"),
    ],
)
def test_what_cannot_run_is_refused(model: ModelSpec, gpu: GpuSpec, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        roofline(model, gpu, **changes)
    assert "\n" not in str(error.value)


def test_float16_runs_on_a_v100_and_one_gpu_needs_no_link() -> None:
    assert roofline(gpu=V100, dtype="float16").peak_flops_per_s == 125e12
    assert roofline(gpu=NO_NVLINK).gpu_ns(decode(1, 1))[0] > 0


def test_an_empty_step_costs_the_host_alone_and_no_steps_cost_nothing() -> None:
    model = roofline()
    assert model.step_ns(StepShapes.of(1)).tolist() == [HOST_FIXED_NS]
    assert model.gpu_ns(StepShapes.of(1)).tolist() == [1]
    assert model.step_ns(StepShapes.of(0)).tolist() == []
    assert model.source == "roofline (uncalibrated)"


def test_the_unit_model_knows_only_one_duration() -> None:
    unit = Unit()
    shapes = StepShapes.of(3, decode_seqs=np.array([1, 200, 0]), prefill_tokens=np.array([0, 0, 10**7]))
    for times in (unit.step_ns(shapes), unit.gpu_ns(shapes)):
        assert times.dtype == np.int64
        assert times.tolist() == [1_000_000] * 3
    assert [w.tolist() for w in unit.work(shapes)] == [[0.0] * 3] * 2
    assert unit.source == "unit"
    assert unit.peak_flops_per_s is None
    assert unit.peak_bytes_per_s is None
