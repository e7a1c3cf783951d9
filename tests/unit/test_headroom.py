"""The headroom at the end of a run: how far its rate could rise, whether fewer replicas do, when nothing is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simkit import scenario
from simkit.cli import app
from simkit.errors import CheckError
from simkit.planner import headroom as room
from simkit.runs import run_length

TEXT = """\
name: tiny
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb}
engine: {max_model_len: 256, max_num_seqs: 8, num_gpu_blocks: 129, async_scheduling: false}
workload:
  num_requests: 100
  arrivals: {process: constant, rate_per_s: 200}
  prompt_tokens: {dist: fixed, value: 20}
  output_tokens: {dist: fixed, value: 20}
latency: {profile: unit}
slo: {ttft_ms: {p90: 30}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TEXT)


def run(*sets: str, options: tuple[str, ...] = ()) -> Any:
    words = [word for text in sets for word in ("--set", text)]
    result = CliRunner().invoke(app.app, ["run", "tiny.yaml", "--quiet", "--no-report", *options, *words])
    assert result.exit_code == 0, result.stderr
    return result


def last(result: Any) -> str:
    return str(result.stdout.splitlines()[-1])


def told() -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(Path("runs/tiny/summary.json").read_bytes()).get("headroom")
    return found


def test_a_run_ends_with_the_rate_up_to_which_it_holds() -> None:
    """Eight slots of 20 steps of 1 ms serve 400 requests a second; rates are tried 9 % apart."""
    line = last(run())
    found = told()
    assert found is not None
    assert line == found["text"]
    assert line.startswith("headroom: holds to about ")
    assert f"requests/s ({found['holds_to_per_s'] / 200:.3g} x this rate)" in line
    assert 400 / room.EFFORT.resolution <= found["holds_to_per_s"] <= 400
    assert found["meets"] is True
    assert found["trials"] <= 8
    # What it says is so: a run at that rate meets the objective, one 20 % above does not, or its queue grows.
    for rate, met in ((found["holds_to_per_s"], True), (1.2 * found["holds_to_per_s"], False)):
        run(f"workload.arrivals.rate_per_s={rate}", "warmup={requests: 20}", options=("--no-headroom",))
        summary = json.loads(Path("runs/tiny/summary.json").read_bytes())
        assert (summary["slo"]["ttft_ms"]["p90"]["met"] and not summary["saturated"]) is met


def test_a_run_that_misses_says_what_it_would_hold() -> None:
    line = last(run("workload.arrivals.rate_per_s=900"))
    assert line.startswith("headroom: misses its objectives already; would hold at about ")
    assert last(run("slo.ttft_ms.p90=0.5")) == "headroom: misses its objectives at any rate that was tried"


def test_fewer_replicas_are_simulated_before_they_are_said_to_do() -> None:
    assert last(run("replicas=4")).endswith("; 1 replica also meets it")
    assert last(run("replicas=4", "workload.arrivals.rate_per_s=700")).endswith("; 2 replicas also meet it")
    assert last(run("replicas=2", "workload.arrivals.rate_per_s=700")).endswith("; no fewer replicas meet it")


@pytest.mark.parametrize(
    "sets",
    [("slo=null",), ("workload.finite=true",), ("workload.arrivals={process: closed_loop, concurrency: 4}",)],
)
def test_where_no_rate_could_be_another_nothing_is_said(sets: tuple[str, ...]) -> None:
    assert "headroom" not in run(*sets).stdout
    assert told() is None


def test_it_can_be_left_out() -> None:
    assert "headroom" not in run(options=("--no-headroom",)).stdout
    assert told() is None


def test_why_nothing_is_known_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = run("engine.batching=static", "slo.tpot_ms.p99=50")
    assert last(batches).endswith("unknown, nothing is streamed, so an objective between tokens cannot be judged")
    failing = run("replicas=2", "failures=[{replica: 0, at_s: 0.1, for_s: 0.1}]")
    assert last(failing).startswith("headroom: unknown, failures come at set times")

    def stuck(*_: Any) -> Any:
        raise CheckError("no progress in 10,000 steps")

    monkeypatch.setattr(room, "run_trial", stuck)
    assert last(run()) == "headroom: unknown, no progress in 10,000 steps"


def test_a_long_run_makes_few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LONG", 10)
    run("replicas=4", "workload.arrivals.rate_per_s=20")
    found = told()
    assert found is not None
    # The limit, 1,600 requests/s, is not found; of those kept for fewer replicas one is enough.
    assert found["trials"] == room.FEW_TRIALS - room.FEW_FOR_REPLICAS + 1
    assert found["limit_seen"] is False
    assert found["fewest_replicas"] == 1
    assert found["holds_to_per_s"] > 20
    # A run that lasts has more customers at a higher rate: they stay within bounds.
    lasting = run("workload.arrivals.rate_per_s=20", "workload.num_requests=null", "workload.duration_s=5")
    assert last(lasting).endswith("and further: a longer run shows where it ends")
    found = told()
    assert found is not None
    assert found["holds_to_per_s"] <= 8 * 20


def trials_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int, Any]]:
    """(rate, requests, warm-up) of each trial that is made from now on."""
    made: list[tuple[float, int, Any]] = []
    real = room.run_trial

    def noted(setup: Any, rate_per_s: float, base_per_s: float, replication: int) -> Any:
        asked = setup.scenario
        made.append((rate_per_s, asked.workload.num_requests, asked.to_dict()["warmup"]))
        return real(setup, rate_per_s, base_per_s, replication)

    monkeypatch.setattr(room, "run_trial", noted)
    return made


@pytest.mark.parametrize("warmup", ["auto", "{requests: 10}"])
def test_trials_are_as_long_as_a_run_that_went_on_until_it_had_filled(
    warmup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 requests at 200/s come within 0.2 s, and each stays for 80 ms: five times that are 80 requests."""
    made = trials_of(monkeypatch)
    run("workload.num_requests=40", "workload.output_tokens.value=80", "engine.max_num_seqs=32", f"warmup={warmup}")
    manifest = json.loads(Path("runs/tiny/manifest.json").read_bytes())
    length = manifest["scenario"]["workload"]["num_requests"]
    assert 80 <= length <= 120
    assert {count for _, count, _ in made} == {length}
    share = 10 / 40 if warmup != "auto" else 1 / 5
    assert all(left_out == {"requests": int(share * length)} for *_, left_out in made)


def test_trials_are_no_longer_than_it_takes_to_see_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on for its means; that moves no limit."""
    monkeypatch.setattr(room, "ENOUGH", 150)
    made = trials_of(monkeypatch)
    run("workload.arrivals={process: poisson, rate_per_s: 100}", "slo.ttft_ms.p90=60")
    manifest = json.loads(Path("runs/tiny/manifest.json").read_bytes())
    assert manifest["scenario"]["workload"]["num_requests"] > 5000  # for 2 % of the rate of tokens
    assert {count for _, count, _ in made} == {150}


@pytest.mark.parametrize(
    ("asked", "whole", "stay_s", "expected"),
    [
        ("workload.num_requests=100", "workload.num_requests=300", 0.1, 300),  # as long as the run
        ("workload.num_requests=100", "workload.num_requests=9000", 0.1, 6000),
        ("workload.num_requests=100", "workload.num_requests=9000", 7.0, 9000),  # 5 * 7 s * 200/s * 1.3 are 9,100
        ("workload.num_requests=100", "workload.num_requests=19000", 7.0, 9100),
        ("workload.num_requests=8000", "workload.num_requests=9000", 0.1, 8000),
    ],
)
def test_the_length_of_trials(asked: str, whole: str, stay_s: float, expected: int) -> None:
    base, ran = (scenario.load("tiny.yaml", [sets]) for sets in (asked, whole))
    assert room.as_long(base, ran, 200.0, stay_s).workload.num_requests == expected


def test_the_length_of_trials_that_last_for_a_time() -> None:
    lasting = ("workload.num_requests=null", "workload.arrivals.rate_per_s=200")
    base, ran = (scenario.load("tiny.yaml", [*lasting, f"workload.duration_s={time}"]) for time in (1, 90))
    assert room.as_long(base, ran, 200.0, 0.1).workload.duration_s == pytest.approx(6000 / 200)
    assert room.as_long(base, ran, 200.0, 7.0).workload.duration_s == pytest.approx(5 * 7 * 1.3)


def test_the_search_begins_where_arithmetic_expects_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 slots some must be free: 1,100 of 1,600 requests/s. Of 8 slots more must: fewer than 225 of 400."""
    made = trials_of(monkeypatch)
    for sets, expected in (
        (("engine.max_num_seqs=32", "workload.arrivals.rate_per_s=400"), 1100.0),
        (("engine.max_num_seqs=32", "workload.arrivals.rate_per_s=50"), 4 * 50.0),  # no further than that
        (("workload.arrivals.rate_per_s=300",), 300.0),  # meets, so not below
        (("workload.arrivals.rate_per_s=900",), 900.0 / 4),  # misses, so below, and no further
    ):
        made.clear()
        run(*sets)
        assert made[0][0] == pytest.approx(expected, rel=0.03)


def test_a_rate_at_which_the_system_still_fills_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objectives alone hold for as long as a queue is short."""
    real = room.run_trial

    def filling(setup: Any, rate_per_s: float, base_per_s: float, replication: int) -> Any:
        trial = real(setup, rate_per_s, base_per_s, replication)
        rises = rate_per_s > 250
        parts = tuple(float(1 + rises * part) for part in range(run_length.BATCHES))
        return replace(trial, levels=dict.fromkeys(run_length.SERIES, parts))

    monkeypatch.setattr(room, "run_trial", filling)
    run()
    found = told()
    assert found is not None
    assert 200 <= found["holds_to_per_s"] <= 250
    # What a profile of rates does is its own affair.
    run("workload.arrivals={process: piecewise, segments: [{until_s: 1, rate_per_s: 200}]}")
    found = told()
    assert found is not None
    assert found["holds_to_per_s"] > 250


def test_the_same_bytes_step_by_step_and_in_the_report() -> None:
    run()
    once = Path("runs/tiny/summary.json").read_bytes()
    run(options=("--single-step",))
    assert Path("runs/tiny/summary.json").read_bytes() == once
    shown = CliRunner().invoke(app.app, ["run", "tiny.yaml", "--quiet", "--json"])
    assert shown.stdout_bytes == once
    assert "Headroom: holds to about" in Path("runs/tiny/report.html").read_text()


def test_a_replay_ends_with_it_as_well() -> None:
    rows = "\n".join(f"2023-11-16 18:15:{46 + i / 200:09.6f},20,20" for i in range(60))
    Path("log.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    args = ["replay", "log.csv", "--scenario", "tiny.yaml", "--quiet", "--no-report", "--no-twin"]
    result = CliRunner().invoke(app.app, args)
    assert result.exit_code == 0, result.stderr
    assert last(result).startswith("headroom: holds to about ")
    assert "headroom" not in CliRunner().invoke(app.app, [*args, "--no-headroom"]).stdout


def test_a_warm_up_in_seconds_stays_the_same_share_of_the_run() -> None:
    base = scenario.load("tiny.yaml", ["warmup={seconds: 0.1}"])
    assert room._own(base, 200.0).to_dict()["warmup"] == {"requests": 20}


def test_a_log_with_replications_is_served_once_and_has_headroom() -> None:
    rows = "\n".join(f"{second}.0,20,20" for second in range(60))
    Path("log.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}\n")
    text = TEXT[: TEXT.index("workload:")] + TEXT[TEXT.index("latency:") :] + "workload: {trace: {path: log.csv}}\n"
    Path("tiny.yaml").write_text(text)
    result = run("replications=3")
    assert "run length: 1 replication instead of 3: each would be the same run" in result.stdout
    assert last(result).startswith("headroom: holds to about ")


def test_an_objective_that_no_request_has_is_not_missed() -> None:
    line = last(run("workload.output_tokens.value=1", "slo.tpot_ms={p99: 5}"))
    assert line.startswith("headroom: holds to about ")


def test_a_run_that_does_not_measure_its_start_holds_as_much_as_one_that_does() -> None:
    def holds(warmup: str) -> float:
        run(f"warmup={warmup}", "workload.arrivals={process: poisson, rate_per_s: 200}")
        found = told()
        assert found is not None
        return float(found["holds_to_per_s"])

    assert holds("none") == holds("mser5") == holds("auto")


def test_objectives_of_nothing_leave_nothing_to_hold() -> None:
    result = run("slo={}")
    assert "headroom" not in result.stdout
