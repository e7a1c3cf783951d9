"""How long the runs of a plan are, how often they are made, and when one is given up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simkit import scenario
from simkit.engine.build import set_up
from simkit.planner import plan as planner
from simkit.planner import trial as trials
from simkit.planner.capacity import Capacity, capacity, curves
from simkit.planner.content import plan_json
from simkit.planner.jobs import Answer, CapacityJob, run_job
from simkit.planner.result import PlanResult
from simkit.planner.search import Effort
from simkit.planner.trial import Trial, run_trial, terms
from simkit.studies.offered_load import base_rate, for_trials, is_same_every_time
from tests.unit.test_plan import TEXT, load, simkit_
from tests.unit.test_plan import here as here
from tests.unit.test_plan import little_effort as little_effort

LONG = ("engine.max_model_len=512", "engine.num_gpu_blocks=1000", "engine.max_num_seqs=32",
        "workload.output_tokens={dist: uniform, low: 100, high: 300}")  # fmt: skip


def searched(*sets: str, effort: Effort, grows: bool = True) -> tuple[Answer, Capacity | None]:
    ready = for_trials(load(*LONG, *sets), 1)
    answer = run_job(CapacityJob("point", ready, base_rate(ready), (130.0,), effort=effort, grows=grows))
    assert isinstance(answer, Answer), answer
    return answer, capacity(curves(answer.trials), terms(ready), effort.resolution)


def arrived(answer: Answer) -> set[float | None]:
    """Requests of the runs that were not given up."""
    return {trial.numbers["num_requests.arrived"] for trial in answer.trials if not trial.gave_up}


# --- as long as it takes ----------------------------------------------------------------------------------------------
def test_a_run_far_too_short_for_its_answers_grows_until_it_finds_what_a_long_one_finds() -> None:
    """At 130/s 60 requests come within 0.5 s; answers take up to 300 steps of 1 ms, five times which are 1.5 s."""
    effort = Effort(replications=6, gap=2, levels=True)
    grown, found = searched(effort=effort)
    assert grown.factor >= 3
    assert arrived(grown) == {60 * grown.factor}
    for trial in grown.trials:
        if trial.passes and found is not None and trial.rate_per_s > 0.97 * found.estimate_per_s:
            assert trial.span_s * 1000 >= 5 * (trial.numbers["e2e_ms.p99"] or 0.0)
    long, truth = searched("workload.num_requests=1200", effort=effort)
    assert long.factor == 1.0
    short, hardly = searched(effort=effort, grows=False)
    assert arrived(short) == {60.0}
    assert found is not None
    assert truth is not None
    assert found.estimate_per_s == pytest.approx(truth.estimate_per_s, rel=0.06)
    # In a run of 60 requests nearly all come before the first are done, and replications differ widely.
    assert hardly is not None
    assert hardly.high_per_s / hardly.low_per_s > 1.5 * found.high_per_s / found.low_per_s


def test_a_batch_keeps_its_requests() -> None:
    answer, _ = searched("workload.finite=true", effort=Effort(replications=2, gap=4, levels=True))
    assert answer.factor == 1.0
    assert arrived(answer) == {60.0}


def test_the_answer_for_a_batch_is_of_that_batch() -> None:
    result = simkit_("--axis", "engine.max_num_seqs=4", "--set", "workload.finite=true", "--set",
                     "workload.num_requests=200")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    folder = Path("runs/tiny-plan")
    found = json.loads((folder / "plan.json").read_bytes())
    assert "for a batch of 200 requests" in found["answer"]
    assert found["recommended"]["sustained"] is False
    assert found["recommended"]["confirmation"]["times"] == 1.0
    assert found["run_length"]["finite"] is True
    assert (found["run_length"]["factor"], found["run_length"]["num_requests"]) == (1.0, 200)
    for text in (found["answer"], result.stdout):
        assert "sustained" not in text
    said = "The load is a batch of 200 requests, from an empty engine to an empty one"
    for name in ("report.md", "report.html"):
        assert said in (folder / name).read_text()


# --- the same run every time ------------------------------------------------------------------------------------------
def logged(count: int, *sets: str) -> scenario.Scenario:
    """The tiny scenario with a log of `count` requests, 20 ms apart on average, whose lengths vary."""
    times = [i * 20 + i * i % 17 for i in range(count)]
    rows = "".join(
        f"2023-11-16 18:00:{time // 1000:02d}.{time % 1000:03d}0000,{20 + i * 7 % 40},{5 + i * 11 % 30}\n"
        for i, time in enumerate(times)
    )
    Path("log.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    lines = [line for line in TEXT.replace("num_requests: 60", "trace: {path: log.csv}").splitlines()
             if not line.strip().startswith(("arrivals", "prompt_", "output_"))]  # fmt: skip
    return scenario.loads("\n".join(lines), sets, base_dir=Path.cwd())


def planned(one: scenario.Scenario, slots: int) -> tuple[PlanResult, dict[str, Any]]:
    found = planner.plan(one, {"engine.max_num_seqs": [slots]}, options={"jobs": 1})
    return found, plan_json(found)


def test_a_log_is_played_once_a_rate_and_its_interval_is_that_of_its_parts() -> None:
    one = logged(600)
    assert is_same_every_time(one)
    result, content = planned(one, 4)
    chosen = result.recommended
    assert chosen is not None
    assert {trial.replication for trial in chosen.trials} == {0}
    assert all(len(trial.without) == trials.BLOCKS for trial in chosen.trials)
    value = content["recommended"]["capacity"]
    assert (value["interval"], value["replications"], len(value["without_per_s"])) == ("parts", 1, 10)
    assert value["low_per_s"] < value["estimate_per_s"] < value["high_per_s"]
    assert ", from 10 parts of the run) with" in content["answer"]
    assert any("it is made once, and the interval is that of 10 consecutive parts" in note for note in content["notes"])
    # All of the log counts, after a first time that fills the system.
    assert content["run_length"]["times_played"] == 2
    assert content["run_length"]["measured_requests"] == 600
    assert "sustained: a run" in content["answer"]
    assert content["recommended"]["confirmation"]["served"][0]["runs"] == 1


def test_parts_of_a_log_leave_their_own_requests_out() -> None:
    """The margins with one of ten parts left out are nine tenths of those of all: their mean is that of all."""
    one = for_trials(logged(600, "engine.max_num_seqs=4"), 1)
    trial = run_trial(set_up(one), 190.0, base_rate(one), 0)
    for term in range(2):
        values = [margins[term] for margins in trial.without]
        assert sum(values) / len(values) == pytest.approx(trial.margins[term], abs=1e-9)
    assert len({margins[0] for margins in trial.without}) > 1


def test_a_short_log_has_no_interval() -> None:
    result, content = planned(logged(100), 2)
    assert result.recommended is not None
    value = content["recommended"]["capacity"]
    assert (value["interval"], value["replications"], value["without_per_s"]) == ("none", 1, [])
    assert "(no interval: every replication is the same run) with" in content["answer"]
    assert "95 %" not in content["answer"]


def test_arrivals_and_lengths_of_which_nothing_is_drawn_are_served_once() -> None:
    fixed = (
        "workload.arrivals={process: constant, rate_per_s: 100}",
        "workload.num_requests=300",
        "workload.prompt_tokens={dist: fixed, value: 40}",
        "workload.output_tokens={dist: fixed, value: 20}",
    )
    result, content = planned(load(*fixed), 8)
    chosen = result.recommended
    assert chosen is not None
    assert {trial.replication for trial in chosen.trials} == {0}
    assert content["recommended"]["capacity"]["interval"] == "parts"
    # Eight slots of 20 steps of 1 ms; rates are tried 4 % apart.
    assert content["recommended"]["capacity"]["estimate_per_s"] == pytest.approx(400, rel=0.05)
    for name in (*fixed[:1], *fixed[2:]):
        drawn = load(*(other for other in fixed if other != name))
        assert not is_same_every_time(drawn), name


# --- what is given up -------------------------------------------------------------------------------------------------
def at(rate_per_s: float, *sets: str) -> Trial:
    ready = for_trials(load("engine.max_num_seqs=8", "workload.num_requests=2000", *sets), 1)
    return run_trial(set_up(ready), rate_per_s, base_rate(ready), 0)


# Eight slots of 20 steps of 1 ms on average serve 400 requests/s.
OVERLOADED = [
    ((), ("ttft_ms.p90", "queue.stable")),
    (("slo={ttft_ms: {mean: 10}, e2e_ms: {p90: 60}}",), ("ttft_ms.mean", "e2e_ms.p90", "queue.stable")),
    (("slo={tpot_ms: {p99: 5}}",), ("queue.stable",)),
    (("slo={tpot_ms: {mean: 5}}",), ("queue.stable",)),
    (("workload.num_requests=null", "workload.duration_s=2"), ("ttft_ms.p90", "queue.stable")),
]


@pytest.mark.parametrize(("sets", "missed"), OVERLOADED)
def test_a_hopeless_trial_is_given_up_and_misses_what_a_whole_one_misses(
    sets: tuple[str, ...], missed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = at(1600.0, *sets)
    assert given_up.gave_up
    assert not given_up.passes
    names = [term.name for term in terms(load(*sets))]
    negative = {name for name, margin in zip(names, given_up.margins, strict=True) if margin < 0}
    assert set(missed) <= negative
    monkeypatch.setattr(trials, "most_in_system", lambda setup, rate_per_s: None)
    whole = at(1600.0, *sets)
    assert not whole.gave_up
    assert negative == {name for name, margin in zip(names, whole.margins, strict=True) if margin < 0}
    ends = [trial.numbers["num_requests.arrived"] for trial in (given_up, whole)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0] < ends[1] / 3  # and so much cheaper
    # What was seen until then is handed over: slots and memory were in use.
    assert given_up.numbers["kv.utilization"] > 0.5 * whole.numbers["kv.utilization"] > 0
    assert given_up.waits["peak_running"] == whole.waits["peak_running"] > 0
    assert given_up.waits["slots"] > 0.5
    # It stands for as many requests as a whole one, where replications are taken together.
    assert given_up.num_measured == pytest.approx(whole.num_measured, rel=0.05)


def test_a_rate_that_holds_is_not_given_up() -> None:
    for rate in (100.0, 300.0, 370.0):
        trial = at(rate)
        assert not trial.gave_up
        assert trial.numbers["num_requests.arrived"] == 2000
    assert at(370.0, "slo={ttft_ms: {p90: 200}}").passes


def test_a_load_with_an_end_is_never_given_up() -> None:
    for sets in (("workload.finite=true",), ("workload.arrivals={process: piecewise, segments: "
                 "[{until_s: 100, rate_per_s: 100}]}",)):  # fmt: skip
        trial = at(1600.0, *sets)
        assert not trial.gave_up
        assert trial.numbers["num_requests.arrived"] == 2000


def test_a_log_of_few_rows_is_too_short_for_an_interval_however_often_it_is_played(tmp_path: Path) -> None:
    rows = "\n".join(f"{0.003 * row},20,{10 + row}" for row in range(40))
    Path("log.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}\n")
    workload = "workload={trace: {path: log.csv, repeat: 20}}"
    trial = at(100.0, workload, "warmup={requests: 40}")
    assert trial.num_measured >= 700
    assert trial.without == ()
