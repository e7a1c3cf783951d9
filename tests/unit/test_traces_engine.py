"""What the engine does with a log: prompts that begin as others, turns that wait for the last, requests that warm up.

The workloads are made here, as the reader of logs would make them.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from served import MS, Turns, request, serving

from simkit import api, scenario
from simkit.engine import run as engine
from simkit.engine.build import set_up
from simkit.errors import InputError
from simkit.kv.prefix import PrefixCache, PromptTokens
from simkit.types import Request
from simkit.workload.build import Workload

TRACES = Path(__file__).resolve().parents[3] / "shared/data/traces"


def build(engine_settings: dict[str, Any] | None = None, **top: Any) -> scenario.Scenario:
    """Steps of 1 ms. The workload is replaced by what is served."""
    settings = {"max_model_len": 256, "num_gpu_blocks": 500, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    data = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": settings | (engine_settings or {}),
        "workload": {"trace": {"path": "log.csv"}},
        "latency": {"profile": "unit"},
    }
    return scenario.from_dict(data | top)


def keys(own: int, prompt: int, block: int, shared: tuple[tuple[int, int], ...] = (), **more: Any) -> list[Any]:
    tokens = PromptTokens(own, more.pop("group", -1), more.pop("prefix", 0), prompt, block, shared=shared, **more)
    return [tokens.block_key(index) for index in range(prompt // block)]


# --- whose tokens a block has -----------------------------------------------------------------------------------------


def test_a_block_belongs_to_the_owner_of_its_last_token() -> None:
    """Tokens 0 to 19 are those of request 3, up to 29 of request 5; block 2 ends with token 23, block 3 with 31."""
    assert keys(9, 40, 8, ((3, 20), (5, 30))) == [
        3 << 32, (3 << 32) + 1, (5 << 32) + 2, (9 << 32) + 3, (9 << 32) + 4,
    ]  # fmt: skip


@pytest.mark.parametrize("block", [1, 3, 4, 7, 16, 64])
def test_keys_are_equal_exactly_when_all_tokens_up_to_there_are(block: int) -> None:
    """Random prompts made of few letters, with the segments that a reader would find."""
    random = np.random.default_rng(block)
    prompts = [random.integers(0, 2, size=random.integers(1, 200)).cumsum() // 4 for _ in range(40)]
    prompts += [prompt[: len(prompt) // 2] for prompt in prompts[:10]]
    found: dict[tuple[int, ...], Any] = {}
    for number, prompt in enumerate(prompts):
        for index, key in enumerate(keys(number, len(prompt), block, segments(prompts, number))):
            text = tuple(prompt[: (index + 1) * block].tolist())
            assert found.setdefault(text, key) == key
    assert len(set(found.values())) == len(found)


def segments(prompts: list[Any], number: int) -> tuple[tuple[int, int], ...]:
    """For each token the first request whose prompt is equal up to it, joined where it is the same."""
    mine, upto = prompts[number], {}
    for owner in reversed(range(number)):
        length = min(len(mine), len(prompts[owner]))
        alike = mine[:length] == prompts[owner][:length]
        equal = length if alike.all() else int(alike.argmin())
        upto = {other: tokens for other, tokens in upto.items() if tokens > equal}
        if equal:
            upto[owner] = equal
    return tuple(sorted(upto.items(), key=lambda pair: pair[1]))


def test_a_synthetic_prefix_and_samples_stand_beside_what_a_log_shares() -> None:
    """Other groups are other prompts, even if the log says that what follows is alike; answers are their own."""
    base = keys(1, 32, 8, group=0, prefix=8)
    assert keys(2, 32, 8, ((1, 24),), group=0, prefix=8)[:3] == base[:3]
    assert not set(keys(3, 32, 8, ((1, 24),), group=1, prefix=8)) & set(base)
    assert not set(keys(3, 32, 8, ((1, 24),))) & set(base)
    answer = PromptTokens(4, -1, 0, 16, 8, sample=1, shared=((1, 16),))
    assert [answer.block_key(index) for index in range(3)] == [1 << 32, (1 << 32) + 1, (4, 2, 1)]


def test_blocks_that_nobody_took_cost_nothing() -> None:
    """Those used before and forgotten go first, then new ones in order, then what is cached, the oldest first."""
    cache = PrefixCache(10**12, 16)
    assert cache.take(4) == [1, 2, 3, 4]
    cache.enter(2, "two")
    cache.release([1, 2, 3])
    assert len(cache) == 10**12 - 2
    assert cache.take(3) == [3, 1, 5]
    cache.check([[4], [3, 1, 5]], 10**12)


# --- in a run ---------------------------------------------------------------------------------------------------------


def cached(drawn: scenario.Scenario) -> list[int]:
    return list(api.run(drawn).requests["cached_tokens"])


def test_what_a_prompt_shares_is_found_by_blocks_and_never_all_of_it() -> None:
    """The last token is computed always; with blocks of 16 tokens the 40 that are alike are two whole blocks."""
    served = [
        request(0, 0, 64, 2),
        request(1, 10, 64, 2, shared=((0, 40),)),
        request(2, 20, 64, 2, shared=((0, 40), (1, 64))),
        request(3, 30, 65, 2, shared=((0, 64),)),
    ]
    with serving(served):
        assert cached(build()) == [0, 32, 48, 64]
        assert cached(build({"block_size": 1})) == [0, 40, 63, 64]
        assert api.run(build()).summary["prefix_cache_hit_rate"] == (32 + 48 + 64) / (64 * 3 + 65)


def test_the_hit_rate_is_unknown_where_the_log_does_not_tell() -> None:
    served = [request(number, 10 * number, 64, 4) for number in range(4)]
    with serving(served, prefix_known=False):
        summary = api.run(build()).summary
    assert summary["prefix_cache_hit_rate"] is None
    assert summary["prefix_cache_hit_rate_reason"] == "the log does not say which prompts are alike"
    with serving(served):
        known = api.run(build()).summary
        off = api.run(build({"enable_prefix_caching": False})).summary
    assert known["prefix_cache_hit_rate"] == 0
    assert off["prefix_cache_hit_rate"] is None
    assert "prefix_cache_hit_rate_reason" not in {**known, **off}


def test_requests_that_warm_up_are_served_and_not_measured() -> None:
    """As with `warmup: {requests: 2}`, and the cache is warm for those that count."""
    served = [request(n, 10 * n, 64, 4, shared=((0, 64),) if n else ()) for n in range(5)]
    with serving(served, num_warm=2):
        warm = api.run(build())
    with serving(served):
        asked = api.run(build(warmup={"requests": 2}))
    assert warm.summary == asked.summary
    assert warm.summary["prefix_cache_hit_rate"] == 48 / 64
    assert warm.manifest["warmup"] == asked.manifest["warmup"]
    assert list(warm.requests["measured"]) == [False, False, True, True, True]
    assert warm.tables["requests"].equals(asked.tables["requests"])


def test_two_warm_ups_are_one_too_many() -> None:
    trace = {"path": "log.csv", "start_s": 60, "warmup_s": 60}
    with pytest.raises(InputError, match=r"warmup: expected none beside workload\.trace\.warmup_s"):
        build(warmup={"requests": 2}, workload={"trace": trace})


@pytest.mark.parametrize(("blocks", "preempts"), [(500, False), (20, True)])
def test_counting_blocks_where_nothing_can_be_found_changes_nothing(blocks: int, preempts: bool) -> None:
    """With 20 blocks sequences are preempted, and find their own blocks again."""
    served = [request(number, number / 4, 20 + number % 7, 60) for number in range(40)]
    drawn = build({"num_gpu_blocks": blocks})
    with serving(served, prefix_known=False):
        quick = api.run(drawn)
        with patch.object(engine, "_finds_nothing", lambda setup, workload: False):
            slow = api.run(drawn)
    assert (quick.summary["num_preemptions"] > 0) is preempts
    assert quick.summary == slow.summary
    assert quick.manifest == slow.manifest
    assert all(quick.tables[name].equals(slow.tables[name]) for name in slow.tables)


def test_blocks_are_counted_only_where_no_prompt_begins_as_another() -> None:
    """A log that says which prompts are alike, a prefix, and samples all need the names of blocks."""
    synthetic = {"arrivals": {"process": "all_at_once"}, "prompt_tokens": {"dist": "fixed", "value": 8}}
    synthetic["output_tokens"] = synthetic["prompt_tokens"]

    def counts(workload: dict[str, Any], *, known: bool = True, **settings: Any) -> bool:
        served = Workload(iter(()), 0, None, None, 0, (), {}, prefix_known=known)
        return engine._finds_nothing(set_up(build(settings, workload=workload)), served)

    trace = {"trace": {"path": "log.csv"}}
    assert counts(synthetic)
    assert counts(trace, known=False)
    assert not counts(trace)
    assert not counts(synthetic | {"samples": 2})
    assert not counts(synthetic | {"prefix": {"groups": 2, "tokens": 4}})
    assert not counts(trace | {"prefix": {"groups": 2, "tokens": 4}}, known=False)
    assert not counts(synthetic, enable_prefix_caching=False)


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_turn_comes_when_the_one_before_has_ended_and_the_thinking_is_over() -> None:
    """Alone, with steps of 1 ms: n outputs take n steps. A turn that does not think joins the very next pass."""
    turns = {0: ((request(1, 0, 8, 3), 10 * MS), (request(2, 0, 8, 1), 0)), 1: ((request(3, 0, 8, 2), 5 * MS),)}
    with serving([request(0, 1, 8, 4)], successors=turns):
        result = api.run(build({"async_scheduling": False}))
    assert list(result.requests["arrival_ns"]) == [1 * MS, 15 * MS, 5 * MS, 23 * MS]
    assert list(result.requests["first_token_ns"]) == [2 * MS, 16 * MS, 6 * MS, 24 * MS]
    assert result.summary["num_requests"]["finished"] == 4


@pytest.mark.parametrize(
    ("first", "workload", "status", "left_ms"),
    [
        (request(0, 1, 300, 4), {}, "rejected", 1),
        (request(0, 1, 8, 100), {"timeout_s": 0.0205}, "aborted", 22),
    ],
)
def test_the_next_turn_comes_however_the_last_one_left(
    first: Request, workload: dict[str, Any], status: str, left_ms: int
) -> None:
    turns = {0: ((request(1, 0, 8, 3), 7 * MS),)}
    drawn = build({"async_scheduling": False}, workload={"trace": {"path": "log.csv"}, **workload})
    with serving([first], successors=turns):
        result = api.run(drawn)
    assert result.summary["num_requests"][status] == 1
    assert result.requests["arrival_ns"][1] == (left_ms + 7) * MS


def test_a_queue_that_is_full_refuses_a_turn_and_the_next_one_comes_all_the_same() -> None:
    turns = {2: ((request(3, 0, 8, 3), 200 * MS),)}
    served = [request(n, 1, 8, 50) for n in range(3)]
    drawn = build({"max_num_seqs": 1}, workload={"trace": {"path": "log.csv"}, "queue_limit": 1})
    with serving(served, successors=turns):
        counts = api.run(drawn).summary["num_requests"]
    assert (counts["arrived"], counts["refused"], counts["finished"]) == (4, 2, 2)


def test_ten_thousand_turns_turned_away_at_one_instant_are_no_livelock() -> None:
    turns = {n: ((request(n + 1, 0, 300, 4), 0),) for n in range(12_000)}
    with serving([request(0, 1, 300, 4)], successors=turns):
        assert api.run(build()).summary["num_requests"]["rejected"] == 12_001


def test_turns_whose_session_is_lost_are_told() -> None:
    """The only replica fails for good while the first turn runs: what never arrives is counted, in words."""
    turns = {0: ((request(1, 0, 8, 3), MS),), 1: ((request(2, 0, 8, 3), MS),)}
    drawn = build(failures=[{"replica": 0, "at_s": 0.005}])
    with serving([request(0, 1, 8, 50)], successors=turns):
        result = api.run(drawn)
    assert result.summary["num_requests"]["arrived"] == result.summary["num_requests"]["unfinished"] == 1
    assert "workload: 2 turns were not sent because the one before them never ended" in result.manifest["notes"]


def test_a_held_batch_launches_when_only_a_departure_can_bring_the_next_request() -> None:
    """Static batching of two: the last turn of the session is alone, and nobody else will ever come."""
    turns = {0: ((request(2, 0, 8, 3), 50 * MS),)}
    served = [request(0, 1, 8, 4), request(1, 2, 8, 4)]
    with serving(served, successors=turns):
        result = api.run(build({"batching": "static", "max_num_seqs": 2, "enable_prefix_caching": False}))
    assert result.summary["num_requests"]["finished"] == 3
    third = result.requests.iloc[2]
    assert third["first_scheduled_ns"] == third["arrival_ns"]


def test_sessions_on_several_replicas_survive_one_that_fails() -> None:
    served, turns = sessions(20, 4)
    drawn = build(replicas=3, failures=[{"replica": 1, "at_s": 0.03, "for_s": 0.05}])
    with serving(served, successors=turns):
        first, again = api.run(drawn), api.run(drawn)
    assert first.summary["num_requests"]["finished"] == 80
    assert first.summary == again.summary
    assert first.tables["requests"].equals(again.tables["requests"])


def sessions(count: int, num_turns: int) -> tuple[list[Request], Turns]:
    """Sessions whose turns begin as the one before."""
    served, turns = [], {}
    for session in range(count):
        numbers = [session + turn * count for turn in range(num_turns)]
        chain = [
            request(number, session * 3, 20 + 15 * turn, 5 + (session + turn) % 9, shared=_history(numbers, turn))
            for turn, number in enumerate(numbers)
        ]
        served.append(chain[0])
        turns |= {a.id: ((b, (a.id % 4) * MS),) for a, b in pairwise(chain)}
    return served, turns


def _history(numbers: list[int], turn: int) -> tuple[tuple[int, int], ...]:
    return tuple((numbers[earlier], 20 + 15 * earlier) for earlier in range(turn))


# --- a log from production --------------------------------------------------------------------------------------------


def mooncake(path: Path, trace_block: int) -> list[Request]:
    """The rows of a Mooncake log with whom each prompt begins as: a block is the same if all before it are."""
    known: dict[tuple[int, int], tuple[int, int]] = {}
    found = []
    for number, line in enumerate(path.read_text().splitlines()):
        row = json.loads(line)
        length, node, shared = row["input_length"], 0, []
        for index, block in enumerate(row["hash_ids"]):
            node, owner = known.setdefault((node, block), (len(known) + 1, number))
            if owner != number:
                upto = min((index + 1) * trace_block, length, found[owner].prompt_tokens)
                if shared and shared[-1][0] == owner:
                    shared.pop()
                shared.append((owner, upto))
        outputs = row["output_length"]
        found.append(request(number, row["timestamp"], length, outputs, shared=tuple(shared)))
    return found


@pytest.mark.parametrize(("block", "rows"), [(16, 1000), (64, None)])
def test_the_hit_rate_of_a_production_log_is_that_of_its_blocks(block: int, rows: int | None) -> None:
    """0.3236 of the prompt tokens stand in blocks that an earlier row had (README of the traces); few rows at 16."""
    path = TRACES / "mooncake_conversation_0-20min.jsonl"
    if not path.exists():
        pytest.skip(f"needs {path.name} of ../shared")
    # Answers of one token: who answers longer only holds memory, of which there is enough.
    served = [r._replace(output_tokens=1, max_tokens=1) for r in mooncake(path, 512)][:rows]
    known = sum(r.shared[-1][1] for r in served if r.shared) / sum(r.prompt_tokens for r in served)
    drawn = build(
        {
            "block_size": block,
            "max_model_len": 131_072,
            "num_gpu_blocks": 3_200_000,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 131_072,
        },
        model="llama-3.1-8b",
        hardware={"gpu": "h200-sxm-141gb"},
    )
    with serving(served):
        summary = api.run(drawn).summary
    assert rows is not None or known == pytest.approx(0.3236, abs=0.0001)
    assert summary["prefix_cache_hit_rate"] == pytest.approx(known, abs=0.0005)
    assert summary["num_preemptions"] == 0
