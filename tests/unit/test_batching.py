"""Batchers pass by pass, on cases small enough to follow by hand (scheduler specification, sections 3 to 7 and 11)."""

from __future__ import annotations

from typing import Any

import pytest
from ears import Ear

from simkit.batching.continuous import ContinuousBatcher, ContinuousSettings
from simkit.batching.plan import Hold, StepPlan
from simkit.batching.promises import Promises
from simkit.batching.static import DynamicBatcher, StaticBatcher
from simkit.kv.contiguous import ContiguousAllocator
from simkit.kv.paged import PagedAllocator
from simkit.kv.prefix import PromptTokens
from simkit.kv.protocol import KVAllocator
from simkit.sequence import Sequence
from simkit.types import Request


def seq(
    number: int, prompt: int, max_tokens: int = 100, *, arrival: int = 0, priority: int = 0, reserve: int = 0
) -> Sequence:
    return Sequence(Request(number, arrival, prompt, max_tokens, max_tokens, priority=priority), reserve_tokens=reserve)


class Desk:
    """A continuous batcher on a paged pool of `blocks` usable blocks, driven one step at a time."""

    def __init__(self, blocks: int, block_size: int = 1, watermark: float = 0.0, **values: Any) -> None:
        limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 1000} | values
        self.kv = PagedAllocator(blocks + 1, block_size, watermark)
        self.ear = Ear(limits["max_model_len"])
        self.batcher = ContinuousBatcher(ContinuousSettings(**limits), self.kv, self.ear)

    def add(self, *seqs: Sequence) -> None:
        for one in seqs:
            self.batcher.add(one)

    def plan(self) -> StepPlan:
        plan = self.batcher.plan()
        assert isinstance(plan, StepPlan)
        self.kv.check_integrity()
        self.schedule = self.batcher.schedule(plan)
        assert len(self.schedule) == plan.num_scheduled
        assert sum(chunk.num_tokens for chunk in self.schedule) == plan.num_scheduled_tokens
        assert sum(chunk.samples for chunk in self.schedule) == plan.num_sampled
        return plan

    def step(self) -> dict[int, int]:
        """One pass and its outputs; who was scheduled, with how many tokens, in schedule order."""
        plan = self.plan()
        self.batcher.commit(plan)
        return self.scheduled

    @property
    def scheduled(self) -> dict[int, int]:
        """Who the last pass scheduled, with how many tokens, in schedule order."""
        return {chunk.seq.id: chunk.num_tokens for chunk in self.schedule}

    @property
    def running(self) -> list[int]:
        return [one.id for one in self.batcher.running]

    @property
    def waiting(self) -> list[int]:
        return [one.id for one in self.batcher.waiting]


def launched(plan: StepPlan) -> dict[int, int]:
    """Who a batch that runs to completion was launched with."""
    return {chunk.seq.id: chunk.num_tokens for chunk in plan.explicit}


# --- continuous: running, waiting, budget -----------------------------------------------------------------------------


def test_n_outputs_take_n_steps() -> None:
    """The step that completes the prompt samples its first token."""
    desk = Desk(100)
    desk.add(seq(0, 10, 3))
    assert [desk.step() for _ in range(3)] == [{0: 10}, {0: 1}, {0: 1}]
    assert desk.ear.gone == [0]
    assert desk.batcher.plan() is None
    assert desk.kv.num_free_blocks == 100


def test_decodes_come_first_and_prompts_share_what_is_left() -> None:
    desk = Desk(100, max_num_batched_tokens=10)
    desk.add(seq(0, 4))
    desk.step()
    desk.add(seq(1, 15), seq(2, 6))
    assert [desk.step() for _ in range(4)] == [{0: 1, 1: 9}, {0: 1, 1: 6, 2: 3}, {0: 1, 1: 1, 2: 3}, {0: 1, 1: 1, 2: 1}]


def test_a_chunk_that_leaves_the_prompt_unfinished_gives_no_token() -> None:
    desk = Desk(100, max_num_batched_tokens=10)
    a = seq(0, 25)
    desk.add(a)
    outputs = []
    for _ in range(4):
        desk.step()
        outputs.append(a.num_output_tokens)
    assert outputs == [0, 0, 1, 2]


def test_a_last_chunk_of_one_token_is_prefill() -> None:
    """A run of equal steps must not begin with it, or the first token would be stamped at its end."""
    desk = Desk(100, max_num_batched_tokens=8)
    desk.add(seq(0, 9))
    desk.step()
    plan = desk.plan()
    assert desk.scheduled == {0: 1}
    assert plan.num_sampled == 1
    assert not plan.stable
    desk.batcher.commit(plan)
    assert desk.plan().stable


def test_strict_head_of_line() -> None:
    """A head that does not fit keeps everybody behind it waiting, although the next one would fit."""
    desk = Desk(4, block_size=4)
    desk.add(seq(0, 7), seq(1, 12), seq(2, 4))
    assert desk.step() == {0: 7}
    assert desk.waiting == [1, 2]


def test_without_chunking_a_head_beyond_the_remaining_budget_stops_admission() -> None:
    desk = Desk(100, max_num_batched_tokens=10, enable_chunked_prefill=False)
    desk.add(seq(0, 2))
    desk.step()
    desk.add(seq(1, 10), seq(2, 2))
    assert desk.step() == {0: 1}
    assert desk.waiting == [1, 2]


@pytest.mark.parametrize(("cap", "admitted"), [(None, [0, 1, 2]), (2, [0, 1])])
def test_slots(cap: int | None, admitted: list[int]) -> None:
    desk = Desk(100, max_num_seqs=3, max_num_active_seqs=cap)
    desk.add(*(seq(i, 2) for i in range(5)))
    desk.step()
    assert desk.running == admitted


def test_a_lone_request_ignores_the_long_prefill_threshold() -> None:
    alone, pair = (Desk(100, max_num_batched_tokens=16, long_prefill_token_threshold=4) for _ in range(2))
    alone.add(seq(0, 10))
    pair.add(seq(0, 10), seq(1, 10))
    assert alone.step() == {0: 10}
    assert pair.step() == {0: 4, 1: 4}


def test_the_adaptive_threshold_is_the_share_of_the_budget() -> None:
    settings = {"long_prefill_token_threshold": 4, "long_prefill_token_threshold_adaptive": True}
    for others, cap in [(1, 8), (2, 5), (5, 4)]:  # max(4, 16 // requests)
        desk = Desk(100, max_num_batched_tokens=16, **settings)
        desk.add(*(seq(i, 10) for i in range(1 + others)))
        assert desk.step()[0] == cap


def test_an_arrival_that_narrows_the_adaptive_cap_may_admit_the_head() -> None:
    """So `add` must say that the next pass may decide otherwise, although the arrival is not the head."""
    settings = {"long_prefill_token_threshold": 1, "long_prefill_token_threshold_adaptive": True}
    desk = Desk(20, max_num_batched_tokens=18, scheduler_reserve_full_isl=False, **settings)
    desk.add(seq(0, 12))
    desk.step()
    assert desk.batcher.add(seq(1, 12))
    assert desk.step() == {0: 1}  # 18 // 2 = 9 tokens, 7 blocks free
    assert desk.batcher.add(seq(2, 12))
    assert desk.step() == {0: 1, 1: 6}  # 18 // 3 = 6


# --- continuous: memory -----------------------------------------------------------------------------------------------


def test_the_gate_counts_the_whole_prompt_and_can_be_switched_off() -> None:
    for gate, admitted in [(True, {0: 1}), (False, {0: 1, 1: 3})]:
        desk = Desk(6, block_size=4, max_num_batched_tokens=4, scheduler_reserve_full_isl=gate)
        desk.add(seq(0, 4))
        desk.step()
        desk.add(seq(1, 17))  # 5 blocks in all, 4 are free once the decode has its second
        assert desk.step() == admitted


@pytest.mark.parametrize(("gate", "passes"), [(True, {0: 1}), (False, {0: 1, 1: 5})])
def test_the_gate_counts_generated_tokens_of_a_resumed_request(gate: bool, passes: dict[int, int]) -> None:
    """5 blocks are free: enough for its prompt and for the chunk that the budget allows, not for all 8 known tokens."""
    desk = Desk(10, max_num_batched_tokens=6, scheduler_reserve_full_isl=gate)
    resumed = seq(1, 5)
    desk.add(seq(0, 1), resumed)
    assert [desk.step() for _ in range(4)] == [{0: 1, 1: 5}, {0: 1, 1: 1}, {0: 1, 1: 1}, {0: 1}]
    assert (desk.waiting, resumed.num_known_tokens, resumed.num_computed_tokens) == ([1], 8, 0)
    assert desk.step() == passes


def test_who_may_not_be_preempted_is_admitted_only_if_it_fits_to_its_end() -> None:
    """The second needs 10 blocks to its end, of which 12 - 8 are not promised: it waits until the first has left."""
    passes = {False: [{0: 4, 1: 4, 2: 1}], True: [{0: 4}, {0: 1}, {0: 1}, {0: 1}, {1: 4, 2: 1}]}
    for never, expected in passes.items():
        desk = Desk(12, never_evicts=never)
        desk.add(seq(0, 4, 4, reserve=8), seq(1, 4, 6, reserve=10), seq(2, 1, 1, reserve=2))
        assert [desk.step() for _ in expected] == expected


def test_blocks_that_are_shared_are_promised_once() -> None:
    """Of 12 blocks one sequence promises 8; a second one, of which 4 are the same, finds room for 8 + 8 - 4."""
    kv = PagedAllocator(13, 1, enable_prefix_caching=True)
    promises = Promises(kv)
    running: list[Sequence] = []
    for number in range(2):
        one = Sequence(Request(number, 0, 5, 3, 3), tokens=PromptTokens(number, 0, 4, 5, 1), reserve_tokens=8)
        kv.lookup(one)
        assert kv.try_admit(one, 5, 0, headroom=False)
        running.append(one)
    assert kv.shared_tokens == 4
    assert promises.leaves_room(Sequence(Request(2, 0, 0, 1, 1), reserve_tokens=0), running, 0)
    assert not promises.leaves_room(Sequence(Request(2, 0, 1, 1, 1), reserve_tokens=1), running, 0)


def test_the_watermark_is_waived_when_nothing_runs() -> None:
    desk = Desk(9, block_size=4, watermark=0.5)
    desk.add(seq(0, 36))
    assert desk.step() == {0: 36}
    for first, admitted in [(16, [0]), (12, [0, 1])]:  # W = 5: the second needs 1 of 5, or of 6, free blocks
        desk = Desk(9, block_size=4, watermark=0.5)
        desk.add(seq(0, first), seq(1, 4))
        desk.step()
        assert desk.running == admitted


def test_fcfs_evicts_the_last_and_a_pass_that_preempts_admits_nobody() -> None:
    desk = Desk(6, block_size=4)
    desk.add(seq(0, 8), seq(1, 12))
    desk.step()
    desk.add(seq(2, 4))
    plan = desk.plan()  # request 0 needs a third block; the victim frees 3, one is taken, 2 would do for the waiting
    assert desk.scheduled == {0: 1}
    assert [(p.seq.id, p.lost_tokens) for p in plan.preemptions] == [(1, 12)]
    assert desk.waiting == [1, 2]
    assert desk.kv.num_free_blocks == 3
    desk.batcher.commit(plan)
    assert desk.step() == {0: 1}  # the head (13 known tokens, 4 blocks) does not fit, so nobody passes it


def test_several_victims_of_one_pass_keep_their_order() -> None:
    settings = {"long_prefill_token_threshold": 4, "scheduler_reserve_full_isl": False}
    desk = Desk(8, max_num_batched_tokens=16, **settings)
    desk.add(seq(0, 8), seq(1, 2), seq(2, 2))
    assert desk.step() == {0: 4, 1: 2, 2: 2}
    plan = desk.plan()  # 4 further blocks: both others go
    assert desk.scheduled == {0: 4}
    assert [p.seq.id for p in plan.preemptions] == [2, 1]
    assert desk.waiting == [1, 2]


def test_an_fcfs_self_victim_ends_the_running_phase() -> None:
    desk = Desk(4)
    desk.add(seq(0, 1), seq(1, 2))
    desk.step()
    plan = desk.plan()  # 0 takes the last block, 1 finds none and is itself the last
    assert desk.scheduled == {0: 1}
    assert [p.seq.id for p in plan.preemptions] == [1]


def test_growth_ignores_the_watermark() -> None:
    desk = Desk(4, watermark=0.5)
    desk.add(seq(0, 2))
    assert [desk.step() for _ in range(3)] == [{0: 2}, {0: 1}, {0: 1}]


def test_a_priority_self_victim_lets_the_phase_go_on() -> None:
    desk = Desk(8, policy="priority")
    desk.add(seq(0, 2, priority=0), seq(1, 2, priority=2))
    desk.step()
    desk.add(seq(2, 1, priority=1))
    desk.step()  # 3 + 3 + 1 of 8 blocks
    plan = desk.plan()
    assert desk.scheduled == {0: 1, 2: 1}
    assert [p.seq.id for p in plan.preemptions] == [1]


def test_a_victim_placed_earlier_in_the_pass_gives_its_budget_back() -> None:
    desk = Desk(6, policy="priority")
    desk.add(seq(0, 2, priority=2))
    desk.step()
    desk.add(seq(1, 2, priority=0))
    desk.step()  # 3 + 2 of 6 blocks
    plan = desk.plan()  # request 0 takes the last block, request 1 needs one: 0 is taken out of the schedule again
    assert desk.scheduled == {1: 1}
    assert [p.seq.id for p in plan.preemptions] == [0]
    assert desk.running == [1]


def test_priority_ties_evict_the_earliest_of_the_running_list() -> None:
    desk = Desk(5, policy="priority")
    desk.add(seq(0, 2), seq(1, 2))
    desk.step()
    plan = desk.plan()
    assert [p.seq.id for p in plan.preemptions] == [0]
    assert desk.scheduled == {1: 1}


def test_priority_evicts_the_later_arrival_and_never_for_urgency() -> None:
    desk = Desk(5, policy="priority", max_num_seqs=2)
    desk.add(seq(0, 2, arrival=5), seq(1, 2, arrival=7))
    desk.step()
    desk.add(seq(2, 1, priority=-9, arrival=8))
    plan = desk.plan()  # only for lack of blocks; the urgent one waits although slots fall free in this pass
    assert [p.seq.id for p in plan.preemptions] == [1]
    assert desk.scheduled == {0: 1}
    assert desk.waiting == [2, 1]


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [0, 1, 2]), ("priority", [2, 0, 1]), ("sjf", [1, 2, 0])])
def test_policies_order_the_queue(policy: str, order: list[int]) -> None:
    desk = Desk(100, policy=policy)
    desk.add(seq(0, 9, priority=1), seq(1, 3, priority=1, arrival=1), seq(2, 5, priority=0, arrival=2))
    desk.step()
    assert desk.running == order


# --- continuous: ends, intervals, prefill first -----------------------------------------------------------------------


def test_the_model_length_ends_an_answer() -> None:
    desk = Desk(100, max_model_len=8)
    a = seq(0, 5, 100)
    desk.add(a)
    assert [desk.step() for _ in range(3)] == [{0: 5}, {0: 1}, {0: 1}]
    assert (desk.ear.gone, a.num_output_tokens) == ([0], 3)


def test_a_finished_request_frees_before_the_next_output_is_looked_at() -> None:
    desk = Desk(100)
    desk.add(seq(0, 4, 1), seq(1, 4, 1))
    seen = []
    desk.ear.released = lambda one: seen.append((one.id, desk.kv.num_free_blocks))  # type: ignore[method-assign]
    desk.step()
    assert seen == [(0, 96), (1, 100)]


def test_the_prefill_interval_keeps_decode_steps_free_of_prefill() -> None:
    desk = Desk(100, prefill_schedule_interval=3)
    desk.add(seq(0, 4))
    assert desk.step() == {0: 4}
    desk.add(seq(1, 4))
    # Carried by pass 1; E + 1 - P = 1, 2, 3, and 3 is no longer below the interval.
    assert [desk.step() for _ in range(3)] == [{0: 1}, {0: 1}, {0: 1, 1: 4}]


def test_a_backlog_suspends_the_prefill_interval() -> None:
    desk = Desk(100, prefill_schedule_interval=5, max_num_batched_tokens=4)
    desk.add(seq(0, 4), seq(1, 3))
    assert desk.step() == {0: 4}  # request 1 is left waiting: backlog
    assert desk.step() == {0: 1, 1: 3}


def test_a_prompt_of_one_token_is_no_prefill_to_the_interval() -> None:
    desk = Desk(100, prefill_schedule_interval=5)
    desk.add(seq(0, 4))
    desk.step()
    desk.add(seq(1, 1))
    assert desk.step() == {0: 1, 1: 1}


def test_prefill_first_stalls_the_decodes() -> None:
    desk = Desk(100, prefill_first=True, enable_chunked_prefill=False)
    desk.add(seq(0, 4))
    desk.step()
    desk.add(seq(1, 30))
    assert [desk.step() for _ in range(2)] == [{1: 30}, {0: 1, 1: 1}]


def test_abort_frees_from_either_queue() -> None:
    desk = Desk(10, max_num_seqs=1)
    a, b, c = (seq(i, 4) for i in range(3))
    desk.add(a, b, c)
    desk.step()
    desk.batcher.abort(b)
    desk.batcher.abort(a)
    assert desk.ear.gone == [1, 0]
    assert desk.step() == {2: 4}


def test_the_plan_says_what_the_hardware_computes() -> None:
    desk = Desk(100, max_num_batched_tokens=10)
    desk.add(seq(0, 4))
    desk.step()
    desk.add(seq(1, 15))
    desk.step()
    plan = desk.plan()  # request 0: token 6; request 1: tokens 10 to 15, after 9
    assert (plan.num_decode, plan.decode_context_sum, plan.decode_context_max) == (1, 6, 6)
    assert (plan.prefill_tokens, plan.prefill_context_tokens) == (6, 9)
    assert plan.prefill_pairs == sum(range(10, 16))
    assert (plan.num_sampled, plan.context_tokens, plan.held_slots) == (2, 21, 2)


# --- static and dynamic -----------------------------------------------------------------------------------------------


def tray(
    kind: type[StaticBatcher] = StaticBatcher,
    tokens: int = 1000,
    slots: int = 4,
    wait_ns: int | None = None,
    ends_after: dict[int, int] | None = None,
    kv: KVAllocator | None = None,
) -> StaticBatcher:
    return kind(
        slots,
        1000,
        wait_ns,
        kv or PagedAllocator(tokens + 1, 1),
        Ear(1000, lambda one: (ends_after or {}).get(one.id, one.max_tokens)),
    )


def put(batcher: StaticBatcher, *seqs: Sequence) -> None:
    for one in seqs:
        batcher.add(one)


def batch(prompt: int, max_tokens: int, *numbers: int, arrival: int = 0) -> list[Sequence]:
    return [seq(i, prompt, max_tokens, arrival=arrival, reserve=prompt + max_tokens) for i in numbers]


def test_static_launches_when_full() -> None:
    batcher = tray()
    put(batcher, *batch(4, 2, 0, 1, 2, arrival=7))
    assert batcher.plan() == Hold(None, 7)
    put(batcher, *batch(4, 2, 3, 4))
    plan = batcher.plan()
    assert isinstance(plan, StepPlan)
    assert launched(plan) == dict.fromkeys(range(4), 4)
    assert len(batcher.waiting) == 1


def test_static_launches_when_the_oldest_has_waited_or_nobody_comes() -> None:
    for why in ({"expired": True}, {"closed": True}):
        batcher = tray(wait_ns=50)
        put(batcher, *batch(4, 2, 0, arrival=3), *batch(4, 2, 1, arrival=9))
        assert batcher.plan() == Hold(50, 3)
        plan = batcher.plan(**why)
        assert isinstance(plan, StepPlan)
        assert list(launched(plan)) == [0, 1]


def test_dynamic_does_not_care_whether_arrivals_are_pending() -> None:
    batcher = tray(DynamicBatcher, wait_ns=50)
    put(batcher, *batch(4, 2, 0, arrival=3))
    assert batcher.plan(closed=True) == Hold(50, 3)
    assert isinstance(batcher.plan(expired=True), StepPlan)


@pytest.mark.parametrize("kind", [StaticBatcher, DynamicBatcher])
def test_nobody_joins_after_launch_and_everybody_leaves_together(kind: type[StaticBatcher]) -> None:
    batcher = tray(kind, ends_after={0: 1, 1: 3, 2: 2})
    put(batcher, *batch(4, 10, 0, 1, 2))
    plan = batcher.plan(closed=True, expired=True)
    put(batcher, *batch(4, 10, 3))
    rows = []
    while isinstance(plan, StepPlan):
        rows.append((plan.num_decode, plan.dead_slots, plan.held_slots, plan.decode_context_sum))
        batcher.commit(plan)
        if not len(batcher.members()):
            break
        plan = batcher.plan()
    assert rows == [(0, 0, 3, 0), (3, 1, 3, 15), (3, 2, 3, 18)]  # the dead compute too: contexts 5 and 6 of each
    assert batcher.listener.gone == [0, 1, 2]  # type: ignore[attr-defined]
    assert len(batcher.waiting) == 1


def test_padding_costs_compute_and_memory() -> None:
    batcher = tray(tokens=40)
    put(batcher, seq(0, 2, 3, reserve=5), seq(1, 6, 4, reserve=10))
    plan = batcher.plan(closed=True)
    assert isinstance(plan, StepPlan)
    assert (plan.prefill_tokens, plan.padded_tokens, plan.prefill_pairs) == (12, 4, 2 * 21)
    assert [batcher.kv.allocated_of(one) for one in batcher.members()] == [6 + 3, 6 + 4]


def test_the_batch_is_the_longest_prefix_that_fits_with_its_padding() -> None:
    """8 + 8 of 20 tokens; the third fits its own 4, but padded to 6 it needs 8."""
    batcher = tray(tokens=20)
    put(batcher, *batch(2, 2, 0), *batch(6, 2, 1), *batch(2, 2, 2))
    plan = batcher.plan(closed=True)
    assert isinstance(plan, StepPlan)
    assert list(launched(plan)) == [0, 1]


def test_a_wide_newcomer_that_spoils_the_padding_is_left_waiting() -> None:
    batcher = tray(tokens=20)
    put(batcher, *batch(2, 2, 0, 1), *batch(9, 1, 2), *batch(1, 1, 3))
    plan = batcher.plan(closed=True)
    assert isinstance(plan, StepPlan)
    assert list(launched(plan)) == [0, 1]
    assert plan.padded_tokens == 0
    assert batcher.kv.usage().allocated_tokens == 8


def test_contiguous_reservation_decides_the_batch() -> None:
    """Room for three regions of 300 tokens in 1,000."""
    batcher = tray(kv=ContiguousAllocator(1000, "first_fit"))
    put(batcher, *(seq(i, 10, 20, reserve=300) for i in range(4)))
    plan = batcher.plan(closed=True)
    assert isinstance(plan, StepPlan)
    assert len(launched(plan)) == 3
    assert batcher.kv.usage().allocated_tokens == 900


def test_static_abort_makes_a_dead_slot() -> None:
    batcher = tray(ends_after={0: 5, 1: 2})
    a, b = batch(4, 10, 0, 1)
    put(batcher, a, b)
    plan = batcher.plan(closed=True)
    assert isinstance(plan, StepPlan)
    batcher.commit(plan)
    batcher.abort(a)
    plan = batcher.plan()
    assert isinstance(plan, StepPlan)
    assert (plan.dead_slots, plan.num_decode) == (1, 2)
    batcher.commit(plan)
    assert len(batcher.members()) == 0
    assert batcher.listener.gone == [0, 1]  # type: ignore[attr-defined]
