"""Swap preemption: bytes and time in both directions, a pool that ends, and the cheaper of two ways out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simkit import api, scenario
from simkit.engine.build import set_up
from simkit.kv.swap import HostPool
from simkit.latency.protocol import OneStep, Unit
from simkit.latency.roofline import Roofline
from simkit.sequence import Sequence
from simkit.types import Ints, Request, StepShapes

KV_BYTES = 2 * 32 * 8 * 128 * 2
"""Of a token of llama-3-8b: K and V, 32 layers, 8 KV heads of 128, 2 bytes."""
GIB = 1 << 30


def build(engine: dict[str, Any], prompt: int, output: int, count: int = 4) -> scenario.Scenario:
    """All at once on an A100, memory for `num_gpu_blocks` blocks of 16."""
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {
            "async_scheduling": False,
            "enable_prefix_caching": False,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 8192,
            "preemption": "swap",
            "host_pool_gib": 64.0,
        }
        | engine,
        "workload": {
            "num_requests": count,
            "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"dist": "fixed", "value": prompt},
            "output_tokens": {"dist": "fixed", "value": output},
        },
        "latency": {"profile": "roofline"},
    }
    return scenario.from_dict(data)


def tight(prompt: int, output: int) -> dict[str, Any]:
    """Memory that holds four prompts but not four answers."""
    blocks = -(-4 * prompt // 16) + 5
    return {"num_gpu_blocks": blocks + -(-output // 16) + 1, "max_model_len": prompt + output}


class Log:
    """Every step that was priced: its shapes and its time."""

    def __init__(self) -> None:
        self.steps: list[tuple[StepShapes, int]] = []

    def moved(self, name: str) -> list[int]:
        return [int(getattr(shapes, name)[0]) for shapes, _ in self.steps if getattr(shapes, name).any()]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    kept = Log()
    one_ns, decode_ns = Roofline.one_ns, Roofline.decode_ns

    def one(self: Roofline, step: OneStep) -> int:
        duration = one_ns(self, step)
        kept.steps.append((step.shapes(1), duration))
        return duration

    def decode(self: Roofline, step: OneStep, num_steps: int) -> list[int] | Ints:
        durations, shapes = decode_ns(self, step, num_steps), step.shapes(num_steps)
        kept.steps += [(shapes.part(k, k + 1), int(duration)) for k, duration in enumerate(durations)]
        return durations

    monkeypatch.setattr(Roofline, "one_ns", one)
    monkeypatch.setattr(Roofline, "decode_ns", decode)
    return kept


@pytest.mark.parametrize("tensor_parallel_size", [1, 4])
def test_bytes_and_time_in_both_directions(log: Log, tensor_parallel_size: int) -> None:
    drawn = build(tight(400, 200), 400, 200)
    drawn = scenario.apply_sets(drawn, {"hardware.tensor_parallel_size": tensor_parallel_size})
    latency, gpu = set_up(drawn).latency, set_up(drawn).gpu
    result = api.run(drawn, single_step=True)
    assert result.summary["num_preemptions"] > 0
    out, back = log.moved("swap_out_bytes"), log.moved("swap_in_bytes")
    assert sum(out) == sum(back) > 0
    assert all(moved % (16 * KV_BYTES) == 0 for moved in out + back), "whole blocks, of all ranks together"
    assert sum(out) >= result.summary["num_preemptions"] * 400 * KV_BYTES

    for shapes, duration in list(log.steps):
        moved = int(shapes.swap_in_bytes[0] + shapes.swap_out_bytes[0])
        if moved:
            values = {name: int(getattr(shapes, name)[0]) for name in StepShapes.__slots__ if "swap" not in name}
            without = int(latency.step_ns(StepShapes.of(1, **values))[0])
            by_hand = moved / (gpu.pcie_bytes_per_s * tensor_parallel_size) * 1e9
            assert duration - without == pytest.approx(by_hand, abs=2)


def test_the_first_victim_moves_its_blocks_and_no_others(log: Log) -> None:
    """Two prompts of 160 tokens in 22 blocks: the second gives way with 11 blocks, and comes back with them."""
    drawn = build({"num_gpu_blocks": 23, "max_model_len": 200}, 160, 40, count=2)
    result = api.run(drawn, single_step=True)
    assert result.summary["num_preemptions"] == 1
    assert log.moved("swap_out_bytes") == log.moved("swap_in_bytes") == [11 * 16 * KV_BYTES]


def prefilled(result: api.Result) -> int:
    return int(result.steps["prefill_tokens"].sum())


def test_swapped_tokens_are_not_computed_again() -> None:
    """Each return costs a chunk of the one token that is missing; recomputing costs the whole sequence."""
    swap = api.run(build(tight(400, 200), 400, 200))
    recompute = api.run(build(tight(400, 200) | {"preemption": "recompute"}, 400, 200))
    assert prefilled(swap) == 4 * 400 + swap.summary["num_preemptions"]
    assert prefilled(recompute) > 4 * 400 + 400 * recompute.summary["num_preemptions"]
    for result in (swap, recompute):
        assert list(result.requests["output_tokens"]) == [200] * 4


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf", "fair"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_everything_is_delivered_and_the_pool_is_empty_at_the_end(
    monkeypatch: pytest.MonkeyPatch, policy: str, asynchronous: bool
) -> None:
    pools: dict[HostPool, int] = {}

    def watched(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: HostPool, *args: Any) -> Any:
            result = right(self, *args)
            self.check_integrity()
            assert 0 <= self.num_held_tokens <= self.capacity_tokens
            pools[self] = max(pools.get(self, 0), self.num_held_tokens)
            return result

        return call

    monkeypatch.setattr(HostPool, "try_store", watched(HostPool.try_store))
    monkeypatch.setattr(HostPool, "release", watched(HostPool.release))
    pool = 640 * KV_BYTES / GIB
    for host_pool_gib in (pool, 64.0):
        engine = {"policy": policy, "async_scheduling": asynchronous, "host_pool_gib": host_pool_gib}
        result = api.run(build(tight(400, 200) | engine, 400, 200, count=8))
        assert list(result.requests["output_tokens"]) == [200] * 8
    assert pools
    assert all(held.num_held_tokens == 0 for held in pools)
    assert any(most > 0 for most in pools.values())


def test_a_pool_of_nothing_recomputes_as_if_it_were_not_there() -> None:
    """Table by table the same as recompute."""
    swap = api.run(build(tight(400, 200) | {"host_pool_gib": 0.0}, 400, 200))
    recompute = api.run(build(tight(400, 200) | {"preemption": "recompute"}, 400, 200))
    assert swap.summary["num_preemptions"] > 0
    for name in ("requests", "steps", "slots"):
        assert swap.tables[name].equals(recompute.tables[name]), name


def test_a_full_pool_falls_back_to_recompute(log: Log) -> None:
    """Room for one victim at a time: some are swapped, the others lose what they had."""
    engine = {"num_gpu_blocks": 70, "max_model_len": 496, "host_pool_gib": 320 * KV_BYTES / GIB}
    result = api.run(build(engine, 96, 400, count=8), single_step=True)
    assert list(result.requests["output_tokens"]) == [400] * 8
    assert log.moved("swap_out_bytes")
    assert all(moved <= 320 * KV_BYTES for moved in log.moved("swap_out_bytes"))
    assert prefilled(result) > 8 * 96 + result.summary["num_preemptions"] + 96
    ample = api.run(build(engine | {"host_pool_gib": 64.0}, 96, 400, count=8), single_step=True)
    assert prefilled(ample) == 8 * 96 + ample.summary["num_preemptions"]


def test_the_pool_is_finite_and_keeps_its_books() -> None:
    pool = HostPool(100, 7)
    one, two = (Sequence(Request(number, 0, 10, 10, 10)) for number in range(2))
    assert pool.try_store(one, 60)
    assert not pool.try_store(two, 41)
    assert (pool.holds(one), pool.holds(two), pool.num_held_tokens) == (True, False, 60)
    assert pool.try_store(two, 40)
    pool.check_integrity()
    assert pool.release(one) == 60
    assert (pool.holds(one), pool.num_held_tokens, pool.bytes_per_token) == (False, 40, 7)
    with pytest.raises(AssertionError):
        pool.try_store(two, 1)
    pool.num_held_tokens += 1
    with pytest.raises(AssertionError):
        pool.check_integrity()


# --- auto -------------------------------------------------------------------------------------------------------------


def costs(computed: int) -> tuple[int, int]:
    """What a decode step of one sequence takes when the victim is swapped out and in, and when it is recomputed."""
    step_ns = set_up(build({"preemption": "auto"}, 100, 100)).latency.step_ns
    moved = -(-computed // 16) * 16 * KV_BYTES
    base = {"decode_seqs": 1, "decode_context_sum": computed, "decode_context_max": computed, "sampled_seqs": 1}
    swap = StepShapes.of(1, **base, swap_in_bytes=moved, swap_out_bytes=moved)
    pairs = computed * (computed + 1) // 2
    recompute = StepShapes.of(1, **base, prefill_tokens=computed, prefill_pairs=pairs)
    return int(step_ns(swap)[0]), int(step_ns(recompute)[0])


def crossover() -> int:
    """Computed tokens from which swapping is cheaper."""
    low, high = 16, 8192
    while high - low > 16:
        middle = (low + high) // 2
        swap, recompute = costs(middle)
        low, high = (low, middle) if swap < recompute else (middle, high)
    return high


def test_there_is_a_crossover_on_this_gpu() -> None:
    short, long = costs(32), costs(4000)
    assert short[0] > short[1]
    assert long[0] < long[1]
    assert 32 < crossover() < 4000


@pytest.mark.parametrize(("side", "swaps"), [("short", False), ("long", True)])
def test_auto_recomputes_short_sequences_and_swaps_long_ones(side: str, swaps: bool) -> None:
    at = crossover()
    prompt, output = (at // 3 // 16 * 16, 24) if side == "short" else (3 * at // 16 * 16, 200)
    kinds = ("auto", "swap", "recompute")
    runs = {kind: api.run(build(tight(prompt, output) | {"preemption": kind}, prompt, output)) for kind in kinds}
    assert runs["auto"].summary["num_preemptions"] > 0
    same, other = ("swap", "recompute") if swaps else ("recompute", "swap")
    for name in ("requests", "steps", "slots"):
        assert runs["auto"].tables[name].equals(runs[same].tables[name])
    assert not runs["auto"].tables["requests"].equals(runs[other].tables["requests"])
    assert runs["auto"].summary["makespan_s"] < runs[other].summary["makespan_s"]


def test_auto_without_a_pool_recomputes() -> None:
    engine = tight(4000, 200)
    auto = api.run(build(engine | {"preemption": "auto", "host_pool_gib": 0.0}, 4000, 200))
    recompute = api.run(build(engine | {"preemption": "recompute"}, 4000, 200))
    assert auto.summary["num_preemptions"] > 0
    assert auto.tables["requests"].equals(recompute.tables["requests"])


def test_what_leaves_in_a_pass_that_schedules_nobody_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval holds back the prefills and the only decode is its own victim: its bytes cross the link all the
    same, in the step that comes next."""
    right, moved = Unit.one_ns, {"swap_out_bytes": 0, "swap_in_bytes": 0}

    def one_ns(self: Unit, step: OneStep) -> int:
        for name in moved:
            moved[name] += getattr(step, name)
        return right(self, step)

    monkeypatch.setattr(Unit, "one_ns", one_ns)
    engine = {
        "block_size": 1,
        "max_model_len": 18,
        "num_gpu_blocks": 24,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 31,
        "enable_chunked_prefill": False,
        "policy": "priority",
        "prefill_schedule_interval": 8,
        "long_prefill_token_threshold": 4,
        "scheduler_reserve_full_isl": False,
    }
    changes = {
        "workload.prompt_tokens": {"dist": "list", "values": [10, 2, 13]},
        "workload.output_tokens": {"dist": "list", "values": [16, 8, 7]},
        "latency.profile": "unit",
    }
    api.run(scenario.apply_sets(build(engine, 1, 1, count=3), changes))
    assert moved["swap_out_bytes"] == moved["swap_in_bytes"] > 0
