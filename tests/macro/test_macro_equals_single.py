"""Macro-stepping changes speed and nothing else: every table and every number equals that of single steps.

Scenarios are drawn with few customers, small pools and, under `unit` latency, arrivals on the step grid, so that ties,
preemptions, refusals and time-outs are common rather than rare.
"""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from served import as_asked

from simkit import api, scenario
from simkit.errors import CheckError
from simkit.plain import canonical_json

SETTINGS = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])

STEP_S = 0.001


def build(engine: dict[str, Any], workload: dict[str, Any], **top: Any) -> scenario.Scenario:
    """A scenario around llama-3-8b on an A100."""
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": engine,
        "workload": workload,
        "latency": {"profile": "unit"},
    }
    return scenario.from_dict(data | top)


def outcome(drawn: scenario.Scenario, *, single_step: bool) -> api.Result | str:
    """The result, or what is said of a livelock; any other broken invariant is raised."""
    try:
        return as_asked(drawn, single_step=single_step)
    except CheckError as error:
        if not str(error).startswith("no progress: "):
            raise
        return str(error)


def assert_equal_outcomes(drawn: scenario.Scenario) -> api.Result | str:
    """Run both ways (the pool's books are checked at the end of each run) and compare byte for byte."""
    macro, single = outcome(drawn, single_step=False), outcome(drawn, single_step=True)
    if isinstance(macro, str) or isinstance(single, str):
        assert macro == single
        return macro
    for name in ("requests", "slots", "steps"):
        assert macro.tables[name].equals(single.tables[name]), name
    assert canonical_json(macro.summary) == canonical_json(single.summary)
    assert canonical_json(macro.manifest) == canonical_json(single.manifest)
    return macro


def assert_same(drawn: scenario.Scenario) -> api.Result:
    """The same where nothing can get stuck."""
    result = assert_equal_outcomes(drawn)
    assert isinstance(result, api.Result), result
    return result


def fixed(value: int) -> dict[str, Any]:
    return {"dist": "fixed", "value": value}


def listed(*values: int) -> dict[str, Any]:
    return {"dist": "list", "values": list(values)}


PROMPTS = st.lists(st.integers(1, 20), min_size=1, max_size=5)
OUTPUTS = st.lists(st.integers(1, 30), min_size=1, max_size=5)

ARRIVALS = st.one_of(
    st.just({"process": "all_at_once"}),
    # On and off the step grid of 1 ms.
    st.sampled_from([1000.0, 500.0, 250.0, 2000.0, 300.0, 777.0]).map(
        lambda rate: {"process": "constant", "rate_per_s": rate}
    ),
    st.sampled_from([100.0, 400.0, 1500.0]).map(lambda rate: {"process": "poisson", "rate_per_s": rate}),
    st.builds(
        lambda clients, think: {"process": "closed_loop", "concurrency": clients, "think_time_s": think},
        st.integers(1, 7),
        st.sampled_from([0.0, STEP_S, 2.5 * STEP_S]),
    ),
)


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    """Small limits, every batcher, allocator, placement, reservation and policy."""
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_model_len = draw(st.integers(16, 48))
    needed = -(-max_model_len // block_size)
    # A buddy space must hold the next power of two.
    room = draw(st.integers(0, needed // 2))
    placement = draw(st.sampled_from(["first_fit", "best_fit", "buddy"]))
    usable = needed + room + (2 * needed if placement == "buddy" else 0)
    batching = draw(st.sampled_from(["continuous", "continuous", "static", "dynamic"]))
    seqs = draw(st.integers(1, 5))
    chunked = draw(st.booleans()) or batching != "continuous"
    budget = draw(st.integers(seqs, 40)) if chunked else max_model_len + seqs + draw(st.integers(0, 16))
    engine: dict[str, Any] = {
        "batching": batching,
        "kv_allocator": draw(st.sampled_from(["paged", "contiguous"])),
        "placement": placement,
        "reservation": draw(st.sampled_from(["max", "pow2", "oracle"])),
        "block_size": block_size,
        "num_gpu_blocks": usable + 1,
        "max_model_len": max_model_len,
        "max_num_seqs": seqs,
        "max_num_active_seqs": draw(st.sampled_from([None, None, seqs, max(1, seqs - 1)])),
        "max_num_batched_tokens": budget,
        "enable_chunked_prefill": chunked,
        "prefill_first": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "priority", "sjf", "fair"])),
        "async_scheduling": draw(st.booleans()),
        "enable_prefix_caching": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "scheduler_reserve_full_isl": draw(st.sampled_from([True, False, False])),
        "capacity_scheduler_policy": draw(st.sampled_from([*["max_utilization"] * 3, "guaranteed_no_evict"])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 8])),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 1, 2, 5])),
        "max_queue_delay_s": draw(st.sampled_from([0.0, 1.5 * STEP_S, 3 * STEP_S])),
        "max_wait_s": draw(st.sampled_from([None, 2 * STEP_S])),
        "stream": draw(st.sampled_from([None, True, False])),
        "preemption": draw(st.sampled_from(["recompute", "recompute", "swap", "auto"])),
        "host_pool_gib": draw(st.sampled_from([0.0, 0.002, 0.01])),  # 0, 16 and 81 tokens
    }
    return engine


@st.composite
def scenarios(draw: st.DrawFn) -> scenario.Scenario:
    """An engine, up to 14 customers and what they do."""
    engine = draw(engines())
    workload: dict[str, Any] = {
        "num_requests": draw(st.integers(1, 16)),
        "arrivals": draw(ARRIVALS),
        "prompt_tokens": {"dist": "list", "values": draw(PROMPTS)},
        "output_tokens": {"dist": "list", "values": draw(OUTPUTS)},
        "stop": draw(st.sampled_from(["length", "length", "eos"])),
        "priority": draw(st.sampled_from([None, {"values": [0, 1, 2], "weights": [1.0, 1.0, 1.0]}])),
        "prefix": draw(st.sampled_from([None, {"groups": 2, "tokens": 8}])),
        "timeout_s": draw(st.sampled_from([None, None, None, 9 * STEP_S, 20.5 * STEP_S])),
        "tenants": draw(st.sampled_from([None, {"count": 2}])),
        "samples": draw(st.sampled_from([1, 1, 1, min(2, engine["max_num_active_seqs"] or engine["max_num_seqs"])])),
        "queue_limit": draw(st.sampled_from([None, None, None, 3])),
    }
    if engine["capacity_scheduler_policy"] == "guaranteed_no_evict":
        workload["samples"] = 1
    return build(
        engine,
        workload,
        replicas=draw(st.integers(1, 3)),
        router=draw(st.sampled_from(["round_robin", "least_outstanding", "prefix_affinity"])),
        latency={"profile": draw(st.sampled_from(["unit", "unit", "roofline", "a100-sxm4-80gb"]))},
        seed=draw(st.integers(0, 3)),
    )


@st.composite
def long_runs(draw: st.DrawFn) -> scenario.Scenario:
    """Answers of hundreds of tokens, with seldom an arrival: runs of many blocks, cut now and then.

    Most of them are plain (first come first served, no caching, nothing that makes order matter), so that the shortest
    ways through the engine are gone; memory and slots are ample for most of the time, and then short.
    """
    plain = draw(st.integers(0, 2)) > 0
    block_size = draw(st.sampled_from([1, 4, 16, 16]))
    max_model_len = draw(st.integers(120, 600))
    needed = -(-max_model_len // block_size)
    seqs = draw(st.integers(1, 8))
    engine: dict[str, Any] = {
        "block_size": block_size,
        "num_gpu_blocks": needed + 1 + draw(st.sampled_from([0, needed // 3, needed, 4 * needed])),
        "max_model_len": max_model_len,
        "max_num_seqs": seqs,
        "max_num_active_seqs": draw(st.sampled_from([None, None, max(1, seqs - 1)])),
        "max_num_batched_tokens": draw(st.sampled_from([seqs, 64, 640])),
        "async_scheduling": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.05])),
        "enable_prefix_caching": False,
    }
    if not plain:
        engine |= {
            "batching": draw(st.sampled_from(["continuous", "continuous", "continuous", "static", "dynamic"])),
            "kv_allocator": draw(st.sampled_from(["paged", "paged", "paged", "contiguous"])),
            "policy": draw(st.sampled_from(["fcfs", "priority", "sjf", "fair"])),
            "enable_prefix_caching": draw(st.booleans()),
            "prefill_first": draw(st.booleans()),
            "prefill_schedule_interval": draw(st.sampled_from([1, 1, 4])),
            "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 20])),
            "scheduler_reserve_full_isl": draw(st.booleans()),
            "stream": draw(st.sampled_from([None, True, False])),
            "preemption": draw(st.sampled_from(["recompute", "recompute", "swap", "auto"])),
            "host_pool_gib": draw(st.sampled_from([0.01, 1.0])),
        }
    arrivals = st.one_of(
        st.sampled_from([5.0, 20.0, 200.0]).map(lambda rate: {"process": "poisson", "rate_per_s": rate}),
        st.sampled_from([10.0, 1000.0 / 48, 123.0]).map(lambda rate: {"process": "constant", "rate_per_s": rate}),
        st.sampled_from([1, 3, 9]).map(lambda n: {"process": "closed_loop", "concurrency": n, "think_time_s": 0.05}),
        st.just({"process": "all_at_once"}),
    )
    prompts = st.one_of(st.integers(1, 20), st.integers(1, max_model_len // 3))
    lengths = st.one_of(st.integers(1, 20), st.integers(1, max_model_len))
    workload: dict[str, Any] = {
        "num_requests": draw(st.integers(1, 14)),
        "arrivals": draw(arrivals),
        "prompt_tokens": listed(*draw(st.lists(prompts, min_size=1, max_size=4))),
        "output_tokens": listed(*draw(st.lists(lengths, min_size=1, max_size=4))),
        "stop": draw(st.sampled_from(["length", "length", "length", "eos"])),
    }
    if not plain:
        workload |= {
            "timeout_s": draw(st.sampled_from([None, None, None, 0.15])),
            "queue_limit": draw(st.sampled_from([None, None, None, 2])),
            "priority": draw(st.sampled_from([None, {"values": [0, 1], "weights": [1.0, 1.0]}])),
            "prefix": draw(st.sampled_from([None, {"groups": 2, "tokens": 40}])),
            "tenants": draw(st.sampled_from([None, {"count": 2}])),
            "samples": draw(st.sampled_from([1, 1, min(2, engine["max_num_active_seqs"] or seqs)])),
        }
    return build(
        engine,
        workload,
        replicas=draw(st.integers(1, 3)),
        router=draw(st.sampled_from(["round_robin", "least_outstanding"])),
        latency={"profile": draw(st.sampled_from(["unit", "roofline", "a100-sxm4-80gb"]))},
        warmup=draw(st.sampled_from(["none", "auto", {"requests": 2}])),
        seed=draw(st.integers(0, 3)),
    )


def check(drawn: scenario.Scenario) -> None:
    """Macro equals single, and what holds for every run holds for this one."""
    result = assert_equal_outcomes(drawn)
    if isinstance(result, str):  # a livelock, which both ways end with the same words
        assert drawn.engine.batching == "continuous"
        return
    summary = result.summary
    counts = summary["num_requests"]
    ends = ("finished", "rejected", "refused", "aborted", "unfinished")
    assert counts["arrived"] == drawn.workload.num_requests == sum(counts[end] for end in ends)
    assert counts["unfinished"] == 0
    if drawn.engine.kv_allocator == "contiguous" or drawn.engine.batching != "continuous":
        assert summary["num_preemptions"] == 0
    shares = [summary["kv"][kind]["share_of_allocated"] for kind in ("used", "reserved", "internal")]
    if counts["finished"]:
        assert abs(sum(shares) - 1) < 1e-9


@given(scenarios())
@SETTINGS
def test_macro_steps_equal_single_steps(drawn: scenario.Scenario) -> None:
    check(drawn)


@given(long_runs())
@settings(SETTINGS, max_examples=80)
def test_long_runs_equal_single_steps(drawn: scenario.Scenario) -> None:
    check(drawn)


# --- single cases that random search is unlikely to hit ---------------------------------------------------------------


SYNC = {"async_scheduling": False, "enable_prefix_caching": False}
NOW = {"process": "all_at_once"}


def test_a_prompt_whose_last_chunk_is_one_token() -> None:
    """The step that yields the first token must not be the first of a run."""
    engine = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 64}
    for asynchronous in (False, True):
        workload = {"num_requests": 1, "arrivals": NOW, "prompt_tokens": fixed(9), "output_tokens": fixed(10)}
        assert_same(build(engine | {"async_scheduling": asynchronous}, workload))


def test_a_request_resumed_with_one_token_left() -> None:
    """Recomputation in chunks whose last one is a single token."""
    engine = SYNC | {
        "max_num_seqs": 3,
        "max_num_batched_tokens": 5,
        "max_model_len": 32,
        "block_size": 1,
        "num_gpu_blocks": 33,
    }
    workload = {"num_requests": 6, "arrivals": NOW, "prompt_tokens": fixed(8), "output_tokens": listed(20, 13)}
    assert assert_same(build(engine, workload)).summary["num_preemptions"] > 0


def test_external_fragmentation_begins_when_the_head_arrives() -> None:
    """Two of 32 tokens fit 80, and 16 are out of reach for the third, which waits for memory and not for a slot."""
    for batching, slots in itertools.product(("static", "dynamic", "continuous"), (1, 8)):
        engine = SYNC | {
            "batching": batching,
            "kv_allocator": "contiguous",
            "max_num_seqs": slots,
            "max_model_len": 32,
            "num_gpu_blocks": 6,
        }
        workload = {
            "num_requests": 3,
            "arrivals": {"process": "constant", "rate_per_s": 200.0},
            "prompt_tokens": fixed(4),
            "output_tokens": fixed(20),
        }
        summary = assert_same(build(engine, workload)).summary
        assert (summary["kv"]["external"]["share_of_pool"] > 0) is (slots == 8)


def test_a_shorter_newcomer_becomes_the_head_behind_full_slots() -> None:
    engine = SYNC | {
        "kv_allocator": "contiguous",
        "reservation": "oracle",
        "policy": "sjf",
        "max_num_seqs": 1,
        "max_model_len": 64,
        "num_gpu_blocks": 6,
    }
    workload = {
        "num_requests": 3,
        "arrivals": {"process": "constant", "rate_per_s": 200.0},
        "prompt_tokens": listed(4, 30, 7),
        "output_tokens": fixed(20),
    }
    assert_same(build(engine, workload))


def test_an_arrival_that_narrows_the_adaptive_cap() -> None:
    """Behind a blocked head, and yet it lets the head in: its chunk gets smaller."""
    engine = SYNC | {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 24,
        "max_model_len": 33,
        "block_size": 1,
        "num_gpu_blocks": 34,
        "long_prefill_token_threshold": 1,
        "long_prefill_token_threshold_adaptive": True,
        "scheduler_reserve_full_isl": False,
    }
    for first in range(8, 30):
        workload = {
            "num_requests": 4,
            "arrivals": {"process": "constant", "rate_per_s": 300.0},
            "prompt_tokens": listed(first, 24, 2, 2),
            "output_tokens": listed(20, 2, 2, 2),
        }
        assert_same(build(engine, workload))


def test_arms_of_a_real_comparison() -> None:
    """Long runs, the roofline and open-loop arrivals that cut them."""
    for batching in ("static", "dynamic", "continuous"):
        for allocator in ("contiguous", "paged"):
            for asynchronous in (False, True) if batching == "continuous" else (False,):
                engine = {
                    "batching": batching,
                    "kv_allocator": allocator,
                    "async_scheduling": asynchronous,
                    "max_num_seqs": 16,
                    "max_model_len": 2048,
                    "num_gpu_blocks": 200,
                }
                workload = {
                    "num_requests": 40,
                    "arrivals": {"process": "poisson", "rate_per_s": 4.0},
                    "prompt_tokens": {"dist": "lognormal", "mean": 200, "cv": 1, "max": 1000},
                    "output_tokens": {"dist": "lognormal", "mean": 80, "cv": 1, "max": 900},
                    "prefix": {"groups": 3, "tokens": 64},
                }
                assert_same(build(engine, workload, latency={"profile": "roofline"}))


def test_samples_of_one_prompt_wait_in_a_sorted_queue() -> None:
    """Equal priority, arrival and id: the queue must have a rule for them, not compare the sequences themselves."""
    for policy in ("fcfs", "priority", "sjf", "fair"):
        engine = SYNC | {
            "policy": policy,
            "max_num_seqs": 6,
            "max_model_len": 24,
            "block_size": 1,
            "num_gpu_blocks": 26,
            "scheduler_reserve_full_isl": False,
        }
        workload = {
            "num_requests": 4,
            "samples": 3,
            "arrivals": NOW,
            "prompt_tokens": fixed(4),
            "output_tokens": listed(15, 9),
        }
        assert assert_same(build(engine, workload)).summary["num_preemptions"] > 0


def test_fair_arrivals_take_their_place_by_counts_that_are_up_to_date() -> None:
    """Behind full slots an arrival changes no pass, but the counts it is ranked by move with every one."""
    engine = SYNC | {"max_num_seqs": 2, "max_model_len": 16, "num_gpu_blocks": 17, "block_size": 1, "policy": "fair"}
    workload = {
        "num_requests": 8,
        "arrivals": {"process": "poisson", "rate_per_s": 1500.0},
        "prompt_tokens": fixed(1),
        "output_tokens": fixed(5),
        "tenants": {"count": 2},
    }
    assert assert_same(build(engine, workload, seed=1)).summary["num_requests"]["finished"] == 8


def test_preemptions_without_a_step_are_told_with_the_next_one_that_is_launched() -> None:
    """Asynchronously steps are in flight meanwhile; the late books of a run must not claim them."""
    engine = {
        "max_num_seqs": 2,
        "max_model_len": 34,
        "num_gpu_blocks": 5,
        "block_size": 16,
        "async_scheduling": True,
        "enable_prefix_caching": False,
    }
    workload = {"num_requests": 2, "arrivals": NOW, "prompt_tokens": fixed(18), "output_tokens": listed(15, 16)}
    result = assert_same(build(engine, workload))
    assert result.steps["num_preemptions"].sum() == result.summary["num_preemptions"] > 0
