"""Sequences that decode one token in every step: counted together, so that a step costs nothing for each of them.

Owns their number, the sum and maximum of their contexts, and when a visible limit stops them. Imports `sequence` only.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simkit.sequence import Sequence, Ticks


class Steady:
    """The steady sequences of a batcher. Contexts are as after the steps scheduled so far."""

    __slots__ = ("_computed", "_longest", "_stops", "_when", "count", "newest", "tenants", "ticks")

    def __init__(self, ticks: Ticks) -> None:
        self.ticks = ticks
        self.count = 0
        self.newest = -1
        """Largest admission number of those that joined since nobody was steady."""
        self.tenants: dict[int, int] = {}
        self._computed = 0
        self._longest: list[tuple[int, int, Sequence]] = []
        self._stops: dict[int, list[Sequence]] = {}
        self._when: dict[Sequence, tuple[int, int]] = {}

    @property
    def context_sum(self) -> int:
        """Computed tokens of all of them."""
        return self._computed + self.count * self.ticks.scheduled

    @property
    def context_max(self) -> int:
        """Most computed tokens of one of them; 0 without any."""
        longest, when = self._longest, self._when
        while longest:
            least, _, seq = longest[0]
            if seq in when and when[seq][0] == -least:
                return self.ticks.scheduled - least
            heappop(longest)
        return 0

    def join(self, seq: Sequence, num_steps: int) -> None:
        """`seq` is steady from now on; after `num_steps` further scheduled steps a limit that everybody sees stops it."""
        ticks = self.ticks
        base = seq.num_computed_tokens - ticks.scheduled
        seq.counts_by(ticks)
        self.count += 1
        self._computed += base
        stop = ticks.scheduled + num_steps
        self._stops.setdefault(stop, []).append(seq)
        self._when[seq] = (base, stop)
        if len(self._longest) > 64 + 2 * self.count:
            self._longest = [entry for entry in self._longest if entry[2] in self._when]
            heapify(self._longest)
        heappush(self._longest, (-base, seq.number, seq))
        if seq.number > self.newest:
            self.newest = seq.number
        tenants = self.tenants
        tenants[seq.tenant] = tenants.get(seq.tenant, 0) + 1

    def leave(self, seq: Sequence) -> None:
        """`seq` counts alone again."""
        base, stop = self._when.pop(seq)
        stopping = self._stops.get(stop)
        if stopping is not None:
            stopping.remove(seq)
            if not stopping:
                del self._stops[stop]
        self.count -= 1
        self._computed -= base
        self.tenants[seq.tenant] -= 1
        if not self.count:
            self.newest = -1
        seq.counts_alone()

    def someone_stops(self) -> bool:
        """Whether `stopping` would tell anybody."""
        return self.ticks.scheduled in self._stops

    def stopping(self) -> list[Sequence]:
        """Those that a limit keeps from being scheduled from now on; they are still members."""
        return self._stops.pop(self.ticks.scheduled, [])
