"""Which replicas are up: they fail and come back at given times, and their requests go elsewhere meanwhile.

Owns the queue at the router, in which requests wait while no replica is up. The source of requests is around it.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from simkit.engine import clock as ranks
from simkit.engine.clock import Clock
from simkit.engine.fallible import FallibleReplica
from simkit.engine.request import RequestState
from simkit.metrics import record as rec
from simkit.metrics.record import Record
from simkit.scenario import Failure
from simkit.types import Request


class Outages:
    """Takes every request of a system whose replicas may fail.

    `choose` routes a request (-1: no replica is up), `make_replica` gives an empty replica of an index that fails at a
    time (None: never), and `left` is told of clients that give up before any replica has them. At one instant the
    replicas that come back are up before others fail, and then all requests without a replica are sent on, in order of
    arrival.
    """

    def __init__(
        self,
        failures: Sequence[Failure],
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

    def _change(self, stops: Sequence[int], returns: Sequence[int]) -> None:
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
        self._record.num_tokens_delivered += state.total_tokens
        self._record.leave(now, state.arrival_ns)
        self._record.requests.append(state.row(status, 0, now, self._stream))
        state.sequences = ()
