"""What no setting may change: everybody is served in full, and names are only names.

Decisions are looked at through `simkit.conformance.replayed`, which drives the batcher and allocator of a run and tells
every decision as integers; whole runs through the Python API.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, assume, given, settings
from served import as_asked

from simkit import scenario
from simkit.batching.continuous import ContinuousBatcher
from simkit.batching.group import DecodeGroup
from simkit.batching.plan import StepPlan
from simkit.conformance.recorded import RecordedRequest, Recording
from simkit.conformance.replayed import Replay
from simkit.kv.paged import PagedAllocator

PROPERTY = settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
DURATION = {"base_ns": 1000, "per_token_ns": 10, "per_context_token_ns": 1}
MAX_RECORDS = 600

# --- names are only names ---------------------------------------------------------------------------------------------


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of the recorded format, small enough that everything happens; the last two policies are not recorded."""
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    max_model_len = draw(st.integers(16, 40))
    needed = -(-max_model_len // block_size)
    seqs = draw(st.integers(1, 5))
    chunked = draw(st.booleans())
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": draw(st.integers(1, 20)) + (seqs if chunked else max_model_len),
        "max_model_len": max_model_len,
        "enable_chunked_prefill": chunked,
        "policy": draw(st.sampled_from(["fcfs", "fcfs", "priority", "priority", "sjf", "fair"])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 4])),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 3])),
        "max_num_active_seqs": draw(st.sampled_from([None, seqs])),
        "async_scheduling": draw(st.booleans()),
        "enable_prefix_caching": draw(st.booleans()),
        "block_size": block_size,
        "num_gpu_blocks": 1 + needed + draw(st.integers(0, needed)),
    }


@st.composite
def traces(draw: st.DrawFn, *, ties: bool) -> Recording:
    """A workload without recorded answers. Without `ties` no two requests arrive together, but for the policy
    `priority`, where their priorities differ then."""
    config = draw(configs())
    requests, at, urgent = [], 0, 0
    for number in range(draw(st.integers(2, 7))):
        gap = draw(st.sampled_from([0, 0, 500, 4000]))
        if not ties and config["policy"] != "priority":
            gap = max(gap, 1)
        urgent = urgent + 1 if gap == 0 else draw(st.integers(0, 3))
        at += gap
        prompt = draw(st.integers(1, config["max_model_len"] - 1))
        shared = draw(st.integers(0, prompt))
        requests.append(
            RecordedRequest(
                id=number,
                at_ns=at,
                segments=((1 + number % 2, shared), (100 + number, prompt - shared)),
                output_tokens=draw(st.integers(1, 20)),
                output_stream=1000 + number,
                priority=draw(st.integers(0, 2)) if ties else urgent % 97,
            )
        )
    return Recording("drawn", "drawn", "hypothesis", config, DURATION, True, tuple(requests), (), {})


def decisions(trace: Recording, back: dict[int, int] | None = None) -> tuple[list[dict[str, Any]], bool]:
    """All records, ids translated by `back`, and whether the case ended within MAX_RECORDS."""
    name = (back or {request.id: request.id for request in trace.requests}).__getitem__
    found = list(islice(Replay(trace).records(), MAX_RECORDS))
    for record in found:
        if "s" in record:
            record["a"] = sorted(map(name, record["a"]))
            record["s"] = [[name(e[0]), *e[1:]] if isinstance(e, list) else name(e) for e in record["s"]]
            record["p"] = [[name(seq), lost] for seq, lost in record["p"]]
            record["b"] = {name(int(seq)): blocks for seq, blocks in record["b"].items()}
        record["f"] = [name(seq) for seq in record.get("f", [])]
    return found, len(found) < MAX_RECORDS


def renamed(trace: Recording, names: list[int]) -> tuple[Recording, dict[int, int]]:
    """The same workload, request number i called `names[i]`; and the way back."""
    fresh = [
        RecordedRequest(names[r.id], r.at_ns, r.segments, r.output_tokens, r.output_stream, r.priority)
        for r in trace.requests
    ]
    fresh.sort(key=lambda request: (request.at_ns, request.id))
    other = Recording("x", "x", "x", trace.config, DURATION, True, tuple(fresh), (), {})
    return other, {name: number for number, name in enumerate(names)}


@given(trace=traces(ties=True), data=st.data())
@PROPERTY
def test_decisions_do_not_depend_on_names_that_keep_their_order(trace: Recording, data: st.DataObject) -> None:
    count = len(trace.requests)
    names = sorted(data.draw(st.lists(st.integers(0, 10**9), min_size=count, max_size=count, unique=True)))
    assert decisions(*renamed(trace, names)) == decisions(trace)


@given(trace=traces(ties=False), data=st.data())
@PROPERTY
def test_decisions_do_not_depend_on_names_at_all_without_ties(trace: Recording, data: st.DataObject) -> None:
    names = data.draw(st.permutations(range(len(trace.requests))))
    assert decisions(*renamed(trace, list(names))) == decisions(trace)


def test_with_ties_the_smaller_name_goes_first() -> None:
    """The other way round: where (priority, arrival) tie, names do decide."""
    requests = tuple(RecordedRequest(n, 0, ((n, 4),), 3, 100 + n, 0) for n in range(3))
    config = {
        "max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 16, "enable_chunked_prefill": True,
        "policy": "priority", "watermark": 0.0, "async_scheduling": False, "enable_prefix_caching": False,
        "block_size": 4, "num_gpu_blocks": 9,
    }  # fmt: skip
    trace = Recording("x", "x", "x", config, DURATION, True, requests, (), {})
    assert decisions(*renamed(trace, [2, 1, 0])) != decisions(trace)


@given(trace=traces(ties=True))
@PROPERTY
def test_every_replay_that_ends_has_served_everybody(trace: Recording) -> None:
    replay = Replay(trace)
    records = list(islice(replay.records(), MAX_RECORDS))
    assume(len(records) < MAX_RECORDS)
    longest = trace.config["max_model_len"]
    wanted = {r.id: min(r.output_tokens, longest - r.prompt_tokens) for r in trace.requests}
    assert {row[0]: row[-1] for row in replay.summary()["req"]} == wanted
    assert sorted(seq for record in records for seq in record.get("f", [])) == sorted(wanted)
    assert replay.kv.num_free_blocks == trace.config["num_gpu_blocks"] - 1
    scheduled = [record for record in records if "s" in record]
    assert all(record["n"] <= trace.config["max_num_batched_tokens"] for record in scheduled)
    assert all(record["r"] <= trace.config["max_num_seqs"] for record in scheduled)
    if trace.config["async_scheduling"]:
        return  # a victim whose last token is under way never computes again what it lost
    lost = sum(tokens for record in scheduled for _, tokens in record["p"])
    cached = sum(e[2] for record in scheduled for e in record["s"] if isinstance(e, list) and e[1] in "NR")
    final = sum(r.prompt_tokens + wanted[r.id] - 1 for r in trace.requests)
    # A victim placed in the same pass is not in `n` any more, and what it loses was never scheduled.
    assert sum(record["n"] for record in scheduled) == final + lost - cached


# --- the group decodes together ---------------------------------------------------------------------------------------


def told(trace: Recording, *, one_by_one: bool) -> tuple[list[dict[str, Any]], Any, int]:
    """All records, the totals if the case ended, and how many sequences were scheduled together with others."""
    together = 0
    with pytest.MonkeyPatch.context() as patch:
        slow = partial(ContinuousBatcher, one_by_one=one_by_one)
        patch.setattr("simkit.conformance.replayed.ContinuousBatcher", slow)
        replay = Replay(trace)
    make_pass = replay.batcher.plan

    def plan() -> StepPlan | None:
        nonlocal together
        made = make_pass()
        together += 0 if made is None else made.num_scheduled - len(made.explicit)
        replay.kv.check_integrity()
        members = replay.batcher.members()
        assert replay.batcher.num_computed_tokens == sum(seq.num_computed_tokens for seq in members)
        assert replay.batcher.num_members() == len(members)
        return made

    replay.batcher.plan = plan  # type: ignore[method-assign]
    records = list(islice(replay.records(), MAX_RECORDS))
    return records, replay.summary() if len(records) < MAX_RECORDS else None, together


def assert_same_decisions(trace: Recording) -> int:
    """Together and one by one: equal records. How many sequences were scheduled together."""
    records, summary, together = told(trace, one_by_one=False)
    slow_records, slow_summary, slow_together = told(trace, one_by_one=True)
    assert records == slow_records
    assert summary == slow_summary
    assert slow_together == 0
    return together


@given(trace=traces(ties=True))
@settings(PROPERTY, max_examples=75)
def test_deciding_together_is_deciding_one_by_one(trace: Recording) -> None:
    assert_same_decisions(trace)


def crowd(**config: Any) -> Recording:
    """Nine requests of different lengths in a pool that holds three or so of them."""
    limits = {
        "max_num_seqs": 6, "max_num_batched_tokens": 12, "max_model_len": 60, "enable_chunked_prefill": True,
        "policy": "fcfs", "watermark": 0.0, "async_scheduling": False, "enable_prefix_caching": True,
        "block_size": 4, "num_gpu_blocks": 40, "scheduler_reserve_full_isl": False,
    } | config  # fmt: skip
    requests = tuple(
        RecordedRequest(n, 700 * n, ((1 + n % 2, 4), (100 + n, 1 + 5 * n % 17)), 9 + 7 * n % 31, 1000 + n, n % 3)
        for n in range(9)
    )
    return Recording("crowd", "drawn", "hypothesis", limits, DURATION, True, requests, (), {})


def forget_the_order_of_admission(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("simkit.kv.paged._NUMBER", lambda seq: -seq.number)


def forget_who_is_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecodeGroup, "newest", property(lambda self: -1, lambda self, value: None))


def stop_too_late(patch: pytest.MonkeyPatch) -> None:
    join = DecodeGroup.join
    patch.setattr(DecodeGroup, "join", lambda self, seq, num_steps: join(self, seq, num_steps + 1))


def stay_out_of_the_budget(patch: pytest.MonkeyPatch) -> None:
    right = ContinuousBatcher._schedule_running

    def schedule(self: ContinuousBatcher, state: Any) -> None:
        right(self, state)
        state.budget += state.group_size

    patch.setattr(ContinuousBatcher, "_schedule_running", schedule)


def ignore_the_backlog_of_keys(patch: pytest.MonkeyPatch) -> None:
    right = PagedAllocator.grow_all
    patch.setattr(PagedAllocator, "grow_all", lambda self, num_steps, known: right(self, num_steps, 0))


DAMAGES = (
    forget_the_order_of_admission,
    forget_who_is_newest,
    stop_too_late,
    stay_out_of_the_budget,
    ignore_the_backlog_of_keys,
)


@pytest.mark.parametrize("damage", [None, *DAMAGES])
def test_a_broken_shortcut_is_noticed(damage: Callable[[pytest.MonkeyPatch], None] | None) -> None:
    """The case above is able to fail: among a few crowds there is one that tells."""
    noticed = False
    kinds = itertools.product((False, True), ("fcfs", "priority", "fair"), range(20, 60, 5), (0, 2))
    for asynchronous, policy, blocks, cap in kinds:
        limits = {"policy": policy, "num_gpu_blocks": blocks, "long_prefill_token_threshold": cap}
        trace = crowd(async_scheduling=asynchronous, **limits)
        with pytest.MonkeyPatch.context() as patch:
            if damage is None:
                assert assert_same_decisions(trace) > 0
                continue
            damage(patch)
            try:
                assert_same_decisions(trace)
            except AssertionError:
                noticed = True
                break  # one that tells is enough
    assert noticed is (damage is not None)


# --- whole runs -------------------------------------------------------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn, *, ample: bool) -> dict[str, Any]:
    """A scenario as a mapping; `ample` memory holds everybody at once."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    max_model_len = draw(st.integers(16, 48))
    needed = -(-max_model_len // block_size)
    count = draw(st.integers(1, 10))
    samples = draw(st.sampled_from([1, 1, 2, 3]))
    seqs = draw(st.integers(samples, 6))
    chunked = draw(st.booleans())
    room = needed * count * samples if ample else draw(st.integers(0, needed))
    return {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {
            "block_size": block_size,
            "max_model_len": max_model_len,
            "num_gpu_blocks": 1 + needed + room,
            "max_num_seqs": seqs,
            "max_num_batched_tokens": draw(st.integers(0, 16)) + (seqs if chunked else max_model_len),
            "enable_chunked_prefill": chunked,
            "policy": draw(st.sampled_from(["fcfs", "priority", "sjf", "fair"])),
            "preemption": draw(st.sampled_from(["recompute", "swap", "auto"])),
            "host_pool_gib": draw(st.sampled_from([0.0, 0.002, 1.0])),
            "async_scheduling": draw(st.booleans()),
            "enable_prefix_caching": draw(st.booleans()),
            "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 5])),
        },
        "workload": {
            "num_requests": count,
            "arrivals": draw(
                st.sampled_from(
                    [
                        {"process": "all_at_once"},
                        {"process": "constant", "rate_per_s": 700.0},
                        {"process": "closed_loop", "concurrency": 3, "think_time_s": 0.001},
                    ]
                )
            ),
            "prompt_tokens": {"dist": "list", "values": draw(st.lists(st.integers(1, 14), min_size=1, max_size=4))},
            "output_tokens": {"dist": "list", "values": draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))},
            "stop": draw(st.sampled_from(["length", "eos"])),
            "priority": {"values": [0, 1, 2], "weights": [1.0, 1.0, 1.0]},
            "tenants": {"count": 3, "weights": [5.0, 1.0, 1.0]},
            "prefix": draw(st.sampled_from([None, {"groups": 2, "tokens": 8}])),
            "samples": samples,
        },
        "latency": {"profile": draw(st.sampled_from(["unit", "roofline", "a100-sxm4-80gb"]))},
        "seed": draw(st.integers(0, 3)),
    }


def served(data: dict[str, Any], **engine: Any) -> list[tuple[int, int]]:
    """(id, output tokens) of every request, all of them finished."""
    result = as_asked(scenario.from_dict(data | {"engine": data["engine"] | engine}))
    counts = result.summary["num_requests"]
    assert counts["finished"] == counts["arrived"] == data["workload"]["num_requests"]
    frame = result.requests
    workload = data["workload"]
    prompts, outputs = workload["prompt_tokens"]["values"], workload["output_tokens"]["values"]
    prefix = workload["prefix"]["tokens"] if workload["prefix"] else 0
    for number, prompt, tokens in zip(frame["id"], frame["prompt_tokens"], frame["output_tokens"], strict=True):
        assert prompt in (prompts[number % len(prompts)], prompts[number % len(prompts)] + prefix)
        wanted = min(outputs[number % len(outputs)], data["engine"]["max_model_len"] - prompt)
        assert tokens == wanted * workload["samples"]
    return [(int(number), int(tokens)) for number, tokens in zip(frame["id"], frame["output_tokens"], strict=True)]


@given(data=runs(ample=False))
@PROPERTY
def test_everybody_gets_every_token_under_pressure(data: dict[str, Any]) -> None:
    assert len(served(data)) == data["workload"]["num_requests"]


@given(data=runs(ample=False))
@PROPERTY
def test_prefix_caching_never_changes_what_a_request_outputs(data: dict[str, Any]) -> None:
    assert served(data, enable_prefix_caching=True) == served(data, enable_prefix_caching=False)


@given(data=runs(ample=True))
@PROPERTY
def test_with_ample_memory_all_policies_deliver_the_same(data: dict[str, Any]) -> None:
    answers = [served(data, policy=policy) for policy in ("fcfs", "priority", "sjf", "fair")]
    assert all(answer == answers[0] for answer in answers)


@given(data=runs(ample=True))
@PROPERTY
def test_with_ample_memory_nobody_is_preempted_and_preemption_settings_do_not_matter(data: dict[str, Any]) -> None:
    results = []
    for preemption in ("recompute", "swap", "auto"):
        engine = data["engine"] | {"preemption": preemption, "host_pool_gib": 1.0}
        results.append(as_asked(scenario.from_dict(data | {"engine": engine})))
        assert results[-1].summary["num_preemptions"] == 0
    for name in ("requests", "steps", "slots"):
        assert results[0].tables[name].equals(results[1].tables[name])
        assert results[0].tables[name].equals(results[2].tables[name])
