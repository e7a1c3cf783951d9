"""The short way of the engine gives what single steps give, and both changes of the way happen.

Scenarios are such that requests mostly need not wait, and sometimes do: for budget, a slot or a block.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from test_macro_equals_single import ARRIVALS, OUTPUTS, PROMPTS, assert_same, build

from simkit import scenario
from simkit.engine.build import may_ride, set_up
from simkit.engine.fast_path.express import Express
from simkit.engine.fast_path.fast_replica import FastReplica

SETTINGS = settings(max_examples=90, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def scenarios(draw: st.DrawFn) -> scenario.Scenario:
    """First come first served over counted blocks, from ample to scarce."""
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_model_len = draw(st.integers(16, 60))
    needed = -(-max_model_len // block_size)
    seqs = draw(st.integers(1, 8))
    chunked = draw(st.booleans())
    asynchronous = draw(st.booleans())
    engine = {
        "block_size": block_size,
        "max_model_len": max_model_len,
        "num_gpu_blocks": 1 + needed * draw(st.integers(1, 6)) + draw(st.integers(0, needed)),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": draw(st.integers(seqs, 80)) if chunked else max_model_len + seqs,
        "enable_chunked_prefill": chunked,
        "async_scheduling": asynchronous,
        "enable_prefix_caching": False,
        "watermark": draw(st.sampled_from([0.0, 0.1, 0.3])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "stream": draw(st.sampled_from([None, None, False])),
        "preemption": draw(st.sampled_from(["recompute", "recompute", "swap"])),
        "host_pool_gib": draw(st.sampled_from([0.0, 0.01])),
    }
    workload = {
        "num_requests": draw(st.integers(1, 40)),
        "arrivals": draw(ARRIVALS),
        "prompt_tokens": {"dist": "list", "values": draw(PROMPTS)},
        "output_tokens": {"dist": "list", "values": draw(OUTPUTS)},
        "stop": "length" if asynchronous else draw(st.sampled_from(["length", "eos"])),
    }
    return build(
        engine,
        workload,
        replicas=draw(st.integers(1, 3)),
        router=draw(st.sampled_from(["round_robin", "least_outstanding"])),
        latency={"profile": draw(st.sampled_from(["unit", "unit", "roofline", "a100-sxm4-80gb"]))},
        warmup=draw(st.sampled_from(["none", "auto", {"requests": 3}])),
        seed=draw(st.integers(0, 3)),
    )


@given(scenarios())
@SETTINGS
def test_the_short_way_equals_single_steps(drawn: scenario.Scenario) -> None:
    assert may_ride(set_up(drawn))
    assert_same(drawn)


def busy(**engine: Any) -> scenario.Scenario:
    """Requests that arrive in bursts at a small engine with real step times."""
    settings = {"max_num_seqs": 16, "max_model_len": 2048, "num_gpu_blocks": 400, "enable_prefix_caching": False}
    workload = {
        "num_requests": 300,
        "arrivals": {"process": "gamma", "rate_per_s": 7.0, "cv": 2.5},
        "prompt_tokens": {"dist": "lognormal", "mean": 300, "cv": 1, "max": 1500},
        "output_tokens": {"dist": "lognormal", "mean": 100, "cv": 1, "max": 500},
    }
    return build(settings | engine, workload, latency={"profile": "roofline"})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_way_changes_to_and_fro(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without anybody on board, and with a step in flight."""
    seen: Counter[str] = Counter()

    def count(cls: type, name: str) -> None:
        whole = getattr(cls, name)

        def counting(self: Any, *args: Any) -> Any:
            seen[name] += 1
            return whole(self, *args)

        monkeypatch.setattr(cls, name, counting)

    count(FastReplica, "_get_off")
    count(FastReplica, "_get_on")
    count(Express, "take")
    count(Express, "last_step")
    assert_same(busy(async_scheduling=asynchronous))
    assert min(seen["_get_off"], seen["_get_on"]) > 3
    assert seen["take"] > 10
    assert (seen["last_step"] > 3) is asynchronous


@pytest.mark.parametrize(
    ("change", "rides"),
    [
        ({}, True),
        ({"policy": "priority"}, False),
        ({"policy": "sjf"}, False),
        ({"policy": "fair"}, False),
        ({"prefill_first": True}, False),
        ({"prefill_schedule_interval": 2}, False),
        ({"long_prefill_token_threshold": 64}, False),
        ({"kv_allocator": "contiguous"}, False),
        ({"batching": "static"}, False),
    ],
)
def test_who_takes_the_short_way(change: dict[str, Any], rides: bool) -> None:
    """Whatever makes somebody wait, or an end that nobody can foresee, needs the batcher."""
    assert may_ride(set_up(busy(**change))) is rides


def test_an_end_that_asynchronous_passes_cannot_see_needs_the_batcher() -> None:
    for asynchronous in (False, True):
        drawn = busy(async_scheduling=asynchronous)
        drawn = scenario.apply_sets(drawn, {"workload.stop": "eos"}, label="test")
        assert may_ride(set_up(drawn)) is not asynchronous
