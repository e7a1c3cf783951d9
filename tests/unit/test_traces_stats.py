"""Statistics of logs: beside numpy on drawn arrivals, and beside the published table of the real traces."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkit import scenario
from simkit.logs.describe import SAMPLE_ROWS, Stats, describe, session_stats
from simkit.logs.play.clock import clock_of
from simkit.logs.play.sessions import session_codes
from simkit.logs.read.record import NO_TIME, Columns, Record
from simkit.logs.running_stats import MAX_BINS, ArrivalStats, Counts

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/data/traces) are not here")

# File: (format, options that its README names).
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "azure_llm_2023_conv.csv.gz": ("azure", {}),
    "azure_llm_2023_code.csv": ("azure", {}),
    "mooncake_conversation_0-20min.jsonl": ("mooncake", {}),
    "mooncake_synthetic_0-8min.jsonl": ("mooncake", {}),
    "mooncake_arxiv_first20.jsonl": ("mooncake", {}),
    "mooncake_arxiv_mixed_toolagent_12s.jsonl": ("mooncake", {}),
    "burstgpt3_nofail_head.csv": ("burstgpt", {}),
    "ragpulse_days1-2.jsonl": ("ragpulse", {}),
    "vidur_splitwise_conv_head1000.csv": ("vidur", {}),
    "llmservingsim_mixed.jsonl": ("llmservingsim", {}),
    "sharegpt300_blk16_seconds.jsonl": ("mooncake", {"time_unit": "s", "hash_block_tokens": 16}),
    "vllm_requests_rtxpro6000_llama31_8b.jsonl": ("vllm-records", {}),
}


def published() -> dict[str, list[str]]:
    """The rows of the Statistics table, by file."""
    text = (TRACES / "README.md").read_text(encoding="utf-8")
    lines = text[text.index("## Statistics") :].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: row[1:] for row in rows[2:]}


def agrees(value: float | None, printed: str) -> bool:
    """Whether a value is within one unit of the last printed digit."""
    shown = Decimal(printed)
    exponent = shown.as_tuple().exponent
    assert value is not None
    assert isinstance(exponent, int)
    return abs(Decimal(value) - shown) <= Decimal(10) ** exponent + Decimal("1e-9")


@needs_traces
def test_every_file_of_the_table_is_checked() -> None:
    assert set(published()) == set(REAL)


@needs_traces
@pytest.mark.parametrize("name", REAL)
def test_the_published_statistics_come_out(name: str) -> None:
    wanted, options = REAL[name]
    info = describe(scenario.Trace(path=name, **options), TRACES).info
    assert info["format"] == wanted
    rows, span, rate, cv, dispersion, ties, prompts, outputs, prefix = published()[name]
    assert info["num_requests"] == int(rows)
    assert info["num_same_time"] == int(ties)
    for key, printed in (
        ("span_s", span), ("rate_per_s", rate), ("interarrival_cv", cv), ("dispersion_10s", dispersion),
    ):  # fmt: skip
        assert agrees(info[key], printed), (key, info[key], printed)
    for key, group in (("prompt_tokens", prompts), ("output_tokens", outputs)):
        for stat, printed in zip(("mean", "p50", "p95", "p99", "max"), group.split("/"), strict=True):
            assert agrees(info[key][stat], printed), (key, stat, info[key][stat], printed)
    if prefix == "-":
        assert info["prefix"] is None
    else:
        for key, printed in zip(("block_hit_share", "token_hit_share"), prefix.split("/"), strict=True):
            assert agrees(info["prefix"][key], printed), (key, info["prefix"], printed)


@needs_traces
def test_a_coarse_clock_is_named() -> None:
    info = describe(scenario.Trace(path="mooncake_conversation_0-20min.jsonl"), TRACES).info
    assert info["clock"]["tick_s"] == 3.0
    assert info["clock"]["resolution_s"] == 0.001
    assert "it ticks every 3 s" in " ".join(info["notes"])
    sparse = describe(scenario.Trace(path="burstgpt_v1_rows.csv"), TRACES).info
    assert sparse["clock"]["tick_s"] == sparse["clock"]["resolution_s"] == 1.0
    few = describe(scenario.Trace(path="mooncake_arxiv_mixed_toolagent_12s.jsonl"), TRACES).info
    assert f"it ticks every {few['clock']['tick_s']:g} s" in " ".join(few["notes"])
    fine = describe(scenario.Trace(path="mooncake_synthetic_0-8min.jsonl"), TRACES).info
    assert fine["clock"]["tick_s"] is None
    assert "ticks" not in " ".join(fine["notes"])


# --- beside numpy -----------------------------------------------------------------------------------------------------
gaps = st.lists(st.one_of(st.just(0), st.integers(0, 10**6), st.integers(0, 3 * 10**13)), min_size=2, max_size=60)
cuts = st.lists(st.integers(0, 60), max_size=4)


def fed(times_ns: np.ndarray, at: list[int]) -> ArrivalStats:
    """Statistics of arrivals that come in parts cut `at` some rows."""
    times = ArrivalStats()
    for part in np.split(times_ns, sorted(at)):
        times.add(part)
    return times


@given(gaps=gaps, at=cuts, origin=st.integers(-(10**18), 10**18))
@settings(max_examples=60, deadline=None)
def test_arrival_statistics_are_numpys_however_the_parts_fall(gaps: list[int], at: list[int], origin: int) -> None:
    times_ns = origin + np.cumsum(np.array([0, *gaps], dtype=np.int64))
    found = fed(times_ns, at)
    between = np.diff(times_ns)
    since = times_ns - times_ns[0]
    assert found.count == len(times_ns)
    assert found.span_s == pytest.approx(since[-1] / 1e9)
    assert found.num_same_time == np.sum(between == 0)
    assert found.clock == clock_of(times_ns)
    if since[-1] == 0:
        assert found.rate_per_s is None
        assert found.interarrival_cv is None
    else:
        assert found.rate_per_s == pytest.approx((len(times_ns) - 1) / (since[-1] / 1e9))
        assert found.interarrival_cv == pytest.approx(between.std() / between.mean(), rel=1e-6, abs=1e-6)
        assert found.resolution_s == np.gcd.reduce(between) / 1e9
    if since[-1] < 10**16:
        counts = np.bincount(since // 10**10)
        assert found.dispersion_10s == pytest.approx(counts.var() / counts.mean(), rel=1e-9, abs=1e-9)
    bins = found.bins
    assert bins.counts.sum() == len(times_ns)
    assert np.array_equal(bins.counts, np.bincount(since // bins.width_ns, minlength=MAX_BINS))
    gap_s, share = found.gap_curve()
    for at_s, part in zip(gap_s.tolist(), share.tolist(), strict=True):
        assert np.mean(between <= at_s * 1e9 * (1 - 1e-9)) <= part + 1e-12
        assert part <= np.mean(between <= at_s * 1e9 * (1 + 1e-9)) + 1e-12


@given(
    values=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50),
    at=cuts,
    percent=st.one_of(st.sampled_from([0.0, 50.0, 95.0, 99.0, 100.0]), st.floats(0, 100)),
)
@settings(max_examples=60, deadline=None)
def test_counted_percentiles_are_numpys(values: list[int], at: list[int], percent: float) -> None:
    counts = Counts()
    for part in np.split(np.array(values, dtype=np.int64), sorted(at)):
        counts.add(part)
        counts.settle()
    assert counts.percentile(percent) == pytest.approx(float(np.percentile(values, percent)), rel=1e-12, abs=1e-6)
    summary = counts.summary()
    assert summary is not None
    assert summary["mean"] == sum(values) / len(values)
    assert summary["max"] == max(values)


def test_times_out_of_order_are_seen_and_no_number_is_made_of_them() -> None:
    stats = Stats()
    stats.add(Columns.of([Record(1, 5, 1, 1), Record(2, 9, 1, 1)]))
    assert stats.streams
    stats.add(Columns.of([Record(3, 8, 1, 1)]))
    assert not stats.streams
    assert stats.least_ns == 5


def test_memory_does_not_grow_with_the_log() -> None:
    """What is kept of 10 and of 100 parts of the same kind has the same size; a part more is forgotten."""
    stats = Stats()
    rows = np.arange(20_000)
    for part in range(100):
        stats.add(Columns(rows, part * 20_000 * 977 + rows * 977, 1 + rows % 4000, 1 + rows % 300))
    assert stats.streams
    assert stats.num_requests == 2_000_000
    assert len(stats.sample.rows) <= SAMPLE_ROWS
    assert stats.sample.stride == 256
    assert len(stats.prompts.settle().values) == 4000
    assert len(stats.times.bins.counts) == MAX_BINS
    assert len(stats.times.gap_bins.settle().values) == 1


# --- sessions ---------------------------------------------------------------------------------------------------------
def test_sessions_by_name_and_by_predecessor_are_the_same() -> None:
    rows = [(0, "a"), (0, "b"), (2 * 10**9, "a"), (5 * 10**9, None), (6 * 10**9, "a")]
    columns = Columns.of([Record(i, time, 1, 1, session=name) for i, (time, name) in enumerate(rows)])
    after = np.array([-1, -1, 0, -1, 2])
    found = session_stats(columns, after, session_codes(columns, after))
    linked = replace(columns, session=None)
    assert found == session_stats(linked, after, session_codes(linked, after))
    assert found is not None
    assert found["num_sessions"] == 3
    assert found["num_with_several_turns"] == 1
    assert found["turns"] == {"mean": 5 / 3, "max": 3}
    assert found["between_turns_s"]["mean"] == 3.0
    assert found["think_s"] is None
    assert session_stats(linked, np.full(5, -1), None) is None


def test_think_times_and_turns_without_a_time() -> None:
    columns = Columns.of([Record(1, 0, 1, 1, session="a"), Record(2, None, 1, 1, session="a", delay_ns=500_000_000)])
    assert columns.time_ns[1] == NO_TIME
    found = session_stats(columns, np.array([-1, 0]), np.array([0, 0]))
    assert found is not None
    assert found["think_s"]["p50"] == 0.5
    assert found["between_turns_s"] is None
