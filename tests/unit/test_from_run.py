"""`simkit calibrate --from-run`: host terms of logs whose truth is known, and what it makes of those that tell little."""

# ruff: noqa: E501 (expected messages are easier to read, and to search for, in one piece)
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_logs import served, write_log
from typer.testing import CliRunner

from calib.fit.fit import to_text
from simkit.cli import app, host_fit
from simkit.cli.output import Stopped
from simkit.errors import InputError
from simkit.latency import host
from simkit.latency.effects import Origin, Source
from simkit.latency.host import host_of
from simkit.latency.profile import HostTerms, ProfileError, load_profile, parse_profile, profile_text
from simkit.metrics import record as rec
from simkit.scenario import Scenario, for_replay, load, loads
from simkit.types import Ints
from simkit.validation.runs import fit as run_fit
from simkit.validation.runs import terms as run_terms
from simkit.validation.runs.facts import profile_with
from simkit.validation.runs.numbers import MOST_GROUPS, numbers_of, requests_met

TRUTH = {"fixed_us": 1500.0, "per_seq_us": 40.0, "first_token_us": 6000.0}
SCENARIO = """\
name: base
warmup: none
model: llama-3.1-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {version: "0.19.1", async_scheduling: false, max_num_seqs: 64, max_model_len: 4096}
workload:
  num_requests: 60
  arrivals: {process: poisson, rate_per_s: 2}
  prompt_tokens: {dist: lognormal, mean: 300, cv: 1.0, min: 8, max: 3000}
  output_tokens: {dist: lognormal, mean: 100, cv: 0.8, min: 2, max: 600}
"""
HOSTS = "engine_hosts"


@pytest.fixture(autouse=True, scope="module")
def ships() -> Iterator[None]:
    """What ships is 500 us a step and nothing else, so that fits do not depend on what is fitted elsewhere."""
    terms = HostTerms(500.0, 0.0, 0.0)
    own, other = Source(Origin.SHIPPED, "default"), Source(Origin.OTHER_VERSIONS, "those shipped, the nearest")

    def found(engine: str, version: tuple[int, ...]) -> tuple[HostTerms, Source, float]:
        return terms, own if version == (0, 19) else other, 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "terms_of", found)
        yield


def scenario(**host: float) -> Scenario:
    return loads(SCENARIO, [f"latency.host={json.dumps(host)}"] if host else [])


@pytest.fixture(scope="module")
def truth() -> dict[str, Ints]:
    return served(scenario(**TRUTH))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truth: dict[str, Ints]) -> Path:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    write_log(tmp_path / "run.parquet", truth)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def calibrate(*args: str) -> Result:
    return CliRunner().invoke(app.app, ["calibrate", "--from-run", "run.parquet", "--scenario", "s.yaml", *args])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, truth: dict[str, Ints]) -> Iterator[tuple[Path, Result]]:
    """One fit that several tests look at, and its folder."""
    folder = tmp_path_factory.mktemp("fitted")
    (folder / "s.yaml").write_text(SCENARIO)
    write_log(folder / "run.parquet", truth)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder, calibrate("--out", "host.json", "--date", "2026-05-04", "--json")


def test_the_terms_of_a_run_are_found(fitted: tuple[Path, Result]) -> None:
    folder, result = fitted
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    for name, value in TRUTH.items():
        assert facts["terms"][name]["after"] == pytest.approx(value, rel=0.02)
        assert facts["terms"][name]["state"] == "fitted"
    assert facts["rms_pct"]["before"] > 5
    assert facts["rms_pct"]["after"] < 0.5
    (host,) = json.loads((folder / "host.json").read_text())[HOSTS]
    assert (host["version"], host["fixed_us"]) == ("0.19", facts["terms"]["fixed_us"]["after"])
    origin = host["provenance"]
    assert (origin["log"], origin["date"], origin["num_requests"]) == (
        "run.parquet",
        "2026-05-04",
        facts["num_requests"],
    )
    assert len(origin["log_sha256"]) == 64
    assert origin["scenario"]["gpu"] == "a100-sxm4-80gb"
    assert origin["terms"]["fixed_us"]["source"] == "default"
    assert "validate MEASURED" in result.stderr
    told = "wrote host.json; use it with --set latency.profile=host.json where engine.version is 0.19"
    assert result.stderr.splitlines()[-1] == told


def test_the_rest_of_the_profile_is_as_it_was(fitted: tuple[Path, Result]) -> None:
    made = json.loads((fitted[0] / "host.json").read_text())
    assert made.pop("name") == "a100-sxm4-80gb-host"
    del made[HOSTS]
    shipped = json.loads(profile_text("a100-sxm4-80gb"))
    assert shipped.pop("name") == "a100-sxm4-80gb"
    assert made == shipped


def test_a_run_with_the_profile_uses_the_terms_of_its_version_and_no_other(fitted: tuple[Path, Result]) -> None:
    """A replay with the profile has the errors that the fit told, to the last digit."""
    folder, result = fitted
    args = ["replay", "run.parquet", "--scenario", "s.yaml", "--no-report", "--no-twin", "--json", "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        summary = json.loads(
            CliRunner().invoke(app.app, [*args, "--set", "latency.profile=host.json", "--out", "a"]).stdout
        )
        CliRunner().invoke(
            app.app, [*args, "--set", "latency.profile=host.json", "--set", "engine.version=0.20", "--out", "b"]
        )
    told = json.loads(result.stdout)["errors"]
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert summary["measured"][metric]["mean"]["predicted"] == told[metric]["mean"]["after"]
    manifests = {name: json.loads((folder / name / "manifest.json").read_bytes()) for name in "ab"}
    note = "latency: host terms are those shipped, the nearest, not of vLLM 0.20"
    assert [note in manifests[name]["notes"] for name in "ab"] == [False, True]
    effects = {name: manifest["latency_effects"] for name, manifest in manifests.items()}
    assert effects["a"]["host"] == effects["a"]["first_token"] == "profile, fitted to a run of vLLM 0.19"
    assert effects["b"]["host"] == effects["b"]["first_token"] == "those shipped, the nearest"


def test_profiles_show_the_hosts_of_engines(fitted: tuple[Path, Result]) -> None:
    shown = " ".join(CliRunner().invoke(app.app, ["profiles", str(fitted[0] / "host.json")]).stdout.split())
    assert "host of vLLM 0.19: 1,5" in shown
    assert "us a request; fitted to run.parquet, error there " in shown
    (found,) = json.loads(CliRunner().invoke(app.app, ["profiles", str(fitted[0] / "host.json"), "--json"]).stdout)
    assert set(found[HOSTS]) == {"0.19"}
    unknown = CliRunner().invoke(app.app, ["profiles", "h100-sxm5-80g"])
    assert unknown.exit_code == 2
    assert "did you mean 'h100-sxm5-80gb'" in unknown.stderr


def test_the_same_log_gives_the_same_bytes_and_the_table_says_what_was_done(fitted: tuple[Path, Result]) -> None:
    folder, _ = fitted
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = calibrate("--out", "again.json", "--date", "2026-05-04")
    assert (folder / "again.json").read_bytes() == (folder / "host.json").read_bytes()
    shown = " ".join(result.stdout.split())
    assert "fitted to 20 numbers of run.parquet (TTFT of 60, TPOT of 60, E2E of 60 requests), llama-3.1-8b" in shown
    assert "TPOT error before" in shown


def test_async_scheduling_hides_the_host_and_its_terms_are_left_alone(here: Path) -> None:
    hidden = loads(SCENARIO, ["engine.async_scheduling=true", f"latency.host={json.dumps(TRUTH)}"])
    write_log(here / "run.parquet", served(hidden))
    result = calibrate("--set", "engine.async_scheduling=true", "--json")
    assert result.exit_code == 0, result.output
    terms = json.loads(result.stdout)["terms"]
    for name, value in (("fixed_us", 500.0), ("per_seq_us", 0.0)):
        assert (terms[name]["after"], terms[name]["state"], terms[name]["standard_error"]) == (value, "idle", None)
        assert terms[name]["why"] == "not identifiable: under async scheduling the GPU's time hides it"
    assert terms["first_token_us"]["after"] == pytest.approx(TRUTH["first_token_us"], rel=0.02)
    assert (here / "calibration/a100-sxm4-80gb-host/a100-sxm4-80gb-host.json").exists()


def test_the_gap_that_scheduling_ahead_leaves_is_found(here: Path) -> None:
    """The GPU's time hides the other terms: they stay as they ship."""
    truth = {"first_token_us": 6000.0, "gap_us": 800.0}
    ahead = loads(SCENARIO, ["engine.async_scheduling=true", f"latency.host={json.dumps(truth)}"])
    write_log(here / "run.parquet", served(ahead))
    result = calibrate("--set", "engine.async_scheduling=true", "--out", "host.json", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    for name, value in truth.items():
        assert facts["terms"][name]["after"] == pytest.approx(value, rel=0.01)
        assert facts["terms"][name]["state"] == "fitted"
    assert facts["terms"]["per_request_us"]["state"] == "idle"
    assert facts["rms_pct"]["after"] < 0.01
    assert facts["limits"] == []
    (host,) = json.loads((here / "host.json").read_text())[HOSTS]
    assert (host["gap_us"], host["fixed_us"]) == (facts["terms"]["gap_us"]["after"], 500.0)
    shown = CliRunner().invoke(app.app, ["profiles", "host.json"]).stdout
    assert f"{host['gap_us']:,.0f} us idle between steps" in " ".join(shown.split())


def test_the_work_for_a_new_request_is_found_where_it_is_large(here: Path) -> None:
    write_log(here / "run.parquet", served(scenario(fixed_us=1500.0, per_seq_us=40.0, per_request_us=15000.0)))
    facts = json.loads(calibrate("--json").stdout)
    term = facts["terms"]["per_request_us"]
    assert (term["state"], term["after"]) == ("fitted", pytest.approx(15000, rel=0.1))
    assert facts["rms_pct"]["after"] < 0.3
    assert facts["terms"]["gap_us"]["why"] == (
        "not identifiable: without async scheduling there is no gap that the host leaves"
    )


def test_a_term_for_each_sequence_says_how_far_it_reaches(fitted: tuple[Path, Result]) -> None:
    facts = json.loads(fitted[1].stdout)
    (limit,) = facts["limits"]
    most = int(limit.split()[5])
    assert limit == f"per_seq_us is seen up to {most} running sequences, and continued beyond"
    assert max(row["requests_met"] for row in facts["numbers"]) <= most <= 60


def test_few_numbers_fit_the_first_terms_alone(here: Path, truth: dict[str, Ints]) -> None:
    write_log(here / "run.parquet", truth, e2e=False)
    facts = json.loads(calibrate("--max-requests", "24", "--json").stdout)
    assert len(facts["numbers"]) == 6
    told = {name: (term["state"], term["why"]) for name, term in facts["terms"].items()}
    assert told["per_request_us"] == told["gap_us"] == ("few", "expected 10 numbers or more to fit it to")


def test_what_else_the_scenario_says_of_the_host_holds_in_the_fit(here: Path) -> None:
    """Launches are no term: those of the scenario price the steps of all simulations."""
    eager = ["engine.enforce_eager=true", "latency.host.launch_us=100"]
    write_log(here / "run.parquet", served(loads(SCENARIO, eager)))
    result = calibrate("--max-requests", "24", "--json", *(part for one in eager for part in ("--set", one)))
    assert json.loads(result.stdout)["rms_pct"]["before"] < 0.5


def test_a_fit_that_makes_nothing_better_is_told_and_not_stored(here: Path) -> None:
    """The log of the default terms: there is nothing to fit."""
    write_log(here / "run.parquet", served(scenario()))
    kept = profile_text("a100-sxm4-80gb")
    (here / "host.json").write_text(kept)
    result = calibrate("--max-requests", "24", "--out", "host.json")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == ("nothing was stored: no host term could be fitted to this run")
    assert (here / "host.json").read_text() == kept
    shown = " ".join(result.stdout.split())
    assert "a step: moved by less than its standard error of " in shown
    assert "a request: moved by less than its standard error of " in shown


def test_a_term_that_no_host_has_is_refused(here: Path, truth: dict[str, Ints]) -> None:
    """TTFT in another unit than was said."""
    write_log(
        here / "run.parquet",
        {**truth, "first_token_ns": truth["first_token_ns"] + 10**10, "last_token_ns": truth["last_token_ns"] + 10**10},
    )
    result = calibrate("--max-requests", "24")
    assert result.exit_code == 1
    assert "which no host takes: the log is not of such a scenario" in result.stderr
    assert not (here / "calibration").exists()


def test_the_search_goes_on_to_the_best_and_its_errors_cover_the_truth() -> None:
    """The example: least squares alone stop at 6,968 us a request with an error of 313, where 6,000 is the truth."""
    folder = Path(__file__).resolve().parents[2] / "scenarios"
    log = str(folder / "example-run.jsonl")
    fit = run_fit.fit_run(for_replay(load(folder / "fit-to-a-run.yaml"), {"path": log}, {"path": "--from-run"}, []))
    assert fit.facts.rms_pct["after"] < 0.05
    for name, value in TRUTH.items():
        term = fit.facts.terms[name]
        assert term.after == pytest.approx(value, rel=0.01)
        assert abs(term.after - value) <= 2 * term.standard_error


def test_a_fit_that_leaves_large_errors_is_not_stored(here: Path, truth: dict[str, Ints]) -> None:
    """Requests that took very different times, which no host explains."""
    far = np.random.default_rng(0).uniform(1, 12, len(truth["id"]))
    gaps = ((truth["last_token_ns"] - truth["first_token_ns"]) * far).astype(np.int64)
    write_log(here / "run.parquet", {**truth, "last_token_ns": truth["first_token_ns"] + gaps})
    result = calibrate("--out", "host.json", "--max-requests", "24")
    assert result.exit_code == 1
    assert "(root mean square; at most 10 % is of use): the log is not of such a scenario" in result.stderr
    assert not (here / "host.json").exists()


def test_answers_that_the_scenario_cuts_are_refused_as_a_run(here: Path) -> None:
    for sets in (["workload.stop=eos", "workload.max_tokens=60"], ["engine.max_model_len=500"]):
        result = calibrate(*(arg for one in sets for arg in ("--set", one)))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "requests are refused or end before they did in the log: expected a scenario that" in result.stderr


def test_a_few_answers_that_are_cut_are_left_out(truth: dict[str, Ints]) -> None:
    first, last = times(truth)
    cut = truth | {"output_tokens": np.where(truth["id"] == 7, 1, truth["output_tokens"])}
    rows = np.concatenate([group.rows for group in numbers_of(cut, first, last, stream=True).groups])
    assert set(rows.tolist()) == set(range(60)) - {7}


def test_what_was_switched_off_is_said_and_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_terms, "REFINE", 0)
    result = calibrate("--set", "latency.without=[graph_padding]", "--max-requests", "24", "--json")
    assert json.loads(result.stdout)["scenario"]["without"] == ["graph_padding"]
    assert "note: fitted without graph_padding: the terms hold for runs without these" in result.stderr


@pytest.mark.parametrize("content", ["kept", "{}", ""])
def test_a_file_that_is_no_profile_is_not_replaced(here: Path, content: str) -> None:
    (here / "notes.json").write_text(content)
    result = calibrate("--out", "notes.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "--out: notes.json: expected a new file or a profile of simkit, got a file that is none; name another\n"
    )
    assert (here / "notes.json").read_text() == content


def test_an_interrupt_says_whether_the_profile_was_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = json.loads(profile_text("a100-sxm4-80gb"))

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", interrupt)  # right after the file was put in its place
    with pytest.raises(Stopped, match=r"interrupted; p\.json was written"):
        host_fit._write(profile, Path("p.json"), None)
    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        host_fit._write(profile, Path("q.json"), None)
    assert not Path("q.json").exists()


def test_a_timeout_that_decides_who_finishes_is_refused(here: Path) -> None:
    (here / "s.yaml").write_text(SCENARIO + "  timeout_s: 1.2\n")
    result = calibrate()
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "--from-run: other host terms let other requests finish, so that nothing can be compared: leave out workload.timeout_s and queue_limit"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "latency.profile=unit"], "--set latency.profile: expected a calibrated profile, in which host terms are kept; step times are those of unit (list: simkit profiles)"),
        (["--set", "latency.profile=roofline"], "--set latency.profile: expected a calibrated profile, in which host terms are kept; step times are those of roofline (uncalibrated) (list: simkit profiles)"),
        (["--set", "latency.without=[host]"], "--set latency.without: expected without host, which is fitted"),
        (["--max-requests", "19"], "--from-run: expected a log with TTFT or E2E of 20 requests or more that also finish in the simulation, got 19"),
        (["--set", "workload.trace.speed=2"], "--set workload.trace.speed: expected 1.0: the requests that were measured came as the log says"),
        (["--set", "workload.trace.keep_share=0.5"], "--set workload.trace.keep_share: expected 1.0: the requests that were measured came as the log says"),
        (["--set", "replications=2"], "--set replications: expected 1, a log happened once, got 2"),
        (["--set", "workload.samples=2"], "--set workload.samples: expected 1, a request of the log made one answer, got 2"),
        (["--max-requests", "0"], "--max-requests: expected an integer >= 1, got 0"),
        (["--set", "workload.trace.path=x"], "--set workload.trace.path: expected either this or --from-run, got both"),
        (["--date", "2026-13-45"], "--date: expected YYYY-MM-DD, got '2026-13-45'"),
        (["--date", "20260504"], "--date: expected YYYY-MM-DD, got '20260504'"),
        (["--date", "today"], "--date: expected YYYY-MM-DD, got 'today'"),
        (["--quick"], "--quick: nothing is measured with --from-run"),
        (["--gpu-spec", "l4-24gb"], "--gpu-spec: the GPU is that of the scenario with --from-run"),
        (["--gpu", "0"], "calibrate: expected one of --gpu, --device, --from-csv, --from-run, got --gpu and --from-run"),
        (["--out", "x.yaml"], "--out: expected a file that ends in .json, got 'x.yaml'"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_one_line(here: Path, args: list[str], message: str) -> None:
    result = calibrate(*args)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", message + "\n")


def test_options_of_a_log_need_one(here: Path) -> None:
    for flag, value in (("--scenario", "s.yaml"), ("--max-requests", "3"), ("--set", "a=1"), ("--date", "2026-01-01")):
        result = CliRunner().invoke(app.app, ["calibrate", "--from-csv", "x.csv", flag, value])
        assert (result.exit_code, result.stderr) == (2, f"{flag}: expected with --from-run only\n")
    result = CliRunner().invoke(app.app, ["calibrate", "--from-run", "run.parquet"])
    assert result.exit_code == 2
    assert result.stderr.startswith("--from-run: expected --scenario FILE")


def test_a_log_without_measured_times_is_refused(here: Path, truth: dict[str, Ints]) -> None:
    write_log(here / "run.parquet", truth, ttft=False, e2e=False)
    result = calibrate()
    assert (result.exit_code, result.stderr) == (
        2,
        "--from-run: run.parquet: no TTFT or E2E was measured, so that nothing can be fitted\n",
    )


def times(table: dict[str, Ints]) -> tuple[Ints, Ints]:
    return table["first_token_ns"] - table["arrival_ns"], table["last_token_ns"] - table["arrival_ns"]


@pytest.mark.parametrize(
    ("ttft", "e2e", "metrics"),
    [(True, True, {"ttft_ms", "tpot_ms"}), (False, True, {"e2e_ms"}), (True, False, {"ttft_ms"})],
)
def test_the_numbers_are_those_that_the_log_has(
    truth: dict[str, Ints], ttft: bool, e2e: bool, metrics: set[str]
) -> None:
    start = served(scenario())
    first, last = times(truth)
    none = np.full(len(first), -1)
    numbers = numbers_of(start, first if ttft else none, last if e2e else none, stream=True)
    assert {group.metric for group in numbers.groups} == metrics
    assert len(numbers.groups) == MOST_GROUPS * len(metrics)
    assert numbers.predicted_ms(truth, stream=True) == pytest.approx(numbers.measured_ms)
    for metric in metrics:
        met = [group.met for group in numbers.groups if group.metric == metric]
        assert met == sorted(met)


def test_a_number_is_sum_over_sum_and_what_is_uneven_weighs_less(truth: dict[str, Ints]) -> None:
    start = served(scenario())
    first, last = times(truth)
    noise = np.random.default_rng(0).uniform(0.5, 1.5, len(first))
    numbers = numbers_of(start, (first * noise).astype(np.int64), last, stream=True)
    rows = numbers.groups[-1].rows
    assert numbers.groups[-1].metric == "tpot_ms"
    steps = (truth["output_tokens"] - 1)[rows].sum()
    assert numbers.measured_ms[-1] == pytest.approx((last - (first * noise).astype(np.int64))[rows].sum() / steps / 1e6)
    by_metric = {
        m: np.mean([w for g, w in zip(numbers.groups, numbers.weights, strict=True) if g.metric == m])
        for m in ("ttft_ms", "tpot_ms")
    }
    assert by_metric["ttft_ms"] < by_metric["tpot_ms"] / 10


def test_requests_met_is_the_mean_number_in_the_system() -> None:
    """0-4 alone up to 2, then two up to 4; the second then alone up to 6; the third never came to an end."""
    table = {
        "status": np.array([rec.FINISHED, rec.FINISHED, rec.FINISHED + 1]),
        "arrival_ns": np.array([0, 2, 3]),
        "last_token_ns": np.array([4, 6, -1]),
    }
    assert requests_met(table).tolist() == [1.5, 1.5, 0.0]


# --- what profiles hold -----------------------------------------------------------------------------------------------

HOST: dict[str, Any] = {
    "version": "0.19",
    "fixed_us": 900.0,
    "per_seq_us": 4.0,
    "first_token_us": 70.0,
    "provenance": {},
}
BASE: dict[str, Any] = json.loads(profile_text("rtx-pro-6000"))


def with_hosts(hosts: Any) -> str:
    return json.dumps(BASE | {"ops": [], HOSTS: hosts})


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "rtx-pro-6000"])
def test_a_profile_is_written_as_it_was_read(name: str) -> None:
    assert to_text(json.loads(profile_text(name))) == profile_text(name)


def test_the_terms_of_a_version_take_the_place_of_those_it_had() -> None:
    text = with_hosts([HOST | {"version": "0.9"}, HOST | {"version": "0.10"}])
    made = profile_with(text, "x", "0.9", HostTerms(1.0, 1.0, 1.0), {"log": "l"})
    assert [(row["version"], row["fixed_us"]) for row in made[HOSTS]] == [("0.9", 1.0), ("0.10", 900.0)]
    parse_profile(to_text(made), "x")


def test_the_terms_of_a_profile_hold_for_its_version_and_give_way_to_the_scenarios() -> None:
    profile = parse_profile(with_hosts([HOST]), "p.json")
    assert host_of({}, profile, "0.19.1").terms.fixed_us == 900
    given = host_of({"fixed_us": 5.0}, profile, "0.19")
    assert (given.terms.fixed_us, given.terms.per_seq_us) == (5, 4)
    fitted = dict.fromkeys(given.sources, "profile, fitted to a run of vLLM 0.19")
    assert {name: source.text for name, source in given.sources.items()} == fitted | {"fixed_us": "scenario"}
    other = host_of({}, profile, "0.1")
    assert other.terms.fixed_us == 500
    assert other.sources["per_seq_us"].text == "those shipped, the nearest"
    assert host_of({}, load_profile("rtx-pro-6000"), "0.19").sources["fixed_us"].text == "default"


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (None, "engine_hosts: expected a list"),
        ({}, "engine_hosts: expected a list, got {}"),
        ([3], "engine_hosts[0].version: expected text"),
        ([HOST | {"version": 0.19}], "engine_hosts[0].version: expected text, got 0.19"),
        ([HOST | {"version": "0.19.1"}], "engine_hosts[0].version: expected a version of vLLM such as 0.19, got '0.19.1'"),
        ([HOST | {"version": "\u0660.1"}], "engine_hosts[0].version: expected a version of vLLM such as 0.19, got '\\u0660.1'"),
        ([HOST | {"version": "0." + "1" * 5000}], "engine_hosts[0].version: expected a version of vLLM such as 0.19, got '0.11111"),
        ([HOST | {"version": "0.010"}], "engine_hosts[0].version: expected a version of vLLM such as 0.19, got '0.010'"),
        ([HOST, HOST], "engine_hosts[1].version: 0.19 is there twice"),
        ([HOST | {"fixed_us": -1}], "engine_hosts[0].fixed_us: expected a number from 0 to 1e+06, got -1"),
        ([HOST | {"per_seq_us": 2e6}], "engine_hosts[0].per_seq_us: expected a number from 0 to 1e+06, got 2000000.0"),
        ([HOST | {"first_token_us": float("nan")}], "engine_hosts[0].first_token_us: expected a number from 0 to 1e+06, got nan"),
        ([HOST | {"first_token_us": True}], "engine_hosts[0].first_token_us: expected a number, got True"),
        ([HOST | {"provenance": None}], "engine_hosts[0].provenance: expected a mapping"),
        ([{k: v for k, v in HOST.items() if k != "provenance"}], "engine_hosts[0].provenance: expected a mapping"),
    ],
)  # fmt: skip
def test_broken_hosts_are_one_line(hosts: Any, message: str) -> None:
    with pytest.raises(ProfileError) as error:
        parse_profile(with_hosts(hosts), "p.json")
    text = str(error.value)
    assert text.startswith(f"latency.profile: p.json: {message}")
    assert "\n" not in text
    assert len(text) < 300


def test_a_key_that_is_there_twice_is_refused() -> None:
    text = with_hosts([HOST]).replace('"fixed_us": 900.0', '"fixed_us": 900.0, "fixed_us": 1.0')
    with pytest.raises(ProfileError, match=r"p.json: 'fixed_us': expected this key once, got it twice"):
        parse_profile(text, "p.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    key=st.sampled_from(sorted(HOST)),
    value=json_values,
    origin=st.dictionaries(st.sampled_from(["log", "rms_pct"]), json_values),
)
def test_any_hosts_are_read_or_refused_and_those_read_are_shown(key: str, value: Any, origin: dict[str, Any]) -> None:
    """Whatever stands in a profile ends in a line or is usable: provenance is free text that nobody checked."""
    from simkit.latency.profile import describe
    from simkit.report.sections.specs import hosts_lines

    text = with_hosts([HOST | {"provenance": origin} | {key: value}])
    refused = None
    try:
        profile = parse_profile(text, "p.json")
    except InputError as error:
        refused = str(error)
    if refused is not None:
        assert "\n" not in refused
        return
    (line,) = hosts_lines(describe(profile)[HOSTS])
    assert line.startswith("host of vLLM ")
    assert "\n" not in line
