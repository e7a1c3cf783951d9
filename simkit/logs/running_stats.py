"""Statistics of values that come part by part, in memory that does not grow with their number: counts, arrival times.

Pure numpy.
"""

from __future__ import annotations

import math

import numpy as np

from simkit.logs.play.clock import MANY_TIES, CoarseClock, coarse_clock
from simkit.types import Floats, Ints
from simkit.units import NS_PER_MS, NS_PER_S, ns_to_s

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

    def summary(self) -> dict[str, float] | None:
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


DISPERSION_BIN_NS = 10 * NS_PER_S
GAP_BINS_PER_DECADE = 100
MAX_DISTINCT_GAPS = 1 << 16

ABSURD_RATE_PER_S = 1000
ABSURD_REQUESTS = 100

# Bin widths of the rate over time: each holds a whole number of the one before.
_MS_WIDTHS = (1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000)
WIDTHS_NS: tuple[int, ...] = tuple(NS_PER_MS * ms for ms in (*_MS_WIDTHS, *(10**k * 86_400_000 for k in range(1, 5))))
MAX_BINS = 4096


def too_fast(count: int, span_s: float) -> list[str]:
    """A warning when the rate is so high that the unit of times may be another."""
    if count <= ABSURD_REQUESTS or count - 1 <= ABSURD_RATE_PER_S * span_s:
        return []
    rate = f"{(count - 1) / span_s:,.0f} requests/s" if span_s > 0 else "all at once"
    return [f"{count} requests over {span_s:.6g} s are {rate}: if that is too fast to be true, set time_unit"]


class RateBins:
    """Counts of arrivals in at most `MAX_BINS` equal bins from the first arrival on; bins widen as time goes on."""

    __slots__ = ("_level", "counts")

    def __init__(self) -> None:
        self._level = 0
        self.counts: Ints = np.zeros(MAX_BINS, dtype=np.int64)

    @property
    def width_ns(self) -> int:
        """Of a bin."""
        return WIDTHS_NS[self._level]

    def add(self, since_first_ns: Ints) -> None:
        """Count arrivals, in order."""
        while int(since_first_ns[-1]) // self.width_ns >= MAX_BINS:
            factor = WIDTHS_NS[self._level + 1] // self.width_ns
            padded = np.concatenate([self.counts, np.zeros(-MAX_BINS % factor, dtype=np.int64)])
            merged = padded.reshape(-1, factor).sum(axis=1)
            self.counts = np.concatenate([merged, np.zeros(MAX_BINS - len(merged), dtype=np.int64)])
            self._level += 1
        self.counts += np.bincount(since_first_ns // self.width_ns, minlength=MAX_BINS)


class ArrivalStats:
    """What is known of the arrivals so far. `add` takes them in order; `in_order` turns false when they are not."""

    def __init__(self) -> None:
        self.count = 0
        self.in_order = True
        self.num_same_time = 0
        self.first_ns = 0
        self.last_ns = 0
        self.bins = RateBins()
        self.gap_bins = Counts()
        self._gaps = Counts(MAX_DISTINCT_GAPS)
        self._sum_squares = 0.0
        self._resolution_ns = 0
        self._bin, self._in_bin = 0, 0
        self._bin_squares = 0

    def add(self, time_ns: Ints) -> None:
        """Take the next arrivals, on any one clock."""
        if not time_ns.size or not self.in_order:
            return
        if not self.count:
            self.first_ns = self.last_ns = int(time_ns[0])
            gaps = np.diff(time_ns)
        else:
            gaps = np.diff(time_ns, prepend=self.last_ns)
        if gaps.size and int(gaps.min()) < 0:
            self.in_order = False
            return
        self.count += time_ns.size
        self.last_ns = int(time_ns[-1])
        since = time_ns - self.first_ns
        self.bins.add(since)
        self._count_tens(since // DISPERSION_BIN_NS)
        real = gaps[gaps > 0]
        self.num_same_time += gaps.size - real.size
        if real.size:
            self._sum_squares += float(np.sum(np.square(real / NS_PER_S)))
            self._gaps.add(real)
            self.gap_bins.add(np.floor(np.log10(real) * GAP_BINS_PER_DECADE).astype(np.int64))
            self._resolution_ns = math.gcd(self._resolution_ns, int(np.gcd.reduce(real)))

    def _count_tens(self, bins: Ints) -> None:
        found, counts = np.unique(bins, return_counts=True)
        if int(found[0]) == self._bin:
            counts[0] += self._in_bin
        else:
            self._bin_squares += self._in_bin**2
        self._bin_squares += sum(count * count for count in counts[:-1].tolist())
        self._bin, self._in_bin = int(found[-1]), int(counts[-1])

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return ns_to_s(self.last_ns - self.first_ns)

    @property
    def rate_per_s(self) -> float | None:
        """Gaps divided by the span, None without a span."""
        return (self.count - 1) / self.span_s if self.span_s > 0 else None

    @property
    def tied_share(self) -> float:
        """Share of the arrivals, the first aside, that have the time of the one before."""
        return self.num_same_time / (self.count - 1) if self.count > 1 else 0.0

    @property
    def interarrival_cv(self) -> float | None:
        """Standard deviation divided by the mean of the gaps; None with fewer than two of them."""
        if self.count < 3 or self.span_s == 0:
            return None
        mean = self.span_s / (self.count - 1)
        variance = self._sum_squares / (self.count - 1) - mean * mean
        return math.sqrt(max(0.0, variance)) / mean

    @property
    def dispersion_10s(self) -> float | None:
        """Variance divided by the mean of the counts in bins of 10 s from the first arrival (Poisson: 1)."""
        if not self.count:
            return None
        num_bins = self._bin + 1
        mean = self.count / num_bins
        return ((self._bin_squares + self._in_bin**2) / num_bins - mean * mean) / mean

    @property
    def clock(self) -> CoarseClock | None:
        """What is coarse about the clock; a tick is not looked for among more than `MAX_DISTINCT_GAPS` gaps."""
        gaps = self._gaps.settle()
        if gaps.overflown:
            return CoarseClock(self.tied_share, None) if self.tied_share > MANY_TIES else None
        return coarse_clock(self.num_same_time, gaps.values, gaps.counts)

    @property
    def resolution_s(self) -> float | None:
        """The largest step of which all gaps are multiples; None without gaps."""
        return ns_to_s(self._resolution_ns) if self._resolution_ns else None

    def summary(self) -> dict[str, float | None]:
        """span_s, rate_per_s, interarrival_cv, dispersion_10s, num_same_time."""
        return {
            "span_s": self.span_s,
            "rate_per_s": self.rate_per_s,
            "interarrival_cv": self.interarrival_cv,
            "dispersion_10s": self.dispersion_10s,
            "num_same_time": self.num_same_time,
        }

    def gap_curve(self) -> tuple[Floats, Floats]:
        """(gap in s, share of the gaps not longer), at the upper ends of logarithmic bins; gaps of 0 are the start."""
        gaps = self.gap_bins.settle()
        total = max(1, self.count - 1)
        at_s = 10 ** ((gaps.values + 1) / GAP_BINS_PER_DECADE) / NS_PER_S
        return at_s, (self.num_same_time + np.cumsum(gaps.counts)) / total
