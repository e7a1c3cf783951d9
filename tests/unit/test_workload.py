"""Synthetic workloads: statistics against theory, common random numbers, laziness, bounds, labels, stop modes."""

from __future__ import annotations

import gzip
import itertools
import math
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from simkit import scenario
from simkit.errors import InputError
from simkit.streams import CHUNK, Stream, Streams
from simkit.types import Request
from simkit.workload import Workload, build_workload
from simkit.workload.arrivals import NEVER_NS, arrival_chunks, gamma_gaps
from simkit.workload.lengths import list_presets

POISSON = {"process": "poisson", "rate_per_s": 20.0}
FIXED = {"dist": "fixed", "value": 8}
N = 20_000
Z = 3.29  # two-sided 99.9 %


def build(*, seed: int = 1, replication: int = 0, base_dir: Path | None = None, **keys: Any) -> Workload:
    keys = {"arrivals": POISSON, "prompt_tokens": FIXED, "output_tokens": FIXED, **keys}
    if "duration_s" not in keys:
        keys.setdefault("num_requests", N)
    spec = scenario.Workload.model_validate(keys)
    return build_workload(spec, seed=seed, replication=replication, max_model_len=8192, base_dir=base_dir)


def column(workload: Workload, name: str) -> np.ndarray:
    return np.array([getattr(request, name) for request in workload.requests])


def lengths(spec: dict[str, Any], n: int = N, **keys: Any) -> np.ndarray:
    return column(build(prompt_tokens=spec, num_requests=n, **keys), "prompt_tokens")


def arrivals_s(spec: dict[str, Any], n: int = N, **keys: Any) -> np.ndarray:
    return column(build(arrivals=spec, num_requests=n, **keys), "arrival_ns") / 1e9


def within(sample: np.ndarray, mean: float, sd: float) -> bool:
    """Whether the sample mean lies inside the 99.9 % interval of a mean with known standard deviation."""
    return abs(sample.mean() - mean) < Z * sd / math.sqrt(len(sample))


# --- streams ----------------------------------------------------------------------------------------------------------
def test_stream_values_do_not_depend_on_the_chunks_they_are_drawn_in() -> None:
    whole = Stream("x", 7, 0).uniforms(1000)
    stream = Stream("x", 7, 0)
    parts = np.concatenate([stream.uniforms(n) for n in (1, 2, 500, 497)])
    assert np.array_equal(whole, parts)
    assert whole.min() > 0
    assert whole.max() < 1


def test_streams_differ_by_name_seed_and_replication_and_are_uncorrelated() -> None:
    streams = [
        Stream(name, seed, r).uniforms(N) for name in ("prompt_tokens", "arrivals") for seed in (0, 1) for r in (0, 1)
    ]
    correlations = np.corrcoef(streams)[np.triu_indices(len(streams), k=1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(N)
    for u in streams:
        assert stats.kstest(u, "uniform").pvalue > 1e-4


def test_stream_is_raw_pcg64_words_and_stays_what_it_is() -> None:
    """The definition in the docstring, restated: a change of it changes every published result."""
    sequence = np.random.SeedSequence(3, spawn_key=(2, zlib.crc32(b"arrivals")))
    words = np.random.PCG64(sequence).random_raw(4).tolist()
    expected = [((word >> 12) + 0.5) / 2**52 for word in words]
    assert Streams(3, 2)("arrivals").uniforms(4).tolist() == expected


# --- arrivals ---------------------------------------------------------------------------------------------------------
def test_constant_arrivals_do_not_drift() -> None:
    times = column(build(arrivals={"process": "constant", "rate_per_s": 3.0}, num_requests=9001), "arrival_ns")
    assert times[:4].tolist() == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert times[9000] == 3_000_000_000_000


def test_poisson_gaps_are_exponential_and_not_constant_or_gamma() -> None:
    gaps = np.diff(arrivals_s(POISSON), prepend=0.0)
    assert within(gaps, 1 / 20, 1 / 20)
    assert stats.kstest(gaps, "expon", args=(0, 1 / 20)).pvalue > 1e-3
    assert stats.kstest(gaps, "gamma", args=(1.2, 0, 1 / 24)).pvalue < 1e-6
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < Z / math.sqrt(N)


@pytest.mark.parametrize("cv", [0.2, 1.0, 3.0])
def test_gamma_gaps_have_the_rate_and_cv_asked_for(cv: float) -> None:
    gaps = np.diff(arrivals_s({"process": "gamma", "rate_per_s": 5.0, "cv": cv}), prepend=0.0)
    assert within(gaps, 0.2, 0.2 * cv)
    # Standard error of a standard deviation: the excess kurtosis of a gamma variable is 6 cv^2.
    assert abs(gaps.std() / (0.2 * cv) - 1) < Z * math.sqrt((2 + 6 * cv**2) / (4 * N))
    # The shape before times are rounded to ns, which ties many of the tiny gaps of a bursty process.
    unit = gamma_gaps(cv)(Stream("arrivals", 1, 0).uniforms(N))
    assert stats.kstest(unit, "gamma", args=(cv**-2, 0, cv**2)).pvalue > 1e-3


def test_gamma_with_cv_one_is_the_poisson_process_on_the_same_draws() -> None:
    gamma = arrivals_s({"process": "gamma", "rate_per_s": 20.0, "cv": 1.0}, n=1000)
    assert np.allclose(gamma, arrivals_s(POISSON, n=1000), rtol=1e-12)


def test_all_at_once() -> None:
    assert set(column(build(arrivals={"process": "all_at_once"}, num_requests=5000), "arrival_ns")) == {0}


def test_piecewise_counts_follow_each_segment_and_stop_after_the_last() -> None:
    segments = [(100.0, 20.0), (150.0, 0.0), (160.0, 200.0), (260.0, 5.0)]
    spec = {"process": "piecewise", "segments": [{"until_s": u, "rate_per_s": r} for u, r in segments]}
    workload = build(arrivals=spec, num_requests=50_000)
    times = column(workload, "arrival_ns") / 1e9
    assert np.all(np.diff(times) >= 0)
    edges = [0.0, *(until for until, _ in segments)]
    for (until, rate), start in zip(segments, edges, strict=False):
        inside = times[(times >= start) & (times < until)]
        expected = rate * (until - start)
        assert abs(len(inside) - expected) <= Z * math.sqrt(expected)
        if expected:
            assert stats.kstest(inside, "uniform", args=(start, until - start)).pvalue > 1e-3
    assert times.max() <= 260
    assert workload.num_requests is None
    assert workload.counters["requests_not_sent"] == 50_000 - len(times)


def test_piecewise_with_one_rate_is_poisson_and_is_bounded_by_num_requests() -> None:
    spec = {"process": "piecewise", "segments": [{"until_s": u, "rate_per_s": 20.0} for u in (10.0, 33.3, 1e6)]}
    workload = build(arrivals=spec, num_requests=6000)
    assert np.allclose(column(workload, "arrival_ns") / 1e9, arrivals_s(POISSON, n=6000), rtol=1e-9)
    assert workload.counters["requests_not_sent"] == 0


def test_closed_loop_hands_its_clients_to_the_engine() -> None:
    spec = {"process": "closed_loop", "concurrency": 7, "think_time_s": 0.25}
    workload = build(arrivals=spec, num_requests=5000)
    assert (workload.concurrency, workload.think_time_ns) == (7, 250_000_000)
    assert (workload.num_requests, workload.duration_ns) == (5000, None)
    assert set(column(workload, "arrival_ns")) == {0}
    timed = build(arrivals=spec, duration_s=2.5)
    assert (timed.num_requests, timed.duration_ns) == (None, 2_500_000_000)
    assert len(list(itertools.islice(timed.requests, 3 * CHUNK))) == 3 * CHUNK
    assert build().concurrency is None


@pytest.mark.parametrize(
    "spec",
    [
        {"process": "constant", "rate_per_s": 20.0},
        POISSON,
        {"process": "gamma", "rate_per_s": 20.0, "cv": 2.0},
        {
            "process": "piecewise",
            "segments": [{"until_s": 30.0, "rate_per_s": 20.0}, {"until_s": 1e6, "rate_per_s": 3}],
        },
    ],
    ids=lambda spec: spec["process"],
)
def test_arrivals_are_ints_in_order_and_the_same_in_every_chunking(spec: dict[str, Any]) -> None:
    parsed = scenario.Workload.model_validate(
        {"arrivals": spec, "prompt_tokens": FIXED, "output_tokens": FIXED, "num_requests": 1}
    ).arrivals
    assert parsed is not None

    def first(chunk: int) -> list[int]:
        chunks = arrival_chunks(parsed, Stream("arrivals", 5, 0), chunk)
        return np.concatenate(list(itertools.islice(chunks, -(-3000 // chunk)))).tolist()[:3000]

    times = first(CHUNK)
    assert times == first(7) == first(1000)
    assert times == sorted(times)
    assert all(type(request.arrival_ns) is int for request in itertools.islice(build(arrivals=spec).requests, 3))


@pytest.mark.parametrize("process", ["constant", "poisson"])
def test_between_arrivals_numpy_warns_of_what_it_did_before(process: str) -> None:
    before = np.geterr()
    requests = iter(build(arrivals={"process": process, "rate_per_s": 2.0}).requests)
    next(requests)
    assert np.geterr() == before


def test_duration_keeps_exactly_the_arrivals_before_its_end() -> None:
    everyone = column(build(num_requests=30_000), "arrival_ns")
    cut = int(everyone[12_345])
    for duration_s, expected in ((cut / 1e9, 12_345), ((cut + 1) / 1e9, 12_346)):
        workload = build(duration_s=duration_s)
        assert workload.num_requests is None
        assert column(workload, "arrival_ns").tolist() == everyone[:expected].tolist()
    assert len(column(build(arrivals={"process": "constant", "rate_per_s": 4.0}, duration_s=2.5), "id")) == 10


def test_a_rate_too_low_for_the_clock_is_refused_unless_a_duration_ends_first() -> None:
    slow = {"process": "poisson", "rate_per_s": 1e-300}
    assert list(build(arrivals=slow, duration_s=1e9).requests) == []
    with pytest.raises(InputError, match=r"workload\.arrivals: the rate is so low"):
        list(build(arrivals=slow, num_requests=1).requests)
    assert NEVER_NS < 2**63


# --- lengths ----------------------------------------------------------------------------------------------------------
def test_fixed_and_list() -> None:
    assert set(lengths({"dist": "fixed", "value": 17})) == {17}
    values = [10, 50, 200, 300, 15, 80, 220]
    drawn = lengths({"dist": "list", "values": values}, n=2 * CHUNK + 5)
    assert drawn.tolist() == [values[i % 7] for i in range(2 * CHUNK + 5)]


def test_uniform_is_inclusive_and_flat() -> None:
    counts = np.bincount(lengths({"dist": "uniform", "low": 3, "high": 12}), minlength=14)
    assert counts[:3].sum() == counts[13:].sum() == 0
    assert stats.chisquare(counts[3:13]).pvalue > 1e-3
    assert set(lengths({"dist": "uniform", "low": 5, "high": 5}, n=100)) == {5}


def test_lognormal_mean_and_cv_are_those_before_rounding_and_clipping() -> None:
    mean, cv = 256.0, 1.0
    drawn = lengths({"dist": "lognormal", "mean": mean, "cv": cv})
    sigma = math.sqrt(math.log(1 + cv**2))
    mu = math.log(mean) - sigma**2 / 2
    assert within(drawn, mean, mean * cv)
    logs = np.log(drawn)
    assert within(logs, mu, sigma)
    # Standard error of a standard deviation of a normal sample; rounding to tokens moves the logs by far less.
    assert abs(logs.std() - sigma) < Z * sigma / math.sqrt(2 * N)
    assert abs(logs.std() - cv) > 0.1  # cv taken for sigma


def test_clipping_moves_only_what_lies_outside_and_is_counted() -> None:
    spec = {"dist": "lognormal", "mean": 256.0, "cv": 1.0}
    free = lengths(spec)
    workload = build(prompt_tokens={**spec, "min": 100, "max": 600})
    clipped = column(workload, "prompt_tokens")
    assert clipped.tolist() == np.clip(free, 100, 600).tolist()
    assert workload.counters["prompt_tokens_clipped"] == np.count_nonzero(clipped != free) > 0
    assert workload.counters["output_tokens_clipped"] == 0


def test_exponential_mean_and_shape() -> None:
    drawn = lengths({"dist": "exponential", "mean": 400.0})
    assert within(drawn, 400, 400)
    assert stats.kstest(drawn + np.random.default_rng(0).random(N) - 0.5, "expon", args=(0, 400)).pvalue > 1e-3


@pytest.mark.parametrize("name", ["prompt_tokens", "output_tokens"])
def test_lengths_are_at_least_one_whatever_the_distribution(name: str) -> None:
    workload = build(**{name: {"dist": "exponential", "mean": 0.4}})
    drawn = column(workload, name)
    assert drawn.min() == 1
    assert workload.counters[f"{name}_clipped"] == pytest.approx(N * (1 - math.exp(-0.5 / 0.4)), rel=0.03)


def test_absurdly_wide_lengths_stay_ints() -> None:
    drawn = lengths({"dist": "lognormal", "mean": 1e12, "cv": 1000.0})
    assert drawn.min() >= 1
    assert drawn.max() == 2**31 - 1


def test_quantile_table_is_read_as_a_piecewise_linear_quantile_function() -> None:
    table = [[0.0, 100], [0.5, 200], [0.9, 1000], [1.0, 1000]]
    drawn = lengths({"dist": "empirical", "quantiles": table})
    assert drawn.min() >= 100
    assert abs(np.mean(drawn <= 200) - 0.5) < Z * 0.5 / math.sqrt(N) + 0.002
    assert abs(np.mean(drawn < 1000) - 0.9) < Z * 0.3 / math.sqrt(N) + 0.002
    assert within(drawn, 0.5 * 150 + 0.4 * 600 + 0.1 * 1000, 380)


def test_sample_from_csv_and_parquet_gives_the_same_lengths(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    values = [30, 10, 20, 0, 20]
    text = "# made for the test\nid,tokens\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values))
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "b.bin").write_bytes(gzip.compress(text.encode()))
    pyarrow.parquet.write_table(pyarrow.table({"tokens": values}), tmp_path / "c.parquet")
    results = []
    for name in ("a.csv", "b.bin", "c.parquet"):
        workload = build(prompt_tokens={"dist": "empirical", "path": name, "column": "tokens"}, base_dir=tmp_path)
        assert workload.notes == (f"workload.prompt_tokens: {name}, column 'tokens': skipped 1 of 5 values that are 0",)
        results.append(column(workload, "prompt_tokens").tolist())
    assert results[0] == results[1] == results[2]
    values_seen, counts = np.unique(results[0], return_counts=True)
    assert values_seen.tolist() == [10, 20, 30]
    assert stats.chisquare(counts, [N / 4, N / 2, N / 4]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("text", "column_name", "message"),
    [
        ("a,tokens\n1,2\n", "tokenz", "no column 'tokenz' among a, tokens; did you mean 'tokens'"),
        ("tokens\n12\nmany\n", "tokens", "tokens, data row 2: expected a number of tokens >= 0, got 'many'"),
        ("tokens\n-3\n", "tokens", "data row 1: expected a number of tokens >= 0"),
        ("a,tokens\n1\n", "tokens", "data row 1: expected a number of tokens >= 0, got ''"),
        ("tokens\n0\n", "tokens", "column 'tokens' has no value > 0"),
        ("", "tokens", "no column 'tokens'"),
        ("PAR1 but not really", "tokens", "not readable as parquet"),
    ],
)
def test_bad_samples_are_one_line(tmp_path: Path, text: str, column_name: str, message: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError, match=r"^workload\.output_tokens\.path: ") as caught:
        build(output_tokens={"dist": "empirical", "path": "x.csv", "column": column_name}, base_dir=tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_sample_and_unknown_preset() -> None:
    with pytest.raises(InputError, match=r"nowhere/x\.csv: No such file"):
        build(prompt_tokens={"dist": "empirical", "path": "nowhere/x.csv", "column": "a"})
    with pytest.raises(InputError, match=r"expected one of .*azure-2023-conv, got 'azure-2023-chat'; did you mean"):
        build(prompt_tokens={"dist": "empirical", "preset": "azure-2023-chat"})


def test_presets_ship() -> None:
    assert {"azure-2023-code", "azure-2023-conv"} <= set(list_presets())


# --- common random numbers --------------------------------------------------------------------------------------------
LOGNORMAL = {"dist": "lognormal", "mean": 256.0, "cv": 1.0, "max": 2048}


def test_same_seed_same_requests_other_replication_other_requests() -> None:
    keys = {
        "prompt_tokens": LOGNORMAL,
        "output_tokens": {"dist": "uniform", "low": 1, "high": 500},
        "num_requests": 500,
    }
    one = list(build(**keys).requests)
    assert one == list(build(**keys).requests)
    assert [request.id for request in one] == list(range(500))
    for other in (build(replication=1, **keys), build(seed=2, **keys)):
        assert [r.prompt_tokens for r in other.requests] != [r.prompt_tokens for r in one]


def test_lengths_do_not_change_with_the_rate_the_number_or_anything_else() -> None:
    keys: dict[str, Any] = {"prompt_tokens": LOGNORMAL, "output_tokens": {**LOGNORMAL, "mean": 100.0}}
    base = [(r.prompt_tokens, r.output_tokens) for r in build(num_requests=9000, **keys).requests]
    changes: list[dict[str, Any]] = [
        {"arrivals": {"process": "gamma", "rate_per_s": 3.0, "cv": 2.0}},
        {"arrivals": {"process": "closed_loop", "concurrency": 4}},
        {"priority": {"values": [0, 1], "weights": [1, 1]}, "tenants": {"count": 3}, "samples": 2},
        {"prefix": {"groups": 4, "tokens": 64}},
    ]
    for change in changes:
        other = build(num_requests=9000, **{**keys, **change})
        assert [(r.prompt_tokens, r.output_tokens) for r in other.requests] == base
    changed = build(num_requests=9000, **{**keys, "prompt_tokens": FIXED})
    assert [r.output_tokens for r in changed.requests] == [output for _, output in base]


def test_arms_with_other_rates_share_the_unit_rate_draws() -> None:
    slow, fast = arrivals_s({"process": "poisson", "rate_per_s": 2.0}), arrivals_s(POISSON)
    assert np.abs(slow / 10 - fast).max() <= 1e-9


def test_a_longer_mean_makes_no_request_shorter() -> None:
    short, long = lengths(LOGNORMAL), lengths({**LOGNORMAL, "mean": 300.0})
    assert np.all(long >= short)
    assert np.corrcoef(short, lengths({"dist": "exponential", "mean": 256.0}))[0, 1] > 0.9


def test_prompt_and_output_draws_are_independent() -> None:
    drawn = [
        (r.prompt_tokens, r.output_tokens) for r in build(prompt_tokens=LOGNORMAL, output_tokens=LOGNORMAL).requests
    ]
    assert abs(stats.spearmanr(*zip(*drawn, strict=True)).statistic) < Z / math.sqrt(N)


# --- stop, labels -----------------------------------------------------------------------------------------------------
def test_stop_length_reveals_the_output_and_stop_eos_does_not() -> None:
    keys: dict[str, Any] = {"prompt_tokens": LOGNORMAL, "output_tokens": LOGNORMAL, "num_requests": 5000}
    drawn = column(build(**keys), "output_tokens")
    for request in build(**keys).requests:
        assert request.max_tokens == request.output_tokens
    for request in build(stop="eos", **keys).requests:
        assert request.max_tokens == 8192 - request.prompt_tokens
    capped = build(stop="eos", max_tokens=300, **keys)
    requests = list(capped.requests)
    assert {request.max_tokens for request in requests} == {300}
    assert [request.output_tokens for request in requests] == np.minimum(drawn, 300).tolist()
    assert capped.counters["outputs_cut_by_max_tokens"] == np.count_nonzero(drawn > 300) > 0


def test_eos_leaves_at_least_one_token_to_a_prompt_that_fills_the_model() -> None:
    workload = build(stop="eos", prompt_tokens={"dist": "list", "values": [8191, 8192, 9000]}, num_requests=3)
    assert [(r.max_tokens, r.output_tokens) for r in workload.requests] == [(1, 1)] * 3
    assert workload.counters["outputs_cut_by_max_tokens"] == 3


def test_counters_count_requests_that_were_taken_and_no_others() -> None:
    workload = build(stop="eos", max_tokens=4, output_tokens={"dist": "list", "values": [5, 3]}, num_requests=100)
    for _ in itertools.islice(workload.requests, 11):
        pass
    assert workload.counters["outputs_cut_by_max_tokens"] == 6


def test_priorities_and_tenants_follow_their_weights() -> None:
    workload = build(
        priority={"values": [5, -1, 9], "weights": [3, 1, 0]}, tenants={"count": 4, "weights": [0, 1, 1, 2]}, samples=3
    )
    requests = list(workload.requests)
    values, counts = np.unique([r.priority for r in requests], return_counts=True)
    assert values.tolist() == [-1, 5]
    assert stats.chisquare(counts, [N / 4, 3 * N / 4]).pvalue > 1e-3
    tenants, counts = np.unique([r.tenant for r in requests], return_counts=True)
    assert tenants.tolist() == [1, 2, 3]
    assert stats.chisquare(counts, [N / 4, N / 4, N / 2]).pvalue > 1e-3
    assert {r.samples for r in requests} == {3}
    equal = np.bincount(column(build(tenants={"count": 5}), "tenant"))
    assert stats.chisquare(equal).pvalue > 1e-3


def test_prefix_is_part_of_the_prompt_and_leaves_it_a_token() -> None:
    workload = build(
        prefix={"groups": 3, "tokens": 64},
        prompt_tokens={"dist": "list", "values": [1, 64, 65, 500]},
        num_requests=4000,
    )
    requests = list(workload.requests)
    assert [(r.prompt_tokens, r.prefix_tokens) for r in requests[:4]] == [(1, 0), (64, 63), (65, 64), (500, 64)]
    assert {r.prefix_group for r in requests if r.prefix_tokens} == {0, 1, 2}
    assert {r.prefix_group for r in requests if not r.prefix_tokens} == {-1}
    assert workload.counters["prefixes_cut_to_prompt"] == 2000
    groups = np.bincount([r.prefix_group for r in requests if r.prefix_tokens])
    assert stats.chisquare(groups).pvalue > 1e-3


def test_a_plain_request_has_no_labels() -> None:
    request = next(build().requests)
    assert request == Request(0, request.arrival_ns, 8, 8, 8)


# --- laziness ---------------------------------------------------------------------------------------------------------
def test_requests_are_made_when_asked_for() -> None:
    workload = build(num_requests=2**31 - 1, prompt_tokens=LOGNORMAL)
    assert [request.id for request in itertools.islice(workload.requests, 3)] == [0, 1, 2]


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    def peak(n: int) -> int:
        workload = build(num_requests=n, prompt_tokens={"dist": "uniform", "low": 1, "high": 4000})
        tracemalloc.start()
        for _ in workload.requests:
            pass
        _, top = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return top

    assert peak(12 * CHUNK) < 1.2 * peak(3 * CHUNK)
