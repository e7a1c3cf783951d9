"""What comes of a log is the same in macro steps and single steps: shared prompts, turns that wait, warm-up, counting.

Requests are few and alike, pools small, so that prompts are found, evicted and found again, and turns meet arrivals.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from served import MS, Turns, request, serving
from test_macro_equals_single import STEP_S, assert_equal_outcomes, build, engines

from simkit import scenario
from simkit.types import Request

SETTINGS = settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])

PROMPT_BLOCK = 4
"""Tokens of a block of the log."""


@st.composite
def drawn_requests(draw: st.DrawFn) -> tuple[list[Request], Turns | None]:
    """Up to 16 requests in arrival order, some the next turn of others, whose prompts are made of few blocks."""
    count = draw(st.integers(1, 16))
    texts = [draw(st.lists(st.integers(0, 1), min_size=1, max_size=5)) for _ in range(count)]
    lengths = [max(1, len(text) * PROMPT_BLOCK - draw(st.integers(0, PROMPT_BLOCK - 1))) for text in texts]
    outputs = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    gaps_ms = draw(st.lists(st.sampled_from([0, 0, 0.5, 1, 2.5, 9]), min_size=count, max_size=count))
    priorities = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    made, at_ms = [], 0.0
    for number, gap_ms in enumerate(gaps_ms):
        at_ms += gap_ms
        shared = _shared(texts, lengths, number)
        more = {"priority": priorities[number], "tenant": number % 2, "shared": shared}
        made.append(request(number, at_ms, lengths[number], outputs[number % len(outputs)], **more))
    if not draw(st.booleans()):
        return made, None
    thinking = st.sampled_from([0, 0, MS // 2, MS, 5 * MS])
    before = [draw(st.none() | st.integers(0, number - 1)) if number else None for number in range(count)]
    turns: Turns = {}
    for number, last in enumerate(before):
        if last is not None:
            turns[last] = (*turns.get(last, ()), (made[number], draw(thinking)))
    return [one for one, last in zip(made, before, strict=True) if last is None], turns


def _shared(texts: list[list[int]], lengths: list[int], number: int) -> tuple[tuple[int, int], ...]:
    """Whom the prompt begins as: by whole blocks of the log, the first prompt that has them."""
    upto: dict[int, int] = {}
    for index in range(lengths[number] // PROMPT_BLOCK):
        begin, end = texts[number][: index + 1], (index + 1) * PROMPT_BLOCK
        owner = next(n for n in range(number + 1) if texts[n][: index + 1] == begin and lengths[n] >= end)
        if owner < number:
            upto[owner] = end
    return tuple(upto.items())


@st.composite
def scenarios(draw: st.DrawFn) -> scenario.Scenario:
    engine = draw(engines())
    if draw(st.booleans()):
        needed = -(-engine["max_model_len"] // engine["block_size"])
        engine |= {
            "batching": "continuous",
            "kv_allocator": "paged",
            "enable_prefix_caching": True,
            "num_gpu_blocks": 1 + needed + draw(st.sampled_from([0, 0, needed // 2, 4 * needed])),
            "watermark": 0.0,
        }
    workload: dict[str, Any] = {
        "trace": {"path": "log.csv"},
        "timeout_s": draw(st.sampled_from([None, None, None, 9 * STEP_S])),
        "samples": draw(st.sampled_from([1, 1, 1, min(2, engine["max_num_active_seqs"] or engine["max_num_seqs"])])),
        "queue_limit": draw(st.sampled_from([None, None, None, 3])),
    }
    if engine["capacity_scheduler_policy"] == "guaranteed_no_evict":
        workload["samples"] = 1
    replicas = draw(st.integers(1, 3))
    fails = draw(st.booleans()) and replicas > 1
    failures = [{"replica": 0, "at_s": 7.5 * STEP_S, "for_s": draw(st.sampled_from([None, 6 * STEP_S]))}]
    return build(
        engine,
        workload,
        replicas=replicas,
        failures=failures if fails else [],
        latency={"profile": draw(st.sampled_from(["unit", "unit", "roofline"]))},
    )


def served(drawn: scenario.Scenario, requests: list[Request], turns: Turns | None, **facts: Any) -> Counter[str]:
    """Check a scenario with these requests; what happened, by name."""
    with serving(requests, successors=turns, **facts):
        result = assert_equal_outcomes(drawn)
    if isinstance(result, str):
        return Counter(stuck=1)
    counts = result.summary["num_requests"]
    total = len(requests) + sum(map(len, (turns or {}).values()))
    ends = ("finished", "rejected", "refused", "aborted", "unfinished")
    assert counts["arrived"] == total == sum(counts[end] for end in ends)
    return Counter(
        hits=int(result.requests["cached_tokens"].sum() > 0), preempted=int(result.summary["num_preemptions"] > 0)
    )


def test_logs_in_macro_steps_equal_single_steps() -> None:
    seen: Counter[str] = Counter()

    @given(scenarios(), drawn_requests(), st.sampled_from([0, 0, 3]))
    @SETTINGS
    def check(drawn: scenario.Scenario, made: tuple[list[Request], Turns | None], num_warm: int) -> None:
        requests, turns = made
        seen.update(served(drawn, requests, turns, num_warm=num_warm))
        seen["turns"] += bool(turns)

    check()
    assert min(seen["hits"], seen["preempted"], seen["turns"]) > 20, seen


def test_counted_blocks_and_named_ones_are_the_same_where_nothing_is_alike() -> None:
    """Single steps name all blocks; runs of steps count them, until somebody is preempted."""
    seen: Counter[str] = Counter()

    @given(scenarios(), drawn_requests())
    @SETTINGS
    def check(drawn: scenario.Scenario, made: tuple[list[Request], Turns | None]) -> None:
        requests = [one._replace(shared=()) for one in made[0]]
        turns = made[1] and {
            last: tuple((one._replace(shared=()), think_ns) for one, think_ns in following)
            for last, following in made[1].items()
        }
        seen.update(served(drawn, requests, turns, prefix_known=False))

    check()
    assert seen["preempted"] > 20, seen
