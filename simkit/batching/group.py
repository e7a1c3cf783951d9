"""Sequences that decode one token in every step: counted together, so that a step costs nothing for each of them.

Owns their number, the sum and maximum of their contexts, and when a visible limit stops them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simkit.sequence import Sequence, StepCounter


class DecodeGroup:
    """The grouped sequences of a batcher. Contexts are as after the steps scheduled so far."""

    __slots__ = ("_by_tenant", "_computed", "_longest", "_when", "count", "counter", "newest", "stops", "tenants")

    def __init__(self, counter: StepCounter, *, by_tenant: bool = False) -> None:
        self.counter = counter
        self.count = 0
        self.newest = -1
        """Largest admission number of those that joined since nobody was in the group."""
        self.tenants: dict[int, int] = {}
        """How many a tenant has, if they are counted `by_tenant`."""
        self._by_tenant = by_tenant
        self._computed = 0
        self._longest: list[tuple[int, int, Sequence]] = []
        self.stops: dict[int, list[Sequence]] = {}
        """Who is to `stop`, by the number of the last step that schedules them."""
        self._when: dict[Sequence, tuple[int, int]] = {}

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._when

    def contexts(self) -> tuple[int, int]:
        """Computed tokens of all of them: (sum, maximum); 0 without any."""
        scheduled, longest, when = self.counter.scheduled, self._longest, self._when
        while longest:
            least, _, seq = longest[0]
            if seq in when and when[seq][0] == -least:
                return self._computed + self.count * scheduled, scheduled - least
            heappop(longest)
        return 0, 0

    def join(self, seq: Sequence, num_steps: int) -> None:
        """`seq` joins; after `num_steps` further scheduled steps a limit that everybody sees stops it."""
        counter = self.counter
        base = seq.num_computed_tokens - counter.scheduled
        seq.join_group(counter)
        self.count += 1
        self._computed += base
        stop = counter.scheduled + num_steps
        stopping = self.stops.get(stop)
        if stopping is None:
            self.stops[stop] = [seq]
        else:
            stopping.append(seq)
        self._when[seq] = (base, stop)
        if len(self._longest) > 64 + 2 * self.count:
            self._longest = [entry for entry in self._longest if entry[2] in self._when]
            heapify(self._longest)
        heappush(self._longest, (-base, seq.number, seq))
        if seq.number > self.newest:
            self.newest = seq.number
        if self._by_tenant:
            self.tenants[seq.tenant] = self.tenants.get(seq.tenant, 0) + 1

    def leave(self, seq: Sequence) -> None:
        """`seq` counts alone again."""
        stop = self._drop(seq)
        stopping = self.stops[stop]
        stopping.remove(seq)
        if not stopping:
            del self.stops[stop]
        seq.leave_group()

    def stop(self) -> list[Sequence]:
        """Let those go whom a limit keeps from being scheduled from now on; what is under way still comes."""
        stopping = self.stops.pop(self.counter.scheduled)
        for seq in stopping:
            self._drop(seq)
            seq.stop()
        return stopping

    def _drop(self, seq: Sequence) -> int:
        base, stop = self._when.pop(seq)
        self.count -= 1
        self._computed -= base
        if self._by_tenant:
            self.tenants[seq.tenant] -= 1
        if not self.count:
            self.newest = -1
        return stop
