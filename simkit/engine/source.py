"""Who comes next, and which replica serves it.

Requests come at their own times, of clients that wait for an answer, or of turns that wait for the last. Owns which
arrivals are booked, and the rules of routers; their ties go to the lowest index. Knows no more of a replica than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import Protocol

from simkit.engine import clock as ranks
from simkit.engine.clock import Clock
from simkit.errors import InputError
from simkit.types import Request
from simkit.workload.arrivals import NEVER_NS
from simkit.workload.build import Workload


class Source:
    """Books the requests of `workload`; `arrive` is told of each, and `ended` whenever none is booked any more.

    In a closed loop a departure brings the client's next request, in a session the turns that follow. They arrive after
    everything that ended at the same instant, in order of departure.

    Each request arrives `path_ns` after its client sent it: the path to the queue, and that of the tokens back, which
    is the same for all and so may be taken at once.
    """

    def __init__(
        self,
        workload: Workload,
        clock: Clock,
        arrive: Callable[[Request], None],
        ended: Callable[[], None],
        path_ns: int = 0,
    ) -> None:
        self.next_arrival_ns: int | None = None
        """When the next of the requests comes that come by themselves, as far as that is known."""
        self.num_booked = 0
        """Arrivals that will be."""
        self._workload = workload
        self._requests: Iterator[Request] = workload.requests
        self._clock = clock
        self._arrive = arrive
        self._ended = ended
        self._path_ns = path_ns
        self._is_dry = False

    def start(self) -> None:
        """Book who comes first."""
        if self._workload.concurrency is None:
            self._book_next_open(0)
        else:
            for _ in range(self._workload.concurrency):
                self._book_client(0, ranks.ARRIVAL)
        self._call_if_ended()

    def left(self, now_ns: int, request: int) -> None:
        """Request number `request` has left, served or not: who waited for that thinks, and sends the next one."""
        workload = self._workload
        if workload.concurrency is not None:
            self._book_client(now_ns + workload.think_time_ns, ranks.CAUSED_ARRIVAL)
        if workload.successors is not None:
            for successor, think_ns in workload.successors.get(request, ()):
                self._book(successor, now_ns + think_ns, ranks.CAUSED_ARRIVAL)

    def _book_next_open(self, now_ns: int) -> None:
        request = next(self._requests, None)
        if request is None:
            self.next_arrival_ns = None
            return
        if self._path_ns:
            request = request._replace(arrival_ns=request.arrival_ns + self._path_ns)
        assert request.arrival_ns >= now_ns, "requests come in arrival order"
        self.next_arrival_ns = request.arrival_ns
        self.num_booked += 1
        self._clock.at(request.arrival_ns, ranks.ARRIVAL, lambda: self._arrive_open(request))

    def _arrive_open(self, request: Request) -> None:
        self.num_booked -= 1
        self._arrive(request)
        self._book_next_open(self._clock.now_ns)
        self._call_if_ended()

    def _book_client(self, time_ns: int, rank: int) -> None:
        duration_ns = self._workload.duration_ns
        if self._is_dry or (duration_ns is not None and time_ns >= duration_ns):
            return
        request = next(self._requests, None)
        if request is None:
            self._is_dry = True
            return
        self._book(request, time_ns, rank)

    def _book(self, request: Request, time_ns: int, rank: int) -> None:
        """`request` is sent at a time that only the run decides."""
        time_ns += self._path_ns
        if time_ns >= NEVER_NS:
            raise InputError(
                "clients think so long that requests arrive after more than 146 years", key="workload.arrivals"
            )
        self.num_booked += 1
        self._clock.at(time_ns, rank, lambda: self._arrive_caused(request))

    def _arrive_caused(self, request: Request) -> None:
        self.num_booked -= 1
        self._arrive(request._replace(arrival_ns=self._clock.now_ns))
        self._call_if_ended()

    def _call_if_ended(self) -> None:
        if not self.num_booked:
            self._ended()


# --- routers ----------------------------------------------------------------------------------------------------------
class Routable(Protocol):
    """What a router may know of a replica."""

    @property
    def num_outstanding(self) -> int:
        """Requests sent there that have not left."""


Router = Callable[[Request, int, Seq[Routable], Seq[int]], int]
"""(request, how many were routed before, replicas, indices of those that are up) to one of these indices."""


def round_robin(request: Request, num_routed: int, replicas: Seq[Routable], up: Seq[int]) -> int:
    """Each in turn, of those that are up."""
    return up[num_routed % len(up)]


def least_outstanding(request: Request, num_routed: int, replicas: Seq[Routable], up: Seq[int]) -> int:
    """The replica with the fewest requests that have not left."""
    return min(up, key=lambda index: replicas[index].num_outstanding)


def prefix_affinity(request: Request, num_routed: int, replicas: Seq[Routable], up: Seq[int]) -> int:
    """All requests of a prefix group to the same replica; those without a group in turn.

    While that replica is down its groups are spread over the others; the groups of the others stay where they are.
    """
    group = request.prefix_group
    if group < 0:
        return up[num_routed % len(up)]
    home = group % len(replicas)
    return home if home in up else up[group // len(replicas) % len(up)]


ROUTERS: dict[str, Router] = {
    "round_robin": round_robin,
    "least_outstanding": least_outstanding,
    "prefix_affinity": prefix_affinity,
}
"""Router name in the scenario file to its rule."""
