"""Workloads fitted on logs: what they keep, what they must not publish, and how the command is used."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simkit import scenario
from simkit.cli import app
from simkit.errors import InputError
from simkit.logs.fit.arrivals import fit_arrivals
from simkit.logs.fit.fit import Fit, fit, workload_yaml
from simkit.logs.fit.lengths import LEAST, LEAST_IN_TAIL, TAIL, quantiles_of
from simkit.logs.fit.reuse import shared_tokens
from simkit.logs.play.load import Log, load_log
from simkit.streams import Streams
from simkit.studies.offered_load import at_rate, base_rate
from simkit.types import Request
from simkit.workload import build_workload

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/data/traces) are not here")
CONVERSATION, CODE = "azure_llm_2023_conv.csv.gz", "azure_llm_2023_code.csv"
MOONCAKE, SYNTHETIC = "mooncake_conversation_0-20min.jsonl", "mooncake_synthetic_0-8min.jsonl"
N = 4000


def uniforms(name: str, n: int = N) -> np.ndarray:
    return Streams(5, 0)(name).uniforms(n)


def write(path: Path, times_s: np.ndarray, prompts: np.ndarray, outputs: np.ndarray) -> Path:
    """A log in the form of Mooncake, without hash_ids."""
    rows = zip(np.rint(times_s * 1000).astype(int).tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    lines = [json.dumps({"timestamp": t, "input_length": p, "output_length": o}) for t, p, o in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def steady(n: int = N, rate: float = 5.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    times = np.cumsum(-np.log1p(-uniforms("times", n))) / rate
    prompts = np.rint(np.exp(6 + uniforms("prompts", n) * 2)).astype(np.int64)
    return times, prompts, np.rint(20 + 400 * uniforms("outputs", n)).astype(np.int64)


def fitted(path: Path, **keys: Any) -> tuple[Log, Fit]:
    spec = scenario.Trace.model_validate({"path": str(path), **keys})
    log = load_log(spec)
    return log, fit(log, spec)


def requests(found: Fit, seed: int = 0) -> list[Request]:
    spec = scenario.Workload.model_validate(found.workload)
    return list(build_workload(spec, seed=seed, replication=0, max_model_len=2**20, base_dir=None).requests)


def pooled(found: Fit, name: str, seeds: int) -> np.ndarray:
    return np.concatenate([[getattr(request, name) for request in requests(found, seed)] for seed in range(seeds)])


def lengths_of(made: list[Request]) -> np.ndarray:
    """Prompts and outputs, a row each."""
    return np.array([(request.prompt_tokens, request.output_tokens) for request in made]).T


def dispersion(times_s: np.ndarray) -> float:
    counts = np.bincount((times_s // 10).astype(int))
    return float(counts.var() / counts.mean())


def gap_cv(times_s: np.ndarray) -> float:
    gaps = np.diff(times_s)
    return float(gaps.std() / gaps.mean())


def in_ns(times_s: np.ndarray) -> np.ndarray:
    """Times from the first."""
    return np.rint((times_s - times_s[0]) * 1e9).astype(np.int64)


# --- arrivals ---------------------------------------------------------------------------------------------------------
def test_a_steady_stream_has_one_rate_and_no_bursts() -> None:
    times = steady()[0]
    found, _ = fit_arrivals(in_ns(times))
    assert len(found["segments"]) == 1
    assert found["segments"][0]["rate_per_s"] == pytest.approx(N / (times[-1] - times[0]), rel=1e-3)
    assert abs(found["cv"] - 1) < 3.3 * math.sqrt(8 / (4 * N))  # the standard error of an exponential's deviation
    assert "tick_s" not in found


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.5])
def test_rates_and_burstiness_of_a_known_process_are_found_again(cv: float) -> None:
    segments = [(200.0, 3.0), (260.0, 30.0), (400.0, 0.0), (700.0, 6.0)]
    spec = {"process": "piecewise", "cv": cv, "segments": [{"until_s": u, "rate_per_s": r} for u, r in segments]}
    fixed = {"dist": "fixed", "value": 1}
    drawn = scenario.Workload.model_validate({"arrivals": spec, "prompt_tokens": fixed, "output_tokens": fixed,
                                              "num_requests": 100_000})  # fmt: skip
    made = build_workload(drawn, seed=3, replication=0, max_model_len=10, base_dir=None)
    times = np.array([request.arrival_ns for request in made.requests]) / 1e9
    found, _ = fit_arrivals(in_ns(times))
    steps = [(0.0, 0.0), *((part["until_s"] + times[0], part["rate_per_s"]) for part in found["segments"])]
    for (start, _), (until, rate) in pairwise([(0.0, 0.0), *segments]):
        found_here = sum(
            max(0.0, min(end, until) - max(begin, start)) * level for (begin, _), (end, level) in pairwise(steps)
        )
        expected = rate * (until - start)
        assert abs(found_here - expected) <= 4 * cv * math.sqrt(expected) + 30  # borders lie on whole seconds
    assert found["cv"] == pytest.approx(cv, rel=0.25)


def test_ticks_are_told_apart_from_duplicates_and_seen_beside_long_silence() -> None:
    times = steady()[0]
    seconds = np.floor(1e5 * (times > times[-1] / 2) + times)
    assert fit_arrivals(in_ns(seconds))[0]["tick_s"] == 1
    jittered = np.sort(np.floor(times / 3) * 3 + np.rint(2 * uniforms("jitter") - 1) / 1000)
    assert fit_arrivals(in_ns(jittered))[0]["tick_s"] == 3
    doubled = np.repeat(times[: N // 2], 2)
    assert "tick_s" not in fit_arrivals(in_ns(doubled))[0]


def test_a_clock_that_ticks_gives_requests_that_come_together(tmp_path: Path) -> None:
    times, prompts, outputs = steady()
    log, found = fitted(write(tmp_path / "log.jsonl", np.floor(times / 3) * 3, prompts, outputs))
    assert found.workload["arrivals"]["tick_s"] == 3
    made = np.array([request.arrival_ns for request in requests(found)])
    assert np.all(made % 3_000_000_000 == 0)
    assert gap_cv(made / 1e9) == pytest.approx(gap_cv(log.columns.time_ns / 1e9), rel=0.1)
    assert any("ticks every 3 s" in remark for remark in found.remarks)


@needs_traces
def test_the_bursts_of_the_code_service_are_kept() -> None:
    """Gaps of minutes and bursts of seconds: coefficient of variation 13.2, dispersion of counts in 10 s 71."""
    log, found = fitted(TRACES / CODE)
    times = log.columns.time_ns / 1e9
    made = [np.array([request.arrival_ns for request in requests(found, seed)]) / 1e9 for seed in range(8)]
    assert np.mean([dispersion(one) for one in made]) == pytest.approx(dispersion(times), rel=0.1)
    assert np.mean([gap_cv(one) for one in made]) == pytest.approx(gap_cv(times), rel=0.15)
    assert np.mean([len(one) for one in made]) == pytest.approx(len(times), rel=0.02)


# --- lengths ----------------------------------------------------------------------------------------------------------
@needs_traces
@pytest.mark.parametrize("name", [CONVERSATION, CODE, MOONCAKE])
def test_lengths_are_those_of_the_log(name: str) -> None:
    log, found = fitted(TRACES / name)
    columns, correlations = log.columns, []
    seeds = 6 if name == CONVERSATION else 40
    parts = [lengths_of(requests(found, seed)) for seed in range(seeds)]
    made = dict(zip(("prompt_tokens", "output_tokens"), np.concatenate(parts, axis=1), strict=True))
    for key, values in made.items():
        original = getattr(columns, key)
        assert values.mean() == pytest.approx(original.mean(), rel=0.02)
        for percentile in (50, 95):
            assert np.percentile(values, percentile) == pytest.approx(np.percentile(original, percentile), rel=0.02)
        # Long outputs are so rare that the log's own p99 is known to 5 % at best.
        rel = 0.02 if key == "prompt_tokens" else 0.05
        assert np.percentile(values, 99) == pytest.approx(np.percentile(original, 99), rel=rel)
    for prompts, outputs in ((columns.prompt_tokens, columns.output_tokens), tuple(made.values())):
        ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (prompts, outputs)]
        correlations.append(np.corrcoef(ranks)[0, 1])
    assert correlations[1] == pytest.approx(correlations[0], abs=0.03)


def test_a_length_that_many_have_stays_exact(tmp_path: Path) -> None:
    times, prompts, outputs = steady()
    prompts[uniforms("cap") < 0.3] = 4095
    _, found = fitted(write(tmp_path / "log.jsonl", times, prompts, outputs))
    share = np.mean(pooled(found, "prompt_tokens", 5) == 4095)
    assert share == pytest.approx(np.mean(prompts == 4095), abs=0.01)


def test_outputs_follow_prompts(tmp_path: Path) -> None:
    times, prompts, _ = steady()
    outputs = np.maximum(1, np.rint(prompts / 10 * (0.8 + 0.4 * uniforms("noise")))).astype(np.int64)
    _, found = fitted(write(tmp_path / "log.jsonl", times, prompts, outputs))
    made = requests(found)
    drawn = np.array([(request.prompt_tokens, request.output_tokens) for request in made])
    assert np.corrcoef(drawn.T)[0, 1] > 0.95
    shuffled = np.corrcoef(drawn[:, 0], np.roll(drawn[:, 1], 1))[0, 1]
    assert abs(shuffled) < 0.1


@pytest.mark.parametrize("changed", ["prompt_tokens", "output_tokens"])
def test_lengths_that_change_over_time_do_so_again(tmp_path: Path, changed: str) -> None:
    times, prompts, outputs = steady()
    half = times > times[-1] / 2
    shorter = prompts if changed == "prompt_tokens" else outputs
    shorter[half] = shorter[half] // 4 + 1
    _, found = fitted(write(tmp_path / "log.jsonl", times, prompts, outputs))
    made = requests(found)
    arrival_s = np.array([request.arrival_ns for request in made]) / 1e9
    # The change itself falls into a period, so the quarters beside it are left out.
    for start, end in ((0.0, 0.25), (0.75, 1.0)):
        in_log, here = ((t >= start * times[-1]) & (t <= end * times[-1]) for t in (times, arrival_s))
        for key, log_values in (("prompt_tokens", prompts), ("output_tokens", outputs)):
            values = np.array([getattr(request, key) for request in made])
            assert values[here].mean() == pytest.approx(log_values[in_log].mean(), rel=0.06)


def test_steady_lengths_need_no_periods(tmp_path: Path) -> None:
    _, found = fitted(write(tmp_path / "log.jsonl", *steady()))
    assert "drift" not in found.workload


# --- what prompts share -----------------------------------------------------------------------------------------------
@needs_traces
@pytest.mark.parametrize(("name", "rate"), [(MOONCAKE, 0.3236), (SYNTHETIC, 0.3051)])
def test_the_hit_rate_of_an_unlimited_cache_is_that_of_the_log(name: str, rate: float) -> None:
    log, found = fitted(TRACES / name)
    assert log.columns.blocks is not None
    shared, back = shared_tokens(log.columns.blocks, log.columns.prompt_tokens, 512)
    assert round(shared.sum() / log.columns.prompt_tokens.sum(), 4) == rate
    rates, far = [], []
    for seed in range(20):
        made = requests(found, seed)
        rates.append(sum(r.shared[-1][1] for r in made if r.shared) / sum(r.prompt_tokens for r in made))
        far += [r.id - max(owner for owner, _ in r.shared) for r in made if r.shared and r.shared[-1][1] > 1024]
    assert np.mean(rates) == pytest.approx(rate, abs=0.01)
    # Prompts that share more than the common beginning do so from as far back, by the order of magnitude.
    original = np.median(back[shared > 1024])
    assert original / 2 < np.median(far) < original * 2


def test_a_log_that_does_not_say_what_is_shared_gives_a_workload_that_does_not(tmp_path: Path) -> None:
    _, found = fitted(write(tmp_path / "log.jsonl", *steady()))
    assert "reuse" not in found.workload
    assert any("does not say which prompts are alike" in remark for remark in found.remarks)


# --- what is not published --------------------------------------------------------------------------------------------
def test_no_single_request_is_published(tmp_path: Path) -> None:
    times, prompts, outputs = steady()
    prompts[1234], outputs[777], prompts[5] = 987_654, 76_543, 3
    _, found = fitted(write(tmp_path / "secret-customer.jsonl", times, prompts, outputs))
    text = workload_yaml(found, "Mooncake JSONL", "1.2.3")
    for hidden in ("987654", "988000", "76543", "76500", "secret", str(tmp_path)):
        assert hidden not in text
    for values in (prompts, outputs):
        points = np.array(quantiles_of(values, simplify=False))[:, 0]
        gaps = np.diff(points) * len(values)
        assert gaps.min() >= LEAST_IN_TAIL / 2 * 0.99
        assert gaps[points[1:] <= TAIL].min() >= LEAST * 0.99
        assert min(gaps[0], gaps[-1]) >= LEAST_IN_TAIL * 0.99


@pytest.mark.parametrize("n", [20, 33, 60, 99, 100, 130, 1000, 7777])
def test_one_request_moves_every_quantile_by_a_small_share(n: int) -> None:
    """A quantile that is one request's value moves as far as that; a mean of 20 by a 20th, an end by twice that."""
    steps = np.arange(1, n + 1) * 10_000_000  # so far apart that rounding to 3 digits hides no move of a step
    points = np.array(quantiles_of(steps, simplify=False))
    for row in {*range(0, n, max(1, n // 150)), *range(max(0, n - 60), n)}:
        moved = steps.copy()
        moved[row] += 9_999_999 if row < n - 1 else 5_000_000_000
        change = np.abs(np.array(quantiles_of(moved, simplify=False)) - points)
        rounding = points[:, 1] * 0.011
        limit = (moved[row] - steps[row]) * np.where((points[:, 0] == 0) | (points[:, 0] == 1), 0.1501, 0.0501)
        assert np.all(change[:, 0] == 0)
        assert np.all(change[:, 1] <= limit + rounding)


def test_a_length_in_a_gap_that_one_request_has_is_not_published(tmp_path: Path) -> None:
    times, prompts, outputs = steady(1001)
    lengths = np.where(np.arange(1001) % 2 == 0, 100 + prompts % 50, 9000 + prompts % 500)
    lengths[500] = 551  # the median
    _, found = fitted(write(tmp_path / "log.jsonl", times, lengths, outputs))
    assert 551 not in [value for _, value in found.workload["prompt_tokens"]["quantiles"]]
    upto = [part.get("upto_tokens") for part in found.workload["output_tokens"]["bins"]]
    assert 551 not in upto


@pytest.mark.parametrize("n", [1, 2, 19])
def test_what_is_no_group_is_refused(tmp_path: Path, n: int) -> None:
    with pytest.raises(InputError, match=f"expected at least 20 requests to fit a workload on, got {n}: a fit on"):
        fitted(write(tmp_path / "log.jsonl", *steady(n)))


def test_few_requests_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log.jsonl", *steady(60))
    done = run("trace", "fit", "log.jsonl", "--out", "w.yaml", "--no-check")
    assert done.exit_code == 0, done.stderr
    told = "only 60 requests: values stand for as few as 20 of them, so they are coarse and each request weighs much; "
    told += "read the file before you give it away"
    assert f"fit: {told}\n" in done.stderr
    comment = " ".join(line.removeprefix("#").strip() for line in Path("w.yaml").read_text("utf-8").splitlines())
    assert told[1:] in comment
    assert not any(
        remark.startswith("only") for remark in fitted(write(tmp_path / "more.jsonl", *steady(100)))[1].remarks
    )


# --- what is written can be played ------------------------------------------------------------------------------------
def loaded(found: Fit, folder: Path) -> list[Request]:
    """The first requests of the written file, as `simkit run SCENARIO --workload FILE` makes them."""
    (folder / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    (folder / "w.yaml").write_text(workload_yaml(found, "Mooncake JSONL", "1.2.3"), encoding="utf-8")
    chosen = scenario.load(folder / "s.yaml", (), folder / "w.yaml").workload
    made = build_workload(chosen, seed=0, replication=0, max_model_len=2**20, base_dir=None)
    return list(islice(made.requests, 500))


LOG_TIMES = {
    "even": lambda n: np.arange(n) * 0.5,
    "even, fast": lambda n: np.arange(n) * 0.001,
    "at two instants": lambda n: np.where(np.arange(n) < n // 2, 0.0, 100.0),
    "all but the last at once": lambda n: np.where(np.arange(n) < n - 1, 0.0, 1e6),
    "a silent middle": lambda n: np.arange(n) * 0.1 + np.where(np.arange(n) < n // 2, 0.0, 1e5),
    "on ticks": lambda n: np.arange(n) // 7 * 3.0,
}
LOG_LENGTHS = {
    "one length": lambda n: np.full(n, 500),
    "ones": lambda n: np.ones(n, dtype=np.int64),
    "huge": lambda n: 2**31 - 1 - np.arange(n),
    "two lengths": lambda n: np.where(np.arange(n) % 2 == 0, 1, 100_000),
}


@pytest.mark.parametrize("n", [20, 600])
@pytest.mark.parametrize("times", LOG_TIMES)
def test_what_is_fitted_on_odd_logs_can_be_played(tmp_path: Path, times: str, n: int) -> None:
    for lengths in LOG_LENGTHS.values():
        path = write(tmp_path / "log.jsonl", LOG_TIMES[times](n), lengths(n), lengths(n))
        made = loaded(fitted(path)[1], tmp_path)
        assert made
        assert all(1 <= request.prompt_tokens < 2**31 for request in made)


def test_even_gaps_stay_even(tmp_path: Path) -> None:
    _, found = fitted(write(tmp_path / "log.jsonl", np.arange(400) * 0.5, *steady(400)[1:]))
    assert found.workload["arrivals"]["cv"] == 0.01
    gaps = np.diff([request.arrival_ns for request in requests(found)])
    assert gaps.std() / gaps.mean() == pytest.approx(0.01, rel=0.2)


def test_times_beyond_what_a_scenario_holds_are_refused(tmp_path: Path) -> None:
    times = np.where(np.arange(300) < 150, np.arange(300), 2e9 + np.arange(300))
    with pytest.raises(
        InputError, match=r"expected a log that a workload can stand for; workload\.duration_s would be"
    ):
        fitted(write(tmp_path / "log.jsonl", times, *steady(300)[1:]))


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), n=st.integers(1, 320), seed=st.integers(0, 2**32 - 1))
def test_what_is_fitted_on_any_log_can_be_played(tmp_path: Path, data: st.DataObject, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gap = data.draw(st.sampled_from([0.0, 0.001, 1.0, 50.0]))
    burst = data.draw(st.sampled_from([0.0, 1.0, 6.0]))
    times = np.cumsum(np.rint(1000 * gap * rng.exponential(1.0, n) ** burst) / 1000)
    times += data.draw(st.sampled_from([0.0, 3e4])) * (np.arange(n) > data.draw(st.integers(0, n)))
    top = data.draw(st.sampled_from([1, 2, 9, 600, 10**5, 2**31 - 1]))
    prompts, outputs = rng.integers(1, top, n, endpoint=True), rng.integers(1, min(top, 5000), n, endpoint=True)
    lines = []
    ids = data.draw(st.sampled_from([0, 3, 200]))
    for t, p, o in zip(
        times.tolist(), np.minimum(prompts, 4000 if ids else top).tolist(), outputs.tolist(), strict=True
    ):
        row = {"timestamp": round(t * 1000), "input_length": p, "output_length": o}
        lines.append(json.dumps(row | ({"hash_ids": rng.integers(0, ids, -(-p // 512)).tolist()} if ids else {})))
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if n < 20 or not 0.01 <= times[-1] - times[0] < 9e8:  # a scenario holds 1e9 s
        with pytest.raises(InputError, match=r"\Atrace [^\n]*\Z"):
            fitted(path)
        return
    found = fitted(path)[1]
    for request in loaded(found, tmp_path):
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 1


def test_requests_without_output_are_told(tmp_path: Path) -> None:
    times, prompts, outputs = steady(600)
    outputs[:30] = 0
    path = write(tmp_path / "log.jsonl", times, prompts, outputs)
    assert fitted(path)[1].num_requests == 570
    log = load_log(scenario.Trace(path=str(path)))
    kept = replace(log, columns=replace(log.columns, output_tokens=np.where(np.arange(570) < 9, 0, 5)))
    found = fit(kept, scenario.Trace(path=str(path)))
    assert "9 requests without output, kept for their prompt, have an output of 1 token here" in found.remarks


def test_too_few_requests_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", *steady(250))
    with pytest.raises(InputError, match=r"expected at least 20 requests to fit a workload on, got \d+: a fit on"):
        fitted(path, end_s=2.0)
    with pytest.raises(InputError, match="expected requests at different times"):
        fitted(write(tmp_path / "same.jsonl", np.zeros(300), *steady(300)[1:]))


# --- the file and the command -----------------------------------------------------------------------------------------
SCENARIO = """\
name: tiny
model: qwen2.5-0.5b
hardware: {gpu: l4-24gb}
engine: {max_model_len: 8192}
latency: {profile: unit}
workload:
  num_requests: 3
  arrivals: {process: poisson, rate_per_s: 6}
  prompt_tokens: {dist: fixed, value: 5}
  output_tokens: {dist: fixed, value: 2}
"""


def run(*args: object) -> Any:
    return CliRunner().invoke(app.app, [str(arg) for arg in args])


def test_the_file_is_the_workload_and_the_same_every_time(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", *steady())
    _, found = fitted(log)
    text = workload_yaml(found, "Mooncake JSONL", "1.2.3")
    assert text == workload_yaml(fitted(log)[1], "Mooncake JSONL", "1.2.3")
    assert yaml.safe_load(text) == {"workload": found.workload}
    assert max(map(len, text.splitlines())) <= 125
    assert "# Fitted on 4000 requests over" in text
    assert "simkit 1.2.3" in text
    assert "Not kept: single requests" in text


def test_fit_writes_a_file_that_run_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log.jsonl", *steady(400))
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    done = run("trace", "fit", "log.jsonl", "--out", "w.yaml", "--scenario", "s.yaml", "--jobs", 1)
    assert done.exit_code == 0, done.stderr
    assert "TTFT p99" in done.stdout
    assert "wrote w.yaml; use it with `simkit run SCENARIO --workload w.yaml`" in done.stderr
    played = run("run", "s.yaml", "--workload", "w.yaml", "--json", "--no-report", "--out", "r")
    assert played.exit_code == 0, played.stderr
    assert json.loads(played.stdout)["num_requests"]["finished"] == pytest.approx(400, rel=0.2)
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["scenario"]["workload"]["arrivals"]["process"] == "piecewise"


def test_the_check_shows_the_fit_beside_an_even_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log.jsonl", *steady(800))
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    done = run("trace", "fit", "log.jsonl", "--out", "w.yaml", "--scenario", "s.yaml", "--jobs", 1, "--json", "-q")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["check"]
    assert found["speed"] == 1
    assert found["requests"]["original"]["finished"] == 800
    for metric in ("ttft_ms", "e2e_ms"):
        for stat in ("mean", "p50", "p95"):
            values = found["metrics"][metric][stat]
            expected = 100 * (values["fitted"] / values["original"] - 1)
            assert values["fitted_difference_pct"] == pytest.approx(expected)
            assert metric == "ttft_ms" or abs(values["fitted_difference_pct"]) < 10
    assert found["prefix_cache_hit_rate"] == {"original": None, "fitted": None}
    # One length for all has no tail.
    assert found["metrics"]["e2e_ms"]["p95"]["even_difference_pct"] < -15


def test_a_log_that_is_too_much_for_the_engine_is_slowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log.jsonl", *steady(300, rate=200.0))
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("max_model_len: 8192", "max_model_len: 8192, max_num_seqs: 4"))
    done = run("trace", "fit", "log.jsonl", "--out", "w.yaml", "--scenario", "s.yaml", "--jobs", 1, "--json", "-q")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["check"]["speed"] < 0.5


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--out", "own.txt"), "--out own.txt: already there and not written by simkit; --force replaces it"),
        (("--out", "no/w.yaml"), "--out no/w.yaml: cannot be written: no directory no"),
        (("--out", "."), "--out .: expected a file, got a directory"),
        (("--out", "w.yaml", "--no-check", "--scenario", "s.yaml"), "--scenario: expected without --no-check"),
        (("--out", "w.yaml", "--start", "-1"), "--start: expected seconds >= 0"),
        (("--out", "w.yaml", "--start", "9", "--end", "3"), "--end: expected end_s > start_s (9)"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log.jsonl", *steady(300))
    (tmp_path / "own.txt").write_text("mine", encoding="utf-8")
    done = run("trace", "fit", "log.jsonl", *args)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
    assert (tmp_path / "own.txt").read_text(encoding="utf-8") == "mine"


def test_a_workload_file_must_hold_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "two.yaml").write_text("workload: {}\nmodel: x\n", encoding="utf-8")
    (tmp_path / "bad.yaml").write_text("workload: {num_request: 3}\n", encoding="utf-8")
    for name, message in (
        ("two.yaml", "two.yaml: expected the key workload and no other, got workload, model"),
        ("bad.yaml", "--workload bad.yaml: workload: num_request: unknown key; did you mean 'num_requests'?"),
        ("none.yaml", "none.yaml: no such file"),
    ):
        done = run("run", "s.yaml", "--workload", name)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr
    done = run("run", "--workload", "two.yaml", "--model", "qwen2.5-0.5b")
    assert (done.exit_code, done.stderr.strip()) == (2, "--workload: expected a scenario file with it")


def test_the_planner_plays_a_fit_faster_as_a_whole(tmp_path: Path) -> None:
    times, prompts, outputs = steady()
    outputs[times > times[-1] / 2] //= 4
    _, found = fitted(write(tmp_path / "log.jsonl", np.floor(times / 3) * 3, prompts, outputs + 1))
    data = yaml.safe_load(SCENARIO) | {"workload": found.workload}
    drawn = scenario.from_dict(data)
    again = scenario.from_dict(drawn.to_dict())
    assert again.workload == drawn.workload  # as the doctor reads it back from a manifest
    rate = base_rate(drawn)
    assert rate == pytest.approx(len(times) / times[-1], rel=0.02)
    faster = at_rate(drawn, 2 * rate, rate)
    assert base_rate(faster) == pytest.approx(2 * rate)
    one, other = (
        list(build_workload(s.workload, seed=0, replication=0, max_model_len=2**20, base_dir=None).requests)
        for s in (drawn, faster)
    )
    assert [(r.prompt_tokens, r.output_tokens) for r in one] == [(r.prompt_tokens, r.output_tokens) for r in other]
    assert [r.arrival_ns for r in one] == [2 * r.arrival_ns for r in other]
