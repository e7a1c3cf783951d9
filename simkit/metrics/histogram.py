"""Sums of many integers that are exact, and a fixed logarithmic histogram of durations with one value a token.

Bins are no wider than 0.1 %: 1,024 between one power of two and the next, and one for each ns below 1,024. They are
the same in every run, so counts of runs can be added.
"""

from __future__ import annotations

import numpy as np

from simkit.types import Floats, Ints

_SAFE = 1 << 62


def dot(values: Ints, weights: Ints) -> int:
    """The exact sum of values x weights. It is taken in 64 bits where they suffice, else in Python's integers."""
    if not len(values):
        return 0
    largest = int(np.abs(values).max()) * int(np.abs(weights).max()) * len(values)
    if largest < _SAFE:
        return int(np.dot(values, weights))
    return sum(map(int.__mul__, values.tolist(), weights.tolist()))


def total(values: Ints) -> int:
    """The exact sum of values."""
    return dot(values, np.ones(len(values), dtype=np.int64))


def rounded_total(values: Floats) -> int:
    """The exact sum of values that are rounded to integers first."""
    rounded = np.rint(values)
    if not len(rounded) or float(np.abs(rounded).max()) * len(rounded) < _SAFE:
        return int(rounded.astype(np.int64).sum())
    return sum(map(int, rounded.tolist()))


# --- durations --------------------------------------------------------------------------------------------------------
_DROPPED_BITS = 52 - 10
_BITS_OF_ONE = 1023 << 10
_NUM_BINS = 2 + (63 << 10)
_MAX_PENDING = 1 << 16


def _bin_of(durations_ns: Ints) -> Ints:
    """The bin of each duration. The exponent and the first ten bits of the mantissa of a double are a logarithm that
    costs nothing: 1,024 bins between two powers of two. A duration of 0 is in bin 0."""
    bits = durations_ns.astype(np.float64).view(np.int64) >> _DROPPED_BITS
    bins: Ints = np.maximum(bits - (_BITS_OF_ONE - 1), 0)
    return bins


def _lower_ns(bins: Ints) -> Ints:
    """The shortest duration of each bin."""
    edges = ((bins + (_BITS_OF_ONE - 1)) << _DROPPED_BITS).view(np.float64).astype(np.int64)
    lower: Ints = np.where(bins > 0, edges, 0)
    return lower


class DurationHistogram:
    """Counts of durations in ns; the mean is exact, percentiles are exact to the width of a bin.

    Each bin is read as the mean of what fell into it, so that equal durations come back as they were.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_BINS, dtype=np.int64)
        # Of what durations exceed the lower edge of their bin by: a thousandth of the sums, which might not fit.
        self._excess_ns = np.zeros(_NUM_BINS, dtype=np.int64)
        self._pending_ns: list[int] = []
        self._pending_counts: list[int] = []
        self._total_ns = 0
        self._count = 0

    @property
    def total_ns(self) -> int:
        """Sum of all durations."""
        self._flush()
        return self._total_ns

    @property
    def count(self) -> int:
        """Number of all durations."""
        self._flush()
        return self._count

    def add(self, duration_ns: int, count: int) -> None:
        """`count` durations of `duration_ns`."""
        self._pending_ns.append(duration_ns)
        self._pending_counts.append(count)
        if len(self._pending_ns) >= _MAX_PENDING:
            self._flush()

    def add_many(self, durations_ns: Ints, counts: Ints | int) -> None:
        """`counts` of each of `durations_ns`."""
        assert int(durations_ns.min(initial=0)) >= 0, "a negative duration"
        weights = np.broadcast_to(np.asarray(counts, dtype=np.int64), durations_ns.shape)
        bins = _bin_of(durations_ns)
        np.add.at(self._counts, bins, weights)
        np.add.at(self._excess_ns, bins, (durations_ns - _lower_ns(bins)) * weights)
        self._total_ns += dot(durations_ns, weights)
        self._count += int(weights.sum())

    def merge(self, other: DurationHistogram) -> None:
        """Add the counts of another histogram."""
        other._flush()
        self._counts += other._counts
        self._excess_ns += other._excess_ns
        self._total_ns += other._total_ns
        self._count += other._count

    def mean_ns(self) -> float | None:
        """Exact mean, None when empty."""
        return self.total_ns / self.count if self.count else None

    def percentile_ns(self, percent: float) -> float | None:
        """Linear between the bins of the two neighbouring ranks (numpy "linear"), None when empty."""
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
        lower = int(_lower_ns(np.array([index], dtype=np.int64))[0])
        return lower + int(self._excess_ns[index]) / int(self._counts[index])

    def _flush(self) -> None:
        if self._pending_ns:
            pending = np.array([self._pending_ns, self._pending_counts], dtype=np.int64)
            self._pending_ns, self._pending_counts = [], []
            self.add_many(pending[0], pending[1])
