"""How often each integer occurs: exact means and percentiles of any number of values, in memory that grows with the
number of different ones. Pure numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simkit.types import Ints

BUFFER = 1 << 20
PERCENTILES = (50, 95, 99)


class Counts:
    """A multiset of integers. `max_distinct`: it gives up (`overflown`) when it would hold more different ones."""

    __slots__ = ("_buffer", "_buffered", "_max_distinct", "counts", "overflown", "values")

    def __init__(self, max_distinct: int | None = None) -> None:
        self.values: Ints = np.zeros(0, dtype=np.int64)
        self.counts: Ints = np.zeros(0, dtype=np.int64)
        self.overflown = False
        self._max_distinct = max_distinct
        self._buffer: list[Ints] = []
        self._buffered = 0

    def add(self, values: Ints) -> None:
        """Count some values."""
        if self.overflown or not values.size:
            return
        self._buffer.append(values)
        self._buffered += values.size
        if self._buffered >= BUFFER:
            self.settle()

    def settle(self) -> Counts:
        """Bring `values` (rising) and `counts` up to date."""
        if self._buffer:
            fresh, counts = np.unique(np.concatenate(self._buffer), return_counts=True)
            self._buffer, self._buffered = [], 0
            both = np.concatenate([self.values, fresh])
            weights = np.concatenate([self.counts, counts])
            self.values, at = np.unique(both, return_inverse=True)
            self.counts = np.zeros(len(self.values), dtype=np.int64)
            np.add.at(self.counts, at, weights)
            if self._max_distinct is not None and len(self.values) > self._max_distinct:
                self.overflown = True
                self.values, self.counts = self.values[:0], self.counts[:0]
        return self

    def percentile(self, percent: float) -> float:
        """The linear percentile (numpy's default) of what was counted, which must not be nothing."""
        ends = np.cumsum(self.settle().counts)
        rank = percent / 100 * (int(ends[-1]) - 1)
        low = int(rank)
        here, after = (
            int(self.values[np.searchsorted(ends, at, side="right")]) for at in (low, min(low + 1, int(ends[-1]) - 1))
        )
        return here + (rank - low) * (after - here)

    def summary(self) -> dict[str, Any] | None:
        """mean, p50, p95, p99 and max; None when nothing was counted."""
        self.settle()
        if not len(self.values):
            return None
        # Python integers: a sum of 27 million products may be beyond 2**53.
        total = sum(value * count for value, count in zip(self.values.tolist(), self.counts.tolist(), strict=True))
        return {
            "mean": total / int(self.counts.sum()),
            **{f"p{percent}": self.percentile(percent) for percent in PERCENTILES},
            "max": int(self.values[-1]),
        }
