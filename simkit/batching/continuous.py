"""Continuous batching: decides every step, by the rules of the vLLM V1 scheduler (version 0.33).

Owns the running list, the waiting queue and the scheduling pass. Never imports a clock, randomness, a latency model or
true output lengths. Section numbers in docstrings are those of the scheduler specification. Beyond the real engine and
off by default: policies `sjf` and `fair`, preemption by swapping, several samples of one prompt.
"""

from __future__ import annotations

from collections.abc import Callable

from simkit.batching.ordering import QUEUES, FairQueue, WaitingQueue
from simkit.batching.plan import Chunk, Outcome, PassState, Preemption, StepPlan
from simkit.batching.settings import ContinuousSettings
from simkit.batching.victims import last_admitted, least_urgent, most_served
from simkit.sequence import Phase, Sequence
from simkit.types import HostMemory, KVAllocator


class ContinuousBatcher:
    """Running sequences first, then the head of the queue for as long as budget, slots and blocks last.

    With a `host_pool` a victim is swapped out instead of recomputed if it fits there and `prefers_swap`, asked with
    those that go on running, says so.
    """

    def __init__(
        self,
        settings: ContinuousSettings,
        kv: KVAllocator,
        outcome: Outcome,
        host_pool: HostMemory | None = None,
        prefers_swap: Callable[[Sequence, list[Sequence]], bool] | None = None,
    ) -> None:
        self.settings = settings
        self.kv = kv
        self.outcome = outcome
        self.running: list[Sequence] = []
        self.waiting: WaitingQueue = QUEUES[settings.policy]()
        self._by_priority = settings.policy == "priority"
        self._fair = self.waiting if isinstance(self.waiting, FairQueue) else None
        self._host = host_pool
        self._prefers_swap = prefers_swap or (lambda victim, others: True)
        self._tokens_at_admission: dict[Sequence, int] = {}
        self._num_unborn = 0
        self._unpaid_swap_out = 0
        self._max_running = settings.max_num_active_seqs or settings.max_num_seqs
        self._ended_since_pass = False
        self._num_passes = 0
        self._last_prefill_pass = -settings.prefill_schedule_interval
        self._backlog = False

    def members(self) -> list[Sequence]:
        """The running list."""
        return self.running

    def add(self, seq: Sequence) -> bool:
        """Join the waiting queue. Behind a blocked head, or with no slot free, an arrival changes nothing."""
        self.waiting.push(seq)
        if self.settings.prefill_schedule_interval > 1 or self._fair is not None:
            return True
        if len(self.running) >= self._max_running:
            return False
        # One more waiting request narrows the adaptive cap, and the head may fit with a smaller chunk.
        return self.waiting.peek() is seq or self.settings.long_prefill_token_threshold_adaptive

    def has_work(self) -> bool:
        """Something waits or runs, or (asynchronous scheduling) ended since the last pass."""
        ended = self._ended_since_pass and self.settings.async_scheduling
        return bool(self.running) or len(self.waiting) > 0 or ended

    def plan(self, *, closed: bool = False, expired: bool = False) -> StepPlan | None:
        """One scheduling pass (section 3), applied."""
        if not self.has_work():
            return None
        self._ended_since_pass = False
        state = self._begin_pass()
        if self.settings.prefill_first:
            self._schedule_running(state, prefill_only=True)
            self._admit(state)
            if state.scheduled:
                return self._finish_pass(state)
            self._schedule_running(state, prefill_only=False)
        else:
            self._schedule_running(state, prefill_only=False)
            self._admit(state)
        return self._finish_pass(state)

    def _begin_pass(self) -> PassState:
        settings = self.settings
        if self._fair is not None:
            self._fair.settle()
        cap = settings.long_prefill_token_threshold
        num_requests = len(self.running) + len(self.waiting)
        if num_requests <= 1:
            cap = 0
        elif cap > 0 and settings.long_prefill_token_threshold_adaptive:
            cap = max(cap, settings.max_num_batched_tokens // num_requests)
        interval = settings.prefill_schedule_interval
        hold = (
            interval > 1
            and not self._backlog
            and self._num_passes + 1 - self._last_prefill_pass < interval
            and any(not seq.in_prefill for seq in self.running)
        )
        return PassState(settings.max_num_batched_tokens, cap, hold)

    def _schedule_running(self, state: PassState, prefill_only: bool) -> None:
        """Section 3a."""
        running = self.running
        last_position = self.settings.max_model_len - 1
        index = 0
        while index < len(running) and state.budget > 0:
            seq = running[index]
            if seq.in_prefill:
                if state.hold:
                    index += 1
                    continue
            elif prefill_only or self._last_token_is_under_way(seq):
                index += 1
                continue
            computed = seq.num_computed_tokens
            missing = seq.num_prompt_tokens + seq.num_output_tokens + seq.num_outstanding_tokens - computed
            num_tokens = min(missing, state.cap) if state.cap > 0 else missing
            num_tokens = min(num_tokens, state.budget, last_position - computed)
            if num_tokens <= 0:
                index += 1
                continue
            placed = True
            while not self.kv.try_grow(seq, computed + num_tokens):
                victim, index = self._preempt_one(state, index)
                if victim is seq:
                    placed = False
                    break
            if not placed:
                if not (self._by_priority or self._fair):
                    return
                continue
            state.scheduled[seq] = num_tokens
            if seq.in_prefill or num_tokens > 1 or missing > 1:
                state.chunk_of[seq] = "C"
            state.budget -= num_tokens
            state.with_prefill |= seq.in_prefill
            index += 1

    @staticmethod
    def _last_token_is_under_way(seq: Sequence) -> bool:
        outstanding = seq.num_outstanding_tokens
        return outstanding > 0 and seq.num_computed_tokens + 2 - outstanding >= seq.num_prompt_tokens + seq.max_tokens

    def _preempt_one(self, state: PassState, index: int) -> tuple[Sequence, int]:
        """Section 4: choose and evict a victim; returns it and the position to go on from."""
        victim = self._victim()
        position = self.running.index(victim)
        del self.running[position]
        if victim in state.scheduled:
            state.budget += state.scheduled.pop(victim)
            state.chunk_of.pop(victim, None)
        if position < index:
            index -= 1
        self._evict(victim, state)
        return victim, index

    def _victim(self) -> Sequence:
        if self._fair is not None:
            return most_served(self.running, self._fair.served, self._tokens_at_admission)
        return least_urgent(self.running) if self._by_priority else last_admitted(self.running)

    def _evict(self, victim: Sequence, state: PassState) -> None:
        """Take the victim's memory, and its computed tokens unless they can wait in the host pool."""
        host = self._host
        held_tokens = self.kv.allocated_of(victim)
        swapped = host is not None and self._prefers_swap(victim, self.running) and host.try_store(victim, held_tokens)
        self.kv.free(victim)
        if swapped:
            state.swapped_out += held_tokens
            state.preemptions.append(Preemption(victim, 0))
        else:
            state.preemptions.append(Preemption(victim, victim.num_computed_tokens))
            victim.num_computed_tokens = 0
            victim.num_stale_tokens += victim.num_in_flight_tokens
            victim.num_in_flight_tokens = 0
            victim.num_outstanding_tokens = 0
        if victim.siblings:
            self._num_unborn -= len(victim.siblings)
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
            if len(self.running) + self._num_unborn + 1 + len(seq.siblings) > self._max_running:
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
            gate_tokens = min(known, settings.max_model_len) if settings.scheduler_reserve_full_isl else 0
            if not self.kv.try_admit(seq, computed + num_tokens, gate_tokens, headroom=bool(self.running)):
                break
            self.waiting.pop()
            self._enter_slot(seq, state, computed, num_tokens, swapped)
        if not state.hold:
            self._backlog = len(self.waiting) > 0

    def _enter_slot(self, seq: Sequence, state: PassState, computed: int, num_tokens: int, swapped: bool) -> None:
        self.running.append(seq)
        self._num_unborn += len(seq.siblings)
        if swapped:
            assert self._host is not None
            state.swapped_in += self._host.release(seq)
            state.chunk_of[seq] = "S"
        else:
            state.chunk_of[seq] = "R" if seq.phase is Phase.PREEMPTED else "N"
        if self._fair is not None:
            self._tokens_at_admission[seq] = seq.num_output_tokens
        seq.phase = Phase.RUNNING
        seq.num_computed_tokens = computed
        state.scheduled[seq] = num_tokens
        state.budget -= num_tokens
        state.with_prefill |= computed < seq.num_known_tokens - 1

    def _finish_pass(self, state: PassState) -> StepPlan:
        plan = StepPlan(preemptions=state.preemptions, held_slots=len(self.running))
        for seq, num_tokens in state.scheduled.items():
            before = seq.num_computed_tokens
            seq.num_computed_tokens = after = before + num_tokens
            seq.num_in_flight_tokens += num_tokens
            seq.in_prefill = after < seq.num_prompt_tokens + seq.num_output_tokens + seq.num_outstanding_tokens
            if not seq.in_prefill:
                seq.num_outstanding_tokens += 1
            if seq in state.chunk_of:
                plan.add_chunk(Chunk(seq, state.chunk_of[seq], before, num_tokens, not seq.in_prefill))
            else:
                plan.add_decode(seq, after)
        plan.add_up()
        if self._host is not None:
            self._unpaid_swap_out += state.swapped_out
            if plan.order:  # what leaves in a pass without a step crosses the link during the next one
                plan.swap_in_bytes = state.swapped_in * self._host.bytes_per_token
                plan.swap_out_bytes = self._unpaid_swap_out * self._host.bytes_per_token
                self._unpaid_swap_out = 0
        if self._fair is not None:
            for seq, num_tokens in state.scheduled.items():
                self._fair.served[seq.tenant] += num_tokens
        if plan.order:
            self._num_passes += 1
            if state.with_prefill:
                self._last_prefill_pass = self._num_passes
        plan.stable = self._is_stable(plan)
        return plan

    def _is_stable(self, plan: StepPlan) -> bool:
        """A pass that preempted, holds a prefill or left someone out is stable for one step only."""
        if plan.chunks or plan.preemptions or plan.num_decode != len(self.running) or not plan.decodes:
            return False
        if not len(self.waiting):
            return True
        if self._fair is not None and len(self.running) < self._max_running:
            return False  # service counts move with every token, and with them the head
        return self.settings.prefill_schedule_interval == 1

    def commit(self, plan: StepPlan, steps: int, scheduled: int = 0) -> None:
        """Section 7: outputs in schedule order; whoever ends frees its blocks before the next output is looked at."""
        if steps > 1 or scheduled:
            self._run_ahead(plan, passes=steps - 1 + scheduled, outputs=steps - 1)
        ended = False
        for entry in plan.order:
            if type(entry) is Chunk:
                seq, num_tokens, samples = entry.seq, entry.num_tokens, entry.samples
            else:
                seq, num_tokens, samples = entry, 1, True  # type: ignore[assignment]
            if seq.phase is Phase.FINISHED:
                continue
            if self._process_output(seq, num_tokens, samples):
                ended = True
        if ended:
            self._ended_since_pass = True
            self.running = [seq for seq in self.running if seq.phase is not Phase.FINISHED]

    def _run_ahead(self, plan: StepPlan, passes: int, outputs: int) -> None:
        """Apply further passes, which decide as `plan` did, and the outputs that came in before the last of them."""
        in_flight = passes - outputs
        for seq in plan.decodes:
            seq.num_output_tokens += outputs
        self.kv.grow_run(plan.decodes, passes)
        for seq in plan.decodes:
            seq.num_computed_tokens += passes
            seq.num_in_flight_tokens += in_flight
            seq.num_outstanding_tokens += in_flight
        self._num_passes += passes
        if self._fair is not None:
            for seq in plan.decodes:
                self._fair.served[seq.tenant] += passes

    def _process_output(self, seq: Sequence, num_tokens: int, samples: bool) -> bool:
        stale = seq.num_stale_tokens > 0
        if stale:
            seq.num_stale_tokens -= num_tokens
        else:
            seq.num_in_flight_tokens -= num_tokens
        if not samples:
            return False
        seq.num_output_tokens += 1
        if not stale:
            seq.num_outstanding_tokens -= 1
            if self.settings.async_scheduling and seq.kv is not None:
                # A token that was not known at allocation may complete a block, the last token of a sequence too.
                self.kv.enter(seq, seq.num_computed_tokens - seq.num_in_flight_tokens)
        ends = (
            seq.num_output_tokens >= seq.max_tokens
            or seq.num_prompt_tokens + seq.num_output_tokens >= self.settings.max_model_len
        )
        if seq.siblings:
            self._give_birth(seq, ends)
        if self.outcome.token(seq, ends):
            self._leave(seq)
            self.outcome.released(seq)
            return True
        return False

    def _leave(self, seq: Sequence) -> None:
        """Take a sequence that ends or is aborted out of whatever holds it, except the running list."""
        if seq.phase is Phase.RUNNING:
            self.kv.free(seq)
            self._num_unborn -= len(seq.siblings)
        else:
            self.waiting.remove(seq)
            if self._host is not None and self._host.holds(seq):
                self._host.release(seq)
        self._tokens_at_admission.pop(seq, None)
        seq.phase = Phase.FINISHED

    def _give_birth(self, parent: Sequence, ends: bool) -> None:
        """The prompt is computed: its other samples share it and get their first token in the same step.

        A sample for which there is no memory starts like a preempted one.
        """
        born, parent.siblings = parent.siblings, []
        if parent.phase is Phase.RUNNING:
            self._num_unborn -= len(born)
        for child in born:
            child.num_output_tokens = parent.num_output_tokens
            if parent.phase is Phase.RUNNING and self.kv.try_fork(parent, child):
                child.num_computed_tokens = parent.num_prompt_tokens
                child.in_prefill = False
                child.phase = Phase.RUNNING
                self.running.append(child)
                if self._fair is not None:
                    self._tokens_at_admission[child] = child.num_output_tokens
            else:
                child.phase = Phase.PREEMPTED
                self.waiting.push_preempted(child)
            if self.outcome.token(child, ends):
                self._leave(child)
                self.outcome.released(child)

    def abort(self, seq: Sequence) -> None:
        """Section 7: a client abort frees at once, from whichever queue."""
        if seq.phase is Phase.RUNNING:
            self.running.remove(seq)
        self._leave(seq)
        self._ended_since_pass = True
        self.outcome.released(seq)
        for unborn in seq.siblings:
            unborn.phase = Phase.FINISHED
            self.outcome.released(unborn)
