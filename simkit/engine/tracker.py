"""Follows the requests of one replica: who is inside, when tokens came, who sat in which slot, and unfilled memory.

An `OutputListener` of the batcher, which turns what happens into facts for the record. Owns no time, decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from simkit.batching.outputs import FinishCalendar
from simkit.batching.plan import StepPlan
from simkit.batching.protocol import Batcher, head_of
from simkit.engine.pricing import Run
from simkit.engine.request import RequestState
from simkit.engine.step_log import StepLog
from simkit.errors import CheckError
from simkit.kv.protocol import KVPool
from simkit.metrics import record as rec
from simkit.metrics.record import Record
from simkit.sequence import Phase, Sequence

MAX_IDLE_PASSES = 10_000
"""Non-empty passes without a token or a new high-water mark of computed tokens after which a run is a livelock."""


class RequestTracker:
    """Requests of a replica and what happened to them. `left_system` is told when who leaves, `preempted`
    that somebody was.

    While outputs are committed `begin_commit` says when the steps ended; `token`, `tokens` and `released` are then
    called back. Grouped sequences get no call for each token: their gaps are those between the ends of steps. Unless
    it `counts_memory`, somebody else notes internal fragmentation.
    """

    def __init__(
        self,
        replica: int,
        record: Record,
        log: StepLog,
        kv: KVPool,
        left_system: Callable[[int, int], None],
        preempted: Callable[[], None],
        *,
        stream: bool,
        settings: str,
        counts_memory: bool = True,
    ) -> None:
        self.num_outstanding = 0
        """Requests that are here and have not left."""
        self.num_grouped_measured = 0
        self.num_stopped = 0
        self.calendar = FinishCalendar()
        self.in_flight: Iterable[Run] = ()
        self.grows = False
        """Whether sequences take further blocks while they decode."""
        self._replica = replica
        self._record = record
        self._log = log
        self._kv = kv
        self._block_size = kv.block_size
        self._left_system = left_system
        self._preempted = preempted
        self._stream = stream
        self._counts_memory = counts_memory
        self._settings = settings
        self._end_ns = 0
        self._last_end_ns = 0
        self._number = 0
        self._committed = 0
        self._tokens_now = False
        self._idle_passes = 0
        self._preemptions_without_step = 0

    def resume(self, number: int, committed: int, last_end_ns: int) -> None:
        """Steps up to `number` are scheduled; those up to `committed` are over, since `last_end_ns`."""
        self._number, self._committed, self._last_end_ns = number, committed, last_end_ns

    def dismiss(self, seq: Sequence) -> None:
        """`seq`, grouped, goes on elsewhere, with what is noted of its memory but for a block beyond its end."""
        state: RequestState = seq.owner
        self.calendar.drop(seq)
        self.num_grouped_measured -= self._stream and state.measured
        if not -state.final_tokens % (self._block_size or 1):
            self._forget_later(state)
        self._begins_no_more(state)

    @property
    def last_end_ns(self) -> int:
        """When the last step that is over ended."""
        return self._last_end_ns

    def has_pending_preemptions(self) -> bool:
        """Whether preemptions wait for a step to be noted with."""
        return self._preemptions_without_step > 0

    # --- what a batcher calls -----------------------------------------------------------------------------------------

    def begin_commit(self, end_ns: int, number: int) -> None:
        """Outputs of step `number` follow, which ended at `end_ns`."""
        self._end_ns = self._last_end_ns = end_ns
        self._committed = number
        self._tokens_now = False

    def ran_ahead(self, end_ns: int, number: int) -> None:
        """Step `number` is scheduled, and the equal ones before it are over, the last of them since `end_ns`."""
        self._last_end_ns = end_ns
        self._number = number
        self._committed = number - 1

    def token(self, seq: Sequence, ends: bool) -> bool:
        """A token of `seq` exists: stamp it, and say whether the true length is reached."""
        now = self._end_ns
        state: RequestState = seq.owner
        self._tokens_now = True
        if state.generated_first_ns < 0:
            state.generated_first_ns = now
            if state.admitted_ns < 0 and seq.phase is Phase.RUNNING:
                state.admitted_ns = now  # a sample that starts from the prompt of another
                self._fill(seq, state, self._number + 1)
        elif self._stream and state.measured:
            self._record.itl.add(now - state.generated_last_ns, 1)
        if state.prefill_end_ns < 0:
            state.prefill_end_ns = now
        state.generated_last_ns = state.held_last_ns = now
        return ends or seq.num_output_tokens >= state.true_output_tokens

    def joined(self, seq: Sequence, commit: int) -> None:
        """`seq` gets a token with every commit after number `commit`."""
        state: RequestState = seq.owner
        self.calendar.follow(seq, commit + state.true_output_tokens - seq.num_output_tokens)
        if state.measured and self._stream:
            self.num_grouped_measured += 1
        self._fill_later(seq, state)

    def stopped(self, seq: Sequence) -> None:
        """`seq` is scheduled no more; the gap before its last token is still one of the pooled ones."""
        state: RequestState = seq.owner
        self.num_stopped += 1
        state.stopped = True
        self.num_grouped_measured -= self._stream and state.measured
        self._forget_later(state)

    def left(self, seq: Sequence) -> None:
        """`seq` leaves the group, if it was in it: what it got so far it got with the last step."""
        if self.calendar.drop(seq):
            self._part(seq)
            state: RequestState = seq.owner
            if self._committed > seq.last_step:
                state.generated_last_ns = state.held_last_ns = self._last_end_ns
            self._forget_later(state)

    def tokens(self, commit: int) -> list[Sequence]:
        """Every grouped sequence got a token: those for which it was the last one."""
        ending = self.calendar.take(commit)
        for seq in ending:
            if seq.owner.stopped:
                self.num_stopped -= 1
            else:
                self._part(seq)
            if seq.last_step < commit:  # else it joined meanwhile, and its token comes by `token`
                state: RequestState = seq.owner
                state.generated_last_ns = state.held_last_ns = self._end_ns
        return ending

    def _part(self, seq: Sequence) -> None:
        """The gap before an output that is still to come is not one of the pooled gaps."""
        state: RequestState = seq.owner
        if state.stopped:
            state.stopped = False
            self.num_stopped -= 1
            self.num_grouped_measured += self._stream and state.measured
        if self._stream and state.measured:
            self.num_grouped_measured -= 1
            for run in self.in_flight:
                if run.facts is not None and seq.last_step < run.plan.number <= seq.counter.scheduled:
                    run.facts.num_gaps_last -= 1

    def released(self, seq: Sequence) -> None:
        """`seq` left its slot, or the queue if its client gave up: deliver what is due and let the request go."""
        now = self._end_ns
        state: RequestState = seq.owner
        lead = state.lead
        self._free(state, self._number + 1)
        if state.admitted_ns >= 0:
            state.leave_slot(self._record, now, 2 if lead.abandoned else 0)
        lead.add_part(state, seq, seq.num_output_tokens if self._stream or not lead.abandoned else 0)
        if lead.num_parts:
            return
        lead.leave(self._record, rec.ABORTED if lead.abandoned else rec.FINISHED, now, stream=self._stream)
        lead.sequences = ()  # they know their states: without this, they would wait for the garbage collector
        self.num_outstanding -= 1
        self._left_system(now, lead.request.id)

    def gives_up(self, state: RequestState) -> bool:
        """The client of `state` gives up; False when it has everything already."""
        if not state.num_parts:
            return False
        if self._stream and all(seq.phase is Phase.FINISHED for seq in state.sequences):
            return False
        state.abandoned = True
        return True

    def aborting(self, now_ns: int) -> None:
        """Clients give up at `now_ns`; `released` follows for each of their sequences."""
        self._end_ns = now_ns

    def lost(self, seq: Sequence) -> None:
        """The replica fails: `seq` leaves the group, and whatever was only scheduled for it never began."""
        self.left(seq)
        state: RequestState = seq.owner
        if state.admitted_ns >= self._end_ns:
            state.admitted_ns = -1
        if state.first_scheduled_ns >= self._end_ns:
            state.first_scheduled_ns, state.cached_tokens = -1, 0

    def displaced(self, seq: Sequence) -> None:
        """`seq` goes on at another replica, without slot and memory."""
        state: RequestState = seq.owner
        self._free(state, self._number + 1)
        if state.admitted_ns >= 0:
            state.leave_slot(self._record, self._end_ns, 4)

    # --- slots and memory --------------------------------------------------------------------------------------------

    def planned(self, plan: StepPlan, now_ns: int, start_ns: int) -> int:
        """A pass made at `now_ns`, whose step starts at `start_ns`, preempted and admitted.

        Returns the preemptions to note with its step: its own and those of passes before it that had no step.
        """
        if not (plan.explicit or plan.preemptions or self._preemptions_without_step):
            self._number = plan.number
            return 0
        first = plan.number if plan.num_scheduled else plan.number + 1
        if plan.preemptions:
            self._preempted()
        for preemption in plan.preemptions:
            state: RequestState = preemption.seq.owner
            state.leave_slot(self._record, now_ns, 1)
            self._free(state, first)
        self._number = plan.number
        self._preemptions_without_step += len(plan.preemptions)
        for chunk in plan.explicit:
            state = chunk.seq.owner
            self._fill(chunk.seq, state, plan.number)
            if chunk.kind in "CD":
                continue
            state.admitted_ns = start_ns
            state.prefill_end_ns = state.held_last_ns = -1
            if state.first_scheduled_ns < 0:
                state.first_scheduled_ns = start_ns
                state.cached_tokens = chunk.num_computed_tokens
        if not plan.num_scheduled:
            return 0
        num_preemptions, self._preemptions_without_step = self._preemptions_without_step, 0
        return num_preemptions

    def _fill(self, seq: Sequence, state: RequestState, number: int) -> None:
        """What of the memory of `seq` is never filled, from step `number` on."""
        if not self._counts_memory:
            return
        final = state.final_tokens
        internal = max(self._kv.allocated_of(seq) - final, 0)
        if internal != state.internal_tokens:
            self._log.internal(number, internal - state.internal_tokens)
            state.internal_tokens = internal
        state.internal_from = number

    def _fill_later(self, seq: Sequence, state: RequestState) -> None:
        """A grouped sequence begins its last block; or, without slack in it, the block for a token beyond the end."""
        if self._block_size is None or not self.grows:
            return
        computed = seq.num_computed_tokens
        state.begins = (self._number + 1 - computed) % self._block_size
        self._log.begins(self._number + 1, state.begins, 1)
        if state.internal_tokens:
            return
        final = state.final_tokens
        slack = -final % self._block_size
        begins = final - self._block_size + slack + 1 if slack else final + 1
        state.internal_tokens = slack or self._block_size
        state.internal_from = self._number + begins - computed
        self._log.internal(state.internal_from, state.internal_tokens)

    def _forget_later(self, state: RequestState) -> None:
        """It takes no further block by itself."""
        self._begins_no_more(state)
        if state.internal_from > self._number:
            self._log.internal(state.internal_from, -state.internal_tokens)
            state.internal_tokens = 0

    def _begins_no_more(self, state: RequestState) -> None:
        if state.begins >= 0:
            self._log.begins(self._number + 1, state.begins, -1)
            state.begins = -1

    def _free(self, state: RequestState, number: int) -> None:
        """Its memory is free from step `number` on."""
        self._begins_no_more(state)
        if state.internal_tokens:
            self._log.internal(max(number, state.internal_from), -state.internal_tokens)
            state.internal_tokens = 0

    # --- progress ----------------------------------------------------------------------------------------------------

    def watch_progress(self, plan: StepPlan, batcher: Batcher) -> None:
        """Raise CheckError when passes go on and on without a token or a new high-water mark of computed tokens."""
        if self._tokens_now or plan.num_decode:
            self._idle_passes = 0
            return
        self._idle_passes += 1
        for chunk in plan.explicit:
            state: RequestState = chunk.seq.owner
            reached = chunk.num_computed_tokens + chunk.num_tokens
            if chunk.seq.phase is not Phase.FINISHED and reached > state.high_water_tokens:
                state.high_water_tokens = reached
                self._idle_passes = 0
        if self._idle_passes >= MAX_IDLE_PASSES:
            self.no_progress(f"{MAX_IDLE_PASSES} passes in a row gave no token and computed none anew", batcher)

    def no_progress(self, what: str, batcher: Batcher) -> NoReturn:
        """Raise CheckError naming the sequences that are stuck and the settings that made them so."""
        members = batcher.members()
        running = ", ".join(str(seq.id) for seq in members[:8]) or "none"
        head = head_of(batcher.waiting)
        raise CheckError(
            f"no progress: replica {self._replica} at {self._end_ns} ns: {what}; {len(members)} running "
            f"(requests {running}), {len(batcher.waiting)} waiting "
            f"(first: {'none' if head is None else f'request {head.id}'}); settings: {self._settings}"
        )
