"""A replica that takes the short way while nobody waits, and the batcher's when somebody does.

Owns when to change over, and puts the same state in riders or in sequences, requests and plans. Neither way costs
simulated time or changes a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simkit.batching.continuous import ContinuousBatcher
from simkit.batching.plan import ScheduledChunk, StepPlan
from simkit.engine.fast_path.express import Express, Segment
from simkit.engine.fast_path.riders import Rider
from simkit.engine.pricing import Run
from simkit.engine.replica import Replica
from simkit.engine.request import RequestState
from simkit.kv.counted import CountedAllocator
from simkit.sequence import Sequence


class FastReplica(Replica):
    """`make_sequences` gives a request the sequences by which the batcher knows it."""

    def __init__(self, *args: Any, make_sequences: Callable[[RequestState], None], **options: Any) -> None:
        super().__init__(*args, **options)
        assert isinstance(self.batcher, ContinuousBatcher)
        assert isinstance(self.kv, CountedAllocator)
        self._full_batcher, self._roster, self._full_kv = self.batcher, self.batcher.roster, self.kv
        self._make_sequences = make_sequences
        self._express = Express(
            self.index,
            self.batcher.settings,
            self.kv,
            self._pricer,
            self._record,
            self._log,
            self._gone,
            stream=self._stream,
        )
        self._rides = True
        self._passes_to_stay = 0
        self._next = (0, 0)

    def _gone(self, now_ns: int, request: int) -> None:
        self.tracker.num_outstanding -= 1
        self._system.left(now_ns, request)

    def welcome(self, state: RequestState) -> None:
        """A request joins this replica now."""
        if not self._rides:
            self._make_sequences(state)
            self.arrive(state.sequences[0])
            return
        self.tracker.num_outstanding += 1
        express = self._express
        express.waiting.append(state)
        if express.is_idle():
            self._book_pass()
        elif express.cut(self._clock.now_ns):
            if express.pass_is_due():  # the outputs of the step before came in at this instant
                self._wake += 1
                self._book_pass()
            else:
                self._book_step_end()

    def close(self) -> None:
        """The run is over."""
        if self._rides:
            self._express.close()
        super().close()

    # --- riding ------------------------------------------------------------------------------------------------------

    def _pass_event(self) -> None:
        if self._rides:
            self._pass_booked = False
            self._ride(may_plan=True)
        else:
            super()._pass_event()

    def _step_event(self, wake: int) -> None:
        if not self._rides:
            super()._step_event(wake)
        elif wake == self._wake:
            self._express.commit(*self._next)
            self._ride()

    def _due_ns(self) -> int:
        if not self._rides:
            return super()._due_ns()
        self._next = self._express.due()
        return self._next[1]

    def _ride(self, may_plan: bool = False) -> None:
        """Segment after segment for as long as nothing else is booked; then book what comes next."""
        express, clock, lag = self._express, self._clock, self._express.lag
        while True:
            while express.committed >= express.scheduled - lag:  # a pass is due
                if not (may_plan or clock.nothing_else_now()):
                    self._book_pass()
                    return
                may_plan = True
                if not express.has_more():
                    break
                if not express.plan(clock.now_ns, self._system.next_arrival_ns):
                    self._get_off()
                    return
            if express.committed == express.scheduled:  # idle
                return
            number, end_ns = express.due()
            if not clock.advance(end_ns):
                self._book_step_end()
                return
            express.commit(number, end_ns)
            may_plan = False

    # --- changing over -----------------------------------------------------------------------------------------------

    def _get_off(self) -> None:
        """Everybody goes on as a sequence. A pass is due."""
        express = self._express
        self._rides = False
        self._passes_to_stay = 4 + len(express.riders.on_board)
        scheduled, committed = express.scheduled, express.committed
        run = None
        if scheduled > committed:
            run = self._run_in_flight()
        else:
            express.close()
        self.tracker.resume(scheduled, committed, express.last_end_ns)
        seqs, chunks = [], []
        for rider in express.riders.on_board:
            seq = self._sequence(rider)
            seqs.append(seq)
            if rider.first > committed:
                chunks.append(ScheduledChunk(seq, "N", 0, seq.num_prompt_tokens, samples=True))
        self._roster.resume(scheduled, committed, seqs, None if run is None else run.plan)
        self._last_version = self._roster.version if express.goes_on else -1
        if run is not None:
            run.plan.explicit = run.plan.outputs = chunks
            self._in_flight.append(run)
        self._device_free_ns = express.device_free_ns
        for state in express.waiting:
            self._make_sequences(state)
            self._full_batcher.waiting.push(state.sequences[0])
        express.waiting = []
        express.clear()
        if self._make_passes():
            self._go_on()

    def _run_in_flight(self) -> Run:
        """The step whose outputs are to come, as the batcher would have planned it."""
        express, facts = self._express, self._express.last_step()
        plan = StepPlan()
        plan.number, plan.held_slots, plan.stable = facts.number, facts.held_slots, express.is_stable
        plan.num_decode = plan.num_scheduled = plan.num_sampled = facts.num_decode
        plan.decode_context_sum, plan.decode_context_max = facts.context_sum, facts.context_max
        if facts.detail is not None:
            plan.prefill_tokens, plan.prefill_context_tokens, plan.prefill_pairs, sampled, prefills = facts.detail[:5]
            plan.num_sampled += sampled
            plan.num_scheduled += prefills
        run = Run(plan, facts.t_start_ns, [express.end_ns(facts.number)])
        run.facts = facts
        return run

    def _sequence(self, rider: Rider) -> Sequence:
        """`rider` as the batcher and the tracker would know it."""
        scheduled, committed = self._express.scheduled, self._express.committed
        state = rider.state
        self._make_sequences(state)
        seq = state.sequences[0]
        seq.in_prefill = False
        seq.last_step = rider.first
        seq.num_preemptions = rider.num_preemptions
        seq.num_computed_tokens = rider.base + scheduled
        seq.num_outstanding_tokens = scheduled - committed
        seq.num_in_flight_tokens = seq.num_prompt_tokens if rider.first > committed else scheduled - committed
        seq.num_output_tokens = seq.num_computed_tokens - seq.num_prompt_tokens + 1 - seq.num_outstanding_tokens
        if rider.first <= committed:
            state.generated_last_ns = state.held_last_ns = self._express.last_end_ns
        else:
            state.generated_first_ns = state.prefill_end_ns = -1
        state.internal_tokens, state.internal_from = 0, 0
        if rider.slack:
            if rider.internal_from <= scheduled:
                state.internal_tokens, state.internal_from = rider.slack, rider.internal_from
            else:
                self._log.internal(rider.internal_from, -rider.slack)  # the tracker will note it again
        return seq

    def _make_passes(self) -> bool:
        if self._passes_to_stay > 0:
            self._passes_to_stay -= 1
        elif not len(self._full_batcher.waiting) and self._may_get_on():
            self._get_on()
            self._ride(may_plan=True)
            return False
        return super()._make_passes()

    def _may_get_on(self) -> bool:
        """Whether nothing is under way but at most one step of the group, or what is left of a run of them."""
        if not self._full_batcher.is_all_grouped() or self.tracker.has_pending_preemptions():
            return False
        if not self._in_flight:
            return True
        run = self._in_flight[0]
        facts = run.facts
        if facts is None or run.steps - run.done != 1 or run.plan.outputs or facts.num_gaps != facts.num_gaps_last:
            return False
        return not facts.waiting and run.plan.num_decode == len(self._roster.running)

    def _get_on(self) -> None:
        """Everybody goes on as a rider. A pass is due."""
        express, tracker = self._express, self.tracker
        self._rides = True
        scheduled, committed = self._roster.counter.scheduled, self._roster.counter.committed
        express.start(scheduled, committed, tracker.last_end_ns, self._device_free_ns)
        express.goes_on = self._last_version == self._roster.version
        block_size = self._full_kv.block_size
        bases = [seq.num_computed_tokens - scheduled for seq in self._roster.running]
        for seq in self._roster.running:
            tracker.dismiss(seq)
        for seq, base in zip(self._roster.dismiss(), bases, strict=True):
            state: RequestState = seq.owner
            rider = Rider(state, seq.last_step, base, block_size)
            rider.num_preemptions = seq.num_preemptions
            express.take(rider)
            state.sequences = ()
        if self._in_flight:
            self._keep_run(self._in_flight.popleft())

    def _keep_run(self, run: Run) -> None:
        express = self._express
        express.segments = [Segment(run.plan.number, run.start_ns, run.ends_ns[: run.steps])]
        express.row = run.facts
        express.is_stable = run.plan.stable
