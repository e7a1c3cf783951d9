"""Prices of single steps and of short runs, worked out without arrays, equal those of arrays to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from test_roofline import A100, H100, LLAMA, MIXTRAL, SHARED, SLIDING, roofline
from test_roofline import host_of as work_of

from simkit.batching.plan import StepPlan
from simkit.engine.pricing import Pricer
from simkit.latency import kernels as rates
from simkit.latency.calibrated import Calibrated
from simkit.latency.deployment import Deployment
from simkit.latency.host import NO_LAUNCHES, LaunchCost, host_of, launch_cost
from simkit.latency.kernels import TABLE_ROWS
from simkit.latency.profile import Host, Profile, load_profile
from simkit.latency.protocol import LatencyModel, ScalarLatency, Unit
from simkit.latency.roofline import Roofline
from simkit.latency.step import SCALAR_STEPS
from simkit.specs.hardware import load_gpu
from simkit.specs.models import ModelSpec
from simkit.types import Ints


def profile_of(gpu: str, host: Host | None) -> Profile:
    """The shipped profile of a GPU with another host overhead."""
    return replace(load_profile(gpu), host=host)


TINY = replace(
    LLAMA, name="tiny", num_layers=2, hidden_size=64, num_attention_heads=2, num_kv_heads=1, head_dim=16,
    intermediate_size=64, vocab_size=64,
)  # fmt: skip
WIDE_WINDOW = replace(SLIDING, name="wide-window", sliding_window=100_000, num_sliding_layers=32)

EAGER = launch_cost(None, eager=True)

# Host times below, about and above what the GPU takes, fixed and growing with the batch.
HOSTS: list[dict[str, Any]] = [
    {},
    {"host": work_of(0)},
    {"host": work_of(9300, 1.2345)},
    {"host": work_of(300.00025, 70)},
]
BUILDERS: dict[str, Callable[[], Roofline | Calibrated]] = {
    f"{name}-{'async' if asynchronous else 'sync'}-{number}": partial(
        roofline, model, gpu, async_scheduling=asynchronous, **host, **more
    )
    for name, model, gpu, more in (
        ("dense", LLAMA, A100, {}),
        ("four", LLAMA, A100, {"tensor_parallel_size": 4, "kv_cache_dtype": "fp8"}),
        ("moe", MIXTRAL, A100, {}),
        ("shared", SHARED, H100, {"quantization": "fp8"}),
        ("sliding", SLIDING, A100, {}),
        ("window", WIDE_WINDOW, A100, {}),
        ("tiny", TINY, A100, {}),
        ("eager", LLAMA, A100, {"launch": EAGER}),
    )
    for asynchronous in (False, True)
    for number, host in enumerate(HOSTS)
}


def from_profile(
    model: ModelSpec,
    gpu: str,
    ranks: int,
    quantization: str | None,
    kv: str,
    host: Host | None,
    asynchronous: bool,
    launch: LaunchCost = NO_LAUNCHES,
) -> Calibrated:
    profile = profile_of(gpu, host)
    deployment = Deployment(
        model, load_gpu(gpu), interconnect="nvlink", dtype="bfloat16", kv_cache_dtype=kv,
        tensor_parallel_size=ranks, quantization=quantization, async_scheduling=asynchronous,
        host=host_of({}, profile, "0.33"), launch=launch,
    )  # fmt: skip
    return Calibrated(deployment, profile)


BUILDERS |= {
    f"calibrated-{name}-{'async' if asynchronous else 'sync'}": partial(from_profile, *what, asynchronous)
    for name, *what in (
        ("a100", LLAMA, "a100-sxm4-80gb", 1, None, "auto", None),
        ("four", LLAMA, "h100-sxm5-80gb", 4, "fp8", "fp8", Host(9300.5, 3.25)),
        ("rtx", LLAMA, "rtx-pro-6000", 1, None, "auto", Host(100.0, 0.0)),
        ("moe", MIXTRAL, "h200-sxm-141gb", 2, None, "auto", None),
        ("sliding", SLIDING, "a100-sxm4-80gb", 1, None, "auto", None),
    )
    for asynchronous in (False, True)
}

BUILDERS |= {
    f"calibrated-eager-{'async' if asynchronous else 'sync'}": partial(
        from_profile, LLAMA, "h100-sxm5-80gb", 1, None, "auto", None, asynchronous, EAGER
    )
    for asynchronous in (False, True)
}


@pytest.fixture(scope="module", params=BUILDERS)
def model(request: pytest.FixtureRequest) -> Roofline | Calibrated:
    """Each in turn, and gone after its tests: together their tables take 200 MB."""
    return BUILDERS[request.param]()


SETTINGS = settings(max_examples=25, derandomize=True, deadline=None)

# Context tokens of a full layer of llama-3-8b that take as long as the floor of attention.
FLOOR_TOKENS = int(
    rates.ATTENTION_FLOOR_NS * 1e-9 * A100.hbm_bytes_per_s * rates.DECODE_BANDWIDTH_FRACTION / (2 * 8 * 128 * 2)
)
SEQS = st.one_of(st.integers(1, 600), st.integers(TABLE_ROWS - 40, TABLE_ROWS + 40))


def plan_of(**values: int) -> StepPlan:
    plan = StepPlan()
    for name, value in values.items():
        assert hasattr(plan, name)
        setattr(plan, name, value)
    return plan


def ints(times: list[int] | Ints) -> list[int]:
    """Times as a list; they are ints already."""
    assert times.dtype == np.int64 if isinstance(times, np.ndarray) else all(type(time) is int for time in times)
    return [int(time) for time in times]


@st.composite
def decodes(draw: st.DrawFn) -> dict[str, int]:
    """A batch of decodes: short and long contexts, sums on both sides of the floor and close to it."""
    seqs = draw(SEQS)
    near = st.integers(-60, 60).map(lambda steps: max(seqs, FLOOR_TOKENS + seqs * steps + steps % 7))
    context = draw(st.one_of(st.integers(1, 131_072).map(lambda each: seqs * each), near))
    longest = draw(st.integers(-(-context // seqs), context))
    return {"num_decode": seqs, "decode_context_sum": context, "decode_context_max": longest}


@st.composite
def steps(draw: st.DrawFn) -> StepPlan:
    """Decodes, chunks of prompts, or both; samples and swaps of any size."""
    values = draw(st.one_of(st.just({}), decodes()))
    if draw(st.booleans()) or not values:
        tokens = draw(st.one_of(st.integers(1, 9000), st.integers(TABLE_ROWS - 5, TABLE_ROWS + 5)))
        cached = draw(st.one_of(st.just(0), st.integers(0, 200_000)))
        values |= {
            "prefill_tokens": tokens,
            "prefill_context_tokens": cached,
            "prefill_pairs": tokens * cached + tokens * (draw(st.integers(1, tokens)) + 1) // 2,
            "padded_tokens": draw(st.integers(0, tokens)),
        }
    values["num_sampled"] = values.get("num_decode", 0) + draw(st.sampled_from([0, 0, 1, 9, TABLE_ROWS]))
    for name in ("swap_in_bytes", "swap_out_bytes"):
        values[name] = draw(st.one_of(st.just(0), st.integers(0, 10**10)))
    return plan_of(**values)


@SETTINGS
@given(step=steps())
def test_one_step_is_priced_as_by_arrays(model: Roofline | Calibrated, step: StepPlan) -> None:
    price = model.one_ns(step)
    assert type(price) is int
    assert price == model.step_ns(step.shapes(1))[0]


@SETTINGS
@given(
    batch=decodes(),
    dead=st.integers(0, 3),
    num_steps=st.one_of(st.integers(1, 8), st.integers(SCALAR_STEPS - 2, SCALAR_STEPS + 2), st.integers(1, 300)),
)
def test_a_run_of_decodes_is_priced_as_by_arrays(
    model: Roofline | Calibrated, batch: dict[str, int], dead: int, num_steps: int
) -> None:
    step = plan_of(**batch, num_sampled=batch["num_decode"], dead_slots=dead)
    assert ints(model.decode_ns(step, num_steps)) == model.step_ns(step.shapes(num_steps)).tolist()


def test_the_run_that_crosses_the_floor_of_attention_is_among_those_drawn() -> None:
    """In the middle of it the price begins to grow, and only there."""
    model = BUILDERS["dense-async-0"]()
    batch = {"num_decode": 100, "decode_context_sum": FLOOR_TOKENS - 2000, "decode_context_max": FLOOR_TOKENS}
    for num_steps in (48, 49):
        prices = ints(model.decode_ns(plan_of(**batch, num_sampled=100), num_steps))
        assert prices[0] == prices[10] < prices[30] < prices[47]


def test_the_unit_model_is_priced_the_same_both_ways() -> None:
    model, step = Unit(), plan_of(num_decode=3, decode_context_sum=9, decode_context_max=4, num_sampled=3)
    assert model.one_ns(step) == model.step_ns(step.shapes(1))[0]
    assert model.decode_ns(step, 70) == model.step_ns(step.shapes(70)).tolist()


class Arrays:
    """A model that offers arrays alone."""

    def __init__(self, model: Roofline | Calibrated) -> None:
        self.step_ns = model.step_ns


@pytest.mark.parametrize("build", [Unit, BUILDERS["dense-sync-0"], BUILDERS["dense-async-0"]])
def test_models_offer_the_scalar_methods(build: Callable[[], LatencyModel]) -> None:
    assert isinstance(build(), ScalarLatency)
    assert not isinstance(Arrays(BUILDERS["tiny-sync-0"]()), ScalarLatency)


@cache
def dense() -> Roofline | Calibrated:
    return BUILDERS["dense-sync-2"]()


@SETTINGS
@given(batch=decodes(), num_steps=st.integers(1, 120), start=st.integers(0, 10**12), until=st.integers(0, 10**9))
def test_steps_end_at_the_same_times_whichever_way_they_are_priced(
    batch: dict[str, int], num_steps: int, start: int, until: int
) -> None:
    """A hint about the next arrival may leave out steps, at the end and never the first; it changes none."""
    model, step = dense(), plan_of(**batch, num_sampled=batch["num_decode"])
    by_arrays, by_scalars, hinted = Pricer(Arrays(model)), Pricer(model), Pricer(model)  # type: ignore[arg-type]
    ends = ints(by_scalars.ends_ns(step, start, num_steps, None))
    assert len(ends) == num_steps
    assert ends == ints(by_arrays.ends_ns(step, start, num_steps, None))
    assert ends[0] == start + model.one_ns(step)
    hinted.ends_ns(step, start, 1, None)
    fewer = ints(hinted.ends_ns(step, start, num_steps, start + until))
    assert 1 <= len(fewer) <= num_steps
    assert fewer == ends[: len(fewer)]
