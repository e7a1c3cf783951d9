"""Prompts that begin as earlier ones, lengths that depend on prompt and time: the streams behind a fitted workload."""

# ruff: noqa: E501 (a case and what it must say are easier to read in one piece)
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkit import scenario
from simkit.errors import InputError
from simkit.streams import Streams
from simkit.types import Request
from simkit.workload import build_workload
from simkit.workload.arrivals import arrival_chunks
from simkit.workload.lengths import Drift, build_outputs
from simkit.workload.prefixes import PromptReuse, inherited

FIXED = {"dist": "fixed", "value": 8}
POISSON = {"process": "poisson", "rate_per_s": 20.0}
UNIFORM = {"dist": "uniform", "low": 1, "high": 300}
REUSE: dict[str, Any] = {
    "prompt_shares": [
        {"upto_tokens": 100, "quantiles": [[0, 0], [0.5, 0], [1, 1]]},
        {"quantiles": [[0, 0.2], [1, 0.9]]},
    ],
    "requests_back": [{"upto_tokens": 20, "quantiles": [[0, 1], [1, 3]]}, {"quantiles": [[0, 1], [0.9, 10], [1, 40]]}],
}


def build(n: int = 3000, seed: int = 1, **keys: Any) -> list[Request]:
    given_keys = {"num_requests": n, "arrivals": POISSON, "prompt_tokens": FIXED, "output_tokens": FIXED, **keys}
    spec = scenario.Workload.model_validate(given_keys)
    return list(build_workload(spec, seed=seed, replication=0, max_model_len=8192, base_dir=None).requests)


# --- sharing ----------------------------------------------------------------------------------------------------------
def test_shared_beginnings_are_those_of_the_requests_named() -> None:
    """Prompts written out token by token: every pair of `shared` must hold, and nothing more be alike."""
    made = build(600, prompt_tokens=UNIFORM, reuse=REUSE)
    texts: list[list[tuple[int, int]]] = []
    for request in made:
        upto = request.shared[-1][1] if request.shared else 0
        start = texts[request.shared[-1][0]][:upto] if request.shared else []
        texts.append(start + [(request.id, place) for place in range(upto, request.prompt_tokens)])
        assert len(texts[-1]) == request.prompt_tokens
        ends = [end for _, end in request.shared]
        assert ends == sorted(set(ends))
        for owner, end in request.shared:
            assert owner < request.id
            assert end <= made[owner].prompt_tokens
            assert texts[-1][:end] == texts[owner][:end]
        # The first to have a token is the one that is named.
        for place in range(0, upto, 7):
            named = next(owner for owner, end in request.shared if end > place)
            assert texts[-1][place][0] == named
    assert sum(len(request.shared) > 1 for request in made) > 50


def test_shares_and_distances_are_those_asked_for() -> None:
    made = build(20_000, prompt_tokens={"dist": "fixed", "value": 200}, reuse=REUSE)
    shares = np.array([request.shared[-1][1] / 200 for request in made[100:]])
    assert shares.mean() == pytest.approx(0.55, abs=0.01)
    assert (shares.min(), shares.max()) == (pytest.approx(0.2, abs=0.01), pytest.approx(0.9, abs=0.01))
    short = build(20_000, prompt_tokens={"dist": "fixed", "value": 50}, reuse=REUSE)
    assert np.mean([not request.shared for request in short]) == pytest.approx(
        0.505, abs=0.015
    )  # and less than 1 token


def test_what_no_earlier_prompt_is_long_enough_for_is_cut_and_counted() -> None:
    reuse = {"prompt_shares": [{"quantiles": [[0, 1], [1, 1]]}], "requests_back": [{"quantiles": [[0, 1], [1, 1]]}]}
    spec = scenario.Workload.model_validate(
        {"num_requests": 4, "arrivals": POISSON, "prompt_tokens": {"dist": "list", "values": [10, 20, 5, 30]},
         "output_tokens": FIXED, "reuse": reuse}
    )  # fmt: skip
    workload = build_workload(spec, seed=0, replication=0, max_model_len=100, base_dir=None)
    assert [request.shared for request in workload.requests] == [(), ((0, 10),), ((0, 5),), ((0, 10), (1, 20))]
    assert workload.counters["reuse_cut_to_prompt"] == 2


def test_inherited_keeps_the_first_owner() -> None:
    assert inherited(7, (), 5) == ((7, 5),)
    assert inherited(7, ((2, 5), (4, 9)), 3) == ((2, 3),)
    assert inherited(7, ((2, 5), (4, 9)), 5) == ((2, 5),)
    assert inherited(7, ((2, 5), (4, 9)), 12) == ((2, 5), (4, 9), (7, 12))


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    furthest=st.integers(1, 50),
    seed=st.integers(0, 2**31),
)
def test_sharing_does_not_depend_on_the_chunks(cuts: list[int], furthest: int, seed: int) -> None:
    data = {**REUSE, "requests_back": [{"quantiles": [[0, 1], [1, furthest]]}]}
    spec = scenario.Reuse.model_validate(data)
    prompts = 1 + (Streams(seed, 0)("p").uniforms(sum(cuts)) * 300).astype(np.int64)
    whole = PromptReuse(spec, Streams(seed, 0)).segments(prompts)[0]
    parts = PromptReuse(spec, Streams(seed, 0))
    pieces = [piece for part in np.split(prompts, np.cumsum(cuts)[:-1]) for piece in parts.segments(part)[0]]
    assert pieces == whole


# --- arrivals and lengths ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("cv", "tick_s"), [(1.0, None), (2.5, None), (0.4, 0.5)])
def test_piecewise_arrivals_do_not_depend_on_the_chunks(cv: float, tick_s: float | None) -> None:
    segments = tuple({"until_s": u, "rate_per_s": r} for u, r in ((10.0, 5.0), (12.0, 0.0), (60.0, 30.0)))
    spec = scenario.PiecewiseArrivals.model_validate(
        {"process": "piecewise", "cv": cv, "tick_s": tick_s, "segments": segments}
    )
    one, other = (np.concatenate(list(arrival_chunks(spec, Streams(3, 0)("arrivals"), chunk))) for chunk in (4096, 17))
    assert np.array_equal(one, other)
    assert len(one) > 1000


def test_bursty_piecewise_arrivals_have_their_rates_and_their_cv() -> None:
    segments = [(500.0, 4.0), (600.0, 0.0), (1000.0, 20.0)]
    spec = {"process": "piecewise", "cv": 2.0, "segments": [{"until_s": u, "rate_per_s": r} for u, r in segments]}
    counts = {0: [], 600: []}  # type: ignore[var-annotated]
    for seed in range(20):
        times = np.array([request.arrival_ns for request in build(100_000, seed, arrivals=spec)]) / 1e9
        assert not np.any((times > 500) & (times < 600))
        for start, end in ((0, 500), (600, 1000)):
            counts[start].append(np.sum((times >= start) & (times < end)))
        gaps = np.diff(times[times >= 600])
        assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.15)
    # The first gap starts at 0, so a bursty process is (cv^2 - 1) / 2 = 1.5 requests ahead.
    for start, expected in ((0, 2001.5), (600, 8000)):
        assert np.mean(counts[start]) == pytest.approx(expected, abs=3.3 * 2 * np.sqrt(expected / 20))


def test_outputs_come_from_the_bin_of_their_prompt_and_use_one_draw() -> None:
    outputs = {
        "dist": "conditional",
        "on": "prompt_tokens",
        "bins": [
            {"upto_tokens": 100, "quantiles": [[0, 1], [1, 10]]},
            {"upto_tokens": 200, "quantiles": [[0, 100], [1, 110]]},
            {"quantiles": [[0, 1000], [1, 1010]]},
        ],
    }
    made = build(prompt_tokens=UNIFORM, output_tokens=outputs)
    for request in made:
        low = 1 if request.prompt_tokens <= 100 else 100 if request.prompt_tokens <= 200 else 1000
        assert low <= request.output_tokens <= low + 10
    # The draws are those of any other distribution.
    plain = build(prompt_tokens=UNIFORM, output_tokens={"dist": "empirical", "quantiles": [[0, 1], [1, 10]]})
    pairs = [(a, b) for a, b in zip(made, plain, strict=True) if a.prompt_tokens <= 100]
    assert all(a.output_tokens == b.output_tokens for a, b in pairs)
    notes: list[str] = []
    assert build_outputs(scenario.FixedLength(dist="fixed", value=3), None, notes).high > 0


def test_periods_change_which_lengths_come() -> None:
    even, short = [[0, 0], [1, 1]], [[0, 0], [1, 0.5]]
    drift = [
        {"until_s": 50, "prompt_ranks": even, "output_ranks": short},
        {"until_s": 100, "prompt_ranks": short, "output_ranks": even},
    ]
    lengths = {"dist": "uniform", "low": 1, "high": 1000}
    made = build(4000, prompt_tokens=lengths, output_tokens=lengths, drift=drift)
    early = [request for request in made if request.arrival_ns < 50e9]
    late = [request for request in made if request.arrival_ns >= 50e9]  # the last period has no end
    assert max(r.output_tokens for r in early) <= 500 < max(r.prompt_tokens for r in early)
    assert max(r.prompt_tokens for r in late) <= 500 < max(r.output_tokens for r in late)
    plain = build(4000, prompt_tokens=lengths, output_tokens=lengths)
    assert [r.prompt_tokens for r in early] == [r.prompt_tokens for r in plain[: len(early)]]
    identity = Drift((), "prompt_tokens").draws(np.zeros(3, dtype=np.int64), np.array([0.1, 0.5, 0.9]))
    assert identity.tolist() == [0.1, 0.5, 0.9]


# --- the schema -------------------------------------------------------------------------------------------------------
BASE = {
    "model": "qwen2.5-0.5b",
    "hardware": {"gpu": "l4-24gb"},
    "workload": {"arrivals": POISSON, "prompt_tokens": FIXED, "output_tokens": FIXED},
}
BINS = [{"upto_tokens": 9, "quantiles": [[0, 1], [1, 2]]}, {"quantiles": [[0, 1], [1, 2]]}]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("reuse", {**REUSE, "requests_back": [{"quantiles": [[0, 0], [1, 3]]}]}, "an integer from 1 to 1000000"),
        ("reuse", {**REUSE, "prompt_shares": [{"quantiles": [[0, 0], [1, 1.5]]}]}, "a probability from 0 to 1"),
        ("reuse", {**REUSE, "prompt_shares": [{"quantiles": [[0, 0], [0.9, 1]]}]}, "pairs from probability 0 to 1"),
        ("reuse", {**REUSE, "prompt_shares": [{"upto_tokens": 9, "quantiles": [[0, 0], [1, 1]]}]}, "upto_tokens in each"),
        ("output_tokens", {"dist": "conditional", "on": "prompt_tokens", "bins": [BINS[1], BINS[1]]}, "upto_tokens in each"),
        ("output_tokens", {"dist": "conditional", "on": "prompt_tokens", "bins": [BINS[0]] * 2 + BINS[1:]}, "increases"),
        ("output_tokens", {"dist": "conditional", "on": "tokens", "bins": BINS}, "prompt_tokens"),
        ("prompt_tokens", {"dist": "conditional", "on": "prompt_tokens", "bins": BINS}, "dist"),
        ("drift", [{"until_s": 9, "prompt_ranks": [[0, 0], [1, 1]], "output_ranks": [[0, 0], [0.5, 1]]}], "[probability, rank] pairs"),
        ("arrivals", {"process": "piecewise", "cv": 0, "segments": [{"until_s": 9, "rate_per_s": 1}]}, "a number > 0"),
    ],
)  # fmt: skip
def test_mistakes_are_named(key: str, value: object, message: str) -> None:
    with pytest.raises(InputError) as found:
        scenario.from_dict({**BASE, "workload": {**BASE["workload"], key: value}})  # type: ignore[dict-item]
    assert message in str(found.value)
    assert f"workload.{key}" in str(found.value)
    assert "\n" not in str(found.value)


def test_keys_that_exclude_each_other_are_named() -> None:
    period = {"until_s": 9, "prompt_ranks": [[0, 0], [1, 1]], "output_ranks": [[0, 0], [1, 1]]}
    loop = {"process": "closed_loop", "concurrency": 2}
    for changes, message in (
        ({"drift": [period], "arrivals": loop}, "arrivals at times of their own with drift"),
        ({"servegen": {"path": "x"}}, "either servegen or arrivals"),
        ({"reuse": REUSE, "prefix": {"groups": 1, "tokens": 5}}, "either prefix or reuse"),
    ):
        with pytest.raises(InputError, match=message):
            scenario.from_dict({**BASE, "workload": {**BASE["workload"], **changes}})  # type: ignore[dict-item]
