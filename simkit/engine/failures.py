"""Replicas that fail and come back at given times, and where their requests go meanwhile.

Nobody but the clock knows when: neither batcher nor allocator does, and a replica that does not fail does the same.
Owns the queue at the router, in which requests wait while no replica is up. The source of requests is around it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

from simkit.batching.plan import StepPlan
from simkit.engine import clock as ranks
from simkit.engine.clock import Clock
from simkit.engine.pricing import Pricer
from simkit.engine.replica import Replica
from simkit.engine.request import RequestState
from simkit.latency.protocol import LatencyModel
from simkit.metrics import record as rec
from simkit.metrics.record import Record
from simkit.scenario import Failure
from simkit.sequence import Phase, Sequence
from simkit.types import Ints, Request


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
        self.tracker.num_outstanding += 1
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
        assert run.facts is not None, "a step that has begun"
        run.facts.num_gaps = run.facts.num_gaps_last = 0
        self._log_run(run)


class Outages:
    """Takes every request of a system whose replicas may fail.

    `choose` routes a request (-1: no replica is up), `make_replica` gives an empty replica of an index that fails at a
    time (None: never), and `left` is told of clients that give up before any replica has them. At one instant the
    replicas that come back are up before others fail, and then all requests without a replica are sent on, in order of
    arrival.
    """

    def __init__(
        self,
        failures: Seq[Failure],
        num_replicas: int,
        clock: Clock,
        record: Record,
        *,
        make_replica: Callable[[int, int | None], FallibleReplica],
        choose: Callable[[Request], int],
        left: Callable[[int, int], None],
        stream: bool,
    ) -> None:
        self.up = list(range(num_replicas))
        """Indices of the replicas that are up, in order; always the same list."""
        self.waiting: list[RequestState] = []
        """At the router, in order of arrival."""
        self.num_requeued = [0] * len(failures)
        """Requests that each failure sent back."""
        self._failures = failures
        self._clock = clock
        self._record = record
        self._make_replica = make_replica
        self._choose = choose
        self._left = left
        self._stream = stream
        self.replicas = [make_replica(index, self._next_stop_ns(index, 0)) for index in range(num_replicas)]
        """By index, those that are down included; always the same list."""
        self._book()

    def _book(self) -> None:
        stops: dict[int, list[int]] = defaultdict(list)
        returns: dict[int, list[int]] = defaultdict(list)
        for number, failure in enumerate(self._failures):
            stops[failure.start_ns].append(number)
            if failure.end_ns is not None:
                returns[failure.end_ns].append(failure.replica)
        for time_ns in sorted({*stops, *returns}):
            change = partial(self._change, stops[time_ns], sorted(returns[time_ns]))
            self._clock.at(time_ns, ranks.OUTAGE, change)

    def _next_stop_ns(self, replica: int, after_ns: int) -> int | None:
        """When `replica`, up since `after_ns`, fails next."""
        starts = [failure.start_ns for failure in self._failures if failure.replica == replica]
        return min((start for start in starts if start >= after_ns), default=None)

    def _change(self, stops: Seq[int], returns: Seq[int]) -> None:
        for index in returns:
            self.replicas[index] = self._make_replica(index, self._next_stop_ns(index, self._clock.now_ns))
            insort(self.up, index)
        homeless, self.waiting = self.waiting, []
        for number in stops:
            index = self._failures[number].replica
            self.up.remove(index)
            displaced = self.replicas[index].fail()
            self.num_requeued[number] = len(displaced)
            homeless.extend(displaced)
        for state in sorted(homeless, key=lambda state: (state.arrival_ns, state.request.id)):
            self.send(state, self._choose(state.request))

    # --- requests ----------------------------------------------------------------------------------------------------

    def send(self, state: RequestState, index: int) -> None:
        """To replica `index`, or for -1 let it wait for one."""
        if index >= 0:
            self.replicas[index].take(state)
            return
        state.replica = -1
        self.waiting.append(state)

    def abandon(self, state: RequestState) -> None:
        """The client of `state` gives up, if it has not everything already."""
        if state.replica >= 0:
            self.replicas[state.replica].abandon(state)
        elif state in self.waiting:
            self.waiting.remove(state)
            self._end(state, rec.ABORTED)
            self._left(self._clock.now_ns, state.request.id)

    def close(self) -> None:
        """Nothing happens any more: who still waits is left unfinished."""
        self._record.num_requeued = sum(self.num_requeued)
        for state in self.waiting:
            self._end(state, rec.UNFINISHED)
        self.waiting = []

    def _end(self, state: RequestState, status: int) -> None:
        """It leaves the router, with the tokens that its client has."""
        now = self._clock.now_ns
        for seq in state.sequences:
            part: RequestState = seq.owner
            if seq in state.alive() or seq in state.sequences[0].forks:
                state.add_part(part, seq, seq.num_output_tokens if self._stream else 0)
        state.leave(self._record, status, now, stream=self._stream)
        state.sequences = ()
