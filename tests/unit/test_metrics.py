"""Metrics from facts: histogram, intervals, warm-up, saturation, and the definitions on hand-made and tiny runs."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from served import as_asked

from simkit import api, scenario
from simkit.errors import CheckError
from simkit.metrics import record as rec
from simkit.metrics.histogram import DurationHistogram, _bin_of
from simkit.metrics.inputs import SummaryInputs
from simkit.metrics.intervals import combine, half_width_95
from simkit.metrics.record import REQUEST_COLUMNS, Record, check_run
from simkit.metrics.saturation import queue_growth
from simkit.metrics.summary import summarise
from simkit.metrics.window import mser5
from simkit.plain import canonical_json, plain

MS = 1_000_000
PERCENTILES = (50, 90, 95, 99)


# --- histogram --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9, 1e12])
def test_histogram_percentiles_are_within_a_tenth_of_a_percent(scale: float) -> None:
    rng = np.random.default_rng(7)
    values = np.rint(scale * rng.lognormal(0.0, 1.5, size=20_001)).astype(np.int64)
    histogram = DurationHistogram()
    histogram.add_many(values[:10_000], 1)
    for value in values[10_000:].tolist():
        histogram.add(value, 1)
    assert histogram.mean_ns() == values.sum() / len(values)
    for percent in (0, 1, *PERCENTILES, 99.9, 100):
        assert histogram.percentile_ns(percent) == pytest.approx(np.percentile(values, percent), rel=1e-3)


def test_histogram_is_exact_for_small_and_for_equal_values() -> None:
    histogram = DurationHistogram()
    for value in (3, 7, 7, 900):
        histogram.add(value, 1)
    for percent in PERCENTILES:
        assert histogram.percentile_ns(percent) == pytest.approx(np.percentile([3, 7, 7, 900], percent))
    empty = DurationHistogram()
    assert empty.percentile_ns(50) is None
    assert empty.mean_ns() is None


DURATIONS = st.one_of(
    st.integers(0, 5000),
    st.integers(0, 2**60),
    st.builds(lambda power, off: max(0, (1 << power) + off), st.integers(0, 60), st.integers(-3, 3)),
)


@given(low=DURATIONS, step=st.one_of(st.just(0), st.integers(1, 3), st.floats(1e-6, 1e-2)))
@settings(max_examples=400)
def test_two_durations_are_told_apart_unless_they_differ_by_less_than_a_tenth_of_a_percent(
    low: int, step: float
) -> None:
    high = low + (step if isinstance(step, int) else int(low * step))
    histogram = DurationHistogram()
    histogram.add_many(np.array([low, high]), 1)
    found = histogram.percentile_ns(0), histogram.percentile_ns(100)
    if found != (float(low), float(high)):
        assert found[0] == found[1] == (low + high) / 2
        assert high - low <= low / 1000


@given(st.lists(DURATIONS, min_size=2, max_size=50))
@settings(max_examples=200)
def test_bins_follow_the_order_of_durations(values: list[int]) -> None:
    values.sort()
    bins = _bin_of(np.array(values, dtype=np.int64))
    assert (np.diff(bins) >= 0).all()
    assert bins.min() >= 0
    assert bins.max() < len(DurationHistogram()._counts)
    for index in set(bins.tolist()):
        inside = [value for value, at in zip(values, bins.tolist(), strict=True) if at == index]
        assert 1000 * (max(inside) - min(inside)) <= min(inside)


def test_every_bin_is_narrow() -> None:
    """Of all bins up to a minute: the largest integer of each exceeds the smallest by 0.1 % at most."""
    longest = 60 * 10**9
    starts = np.arange(longest.bit_length() << 10) / 1024
    powers, share = np.divmod(starts, 1)
    lowest = np.ceil((1 + share) * 2**powers).astype(np.int64)
    lowest = np.unique(lowest)
    bins = _bin_of(lowest)
    assert (np.diff(bins) > 0).all()
    highest = lowest[1:] - 1
    assert (_bin_of(highest) == bins[:-1]).all()
    assert (1000 * (highest - lowest[:-1]) <= lowest[:-1]).all()
    assert len(np.unique(_bin_of(np.arange(1025)))) == 1025


@given(st.lists(st.tuples(DURATIONS.map(lambda value: value >> 16), st.integers(1, 9), st.booleans()), max_size=60))
@settings(max_examples=100)
def test_merging_is_adding_to_one_histogram(values: list[tuple[int, int, bool]]) -> None:
    whole, left, right = DurationHistogram(), DurationHistogram(), DurationHistogram()
    for duration, count, to_left in values:
        whole.add(duration, count)
        if to_left:
            left.add(duration, count)
        elif count % 2:
            right.add(duration, count)
        else:
            right.add_many(np.array([duration]), np.array([count]))
    left.merge(right)
    assert (left.count, left.total_ns) == (whole.count, whole.total_ns)
    assert whole.total_ns == sum(duration * count for duration, count, _ in values)
    assert left.mean_ns() == whole.mean_ns()
    for percent in (0, *PERCENTILES, 100):
        assert left.percentile_ns(percent) == whole.percentile_ns(percent)


def test_histograms_merge() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(1, 10**8, size=1000)
    whole, left, right = DurationHistogram(), DurationHistogram(), DurationHistogram()
    whole.add_many(values, 3)
    left.add_many(values[:400], 3)
    right.add_many(values[400:], 3)
    left.merge(right)
    assert (left.count, left.total_ns) == (whole.count, whole.total_ns) == (3000, 3 * int(values.sum()))
    assert [left.percentile_ns(p) for p in PERCENTILES] == [whole.percentile_ns(p) for p in PERCENTILES]


# --- intervals --------------------------------------------------------------------------------------------------------


def test_half_width_has_the_value_of_the_tables() -> None:
    """Student t with 4 and 1 degrees of freedom: 2.776445 and 12.706205 (two-sided 95 %)."""
    assert half_width_95([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776445 * np.sqrt(2.5 / 5), rel=1e-6)
    assert half_width_95([10.0, 12.0]) == pytest.approx(12.706205 * np.sqrt(2 / 2), rel=1e-6)
    assert half_width_95([4.0]) is None
    assert half_width_95([]) is None


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """5 values of a normal: 95 % with Student's t, 88 % with the normal quantile (the wrong model)."""
    samples = np.random.default_rng(3).normal(10.0, 2.0, size=(4000, 5))
    widths = np.array([half_width_95(row.tolist()) for row in samples])
    off = np.abs(samples.mean(axis=1) - 10.0)
    tolerance = 3.29 * np.sqrt(0.95 * 0.05 / len(samples))
    assert abs((off <= widths).mean() - 0.95) < tolerance
    assert abs((off <= widths * 1.959964 / 2.776445).mean() - 0.95) > 4 * tolerance


def test_combine_means_and_siblings() -> None:
    first = {"a": 1, "b": {"c": 2.0, "d": None}, "e": True, "f": "text", "capacity_tokens": 9}
    second = {"a": 4, "b": {"c": 4.0, "d": 1.0}, "e": False, "f": "text", "capacity_tokens": 9}
    both = combine([first, second])
    assert (both["a"], both["b"]["c"], both["b"]["d"]) == (2.5, 3.0, None)
    assert both["a_ci95"] == half_width_95([1, 4])
    assert (both["e"], both["f"], both["capacity_tokens"]) == (True, "text", 9)
    assert "capacity_tokens_ci95" not in both
    one = combine([first])
    assert (one["a"], one["a_ci95"]) == (1, None)


# --- warm-up and saturation -------------------------------------------------------------------------------------------


def test_mser5_finds_a_known_transient() -> None:
    rng = np.random.default_rng(11)
    steady = rng.normal(100.0, 5.0, size=2000)
    assert mser5(steady) == 0 or mser5(steady) < 100  # nothing systematic to cut
    ramp = steady.copy()
    ramp[:200] += np.linspace(300.0, 0.0, 200) + 50
    assert 195 <= mser5(ramp) <= 225
    assert mser5(ramp) % 5 == 0


def test_mser5_says_when_there_is_no_steady_state() -> None:
    assert mser5(np.arange(1000.0)) is None
    assert mser5(np.arange(20.0)) == 0  # too short to say anything


def test_saturation_label() -> None:
    arrival = np.arange(0, 400) * 10 * MS
    noise = np.random.default_rng(0).integers(0, 20 * MS, size=400)
    assert queue_growth(arrival, arrival + noise) is None
    # Served at 4/5 of the rate of arrival: one in five stays behind, whoever is served first.
    in_turn = arrival + noise + arrival // 4
    assert queue_growth(arrival, in_turn) == pytest.approx(0.2, rel=0.05)
    assert queue_growth(arrival, np.where(arrival % (50 * MS) == 0, 10**12, arrival)) == pytest.approx(0.2, rel=0.05)
    assert queue_growth(arrival[:50], in_turn[:50]) is None  # too few to judge


# --- definitions on a hand-made record --------------------------------------------------------------------------------


def row(**values: int) -> tuple[int, ...]:
    default = {"generated_first_ns": -1, "generated_last_ns": -1, "replica": 0, "samples": 1}
    return tuple((default | values).get(name, 0) for name in REQUEST_COLUMNS)


def finished(number: int, arrival: int, first_scheduled: int, first: int, last: int, output: int) -> tuple[int, ...]:
    """A finished request, times in ms."""
    stamps = {
        "arrival_ns": arrival,
        "first_scheduled_ns": first_scheduled,
        "first_token_ns": first,
        "last_token_ns": last,
    }
    times = {name: value * MS for name, value in stamps.items()}
    return row(id=number, prompt_tokens=8, output_tokens=output, wanted_tokens=output, left_ns=last * MS, **times)


def inputs(**changes: Any) -> SummaryInputs:
    values: dict[str, Any] = {
        "max_num_seqs": 4,
        "num_replicas": 1,
        "capacity_tokens": 1000,
        "num_gpu_blocks": 101,
        "stream": True,
        "open_loop": True,
        "prefix_caching": False,
        "prefix_known": True,
        "finite": True,
        "warmup": "none",
        "slo": {},
        "price_per_hour": None,
        "peak_flops_per_s": None,
        "peak_bytes_per_s": None,
        "latency_source": "unit",
        "not_simulated": (),
    }
    return SummaryInputs(**(values | changes))


def record_of(*rows: tuple[int, ...]) -> Record:
    record = Record(keep_slots=True)
    names = {name: at for at, name in enumerate(REQUEST_COLUMNS)}
    events = [(one[names["arrival_ns"]], 0, one) for one in rows] + [(one[names["left_ns"]], 1, one) for one in rows]
    for time, kind, one in sorted(events, key=lambda event: event[:2]):
        if kind == 0:
            record.arrive(time)
        else:
            record.leave(time, one[names["arrival_ns"]])
            record.requests.append(one)
    record.num_tokens_delivered = sum(one[names["output_tokens"]] for one in rows)
    return record


def summary_of(record: Record, given: SummaryInputs) -> dict[str, Any]:
    """The content of summary.json."""
    found: dict[str, Any] = plain(summarise(record, given).summary)
    return found


THREE = (finished(0, 0, 0, 10, 50, 5), finished(1, 10, 20, 40, 40, 1), finished(2, 30, 50, 60, 120, 11))


def test_latencies_throughput_and_concurrency_by_hand() -> None:
    summary = summary_of(record_of(*THREE), inputs())
    assert summary["ttft_ms"]["mean"] == pytest.approx((10 + 30 + 30) / 3)
    assert summary["e2e_ms"]["p50"] == pytest.approx(50)
    assert summary["queue_ms"]["p99"] == pytest.approx(np.percentile([0, 10, 20], 99))
    assert summary["makespan_s"] == pytest.approx(0.120)
    assert summary["throughput"]["requests_per_s"] == pytest.approx(3 / 0.120)
    assert summary["throughput"]["output_tokens_per_s"] == pytest.approx(17 / 0.120)
    assert summary["throughput"]["total_tokens_per_s"] == pytest.approx((17 + 24) / 0.120)
    assert summary["concurrency_mean"] == pytest.approx((50 + 20 + 70) / 120)


def test_means_of_waits_that_add_up_to_more_than_64_bits_hold() -> None:
    years_ms = 90 * 365 * 86_400 * 1000
    rows = [finished(n, 0, years_ms, years_ms, years_ms, 1) for n in range(40)]
    summary = summary_of(record_of(*rows), inputs())
    for metric in ("ttft_ms", "e2e_ms", "queue_ms"):
        assert summary[metric]["mean"] == summary[metric]["p50"] == years_ms
    assert summary["concurrency_mean"] == 0  # nobody was between first scheduled and last token


def test_tpot_is_undefined_for_one_token() -> None:
    """(50 - 10) / 4 = 10 and (120 - 60) / 10 = 6; the request of one token takes no part, and is not 0."""
    tpot = summary_of(record_of(*THREE), inputs())["tpot_ms"]
    assert tpot["mean"] == pytest.approx(8.0)
    assert tpot["p50"] == pytest.approx(8.0)
    alone = summary_of(record_of(THREE[1]), inputs())["tpot_ms"]
    assert alone == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))


def test_goodput_needs_every_value_and_lets_an_undefined_tpot_pass() -> None:
    def goodput(**slo: dict[str, float]) -> float | None:
        value = summary_of(record_of(*THREE), inputs(slo=slo))["goodput_per_s"]
        return None if value is None else value * 0.120

    assert goodput(ttft_ms={"p99": 30.0}) == pytest.approx(3)
    assert goodput(ttft_ms={"p99": 29.0}) == pytest.approx(1)
    assert goodput(tpot_ms={"p99": 7.0}) == pytest.approx(2)
    assert goodput(tpot_ms={"p99": 7.0}, e2e_ms={"p99": 40.0}) == pytest.approx(1)
    assert goodput() is None
    blind = summary_of(record_of(*THREE), inputs(slo={"tpot_ms": {"p99": 7.0}}, stream=False))
    assert (blind["goodput_per_s"], blind["goodput_reason"]) == (None, "not streamed")


def test_warm_up_by_requests_and_seconds_leaves_out_and_says_so() -> None:
    for warmup, dropped in [(("requests", 1.0), 1), (("seconds", 0.010), 1), (("seconds", 0.011), 2), ("none", 0)]:
        outcome = summarise(record_of(*THREE), inputs(warmup=warmup))
        assert outcome.warmup.dropped_requests == dropped
        assert outcome.requests["measured"].sum() == 3 - dropped
    later = summary_of(record_of(*THREE), inputs(warmup=("requests", 2.0)))
    assert later["ttft_ms"]["mean"] == pytest.approx(30)
    # The load is finite, so that rates are counted over the makespan whatever is measured.
    assert later["throughput"]["requests_per_s"] == pytest.approx(3 / 0.120)
    # Left to itself the window is the 20 ms from the second arrival to the third; of the first request 20 of 50 ms lie
    # in it, of the second 10 of 20, and nothing of the third.
    ongoing = summary_of(record_of(*THREE), inputs(warmup=("requests", 1.0), finite=False))
    assert ongoing["window_s"] == pytest.approx(0.020)
    assert ongoing["throughput"]["requests_per_s"] == pytest.approx((20 / 50 + 10 / 20) / 0.020)
    assert ongoing["throughput"]["output_tokens_per_s"] == pytest.approx((5 * 20 / 50 + 10 / 20) / 0.020)
    assert ongoing["concurrency_mean"] == pytest.approx((20 + 10) / 20)
    assert ongoing["makespan_throughput"] == later["throughput"]


def test_cost_is_the_price_of_the_makespan() -> None:
    summary = summary_of(record_of(*THREE), inputs(price_per_hour=3.6))
    assert summary["cost_per_million_output_tokens"] == pytest.approx(3.6 * 0.120 / 3600 / 17 * 1e6)


def test_an_empty_run_is_all_null() -> None:
    turned = row(id=0, prompt_tokens=8, first_scheduled_ns=-1, first_token_ns=-1, last_token_ns=-1, status=rec.REJECTED)
    summary = summary_of(record_of(turned), inputs())
    assert summary["makespan_s"] is None
    assert summary["concurrency_mean"] is None
    assert set(summary["ttft_ms"].values()) == {None}
    assert set(summary["throughput"].values()) == {None}
    canonical_json(summary)  # no NaN anywhere


# --- invariants -------------------------------------------------------------------------------------------------------


def test_the_invariants_hold_and_name_the_request_that_breaks_them() -> None:
    check_run(record_of(*THREE), unfinished=0)
    with pytest.raises(CheckError, match="arrived"):
        check_run(record_of(*THREE), unfinished=1)
    for broken, message in [
        (finished(7, 0, 5, 3, 9, 2), "request 7 has first_scheduled_ns .* after first_token_ns"),
        (finished(7, 9, 5, 6, 9, 2), "request 7 has arrival_ns .* after first_scheduled_ns"),
        (finished(7, 0, 5, 9, 8, 2), "request 7 has first_token_ns .* after last_token_ns"),
        (finished(7, 0, 5, 6, 8, 0), "request 7 finished without a token"),
    ]:
        with pytest.raises(CheckError, match=message):
            check_run(record_of(broken), unfinished=0)


def test_lost_tokens_and_lost_time_are_noticed() -> None:
    record = record_of(*THREE)
    record.num_tokens_delivered += 1
    with pytest.raises(CheckError, match="tokens delivered"):
        check_run(record, unfinished=0)
    record = record_of(*THREE)
    record.sojourn_ns += 1
    with pytest.raises(CheckError, match="Little"):
        check_run(record, unfinished=0)


# --- definitions on tiny runs -----------------------------------------------------------------------------------------


def tiny(engine: dict[str, Any], outputs: list[int], **top: Any) -> api.Result:
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"async_scheduling": False, "max_num_seqs": 4, "max_model_len": 512} | engine,
        "workload": {
            "num_requests": len(outputs),
            "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"dist": "fixed", "value": 1},
            "output_tokens": {"dist": "list", "values": outputs},
        },
        "latency": {"profile": "unit"},
    }
    return as_asked(scenario.from_dict(data | top))


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_arms_that_do_not_stream_deliver_at_the_end(batching: str, allocator: str) -> None:
    result = tiny({"batching": batching, "kv_allocator": allocator}, [10, 3, 1, 7])
    frame, summary = result.requests, result.summary
    assert (frame["first_token_ns"] == frame["last_token_ns"]).all()
    assert (frame["last_token_ns"] == 10 * MS).all()
    assert frame["generated_first_ns"].tolist() == [MS] * 4
    assert frame["generated_last_ns"].tolist() == [10 * MS, 3 * MS, MS, 7 * MS]
    for statistic in ("mean", "p50", "p90", "p95", "p99"):
        assert summary["ttft_ms"][statistic] == summary["e2e_ms"][statistic] == 10.0
    for metric in ("tpot_ms", "itl_ms"):
        assert summary[metric]["reason"] == "not streamed"
        assert all(summary[metric][statistic] is None for statistic in ("mean", "p50", "p90", "p95", "p99"))


def test_a_static_arm_that_streams_has_first_tokens() -> None:
    result = tiny({"batching": "static", "stream": True}, [10, 3])
    assert result.requests["first_token_ns"].tolist() == [MS, MS]
    assert result.requests["last_token_ns"].tolist() == [10 * MS, 3 * MS]
    assert result.summary["tpot_ms"]["mean"] == 1.0
    assert result.summary["itl_ms"]["p99"] == pytest.approx(1.0, rel=1e-3)


def test_itl_agrees_with_the_requests_own_gaps() -> None:
    """Mean ITL is exact: all gaps of a request add up to last - first token."""
    result = tiny({}, [10, 50, 20, 33, 1, 5], latency={"profile": "roofline"})
    frame = result.requests
    gaps = (frame["output_tokens"] - 1).sum()
    total_ms = float((frame["last_token_ns"] - frame["first_token_ns"]).sum()) / MS
    assert result.summary["itl_ms"]["mean"] == pytest.approx(total_ms / gaps, rel=1e-12)


def test_kv_shares_by_hand() -> None:
    """One sequence, 1 + 10 tokens, blocks of 4, 16 tokens of memory: 10 steps hold 4 4 4 4 8 8 8 8 12 12."""
    engine = {"block_size": 4, "num_gpu_blocks": 5, "max_model_len": 16, "enable_prefix_caching": False}
    kv = tiny(engine, [10]).summary["kv"]
    used, allocated, internal = sum(range(1, 11)), 4 * 4 + 4 * 8 + 2 * 12, 2 * 2
    assert kv["capacity_tokens"] == 16
    assert kv["utilization"] == pytest.approx(used / 160)
    assert kv["internal"]["share_of_allocated"] == pytest.approx(internal / allocated)
    assert kv["reserved"]["share_of_allocated"] == pytest.approx((allocated - used - internal) / allocated)
    assert kv["external"]["share_of_pool"] == 0
    assert kv["peak_tokens"] == 12
    contiguous = tiny(engine | {"kv_allocator": "contiguous", "reservation": "max"}, [10]).summary["kv"]
    assert contiguous["internal"]["share_of_pool"] == pytest.approx(6 / 16)  # 16 set aside, 10 ever filled


def test_external_fragmentation_by_hand() -> None:
    """Two regions of 20 in 48 tokens leave a hole of 8 while a third of 20 waits; alone at the end, nobody waits."""
    engine = {
        "block_size": 4,
        "num_gpu_blocks": 13,
        "max_model_len": 40,
        "kv_allocator": "contiguous",
        "reservation": "oracle",
    }
    result = tiny(engine, [19, 19, 19])
    steps = result.steps
    waiting = steps["waiting"] > 0
    assert steps["kv_external_tokens"][waiting].tolist() == [8] * int(waiting.sum())
    assert (steps["kv_external_tokens"][~waiting] == 0).all()
    assert result.summary["kv"]["external"]["share_of_pool"] == pytest.approx(8 * 19 / (48 * 38))


def test_replications_are_independent_and_averaged() -> None:
    data = tiny({}, [10, 50, 20]).manifest["scenario"] | {"replications": 3}
    data["workload"] |= {"arrivals": {"process": "poisson", "rate_per_s": 50.0}, "num_requests": 20}
    result = as_asked(scenario.from_dict(data))
    values = [summary["ttft_ms"]["mean"] for summary in result.replications]
    assert len(set(values)) == 3
    assert result.summary["ttft_ms"]["mean"] == pytest.approx(np.mean(values))
    assert result.summary["ttft_ms"]["mean_ci95"] == pytest.approx(half_width_95(values))
    assert result.requests.groupby("replication").size().tolist() == [20, 20, 20]
    assert json.loads(canonical_json(result.summary)) == result.summary
