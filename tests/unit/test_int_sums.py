"""Sums that do not fit 64 bits come out right."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from served import as_asked

from simkit import scenario
from simkit.errors import InputError
from simkit.metrics.histogram import DurationHistogram, dot, rounded_total, total

LARGE = st.integers(-(2**62), 2**62)


@given(st.lists(st.tuples(LARGE, LARGE), max_size=20))
def test_dot_is_exact(pairs: list[tuple[int, int]]) -> None:
    values, weights = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    assert dot(values, weights) == sum(value * weight for value, weight in pairs)


@given(st.lists(LARGE, max_size=20))
def test_totals_are_exact(values: list[int]) -> None:
    assert total(np.array(values, dtype=np.int64)) == sum(values)
    floats = [value * 1e6 for value in values]
    assert rounded_total(np.array(floats)) == sum(map(int, floats))


def unit(engine: dict[str, Any], workload: dict[str, Any]) -> dict[str, Any]:
    """Summary of a scenario whose steps last 1 ms."""
    data = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": engine,
        "workload": {"prompt_tokens": {"dist": "fixed", "value": 5}, **workload},
        "latency": {"profile": "unit"},
    }
    return as_asked(scenario.from_dict(data)).summary


def test_a_closed_loop_that_thinks_for_ages_is_refused() -> None:
    workload = {
        "num_requests": 20,
        "arrivals": {"process": "closed_loop", "concurrency": 1, "think_time_s": 1e9},
        "output_tokens": {"dist": "fixed", "value": 3},
    }
    with pytest.raises(InputError, match="146 years"):
        unit({}, workload)


def test_a_histogram_of_very_long_gaps_keeps_its_mean_and_percentiles() -> None:
    histogram = DurationHistogram()
    histogram.add_many(np.array([2**61, 2**61, 2**61]), 4)
    assert histogram.mean_ns() == histogram.percentile_ns(0) == histogram.percentile_ns(99) == 2.0**61
    assert histogram.total_ns == 12 * 2**61
