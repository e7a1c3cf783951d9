"""Each effect of a step time by itself: what it adds where it matters, nothing elsewhere, and where it comes from."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from test_calibrated import SHIPPED, calibrated, chunk, decodes
from test_roofline import H100, LLAMA, roofline
from test_scalar_latency import decodes as decode_batches
from test_scalar_latency import ints, plan_of, steps

from simkit.batching.plan import StepPlan
from simkit.errors import InputError
from simkit.latency.calibrated import Calibrated
from simkit.latency.deployment import Deployment, capture_sizes
from simkit.latency.effects import EFFECTS, OFF, Origin, Source, nothing
from simkit.latency.host import ENGINES, TERMS, HostCosts, Loop, host_of, launch_cost, shipped
from simkit.latency.kernels import Kernels
from simkit.latency.lookup import RowTable
from simkit.latency.profile import EngineHost, Host, HostTerms, load_profile
from simkit.latency.profile.values import transferred
from simkit.latency.step_tables import TableBuilder
from simkit.specs.hardware import load_gpu
from simkit.types import Floats, StepShapes

TEST = Source(Origin.SCENARIO, "test")
SLOW_HOST = HostCosts(HostTerms(700.0, 3.0, 2500.0, 90.0, 40.0, 60.0), dict.fromkeys(TERMS, TEST))
SIZES = capture_sizes(256, 8192, (0, 33))
ON_EVERY_PROFILE = pytest.mark.parametrize("profile", SHIPPED)


@functools.lru_cache(maxsize=8)
def model(
    profile: str = "a100-sxm4-80gb", without: tuple[str, ...] = (), ranks: int = 1, asynchronous: bool = False
) -> Calibrated:
    return calibrated(
        profile, without=without, tensor_parallel_size=ranks, async_scheduling=asynchronous, host=SLOW_HOST,
        graph_sizes=SIZES, interconnect="nvlink" if load_gpu(profile).nvlink_bytes_per_s else "pcie",
    )  # fmt: skip


@functools.cache
def tables(profile: str) -> tuple[Floats, Floats]:
    """ns of what depends on the tokens and on the samples of a step."""
    deployment = Deployment(
        LLAMA, load_gpu(profile), tensor_parallel_size=1, interconnect="nvlink", dtype="bfloat16", quantization=None,
        kv_cache_dtype="auto",
    )  # fmt: skip
    builder = TableBuilder(deployment, Kernels(deployment), load_profile(profile))
    found: tuple[RowTable, RowTable] = builder.token_table(), builder.sample_table()
    return found[0].ns, found[1].ns


def gpu(timed: Calibrated, shapes: StepShapes) -> int:
    return int(timed.gpu_ns(shapes)[0])


def step(timed: Calibrated, shapes: StepShapes) -> int:
    return int(timed.step_ns(shapes)[0])


def attention(profile: str, shapes: StepShapes, *without: str) -> float:
    """ns of attention alone."""
    tokens, samples = tables(profile)
    rows = int(shapes.decode_seqs[0] + shapes.prefill_tokens[0])
    timed = model(profile, ("graph_padding", *without))
    return gpu(timed, shapes) - float(tokens[rows]) - float(samples[int(shapes.sampled_seqs[0])])


def prefill(tokens: int, cached: int = 0) -> StepShapes:
    return StepShapes.of(1, **chunk(tokens, cached), sampled_seqs=1)


def both(seqs: int, each: int, tokens: int, cached: int = 0) -> StepShapes:
    return decodes(seqs, each, **chunk(tokens, cached))


@ON_EVERY_PROFILE
@pytest.mark.parametrize("effect", EFFECTS)
def test_every_effect_can_be_switched_off_alone(profile: str, effect: str) -> None:
    """It says so, and no other effect changes its source."""
    if effect == "prefix_rehits":
        assert effect not in model(profile).effects  # it lies in the engine
        return
    with_all, without = model(profile).effects, model(profile, (effect,)).effects
    assert without == with_all | {effect: OFF}
    assert OFF not in with_all.values()


@ON_EVERY_PROFILE
@pytest.mark.parametrize("effect", ["first_token", "prefix_rehits"])
def test_effects_outside_the_step_change_no_step(profile: str, effect: str) -> None:
    timed, without = model(profile), model(profile, (effect,))
    for shapes in (decodes(33, 700, 5000), prefill(500, 900), both(64, 1000, 512)):
        assert timed.step_ns(shapes).tolist() == without.step_ns(shapes).tolist()
    assert timed.host.first_token_ns == 2_500_000
    assert without.host.first_token_ns == (0 if effect == "first_token" else 2_500_000)


@ON_EVERY_PROFILE
def test_host_work_is_added_to_a_step_or_goes_on_beside_it(profile: str) -> None:
    shapes, work = decodes(32, 500), 700_000 + 32 * 3000
    busy = gpu(model(profile), shapes)
    assert busy > work
    assert step(model(profile), shapes) == busy + work
    assert step(model(profile, ("host",)), shapes) == busy
    # Beside it, it only shows when nobody waits for it: without the overlap it is added again.
    gap = 40_000
    assert step(model(profile, asynchronous=True), shapes) == busy + gap
    assert step(model(profile, ("host",), asynchronous=True), shapes) == busy + gap
    assert step(model(profile, ("gap",), asynchronous=True), shapes) == busy
    assert step(model(profile, ("overlap",), asynchronous=True), shapes) == busy + work
    assert step(model(profile, ("overlap",)), shapes) == busy + work


@ON_EVERY_PROFILE
def test_a_captured_batch_takes_what_the_next_size_takes(profile: str) -> None:
    tokens, _ = tables(profile)
    for seqs, padded in ((1, 1), (3, 4), (5, 8), (33, 40), (40, 40), (257, 272), (500, 512), (513, 513)):
        shapes = decodes(seqs, 700)
        added = gpu(model(profile), shapes) - gpu(model(profile, ("graph_padding",)), shapes)
        assert added == pytest.approx(tokens[padded] - tokens[seqs], abs=1)
        assert (added == 0) == (seqs == padded) or added > 0


@ON_EVERY_PROFILE
def test_the_head_runs_on_sampled_rows_or_on_all_tokens(profile: str) -> None:
    _, samples = tables(profile)
    shapes = prefill(2048)
    added = gpu(model(profile, ("sampled_rows",)), shapes) - gpu(model(profile), shapes)
    assert added == pytest.approx(samples[2048] - samples[1], abs=1)
    assert added > 100_000
    for alike in (decodes(40, 900), both(40, 900, 1)):  # every token samples
        alike = replace(alike, sampled_seqs=alike.decode_seqs + alike.prefill_tokens)
        padded_off = ("graph_padding",)
        assert gpu(model(profile, (*padded_off, "sampled_rows")), alike) == gpu(model(profile, padded_off), alike)


@ON_EVERY_PROFILE
def test_unequal_decodes_wait_for_the_longest_where_the_kernel_does_not_split(profile: str) -> None:
    timed, without = model(profile), model(profile, ("unequal_decodes",))
    unequal, equal, few = decodes(128, 2000, 60_000), decodes(128, 2000), decodes(8, 2000, 9000)
    assert gpu(timed, equal) == gpu(without, equal) == gpu(without, unequal)
    assert gpu(timed, few) == gpu(without, few)
    if timed.effects["unequal_decodes"].is_on:
        assert gpu(timed, unequal) > 1.02 * gpu(without, unequal)
    else:
        assert timed.effects["unequal_decodes"].text == "none: this kernel splits long sequences"
        assert gpu(timed, unequal) == gpu(without, unequal)


@ON_EVERY_PROFILE
def test_a_mixed_launch_or_its_parts_one_after_the_other(profile: str) -> None:
    decoding, chunked = decodes(64, 2000), prefill(512, 1000)
    parts = attention(profile, decoding) + attention(profile, chunked)
    together = both(64, 2000, 512, 1000)
    assert attention(profile, together, "mixed_launches") == pytest.approx(parts, abs=3)
    rule = load_profile(profile).mixed
    if rule.varlen is None:
        assert attention(profile, together) == pytest.approx(parts - LLAMA.num_layers * 1000 * rule.floor_us, abs=3)
    else:  # decodes lose the packing of their heads and the split of their contexts
        assert attention(profile, together) > 1.02 * parts
    for alone in (decoding, chunked):
        assert attention(profile, alone, "mixed_launches") == attention(profile, alone)


@ON_EVERY_PROFILE
def test_a_chunk_attends_to_what_was_before_it_or_to_itself_alone(profile: str) -> None:
    first, later = prefill(512), prefill(512, 16_000)
    timed, without = model(profile), model(profile, ("chunk_context",))
    assert gpu(without, later) == gpu(without, first) == gpu(timed, first) < 0.95 * gpu(timed, later)


@ON_EVERY_PROFILE
def test_all_reduces_cost_only_gpus_that_share_a_model(profile: str) -> None:
    for shapes in (decodes(32, 500), prefill(2048)):
        shared, without = model(profile, ranks=2), model(profile, ("all_reduce",), ranks=2)
        assert gpu(shared, shapes) > 1.01 * gpu(without, shapes)
        assert gpu(model(profile), shapes) == gpu(model(profile, ("all_reduce",)), shapes)
    assert model(profile).effects["all_reduce"].text == "none: one GPU"
    assert model(profile, ranks=2).effects["all_reduce"].text == "kernel table"


@pytest.mark.parametrize(
    ("profile", "gpu_name", "interconnect", "source"),
    [
        ("rtx-pro-6000", "rtx-pro-6000", "pcie", "kernel table"),
        ("rtx-pro-6000", "h100-sxm5-80gb", "pcie", "kernel table"),  # another GPU on as fast a bus
        ("rtx-pro-6000", "h100-sxm5-80gb", "nvlink", "data sheet"),
        ("rtx-pro-6000", "l40s-48gb", "pcie", "data sheet"),
        ("a100-sxm4-80gb", "a100-sxm4-80gb", "nvlink", "kernel table"),
        ("a100-sxm4-80gb", "a100-sxm4-80gb", "pcie", "data sheet"),
        ("a100-sxm4-80gb", "a100-pcie-80gb", "pcie", "data sheet"),
    ],
)
def test_a_table_of_all_reduces_holds_for_the_link_that_it_was_measured_on(
    profile: str, gpu_name: str, interconnect: str, source: str
) -> None:
    timed = calibrated(profile, gpu=gpu_name, tensor_parallel_size=2, interconnect=interconnect)
    assert timed.effects["all_reduce"].text == source
    tagged = timed.gpu_and_extrapolated_ns(decodes(32, 500))[1]
    assert ("all-reduce: roofline" in tagged) == (source == "data sheet")


def test_two_cards_without_nvlink_add_up_as_long_as_was_measured() -> None:
    """65 all-reduces of a decode of 64 sequences: 2 x 32 of 512 KiB, 17.621 us each, and the gathering of logits."""
    on, off = (
        calibrated("rtx-pro-6000", tensor_parallel_size=2, interconnect="pcie", without=without)
        for without in ((), ("all_reduce",))
    )
    added = gpu(on, decodes(64, 500)) - gpu(off, decodes(64, 500))
    # 128,256 logits of 2 bytes for 64 sequences, of which an all-gather moves half: 7.8 MiB, of 212 to 245 us.
    assert 64 * 17_621 + 205_000 < added < 64 * 17_621 + 245_000


COMBINATIONS = st.builds(
    lambda profile, off, asynchronous, ranks: model(profile, tuple(sorted(off)), ranks, asynchronous),
    st.sampled_from(SHIPPED),
    st.sets(st.sampled_from([name for name in EFFECTS if name not in ("first_token", "prefix_rehits")])),
    st.booleans(),
    st.sampled_from((1, 1, 2)),
)
FEW = settings(max_examples=14, derandomize=True, deadline=None)


@FEW
@given(timed=COMBINATIONS, drawn=st.lists(steps(), min_size=8, max_size=8))
def test_steps_are_priced_the_same_with_and_without_arrays(timed: Calibrated, drawn: list[StepPlan]) -> None:
    for one in drawn:
        assert timed.one_ns(one) == timed.step_ns(one.shapes(1))[0]


@FEW
@given(timed=COMBINATIONS, batch=decode_batches(), num_steps=st.integers(1, 60))
def test_runs_are_priced_the_same_with_and_without_arrays(
    timed: Calibrated, batch: dict[str, int], num_steps: int
) -> None:
    run = plan_of(**batch, num_sampled=batch["num_decode"])
    assert ints(timed.decode_ns(run, num_steps)) == timed.step_ns(run.shapes(num_steps)).tolist()


# Where host terms come from.


def terms(costs: HostCosts) -> tuple[float, float, float]:
    return costs.terms.fixed_us, costs.terms.per_seq_us, costs.terms.first_token_us


def test_host_terms_are_those_of_the_scenario_then_of_the_profile_then_those_that_ship() -> None:
    plain = replace(load_profile("h100-sxm5-80gb"), host=None, engine_hosts={})
    newest = next(row for row in reversed(shipped()) if row.engine == "vllm")
    assumed = (newest.terms.fixed_us, newest.terms.per_seq_us, newest.terms.first_token_us)
    for profile in (None, plain):
        found = host_of({}, profile, "0.19")
        assert terms(found) == assumed
        assert {source.text for source in found.sources.values()} == {"vLLM 0.14 to 0.19, shipped"}
    slow = (assumed[0] + 900.0, assumed[1] + 2.0)
    launches = replace(plain, host=Host(*slow))
    found = host_of({}, launches, "0.19")
    assert terms(found) == (*slow, assumed[2])
    assert [name for name, source in found.sources.items() if source.text == "profile, launches measured"] == [
        "fixed_us", "per_seq_us",
    ]  # fmt: skip
    # The engine's own work is no less than what ships, whatever launching takes.
    quick = host_of({}, replace(plain, host=Host(10.0, 2.0)), "0.19")
    assert terms(quick) == assumed
    fitted = replace(launches, engine_hosts={"0.19": EngineHost(HostTerms(100.0, 40.0, 7.0), {})})
    for version in ("0.19", "0.19.2"):
        found = host_of({}, fitted, version)
        assert terms(found) == (100.0, 40.0, 7.0)
        assert {source.text for source in found.sources.values()} == {"profile, fitted to a run of vLLM 0.19"}
    assert terms(host_of({}, fitted, "0.20")) == (*slow, assumed[2])
    found = host_of({"per_seq_us": 0.0}, fitted, "0.19")
    assert terms(found) == (100.0, 0.0, 7.0)
    assert found.sources["per_seq_us"].text == "scenario"
    assert found.sources["fixed_us"].text == "profile, fitted to a run of vLLM 0.19"


@pytest.mark.parametrize(
    ("engine", "version", "said"),
    [
        (None, "0.11.2", "vLLM 0.11, shipped"),
        (None, "0.12", "vLLM 0.12 to 0.13, shipped"),
        (None, "0.33", "those shipped for vLLM 0.14 to 0.19, the nearest"),
        ("trt-llm", "0.33", "TRT-LLM 1.0, shipped"),
        ("trt-llm 1.3", "0.33", "those shipped for TRT-LLM 1.0, the nearest"),
        ("SGLang 0.5.6", "0.33", "SGLang 0.0 to 0.5, shipped"),
        ("vllm 0.6", "0.33", "vLLM 0.0 to 0.6, shipped"),
    ],
)
def test_an_engine_takes_the_terms_of_its_version_or_of_the_nearest_and_says_so(
    engine: str | None, version: str, said: str
) -> None:
    assert {source.text for source in host_of({}, None, version, engine).sources.values()} == {said}


def test_terms_for_an_engine_that_does_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match=r"^latency\.host\.engine: expected an engine \(vllm, trt-llm, sglang\)"):
        host_of({}, None, "0.33", "vlm 0.12")
    for version in ("newest", "1", "0.-5", "1.0rc3"):
        with pytest.raises(InputError, match=r"^latency\.host\.engine: expected a version behind sglang, such as 1\.0"):
            host_of({}, None, "0.33", f"sglang {version}")


def test_what_ships_says_what_it_was_fitted_to() -> None:
    for row in shipped():
        assert row.n > 0
        assert all((row.rows, row.range, row.about)), row.label
        assert row.since <= row.seen
        assert all(getattr(row.terms, name) >= 0.0 for name in TERMS)
    for engine in ENGINES:
        rows = [row for row in shipped() if row.engine == engine]
        assert rows[0].since == (0, 0)
        assert all(one.seen < other.since for one, other in pairwise(rows))


# How the loop of an engine and its kernels add up.


@given(
    st.tuples(*[st.floats(0.0, 1e7)] * 4), st.booleans(),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.floats(0.0, 1e8)), min_size=1, max_size=9),
)  # fmt: skip
def test_a_loop_prices_single_steps_and_arrays_alike(
    terms_ns: tuple[float, ...], overlaps: bool, steps: list[tuple[int, int, float]]
) -> None:
    loop = Loop(*terms_ns, overlaps)
    decode, sampled, gpu = (np.array(column) for column in zip(*steps, strict=True))
    many = loop.steps_ns(gpu.astype(np.float64), loop.hosts_ns(decode, sampled))
    assert many.tolist() == [loop.step_ns(ns, loop.host_ns(n, m)) for n, m, ns in steps]


def test_a_step_is_the_longer_of_both_sides_under_async_scheduling_and_their_sum_without() -> None:
    costs = HostCosts(HostTerms(1000.0, 10.0, 0.0, 200.0, 50.0, 300.0), dict.fromkeys(TERMS, TEST))
    ahead, one_by_one = costs.loop(4, overlaps=True), costs.loop(4, overlaps=False)
    host = 1e3 * (1000.0 + 2 * 300.0 + 10.0 * 12 + 200.0 * 2)  # two doublings of the GPUs, 10 decodes and 2 new ones
    assert ahead.host_ns(10, 12) == one_by_one.host_ns(10, 12) == host
    assert ahead.step_ns(5e6, host) == 5e6 + 50e3
    assert ahead.step_ns(1e6, host) == host
    assert one_by_one.step_ns(5e6, host) == 5e6 + host
    assert costs.without(step=True, gap=True, first_token=True).loop(4, overlaps=True).step_ns(1.0, 0.0) == 1.0


def test_a_term_beyond_what_a_host_can_take_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^latency\.host\.fixed_us: expected at most 1,000,000 microseconds, got 1,000,000,000$"
    ):
        host_of({"fixed_us": 1e9}, None, "0.33")


# A profile on another GPU.


def test_a_profile_on_its_own_gpu_is_itself() -> None:
    for name in SHIPPED:
        profile = load_profile(name)
        assert transferred(profile, load_gpu(name)) is profile


def test_a_gpu_with_less_bandwidth_is_slower_by_at_most_the_ratio_of_bandwidths() -> None:
    ratio = load_gpu("a100-sxm4-80gb").hbm_bytes_per_s / load_gpu("a100-sxm4-40gb").hbm_bytes_per_s
    own, other = calibrated("a100-sxm4-80gb"), calibrated("a100-sxm4-80gb", gpu="a100-sxm4-40gb")
    for shapes in (decodes(1, 100), decodes(64, 2000), decodes(256, 4000, 9000), prefill(4096), both(64, 2000, 512)):
        assert gpu(own, shapes) <= gpu(other, shapes) <= ratio * gpu(own, shapes) + 1
    assert gpu(other, decodes(64, 2000)) > 1.1 * gpu(own, decodes(64, 2000))  # memory binds
    assert gpu(other, prefill(4096)) < 1.05 * gpu(own, prefill(4096))  # the same FLOP/s
    assert other.source.endswith("(calibrated on a100-sxm4-80gb, scaled to the limits of a100-sxm4-40gb)")


def test_a_format_that_the_other_gpu_lacks_runs_at_its_16_bit_peak() -> None:
    """And 16-bit formats stand for each other: V100 has no bfloat16."""
    profile = load_profile("h100-sxm5-80gb")
    on_a100 = transferred(profile, load_gpu("a100-sxm4-80gb"))
    assert {fit.limits.flops_per_s for fit in on_a100.ops.values() if fit.op == "gemm"} == {312e12}
    on_v100 = transferred(profile, load_gpu("v100-sxm2-32gb"))
    assert on_v100.ops["gemm", "bfloat16"].limits.flops_per_s == 125e12
    # What crosses links is no matter of memory.
    assert on_v100.ops["all_reduce", "bfloat16"] == profile.ops["all_reduce", "bfloat16"]


# The roofline.


@pytest.mark.parametrize("effect", EFFECTS)
def test_the_roofline_has_some_effects_and_refuses_the_others(effect: str) -> None:
    known = ("host", "overlap", "gap", "launches", "sampled_rows", "all_reduce", "first_token", "prefix_rehits")
    if effect not in known:
        with pytest.raises(InputError) as error:
            roofline(without=(effect,))
        assert str(error.value) == (
            f"latency.without: {effect} is no effect of roofline (uncalibrated); expected one of {', '.join(known)}"
        )
        return
    timed, without = (
        roofline(
            gpu=H100,
            tensor_parallel_size=2,
            host=SLOW_HOST,
            async_scheduling=effect in ("overlap", "gap"),
            without=off,
            launch=launch_cost(200.0 if effect == "launches" else 0.0, eager=True),
        )
        for off in ((), (effect,))
    )
    shapes = prefill(2048)
    change = int(without.step_ns(shapes)[0]) - int(timed.step_ns(shapes)[0])
    signs: dict[str, Any] = {"host": -1, "launches": -1, "overlap": 1, "gap": -1, "sampled_rows": 1, "all_reduce": -1}
    assert np.sign(change) == signs.get(effect, 0)
    if effect != "prefix_rehits":
        assert without.effects == timed.effects | {effect: OFF}


def test_a_model_of_hardware_says_where_each_of_its_effects_comes_from() -> None:
    assert set(model().effects) == set(EFFECTS) - {"prefix_rehits"}
    assert set(roofline().effects) == {
        "host", "overlap", "gap", "launches", "sampled_rows", "all_reduce", "first_token",
    }  # fmt: skip
    synchronous = dict.fromkeys(("overlap", "gap"), nothing("synchronous scheduling"))
    assert model().effects | {"host": TEST, "first_token": TEST, **synchronous} == model().effects
