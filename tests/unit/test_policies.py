"""The policies that the real engine does not have: shortest prompt first and least-served tenant first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import hypothesis.strategies as st
import pandas as pd
import pytest
from ears import Ear
from hypothesis import HealthCheck, given, settings

from simkit import api, scenario
from simkit.batching.continuous import ContinuousBatcher, ContinuousSettings
from simkit.batching.policies import FAIR_FLOOR_TOKENS, POLICIES, FairQueue, Policy, SortedQueue
from simkit.engine.build import set_up
from simkit.engine.run import simulate
from simkit.kv.paged import PagedAllocator
from simkit.scenario import Engine
from simkit.sequence import Phase, Sequence
from simkit.types import Request


def run(engine: dict[str, Any], workload: dict[str, Any], **top: Any) -> api.Result:
    """A synchronous run of 1 ms steps without caching."""
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"async_scheduling": False, "enable_prefix_caching": False, "max_model_len": 256} | engine,
        "workload": {"arrivals": {"process": "all_at_once"}} | workload,
        "latency": {"profile": "unit"},
    }
    return api.run(scenario.from_dict(data | top))


def listed(*values: int) -> dict[str, Any]:
    return {"dist": "list", "values": list(values)}


def order(frame: pd.DataFrame) -> list[int]:
    """Ids by first pass."""
    return [int(number) for number in frame.sort_values(["first_scheduled_ns", "id"], kind="stable")["id"]]


# --- sjf --------------------------------------------------------------------------------------------------------------


def test_sjf_takes_the_shortest_prompt_and_ties_in_order_of_arrival() -> None:
    workload = {"num_requests": 6, "prompt_tokens": listed(9, 3, 7, 3, 1, 9), "output_tokens": listed(2)}
    assert order(run({"max_num_seqs": 1, "policy": "sjf"}, workload).requests) == [4, 1, 3, 2, 0, 5]
    assert order(run({"max_num_seqs": 1, "policy": "fcfs"}, workload).requests) == [0, 1, 2, 3, 4, 5]


def test_sjf_shortens_the_mean_wait_and_starves_the_long() -> None:
    workload = {"num_requests": 40, "prompt_tokens": listed(200, 10, 10, 10), "output_tokens": listed(4)}
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 64}
    waits = {
        policy: run(limits | {"policy": policy}, workload).requests["first_scheduled_ns"] for policy in ("fcfs", "sjf")
    }
    assert waits["sjf"].mean() < 0.8 * waits["fcfs"].mean()
    assert waits["sjf"][::4].min() >= waits["sjf"].drop(waits["sjf"].index[::4]).max()


def test_sjf_sends_a_victim_back_to_its_place() -> None:
    kv, ear = PagedAllocator(7, 4), Ear(24)
    batcher = ContinuousBatcher(ContinuousSettings(4, 64, 24, policy="sjf"), kv, ear)
    for number, prompt in enumerate((8, 12, 9)):
        batcher.add(Sequence(Request(number, number, prompt, 12, 12)))
    seen = set()
    while batcher.has_work():
        plan = batcher.plan()
        assert plan is not None
        if plan.preemptions:
            waiting = [seq.num_prompt_tokens for seq in batcher.waiting]
            assert waiting == sorted(waiting)
            seen |= {preemption.seq.id for preemption in plan.preemptions}
        batcher.commit(plan)
    assert seen
    assert ear.heard == {0: 12, 1: 12, 2: 12}


@pytest.mark.parametrize("policy", ["sjf", "priority", "fair", "fcfs"])
def test_samples_of_one_request_can_wait_side_by_side(policy: str) -> None:
    """Preempted samples share whatever orders the queue, their number included."""
    engine = {"policy": policy, "max_num_seqs": 4, "max_model_len": 32, "block_size": 1, "num_gpu_blocks": 33}
    workload = {"num_requests": 2, "prompt_tokens": listed(4), "output_tokens": listed(20), "samples": 4}
    result = run(engine, workload)
    assert result.summary["num_preemptions"] >= 2
    assert list(result.requests["output_tokens"]) == [80, 80]


# --- fair -------------------------------------------------------------------------------------------------------------


def finished_while_both_wait(policy: str) -> tuple[int, int]:
    """Of a load of 10 to 1: requests of either tenant that were done when the last of the light one got its slot."""
    workload = {
        "num_requests": 330,
        "prompt_tokens": listed(20),
        "output_tokens": listed(10),
        "tenants": {"count": 2, "weights": [10.0, 1.0]},
    }
    frame = run({"max_num_seqs": 4, "policy": policy}, workload).requests
    light = frame[frame["tenant"] == 1]
    assert 200 > len(frame) - 10 * len(light) > -200
    until = light["first_scheduled_ns"].max()
    done = frame[frame["last_token_ns"] <= until]
    return int((done["tenant"] == 0).sum()), int((done["tenant"] == 1).sum())


def test_two_tenants_get_equal_service_while_both_wait() -> None:
    heavy, light = finished_while_both_wait("fair")
    assert light >= 20
    assert abs(heavy - light) <= 4
    heavy, light = finished_while_both_wait("fcfs")
    assert heavy >= 6 * light, "first come, first served gives the loud one more"


def test_service_is_counted_in_tokens_not_requests() -> None:
    """Tenant 0 asks for four times as much a request, so it gets a quarter as many."""
    batcher = ContinuousBatcher(ContinuousSettings(1, 64, 64, policy="fair"), PagedAllocator(99, 4), Ear(64))
    queue = batcher.waiting
    for number in range(40):
        tenant = number % 2
        prompt, output = ((20, 21), (5, 6))[tenant]
        batcher.add(Sequence(Request(number, 0, prompt, output, output, tenant=tenant)))
    done: Counter[int] = Counter()
    while len({seq.tenant for seq in queue}) == 2:
        plan = batcher.plan()
        assert plan is not None
        done.update(chunk.seq.tenant for chunk in plan.explicit if chunk.kind == "N")
        batcher.commit(plan)
    assert done[1] >= 16
    assert 3.5 <= done[1] / done[0] <= 4.5


def test_idling_earns_no_credit() -> None:
    queue = FairQueue()
    first = [Sequence(Request(number, 0, 4, 4, 4, tenant=0)) for number in range(3)]
    late = [Sequence(Request(10 + number, 5, 4, 4, 4, tenant=1)) for number in range(3)]
    for seq in first:
        queue.push(seq)
    assert queue.pop() is first[0]
    queue.served[0] += 1000
    for seq in late:
        queue.push(seq)
    queue.place_arrivals()
    assert queue.served[1] == 1000
    taken = []
    for _ in range(5):
        taken.append(queue.pop())
        queue.served[taken[-1].tenant] += 8
    assert [seq.tenant for seq in taken] == [0, 1, 0, 1, 1]
    assert len(queue) == 0


def test_a_tenant_keeps_what_it_was_served_when_it_comes_back() -> None:
    queue = FairQueue()
    heavy, light = Sequence(Request(0, 0, 4, 4, 4, tenant=0)), Sequence(Request(1, 0, 4, 4, 4, tenant=1))
    queue.push(heavy)
    queue.pop()
    queue.served[0] += 500
    queue.push(light)
    queue.place_arrivals()
    queue.served[1] = 100
    queue.push(heavy)
    assert queue.served[0] == 500
    assert queue.peek() is light


def test_within_a_tenant_first_come_first_served_and_victims_first() -> None:
    queue = FairQueue()
    seqs = [Sequence(Request(number, number, 4, 4, 4, tenant=0)) for number in range(3)]
    for seq in seqs:
        queue.push(seq)
    assert queue.pop() is seqs[0]
    queue.push_preempted(seqs[0])
    assert list(queue) == seqs
    queue.remove(seqs[1])
    assert list(queue) == [seqs[0], seqs[2]]


@given(data=st.data())
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_below_the_floor_nobody_is_a_victim_while_others_are_above(data: st.DataObject) -> None:
    """And of those that may be taken it is the last admitted of the most served tenant."""
    kv, ear = PagedAllocator(1 + data.draw(st.integers(35, 60)), 4), Ear(140)
    limits = ContinuousSettings(data.draw(st.integers(2, 6)), 64, 140, policy="fair")
    batcher = ContinuousBatcher(limits, kv, ear)
    count = data.draw(st.integers(3, 8))
    for number in range(count):
        prompt, output = data.draw(st.integers(1, 40)), data.draw(st.integers(10, 90))
        batcher.add(Sequence(Request(number, number, prompt, output, output, tenant=data.draw(st.integers(0, 2)))))
    at_admission: dict[int, int] = {}
    for _ in range(3000):
        if not batcher.has_work():
            break
        running, served = list(batcher.members()), dict(batcher.waiting.served)  # type: ignore[attr-defined]
        plan = batcher.plan()
        assert plan is not None
        for victim in (preemption.seq for preemption in plan.preemptions):
            above = [s for s in running if s.num_output_tokens - at_admission[s.id] >= FAIR_FLOOR_TOKENS]
            assert victim in (above or running)
            most = max(served[seq.tenant] for seq in above or running)
            assert victim is [seq for seq in above or running if served[seq.tenant] == most][-1]
            running.remove(victim)
        for chunk in plan.explicit:
            if chunk.kind in "NR":
                at_admission[chunk.seq.id] = chunk.seq.num_output_tokens
        batcher.commit(plan)
        kv.check_integrity()
    assert not batcher.has_work(), "nobody starves"
    assert len(ear.heard) == count


def test_the_floor_matters() -> None:
    """The most served tenant's newcomer is spared; the other tenant's old sequence goes instead."""
    kv, ear = PagedAllocator(1 + 13, 4), Ear(48)
    batcher = ContinuousBatcher(ContinuousSettings(3, 64, 48, policy="fair"), kv, ear)
    old = Sequence(Request(0, 0, 1, 45, 45, tenant=1))
    batcher.add(old)
    for _ in range(FAIR_FLOOR_TOKENS + 2):
        plan = batcher.plan()
        assert plan is not None
        batcher.commit(plan)
    young = Sequence(Request(1, 1, 13, 30, 30, tenant=0))
    batcher.add(young)
    batcher.waiting.served[0] = 10_000  # type: ignore[attr-defined]
    victims: list[Sequence] = []
    while not victims:
        plan = batcher.plan()
        assert plan is not None
        victims = [preemption.seq for preemption in plan.preemptions]
        batcher.commit(plan)
    assert victims == [old]
    assert young.num_output_tokens < FAIR_FLOOR_TOKENS


# --- a further policy -------------------------------------------------------------------------------------------------


def test_the_schema_of_scenarios_has_the_policies_of_the_table() -> None:
    assert get_args(Engine.model_fields["policy"].annotation) == tuple(POLICIES)


class LongestFirst(Policy):
    """The longest prompt first; whoever has generated most is preempted. Counts what it is asked to charge for."""

    charges = True
    preempts_last = False

    def __init__(self) -> None:
        self.waiting = SortedQueue(lambda seq: (-seq.num_prompt_tokens, seq.arrival_ns, seq.id))
        self.charged = 0
        MADE.append(self)

    def charge(self, scheduled: Mapping[Sequence, int], group: Mapping[int, int], num_steps: int = 1) -> None:
        self.charged += sum(scheduled.values()) + num_steps * sum(group.values())

    def victim(self, running: dict[Sequence, None]) -> Sequence:
        return max(running, key=lambda seq: seq.num_output_tokens)


MADE: list[LongestFirst] = []


@pytest.mark.parametrize("single_step", [False, True])
def test_a_policy_is_its_object_and_its_entry_in_the_table(single_step: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the rest, from the engine to the summary, follows: one that exists nowhere else serves a whole run."""
    workload = {"num_requests": 6, "prompt_tokens": listed(9, 3, 7, 3, 1, 11), "output_tokens": listed(2)}
    engine = {"max_num_seqs": 1, "async_scheduling": False, "enable_prefix_caching": False, "max_model_len": 256}
    data = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": engine,
        "workload": {"arrivals": {"process": "all_at_once"}} | workload,
        "latency": {"profile": "unit"},
    }
    setup = set_up(scenario.from_dict(data))
    monkeypatch.setitem(POLICIES, "longest", LongestFirst)
    changed = setup.scenario.engine.model_copy(update={"policy": "longest"})
    MADE.clear()
    facts = simulate(
        replace(setup, scenario=setup.scenario.model_copy(update={"engine": changed})), single_step=single_step
    )
    columns = facts.record.requests.sort("first_scheduled_ns")
    assert list(columns["id"]) == [5, 0, 2, 1, 3, 4]
    assert list(columns["output_tokens"]) == [2] * 6
    # Of two tokens the second is never computed.
    assert [policy.charged for policy in MADE] == [34 + 6]


def test_a_made_up_victim_is_preempted_and_loses_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "longest", LongestFirst)
    kv, ear = PagedAllocator(1 + 12, 1), Ear(48)
    batcher = ContinuousBatcher(ContinuousSettings(3, 64, 48, policy="longest"), kv, ear)
    seqs = [Sequence(Request(number, number, prompt, 6, 6)) for number, prompt in enumerate((2, 3, 4))]
    batcher.add(seqs[0])
    victims: list[int] = []
    while batcher.has_work():
        plan = batcher.plan()
        assert plan is not None
        victims += [preemption.seq.id for preemption in plan.preemptions]
        batcher.commit(plan)
        kv.check_integrity()
        for seq in seqs[1:]:
            if seq.phase is Phase.WAITING and seq not in batcher.waiting and not ear.heard[seq.id]:
                batcher.add(seq)
    assert victims[0] == 0  # the first came first, so it has generated most
    assert ear.heard == {0: 6, 1: 6, 2: 6}
