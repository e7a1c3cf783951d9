"""Sums that do not fit 64 bits come out right."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from simkit.metrics.exact import dot
from simkit.metrics.histogram import DurationHistogram

LARGE = st.integers(-(2**62), 2**62)


@given(st.lists(st.tuples(LARGE, LARGE), max_size=20))
def test_dot_is_exact(pairs: list[tuple[int, int]]) -> None:
    values, weights = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    assert dot(values, weights) == sum(value * weight for value, weight in pairs)


def test_a_histogram_of_very_long_gaps_keeps_its_mean_and_percentiles() -> None:
    histogram = DurationHistogram()
    histogram.add_many(np.array([2**61, 2**61, 2**61]), 4)
    assert histogram.mean_ns() == histogram.percentile_ns(0) == histogram.percentile_ns(99) == 2.0**61
    assert histogram.total_ns == 12 * 2**61
