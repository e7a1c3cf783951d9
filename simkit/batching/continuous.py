"""Continuous batching: decides every step, by the rules of the vLLM V1 scheduler (version 0.33).

Owns the waiting queue and the scheduling pass; who runs is in `roster`, what a step brought in `outputs`. Never imports
a clock, randomness, a latency model or true output lengths. Section numbers in docstrings are those of the scheduler
specification. Beyond the real engine and off by default: policies `sjf` and `fair`, preemption by swapping, several
samples of one prompt, and the admission of TensorRT-LLM, which never preempts.

Sequences that decode one token in every step form the *decode group*, which is scheduled as one, however large. Where
the order among them matters (a block is missing, the budget is short) they are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from simkit.batching.group import PrefillLimits, Roster
from simkit.batching.outputs import Outputs
from simkit.batching.plan import ContinuousSettings, PassState, Preemption, ScheduledChunk, StepPlan
from simkit.batching.policies import POLICIES
from simkit.batching.promises import Promises
from simkit.batching.protocol import OutputListener, WaitingQueue
from simkit.kv.protocol import CanSwap, CountsBlocks, KVPool
from simkit.sequence import Phase, Sequence


class ContinuousBatcher:
    """Running sequences first, then the head of the queue for as long as budget, slots and blocks last.

    With a `host_pool` a victim is swapped out instead of recomputed if it fits there and `prefers_swap`, asked with
    those that go on running, says so. `one_by_one` looks at every sequence in every pass: the same decisions, slower.
    """

    def __init__(
        self,
        settings: ContinuousSettings,
        kv: KVPool,
        listener: OutputListener,
        host_pool: CanSwap | None = None,
        prefers_swap: Callable[[Sequence, list[Sequence]], bool] | None = None,
        *,
        one_by_one: bool = False,
    ) -> None:
        self.settings = settings
        self.kv = kv
        self.listener = listener
        self._policy = POLICIES[settings.policy]()
        self.waiting: WaitingQueue = self._policy.waiting
        self._roster = Roster(
            kv, listener, settings.max_model_len, by_tenant=self._policy.charges, one_by_one=one_by_one
        )
        self.running = self._roster.running
        self._outputs = Outputs(settings, self._roster, self.waiting, kv, listener, host_pool)
        self._host = host_pool
        self._prefers_swap = prefers_swap or (lambda victim, others: True)
        self._unpaid_swap_out = 0
        self._max_running = settings.max_num_active_seqs or settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens
        self._known = 0 if settings.async_scheduling else 1
        self._plain = not self._policy.charges and settings.prefill_schedule_interval == 1
        self._last_goes_first = self._policy.preempts_last and isinstance(kv, CountsBlocks)
        self._limits = PrefillLimits(settings)
        self._promises = Promises(kv) if settings.never_evicts else None

    def add(self, seq: Sequence) -> bool:
        """Join the waiting queue. Behind a blocked head, or with no slot free, an arrival changes nothing."""
        self.waiting.push(seq)
        if not self._plain:
            return True
        if len(self.running) >= self._max_running:
            return False
        # One more waiting request narrows the adaptive cap, and the head may fit with a smaller chunk.
        return self.waiting.peek() is seq or self.settings.long_prefill_token_threshold_adaptive

    def has_work(self) -> bool:
        """Something waits or runs, or (asynchronous scheduling) ended since the last pass."""
        ended = self._outputs.ended and self.settings.async_scheduling
        return bool(self.running) or len(self.waiting) > 0 or ended

    # --- the pass ----------------------------------------------------------------------------------------------------

    def plan(self, *, closed: bool = False, expired: bool = False) -> StepPlan | None:
        """One scheduling pass (section 3), applied."""
        self._roster.regroup()
        if self._is_quiet() and self.kv.grow_all(1, self._known):
            self._outputs.ended = False
            return self._roster.plan_group()
        if not self.has_work():
            return None
        self._outputs.ended = False
        if self._policy.charges:
            self._policy.begin_pass()
        state = self._limits.begin_pass(self._roster, self.waiting)
        if self.settings.prefill_first:
            self._schedule_ungrouped_prefills(state)
            self._admit(state)
            if state.scheduled:
                self._roster.disband()
            else:
                self._schedule_running(state)
        else:
            self._schedule_running(state)
            self._admit(state)
        return self._finish_pass(state)

    def _is_quiet(self) -> bool:
        """Whether this pass only lets the group decode: nobody else is to be looked at, and nobody can be admitted."""
        return (
            not self._roster.ungrouped
            and 0 < self._roster.group.count <= self._budget
            and self._plain
            and (not len(self.waiting) or len(self.running) >= self._max_running)
        )

    def _schedule_running(self, state: PassState) -> None:
        """Section 3a: the group together if its order does not matter, then the others one by one."""
        group = self._roster.group
        due = [seq for seq in self._roster.ungrouped if self._is_due(seq, state)] if self._roster.ungrouped else []
        if len(due) > 1:
            due.sort(key=_NUMBER)
        if not group.count:
            if due:
                self._schedule_each(state, due, 0)
            return
        in_order = (not due or due[0].number > group.newest) and group.count <= state.budget
        if in_order and not due and self._last_goes_first:
            self._evict_until_all_grow(state)
        elif not (in_order and self.kv.grow_all(1, self._known)):
            self._roster.disband()
            self._schedule_each(state, [seq for seq in self.running if self._is_due(seq, state)], 0)
            return
        state.group_size = group.count
        state.budget -= group.count
        if due:
            self._schedule_each(state, due, 0)

    def _schedule_ungrouped_prefills(self, state: PassState) -> None:
        due = [seq for seq in self._roster.ungrouped if seq.in_prefill and not state.hold]
        due.sort(key=_NUMBER)
        if due:
            self._roster.disband()  # none of the others takes part in this pass
            self._schedule_each(state, due, 0)

    def _schedule_each(self, state: PassState, due: list[Sequence], index: int) -> None:
        """The sequences of `due`, in order of admission, as far as budget and memory last."""
        last_position = self.settings.max_model_len - 1
        while index < len(due) and state.budget > 0:
            seq = due[index]
            computed = seq.num_computed_tokens
            missing = seq.num_known_tokens + seq.num_outstanding_tokens - computed
            num_tokens = min(missing, state.cap) if state.cap > 0 else missing
            num_tokens = min(num_tokens, state.budget, last_position - computed)
            if num_tokens <= 0:
                index += 1
                continue
            while not self.kv.try_grow(seq, computed + num_tokens):
                victim, index = self._preempt_one(state, due, index)
                if victim is seq:
                    break
            else:
                state.scheduled[seq] = num_tokens
                if seq.in_prefill or num_tokens > 1 or missing > 1:
                    state.kind_of[seq] = "C"
                state.budget -= num_tokens
                state.with_prefill |= seq.in_prefill
                index += 1

    def _preempt_one(self, state: PassState, due: list[Sequence], index: int) -> tuple[Sequence, int]:
        """Section 4: choose and evict a victim; returns it and the position in `due` to go on from."""
        if state.group_size:
            self._roster.take_apart(state)
        elif self._roster.stopped:
            self._roster.disband()
        victim = self._policy.victim(self.running)
        if victim in state.scheduled:
            state.budget += state.scheduled.pop(victim)
            state.kind_of.pop(victim, None)
        if victim in due:
            position = due.index(victim)
            del due[position]
            index -= position < index
        self._evict(victim, state)
        return victim, index

    def _evict_until_all_grow(self, state: PassState) -> None:
        """Nobody else is to be looked at, and blocks are all alike: then it does not matter who found none."""
        while not self.kv.grow_all(1, self._known):
            victim = self._policy.victim(self.running)
            if victim.is_grouped:
                self._roster.leave_group(victim)
            self._evict(victim, state)

    def _evict(self, victim: Sequence, state: PassState) -> None:
        """Take the victim's memory, and its computed tokens unless they can wait in the host pool."""
        host = self._host
        held_tokens = self.kv.allocated_of(victim)
        swapped = (
            host is not None
            and self._prefers_swap(victim, [seq for seq in self.running if seq is not victim])
            and host.try_store(victim, held_tokens)
        )
        self._roster.leave_slot(victim)
        if swapped:
            state.swapped_out += held_tokens
            state.preemptions.append(Preemption(victim, 0))
        else:
            state.preemptions.append(Preemption(victim, victim.num_computed_tokens))
            victim.num_computed_tokens = 0
            victim.num_stale_tokens += victim.num_in_flight_tokens
            victim.num_in_flight_tokens = 0
            victim.num_outstanding_tokens = 0
        victim.num_preemptions += 1
        victim.in_prefill = True
        victim.phase = Phase.PREEMPTED
        self.waiting.push_preempted(victim)

    def _admit(self, state: PassState) -> None:
        """Section 3b: strict head of line."""
        if state.preemptions:
            return
        settings = self.settings
        while state.budget > 0 and len(self.waiting):
            seq = self.waiting.peek()
            if len(self.running) + self._roster.num_pending_forks + 1 + len(seq.forks) > self._max_running:
                break
            swapped = self._host is not None and self._host.holds(seq)
            if seq.num_stale_tokens > 0 or (swapped and seq.num_in_flight_tokens > 0):
                break
            known = seq.num_known_tokens
            computed = seq.num_computed_tokens if swapped else self.kv.lookup(seq)
            if state.hold and computed < known - 1:
                break
            num_tokens = known - computed
            if state.cap > 0:
                num_tokens = min(num_tokens, state.cap)
            if not settings.enable_chunked_prefill and num_tokens > state.budget:
                break
            num_tokens = min(num_tokens, state.budget)
            if self._promises is not None and not self._promises.leaves_room(seq, self.running, self._roster.version):
                break
            gate_tokens = min(known, settings.max_model_len) if settings.scheduler_reserve_full_isl else 0
            if not self.kv.try_admit(seq, computed + num_tokens, gate_tokens, headroom=bool(self.running)):
                break
            self.waiting.pop()
            self._enter_slot(seq, state, computed, num_tokens, swapped)
        if not state.hold:
            self._limits.backlog = len(self.waiting) > 0

    def _enter_slot(self, seq: Sequence, state: PassState, computed: int, num_tokens: int, swapped: bool) -> None:
        self._roster.num_pending_forks += len(seq.forks)
        if swapped:
            assert self._host is not None
            state.swapped_in += self._host.release(seq)
            state.kind_of[seq] = "S"
        else:
            state.kind_of[seq] = "R" if seq.phase is Phase.PREEMPTED else "N"
        seq.num_computed_tokens = computed
        self._roster.take_slot(seq)
        state.scheduled[seq] = num_tokens
        state.budget -= num_tokens
        state.with_prefill |= computed < seq.num_known_tokens - 1

    def _is_due(self, seq: Sequence, state: PassState) -> bool:
        """Whether the pass has to look at a running sequence: not one that is held or whose last token is under way."""
        if seq.in_prefill:
            return not state.hold
        return seq.num_computed_tokens < self.settings.max_model_len - 1 and not self._last_token_is_under_way(seq)

    @staticmethod
    def _last_token_is_under_way(seq: Sequence) -> bool:
        outstanding = seq.num_outstanding_tokens
        return outstanding > 0 and seq.num_computed_tokens + 2 - outstanding >= seq.num_prompt_tokens + seq.max_tokens

    def _finish_pass(self, state: PassState) -> StepPlan:
        """Put what was decided into a plan, and charge for it."""
        plan = self._roster.make_plan(state)
        if state.with_prefill and plan.num_scheduled:
            self._limits.last_prefill_pass = plan.number
        if self._policy.charges:
            self._policy.charge(state.scheduled, self._roster.group.tenants if state.group_size else {})
        if self._host is not None:
            self._unpaid_swap_out += state.swapped_out
            if plan.num_scheduled:  # what leaves in a pass without a step crosses the link during the next one
                plan.swap_in_bytes = state.swapped_in * self._host.bytes_per_token
                plan.swap_out_bytes = self._unpaid_swap_out * self._host.bytes_per_token
                self._unpaid_swap_out = 0
        plan.stable = plan.stable and self._is_stable(plan)
        return plan

    def _is_stable(self, plan: StepPlan) -> bool:
        """A pass that preempted, holds a prefill or left someone out is stable for one step only."""
        if plan.preemptions or plan.num_decode != len(self.running) or not plan.num_decode:
            return False
        if not len(self.waiting):
            return True
        if self._policy.charges and len(self.running) < self._max_running:
            return False  # what was charged moves with every token, and with it the head
        return self.settings.prefill_schedule_interval == 1

    # --- outputs -----------------------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan) -> None:
        """Section 7."""
        if plan.num_scheduled:
            self._outputs.commit(plan)

    def run_ahead(self, num_steps: int) -> None:
        """Apply further passes, which only let the group decode, and the outputs of those before the last."""
        self._roster.run_ahead(num_steps, self._known)
        if self._policy.charges:
            self._policy.charge({}, self._roster.group.tenants, num_steps)

    def abort(self, seq: Sequence) -> None:
        """Section 7: a client abort frees at once, from whichever queue."""
        self._outputs.abort(seq)

    # --- what others ask --------------------------------------------------------------------------------------------

    @property
    def roster(self) -> Roster:
        """Who runs."""
        return self._roster

    @property
    def num_computed_tokens(self) -> int:
        """Computed tokens of all who run."""
        return self._roster.num_computed_tokens

    def schedule(self, plan: StepPlan) -> list[ScheduledChunk]:
        """All that `plan`, the last one made, schedules, in schedule order: for recordings."""
        return self._roster.schedule(plan)

    def members(self) -> list[Sequence]:
        """Those that run, in order of admission."""
        return list(self.running)

    def num_members(self) -> int:
        """How many run."""
        return len(self.running)

    def is_all_grouped(self) -> bool:
        """Whether, before a pass, all who run are in the group, nobody waits and nothing is owed."""
        self._roster.regroup()
        roster = self._roster
        return not (roster.ungrouped or roster.stopped or len(self.waiting) or self._unpaid_swap_out)


_NUMBER = attrgetter("number")
