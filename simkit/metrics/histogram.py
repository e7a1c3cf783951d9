"""A fixed logarithmic histogram of durations, for quantities with one value a token. Imports numpy only.

Bins are no wider than 0.1 % (1 ns below a microsecond), the same in every run, so counts of runs can be added.
"""

from __future__ import annotations

import functools

import numpy as np

from simkit.types import Ints

_FIRST_NS = 1_000
_LAST_NS = 10**15


@functools.cache
def _edges() -> Ints:
    """Ascending int lower edges: 0, 1, ... 999, then each at most 0.1 % above the one before."""
    edges = list(range(_FIRST_NS))
    edge = _FIRST_NS
    while edge < _LAST_NS:
        edges.append(edge)
        edge = max(edge + 1, edge + edge // 1000)
    return np.array(edges, dtype=np.int64)


class DurationHistogram:
    """Counts of durations in ns; the mean is exact, percentiles are exact to the width of a bin.

    Each bin is read as the mean of what fell into it, so that equal durations come back as they were.
    """

    def __init__(self) -> None:
        self._lower = _edges()
        self._counts = np.zeros(len(self._lower), dtype=np.int64)
        self._sums_ns = np.zeros(len(self._lower), dtype=np.int64)
        self._pending_ns: list[int] = []
        self._pending_counts: list[int] = []
        self.total_ns = 0
        self.count = 0

    def add(self, duration_ns: int, count: int) -> None:
        """`count` durations of `duration_ns`."""
        self._pending_ns.append(duration_ns)
        self._pending_counts.append(count)
        if len(self._pending_ns) >= 1 << 16:
            self._flush()

    def add_many(self, durations_ns: Ints, count: int) -> None:
        """`count` of each of `durations_ns`."""
        self._count(durations_ns, np.full(len(durations_ns), count, dtype=np.int64))

    def merge(self, other: DurationHistogram) -> None:
        """Add the counts of another histogram."""
        other._flush()
        self._counts += other._counts
        self._sums_ns += other._sums_ns
        self.total_ns += other.total_ns
        self.count += other.count

    def mean_ns(self) -> float | None:
        """Exact mean, None when empty."""
        self._flush()
        return self.total_ns / self.count if self.count else None

    def percentile_ns(self, percent: float) -> float | None:
        """Linear between the bins of the two neighbouring ranks (numpy "linear"), None when empty."""
        self._flush()
        if not self.count:
            return None
        rank = percent / 100 * (self.count - 1)
        below = int(rank)
        cumulative = np.cumsum(self._counts)
        low, high = (
            self._value(int(np.searchsorted(cumulative, r, side="right")))
            for r in (below, min(below + 1, self.count - 1))
        )
        return low + (high - low) * (rank - below)

    def _value(self, index: int) -> float:
        return int(self._sums_ns[index]) / int(self._counts[index])

    def _flush(self) -> None:
        if self._pending_ns:
            self._count(np.array(self._pending_ns, dtype=np.int64), np.array(self._pending_counts, dtype=np.int64))
            self._pending_ns, self._pending_counts = [], []

    def _count(self, durations_ns: Ints, counts: Ints) -> None:
        assert int(durations_ns.min(initial=0)) >= 0, "a negative duration"
        bins = np.searchsorted(self._lower, durations_ns, side="right") - 1
        np.add.at(self._counts, bins, counts)
        np.add.at(self._sums_ns, bins, durations_ns * counts)
        self.total_ns += int((durations_ns * counts).sum())
        self.count += int(counts.sum())
