"""A replica that may stop at a known time, and give back whoever it served.

Nobody but the clock knows when: neither batcher nor allocator does, and a replica that does not fail does the same.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from simkit.batching.plan import StepPlan
from simkit.engine.pricing import Pricer
from simkit.engine.replica import Replica
from simkit.engine.request import RequestState
from simkit.sequence import Phase, Sequence
from simkit.types import Ints, LatencyModel


class PricerUntil(Pricer):
    """Prices no run of steps beyond `stop_ns`: what is in flight then are single steps, of which one is under way."""

    def __init__(self, latency: LatencyModel, stop_ns: int) -> None:
        super().__init__(latency)
        self._stop_ns = stop_ns

    def ends_ns(self, plan: StepPlan, start_ns: int, num_steps: int, until_ns: int | None) -> list[int] | Ints:
        """As priced by others; of the steps that end too late only the first is kept, if there is no other."""
        until_ns = self._stop_ns if until_ns is None else min(until_ns, self._stop_ns)
        ends_ns = super().ends_ns(plan, start_ns, num_steps, until_ns)
        return ends_ns[: max(1, bisect_right(ends_ns, self._stop_ns))]


class FallibleReplica(Replica):
    """`stop_ns` is when `fail` will be called, None for never. Nothing reaches a replica after that."""

    def __init__(self, *args: Any, stop_ns: int | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_down = False
        if stop_ns is not None:
            self._pricer = PricerUntil(self._pricer.latency, stop_ns)

    def take(self, state: RequestState) -> None:
        """A request joins this replica now: anew, or with the tokens that its client has."""
        self.tracker.enter()
        for seq in state.alive():
            seq.owner.replica = self.index
            self._join(seq)
        state.replica = self.index

    def fail(self) -> list[RequestState]:
        """Stop now. What is in flight is lost, and all memory; returns whose requests have to go elsewhere.

        Clients that have given up, or have every token (and only kept a slot of their batch), leave instead.
        """
        now = self._clock.now_ns
        self._is_down, self._holding = True, False
        self._wake += 1
        self._log_lost_step(now)
        self._in_flight.clear()
        self._leaving.clear()
        self.tracker.aborting(now)
        displaced: dict[RequestState, None] = {}
        for seq in [*self.batcher.members(), *self.batcher.waiting]:
            state: RequestState = seq.owner
            self.tracker.lost(seq)
            if seq.is_grouped:
                seq.leave_group()
            if state.lead.abandoned or (self._stream and seq.phase is Phase.FINISHED):
                self._let_go(seq)
            else:
                self.tracker.displaced(seq)
                displaced[state.lead] = None
        self.tracker.num_outstanding = 0
        for lead in displaced:
            lead.start_again(keep_tokens=self._stream)
        self._log.close()
        return list(displaced)

    def close(self) -> None:
        """The run is over."""
        if not self._is_down:
            super().close()

    def _let_go(self, seq: Sequence) -> None:
        for leaving in (seq, *seq.forks):
            leaving.phase = Phase.FINISHED
            self.tracker.released(leaving)

    def _pass_event(self) -> None:
        if not self._is_down:
            super()._pass_event()

    def _log_lost_step(self, now_ns: int) -> None:
        """Note the step under way as far as it got; it brought no token. One that has not begun never happened."""
        begun = [run for run in self._in_flight if run.steps and run.start_ns < now_ns]
        if not begun:
            return
        (run,) = begun
        assert run.steps == 1, "runs of several steps end before a failure"
        self._log.break_off(now_ns - run.start_ns, run.end_ns() - run.start_ns)
        run.ends_ns = [now_ns]
        run.num_gaps = run.num_gaps_last = 0
        self._log_run(run)
