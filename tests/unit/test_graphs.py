"""CUDA-graph sizes as vLLM chooses them, and which batch runs for a number of tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_effects import SIZES, gpu, model, prefill, tables

from simkit.latency.deployment import capture_sizes, graph_rows

NEWEST = (0, 33, 0)


def test_the_sizes_of_a_large_engine_are_those_of_the_rule() -> None:
    expected = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    assert list(capture_sizes(1024, 8192, NEWEST)) == expected
    assert list(capture_sizes(256, 8192, (0, 12))) == expected


@pytest.mark.parametrize(
    ("max_num_seqs", "last"),
    [(1, [1, 2]), (2, [1, 2, 4]), (3, [1, 2, 4]), (4, [2, 4, 8]), (100, [184, 192, 200]), (150, [272, 288]),
     (127, [240, 248]), (128, [248, 256]), (300, [480, 496, 512])],
)  # fmt: skip
def test_the_largest_is_the_last_size_within_twice_the_slots_and_512(max_num_seqs: int, last: list[int]) -> None:
    """Sizes are not made to fit: with 3 slots 6 tokens would be allowed, and no size lies there."""
    assert list(capture_sizes(max_num_seqs, 8192, NEWEST))[-len(last) :] == last


def test_a_token_budget_bounds_the_sizes_and_is_one_since_it_is_captured() -> None:
    assert capture_sizes(256, 20, (0, 12)) == (1, 2, 4, 8, 16)
    assert capture_sizes(256, 20, NEWEST) == (1, 2, 4, 8, 16, 20)
    assert capture_sizes(256, 512, NEWEST)[-2:] == (496, 512)
    assert capture_sizes(4, 512, NEWEST)[-1] == 8


def test_sizes_by_version() -> None:
    fine = (1, 2, 4, *range(8, 513, 8))
    assert capture_sizes(16, 8192, (0, 9, 2)) == fine  # 512 whatever the slots
    assert capture_sizes(1024, 8192, (0, 11, 0)) == fine
    assert capture_sizes(16, 8192, (0, 10))[-1] == capture_sizes(16, 8192, (0, 11, 1))[-1] == 32
    assert 264 in capture_sizes(1024, 8192, (0, 11, 0))
    assert 264 not in capture_sizes(1024, 8192, (0, 11, 1))
    # The first engine went to the first size that holds all slots.
    assert capture_sizes(100, 8192, (0, 6))[-1] == 104
    assert capture_sizes(3, 8192, (0, 6)) == (1, 2, 4)
    # Data-centre Blackwell captures more since 0.28.
    assert capture_sizes(1024, 8192, (0, 28), "10.0")[-1] == 1024
    assert capture_sizes(1024, 8192, (0, 27), "10.0")[-1] == capture_sizes(1024, 8192, (0, 28), "12.0")[-1] == 512


@given(
    max_num_seqs=st.integers(1, 2000),
    budget=st.integers(1, 9000),
    version=st.sampled_from([(0, 6), (0, 9), (0, 11), (0, 12), NEWEST]),
)
def test_each_batch_runs_the_next_captured_size(max_num_seqs: int, budget: int, version: tuple[int, ...]) -> None:
    sizes = capture_sizes(max_num_seqs, budget, version)
    assert list(sizes) == sorted(set(sizes))
    rows = graph_rows(3000, sizes)
    assert rows[0] == 0
    for batch in (*range(1, 40), *range(240, 300), *range(500, 530), 2999):
        expected = next((size for size in sizes if size >= batch), batch)
        assert rows[batch] == expected
    assert (np.diff(rows) >= 0).all()


def test_without_graphs_batches_run_as_they_are() -> None:
    assert graph_rows(600, ()).tolist() == list(range(601))


@pytest.mark.parametrize("profile", ["a100-sxm4-80gb", "h100-sxm5-80gb", "rtx-pro-6000"])
def test_padded_times_are_those_of_the_sizes_and_never_below_where_the_table_rises(profile: str) -> None:
    """Where a larger batch was measured to be quicker, the graph of that size is: the table is not bent to rise."""
    tokens, _ = tables(profile)
    padded = tokens[graph_rows(len(tokens) - 1, SIZES)]
    highest = np.maximum.accumulate(tokens)
    rising = tokens == highest
    assert rising.mean() > 0.9
    assert (padded[rising] <= highest[graph_rows(len(tokens) - 1, SIZES)][rising]).all()
    both = rising & rising[graph_rows(len(tokens) - 1, SIZES)]
    assert (padded[both] >= tokens[both]).all()
    assert (np.diff(padded[both]) >= 0).all()
    for batch in (3, 33, 300, 600):
        added = gpu(model(profile), prefill(batch)) - gpu(model(profile, ("graph_padding",)), prefill(batch))
        assert added == pytest.approx(padded[batch] - tokens[batch], abs=1)
