"""`simkit plan`: what it finds, what it writes, what it says when there is no answer or a point fails."""

# ruff: noqa: E501 (messages are easier to read, and to search for, in one piece)
from __future__ import annotations

import csv
import json
import math
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from simkit import scenario
from simkit.cli import app
from simkit.engine.build import set_up
from simkit.engine.run import simulate
from simkit.errors import InputError, Interrupted
from simkit.plain import plain
from simkit.planner import confirm, jobs, sensitivity
from simkit.planner import plan as planner
from simkit.planner.answer import fleet_choice
from simkit.planner.content import plan_csv, plan_json
from simkit.planner.points import make_points, slot_grid
from simkit.planner.result import FleetSize, PlanResult
from simkit.planner.search import FINE, Effort
from simkit.planner.trial import Trial, run_trial, terms
from simkit.runs.replication import metrics_of
from simkit.studies import checkpoint
from simkit.studies.offered_load import at_rate, base_rate, for_trials, lengths
from simkit.workload.build import build_workload

TEXT = """\
name: tiny
model: llama-3-8b
hardware: {gpu: a100-sxm4-80gb, price_per_gpu_hour: 3.6}
engine: {max_model_len: 256, num_gpu_blocks: 129}
workload:
  num_requests: 60
  arrivals: {process: poisson, rate_per_s: 100}
  prompt_tokens: {dist: uniform, low: 20, high: 60}
  output_tokens: {dist: uniform, low: 5, high: 35}
latency: {profile: unit}
slo: {ttft_ms: {p90: 10}, tpot_ms: {p99: 5}}
"""
TWO = ("--axis", "engine.max_num_seqs=4,32")
BATCH_OF_6 = ("--set", "workload.num_requests=6", "--set", "workload.finite=true")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TEXT)
    return tmp_path


TIMES, RUNS = confirm.TIMES, confirm.RUNS
SHARES, VARIATIONS, DIAGNOSED = sensitivity.RATE_SHARES, sensitivity._variations, sensitivity._diagnosed


@pytest.fixture(autouse=True)
def little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer replications, no neighbours, no doctor: most of these tests ask what is said, not how sure it is."""
    monkeypatch.setattr(sensitivity, "_variations", lambda chosen, base: [])
    monkeypatch.setattr(sensitivity, "_diagnosed", lambda chosen, runner: None)
    for module in (planner, sensitivity):
        monkeypatch.setattr(module, "COARSE", Effort(replications=2, gap=4))
    monkeypatch.setattr(planner, "FINE", Effort(replications=3, gap=2))
    monkeypatch.setattr(sensitivity, "RATE_REPLICATIONS", 1)
    monkeypatch.setattr(sensitivity, "LONG_RATE_REPLICATIONS", 1)
    monkeypatch.setattr(sensitivity, "RATE_SHARES", (0.5, 1.0))
    monkeypatch.setattr(confirm, "TIMES", 2.0)
    monkeypatch.setattr(confirm, "RUNS", 2)


@pytest.fixture
def whole_answer(monkeypatch: pytest.MonkeyPatch, little_effort: None) -> None:
    """With what `little_effort` leaves out: the answer is served again for as long as it is for users, and so on."""
    monkeypatch.setattr(sensitivity, "_variations", VARIATIONS)
    monkeypatch.setattr(sensitivity, "RATE_SHARES", SHARES)
    monkeypatch.setattr(sensitivity, "_diagnosed", DIAGNOSED)
    monkeypatch.setattr(confirm, "TIMES", TIMES)
    monkeypatch.setattr(confirm, "RUNS", RUNS)


def load(*sets: str) -> scenario.Scenario:
    return scenario.load("tiny.yaml", sets)


def simkit_(*args: str) -> Any:
    result = CliRunner().invoke(app.app, ["plan", "tiny.yaml", "--jobs", "1", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@cache
def asked(*args: str) -> Any:
    """What the command says of the tiny scenario; the same question is asked once."""
    return simkit_(*args, "--json", "--no-report")


def content(*args: str, code: int = 0) -> dict[str, Any]:
    """plan.json of the tiny scenario."""
    result = asked(*args)
    assert result.exit_code == code, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(*args: str, code: int = 2) -> str:
    result = simkit_(*args, "--no-report")
    assert result.exit_code == code, result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith(("note:", "wrote"))]
    assert len(lines) == 1, lines
    return lines[0]


# --- the answer -------------------------------------------------------------------------------------------------------
def test_more_slots_carry_more_and_the_plan_says_so() -> None:
    found = content(*TWO, "--target-rate", "5000", "--spare", "2")
    few, many = found["points"]
    assert few["capacity"]["high_per_s"] < many["capacity"]["low_per_s"]
    assert few["limit"]["name"] == "slots"
    assert found["recommended"]["name"] == "max_num_seqs=32"
    assert found["answer"].startswith("Set max_num_seqs to 32: one a100-sxm4-80gb then carries")
    fleet = found["fleet"]
    low = many["capacity"]["low_per_s"]
    assert (fleet["replicas"] - 1) * low < 5000 <= fleet["replicas"] * low
    assert fleet["gpus"] == fleet["replicas"] + 2


def served(*sets: str) -> dict[str, Any]:
    """The summary of one replication, as long as it is asked to be."""
    setup = set_up(load(*sets))
    found: dict[str, Any] = plain(metrics_of(setup, simulate(setup, 0)).summary)
    return found


@cache
def plan_with_target() -> PlanResult:
    """A plan of the tiny scenario with a target, whose fleets the tests below make up."""
    return planner.plan(load(), {"engine.max_num_seqs": [32]}, target_per_s=100.0, spare=1, options={"jobs": 1})


def choice(share: float, spare: int, *, price: bool = True, **met: bool) -> str:
    """The fleet's sentence where a replica carries 1,000 requests/s (900 to 1,100) and the target is `share` times 900.

    `met` says which fleets met the SLO, by their number of replicas: r2=True, and l3=True with the spares lost.
    """
    result = plan_with_target()
    chosen = result.recommended
    assert chosen is not None
    assert chosen.capacity is not None
    numbers = {"low_per_s": 900.0, "estimate_per_s": 1000.0, "high_per_s": 1100.0}
    chosen = replace(chosen, capacity=replace(chosen.capacity, **numbers))
    trial = result.other_rates[0]
    fleets = {
        FleetSize(int(name[1:]), spare if name[0] == "l" else 0): (replace(trial, margins=(0.1 if good else -0.1,)),)
        for name, good in met.items()
    }
    if not price:
        scenario_ = chosen.point.scenario
        free = scenario_.model_copy(
            update={"hardware": scenario_.hardware.model_copy(update={"price_per_gpu_hour": None})}
        )
        chosen = replace(chosen, point=replace(chosen.point, scenario=free))
    text = fleet_choice(replace(result, target_per_s=900 * share, spare=spare, fleets=fleets), chosen)
    assert text is not None
    return text


def test_the_fleet_says_what_a_smaller_one_did_and_what_the_difference_buys_and_costs() -> None:
    text = choice(4.1, 1, r4=True, r5=True, l6=True)
    assert text.startswith("4 replicas met the SLO when simulated, but ")
    assert (
        "922 requests/s a replica lie between the lower end (900) and the estimate (1,000) of what a replica carries"
        in text
    )
    assert (
        "of 3 replications meet it, and none may be lost; the 5th replica buys 95 % confidence that the target holds"
        in text
    )
    assert (
        "and the spare one buys the loss of 1 replica at the target rate, for 7.2 an hour (5,256 a month) together."
        in text
    )
    missed = choice(4.1, 0, r4=False, r5=True)
    assert missed.startswith("4 replicas missed the SLO when simulated: ")
    assert missed.endswith(
        "the 5th replica buys 95 % confidence that the target holds, for 3.6 an hour (2,628 a month); "
        "without a spare (--spare) no replica may be lost."
    )
    above = choice(1.9, 1, price=False, r1=False, r2=True, l3=False)
    assert "1,710 requests/s a replica lie above the interval (900 to 1,100) of what" in above
    assert "an hour" not in above
    assert above.endswith("(but requests that a loss halfway sends back missed the SLO when simulated).")
    assert "lie between the estimate (1,000) and the upper end (1,100) of what" in choice(7.9, 1)
    assert choice(20.5, 2).startswith("20 replicas are too few: ")
    assert "the 2 spare ones buy the loss of 2 replicas" in choice(20.5, 2)
    assert choice(4.1, 1, r5=False).endswith("5 replicas missed the SLO too: requests do not spread evenly.")


def test_a_fleet_of_one_has_no_smaller_one() -> None:
    text = choice(0.5, 1, r1=True, l2=True)
    assert text.startswith("One replica is enough: ")
    assert text.endswith(
        "the spare one buys the loss of 1 replica at the target rate, for 3.6 an hour (2,628 a month)."
    )
    assert choice(0.5, 0).endswith("of what it carries; without a spare (--spare) no replica may be lost.")


def test_the_plan_of_a_target_tells_the_choice_and_counts_gpus_by_the_replica() -> None:
    found = content(
        "--axis",
        "engine.max_num_seqs=32",
        "--target-rate",
        "5000",
        "--set",
        "replicas=2",
        "--set",
        "workload.num_requests=100",
    )
    fleet = found["fleet"]
    assert f"{fleet['replicas'] - 1} replicas" in fleet["choice"]
    assert "max_num_seqs to 32: 2 replicas x 1 a100-sxm4-80gb then carry" in found["answer"]


@pytest.mark.parametrize(("gpu", "higher"), [("l4-24gb", [0.93]), ("a100-sxm4-80gb", [0.98])])
def test_neighbouring_settings_leave_room_beside_the_memory_budget(gpu: str, higher: list[float]) -> None:
    base = load(f"hardware.gpu={gpu}", "engine.num_gpu_blocks=null", "engine.gpu_memory_utilization=0.9")
    (point,), *_ = make_points(base, {"engine.max_num_seqs": [256]})
    found = VARIATIONS(SimpleNamespace(point=point), base)  # type: ignore[arg-type]
    shares = [item.settings.get("engine.gpu_memory_utilization", 0.0) for item in found]
    assert [share for share in shares if share > 0.9] == higher


def test_capacity_lies_where_runs_begin_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner's word, kept with other seeds than its own, at the effort that it spends, in runs as long."""
    monkeypatch.setattr(planner, "FINE", FINE)
    found = json.loads(simkit_("--axis", "engine.max_num_seqs=32", "--json", "--no-report").stdout)
    capacity, length = found["recommended"]["capacity"], found["run_length"]
    assert capacity["replications"] == FINE.replications

    def met(rate: float, seed: int) -> dict[str, list[float]]:
        sets = [
            "engine.max_num_seqs=32",
            f"workload.arrivals.rate_per_s={rate}",
            f"workload.num_requests={length['num_requests']}",
            f"warmup={{requests: {length['warmup']['requests']}}}",
            f"seed={seed}",
        ]
        slo = served(*sets)["slo"]
        return {
            f"{metric}.{key}": value["share_within"] for metric, values in slo.items() for key, value in values.items()
        }

    def pooled(rate: float) -> bool:
        runs = [met(rate, seed) for seed in range(50, 60)]
        wanted = {"ttft_ms.p90": 0.90, "tpot_ms.p99": 0.99}
        return all(sum(run[term] for run in runs) / len(runs) >= share for term, share in wanted.items())

    assert pooled(0.95 * capacity["low_per_s"])
    assert not pooled(1.10 * capacity["high_per_s"])


def test_cost_follows_from_price_rate_and_tokens() -> None:
    found = content(*TWO)
    sizes, cost = found["lengths"], found["cost"]
    rate = found["recommended"]["capacity"]["estimate_per_s"]
    # 3.6 an hour is 0.001 a second; the tokens are those of the runs, the sizes those of the first draws.
    assert cost["per_million_output_tokens"] == pytest.approx(1e-3 / (rate * sizes["output_tokens"]) * 1e6, rel=0.05)
    assert cost["per_million_total_tokens"] < cost["per_million_output_tokens"]


def test_without_a_price_cost_is_left_out_and_not_zero() -> None:
    result = simkit_(*TWO, "--set", "hardware.price_per_gpu_hour=null", "--no-report", "--json")
    found = json.loads(result.stdout)
    assert found["cost"] is None
    assert all(point["cost"] is None for point in found["points"])
    assert "note: no cost: hardware.price_per_gpu_hour is not given" in result.stderr


def test_half_and_double_the_load_are_looked_at() -> None:
    found = content(*TWO, "--set", "workload.arrivals.rate_per_s=800")
    assert [row["share"] for row in found["loads"]] == [0.5, 1.0, 2.0]
    assert [row["rate_per_s"] for row in found["loads"]] == [400.0, 800.0, 1600.0]
    p99 = [row["numbers"]["ttft_ms.p99"]["mean"] for row in found["loads"]]
    assert p99 == sorted(p99)


def test_the_command_line_is_what_was_planned() -> None:
    found = content(*TWO, "--set", "engine.enable_prefix_caching=false", "--set", "engine.policy=priority")
    words = shlex.split(found["command"])
    assert words[:3] == ["vllm", "serve", "meta-llama/Meta-Llama-3-8B"]
    assert words[words.index("--max-num-seqs") + 1] == "32"
    assert words[words.index("--num-gpu-blocks-override") + 1] == "129"
    assert words[words.index("--scheduling-policy") + 1] == "priority"
    assert "--no-enable-prefix-caching" in words


def test_a_few_requests_are_marked_too_few() -> None:
    result = asked(*TWO)
    found = json.loads(result.stdout)["run_length"]
    assert found["too_few"] is True
    # Runs are made longer for the system to fill, and for nothing else.
    assert found["num_requests"] == 60 * found["factor"] > 60
    measured = found["measured_requests"]
    assert measured == 0.8 * found["num_requests"] < 1000
    assert f"note: too few: a p99 from {measured} measured requests a replication" in result.stderr


@pytest.mark.usefixtures("whole_answer")
def test_a_plan_directory_holds_the_answer_for_programs_and_people() -> None:
    assert simkit_(*TWO, "--set", "workload.output_tokens.high=15").exit_code == 0
    folder = Path("runs/tiny-plan")
    assert {path.name for path in folder.iterdir()} == {
        "plan.json",
        "plan.csv",
        "manifest.json",
        "report.html",
        "report.md",
    }
    rows = list(csv.DictReader((folder / "plan.csv").open()))
    assert [row["engine.max_num_seqs"] for row in rows] == ["4", "32"]
    assert [row["recommended"] for row in rows] == ["false", "true"]
    found = json.loads((folder / "plan.json").read_bytes())
    markdown, page = (folder / "report.md").read_text(), (folder / "report.html").read_text()
    assert found["answer"] in markdown
    assert found["doctor"]["findings"] is not None
    assert len(found["sensitivity"]) == 6
    assert len(found["curve"]) == len(SHARES) + 3
    served = found["recommended"]["confirmation"]["served"]
    low = max(one["rate_per_s"] for one in served if one["held"] == one["runs"])
    assert f"sustained: 4 runs 10 times as long held at {math.floor(low):,}" in found["answer"]
    said = "4 runs of fresh customers 10 times as long as those of the search"
    assert said in markdown
    assert said in page
    assert [point["confirmation"] is None for point in found["points"]] == [True, False]
    assert [point["run_length"]["num_requests"] for point in found["points"]] == [
        60 * point["run_length"]["factor"] for point in found["points"]
    ]
    assert found["run_length"] == found["recommended"]["run_length"]
    assert found["run_length"]["factor"] > 1
    few = ("--axis", "engine.max_num_seqs=4", "--set", "slo.ttft_ms={p90: 0.5}", "--no-report")
    assert simkit_(*few).exit_code == 1  # and an earlier plan may be replaced
    assert len(list(csv.DictReader((folder / "plan.csv").open()))) == 1


# --- the grid ---------------------------------------------------------------------------------------------------------
def test_the_automatic_grid_is_powers_and_half_powers_up_to_the_physical_bound() -> None:
    assert slot_grid(700) == [23, 32, 45, 64, 91, 128, 181, 256, 362, 512, 724]
    assert slot_grid(1) == [1]
    assert slot_grid(8) == [1, 2, 3, 4, 6, 8]
    found = content("--set", "workload.num_requests=40", "--set", "slo.ttft_ms={p90: 0.5}", code=1)  # soon done
    # 2,048 tokens of memory, and a sequence holds 40 + 10 tokens on average: 64 in whole blocks.
    assert found["points"][0]["physical"]["bound"] == 32
    assert found["axes"] == {"engine.max_num_seqs": [1, 2, 3, 4, 6, 8, 11, 16, 23, 32]}


def test_an_invalid_value_fails_alone() -> None:
    result = simkit_("--axis", "engine.max_num_seqs=0,8,32", "--json", "--no-report")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert [point["name"] for point in found["points"]] == ["max_num_seqs=8", "max_num_seqs=32"]
    assert list(found["failed"]) == ["max_num_seqs=0"]
    assert "point max_num_seqs=0: --axis engine.max_num_seqs: expected an integer >= 1, got 0" in result.stderr
    other = content("--axis", "engine.max_num_seqs=8", "--axis", "engine.policy=fcfs,best", code=2)
    assert list(other["failed"]) == ["policy=best"]


def test_a_further_axis_is_part_of_the_answer() -> None:
    found = content("--axis", "engine.max_num_seqs=8,16", "--axis", "replicas=1,2")
    assert [point["name"] for point in found["points"]] == [
        "max_num_seqs=8,replicas=1",
        "max_num_seqs=16,replicas=1",
        "max_num_seqs=8,replicas=2",
        "max_num_seqs=16,replicas=2",
    ]
    one, two = found["points"][1], found["points"][3]
    assert two["gpus"] == 2
    assert two["capacity"]["estimate_per_s"] > 1.9 * one["capacity"]["estimate_per_s"]


def test_axes_that_end_alike_are_named_whole() -> None:
    prompts, answers = "workload.prompt_tokens.high=50,60", "workload.output_tokens.high=25,35"
    points, *_ = make_points(load(), scenario.parse_axes(load(), ["engine.max_num_seqs=8", prompts, answers]))
    assert [point.name for point in points[:2]] == [
        "max_num_seqs=8,workload.prompt_tokens.high=50,workload.output_tokens.high=25",
        "max_num_seqs=8,workload.prompt_tokens.high=50,workload.output_tokens.high=35",
    ]


def test_a_setting_with_which_nothing_starts_is_named_once() -> None:
    points, failed, _, grid_ = make_points(load(), {"engine.num_gpu_blocks": [3, 129]})
    assert list(failed) == ["num_gpu_blocks=3"]
    assert {point.settings["engine.num_gpu_blocks"] for point in points} == {129}
    assert grid_["engine.max_num_seqs"] == [point.slots for point in points]


# --- no answer --------------------------------------------------------------------------------------------------------
def test_an_objective_that_nobody_can_meet_is_said_to_be_missed_by_how_much() -> None:
    result = simkit_(*TWO, "--set", "slo.ttft_ms={p90: 0.5}", "--no-report", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["reachable"] is False
    assert found["recommended"] is None
    # A request alone is one step: 1 ms.
    assert "ttft_ms.p90 <= 0.5 ms is missed by a request alone" in found["answer"]
    assert "2 times as long" in found["answer"]
    assert "What binds: TTFT" in found["answer"]


def test_requests_that_are_never_served_are_named_as_what_misses_an_objective() -> None:
    prompts = "workload.prompt_tokens={dist: list, values: [8, 8, 8, 8, 500]}"
    result = simkit_(*TWO, "--set", prompts, "--set", "engine.max_model_len=128", "--no-report", "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)["answer"]
    assert "is missed by the 20 % of requests that can never be served and are rejected" in answer
    assert "What binds: the 20 % of requests that can never be served and are rejected" in answer
    assert "alone" not in answer


def test_what_has_no_answer_is_refused() -> None:
    assert refused("--set", "slo=null") == (
        "--set slo: expected objectives to plan for, e.g. slo: {ttft_ms: {p99: 500}, tpot_ms: {p99: 50}}, got none"
    )
    closed = refused("--set", "workload.arrivals={process: closed_loop, concurrency: 4}")
    assert closed.endswith(
        "expected arrivals with a rate (poisson, gamma, constant, piecewise or a trace), got closed_loop"
    )
    assert "does not stream" in refused("--set", "engine.batching=static")
    assert "expected a run long enough to see a limit" in refused(*BATCH_OF_6, *TWO)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--target-rate", "0"), "--target-rate: expected requests per second > 0 (and <= 1e9), got 0"),
        (("--target-rate", "1e10"), "--target-rate: expected requests per second > 0 (and <= 1e9), got 1e+10"),
        (("--target-rate", "nan"), "--target-rate: expected requests per second > 0 (and <= 1e9), got nan"),
        (("--axis", "engine.max_num_seq=4"), "--axis engine.max_num_seq: unknown key; did you mean 'engine.max_num_seqs'?"),
        (("--axis", "slo.ttft_ms.p90=1,2"), "--axis slo.ttft_ms.p90: expected a setting to choose, got the objective that it is chosen by"),
        (("--axis", "workload.arrivals.rate_per_s=1,2"), "--axis workload.arrivals.rate_per_s: expected another key: the planner itself looks for the rate"),
    ],
)  # fmt: skip
def test_wrong_questions_are_one_line(args: tuple[str, ...], message: str) -> None:
    line = refused(*args)
    assert line.startswith(message[:60])


def test_a_point_that_passes_at_every_rate_cannot_be_ranked() -> None:
    line = refused("--axis", "engine.max_num_seqs=2,32", *BATCH_OF_6)
    assert "expected a run long enough to see a limit" in line
    assert line.endswith("(max_num_seqs=32)")


def test_a_tpot_that_a_request_alone_misses_is_said_to_be() -> None:
    found = content(*TWO, "--set", "slo.tpot_ms={p99: 0.8}", code=1)
    assert (
        "tpot_ms.p99 <= 0.8 ms is missed by a request alone, which takes 1 ms (1.25 times as long)" in found["answer"]
    )


def test_a_warm_up_that_eats_the_run_is_refused() -> None:
    seconds = refused(*TWO, "--set", "warmup={seconds: 60}")
    assert seconds.startswith("--set warmup: expected {requests: N}, for at other rates")
    assert "expected fewer than the 60 requests of the run, got 60" in refused(*TWO, "--set", "warmup={requests: 60}")


def test_outages_at_fixed_times_have_no_place_in_a_plan() -> None:
    line = refused(*TWO, "--set", "replicas=2", "--set", "failures=[{replica: 0, at_s: 1}]")
    assert line.startswith("--set failures: expected none in a plan")


def test_nothing_is_left_behind_when_there_is_no_answer() -> None:
    refused("--axis", "engine.max_num_seqs=32", *BATCH_OF_6, "--out", "plans/tiny")
    assert list(Path("plans").iterdir()) == [] if Path("plans").exists() else True


def test_cost_is_that_of_each_point() -> None:
    found = content("--axis", "engine.max_num_seqs=8", "--axis", "hardware.price_per_gpu_hour=1,4")
    cheap, dear = (point["cost"]["per_million_output_tokens"] for point in found["points"])
    assert dear == pytest.approx(4 * cheap)
    longer = content("--axis", "engine.max_num_seqs=8", "--axis", "workload.samples=1,2")
    for point, samples in zip(longer["points"], (1, 2), strict=True):
        rate = point["capacity"]["estimate_per_s"]
        tokens = longer["lengths"]["output_tokens"] * samples
        assert point["cost"]["per_million_output_tokens"] == pytest.approx(1e-3 / rate / tokens * 1e6, rel=0.15)


def test_who_is_turned_away_brings_no_tokens() -> None:
    prompts = "workload.prompt_tokens={dist: list, values: [40, 40, 40, 5000]}"
    found = content("--axis", "engine.max_num_seqs=16", "--set", prompts, "--set", "slo={ttft_ms: {p50: 10}}")
    rate = found["recommended"]["capacity"]["estimate_per_s"]
    tokens = 0.75 * found["lengths"]["output_tokens"]
    assert found["cost"]["per_million_output_tokens"] == pytest.approx(1e-3 / rate / tokens * 1e6, rel=0.1)
    assert "25 % of requests can never be served and are rejected; rates count them" in found["notes"]


def test_a_mean_does_not_pass_because_others_were_turned_away() -> None:
    found = content(
        "--axis", "engine.max_num_seqs=16", "--set", "slo={ttft_ms: {mean: 5}}", "--set", "workload.queue_limit=2"
    )
    point = found["points"][0]
    assert point["capacity"]["term"] == "requests.served"
    assert point["limit"]["name"] == "slots"


def test_tpot_missed_by_preemptions_is_laid_to_memory() -> None:
    sets = (
        "--set",
        "engine.num_gpu_blocks=24",
        "--set",
        "engine.max_model_len=128",
        "--set",
        "slo={tpot_ms: {p99: 1.5}}",
    )
    found = content("--axis", "engine.max_num_seqs=64", *sets)
    assert found["points"][0]["limit"]["name"] == "KV blocks"


def test_segments_are_played_faster() -> None:
    one = load(
        "workload.arrivals={process: piecewise, segments: [{until_s: 1, rate_per_s: 20}, {until_s: 9, rate_per_s: 60}]}"
    )
    # 60 requests: 20 in the first second, 40 at 60/s.
    assert base_rate(one) == pytest.approx(60 / (1 + 40 / 60))
    fast = at_rate(one, 10 * base_rate(one), base_rate(one))
    times = [r.arrival_ns for r in build(one)], [r.arrival_ns for r in build(fast)]
    assert len(times[0]) == len(times[1]) == 60
    assert times[1] == pytest.approx([t / 10 for t in times[0]], abs=2)


def build(one: scenario.Scenario) -> list[Any]:
    workload = build_workload(one.workload, seed=0, replication=0, max_model_len=256, base_dir=None)
    return list(workload.requests)


def test_more_replicas_are_compared_with_fewer() -> None:
    found = content("--axis", "engine.max_num_seqs=8,16", "--axis", "replicas=1,2")
    assert [row["name"] for row in found["scaling"]] == ["max_num_seqs=8,replicas=2", "max_num_seqs=16,replicas=2"]
    assert all(row["ratio"]["low"] < row["ratio"]["estimate"] > 1.5 for row in found["scaling"])
    assert "2 x a100-sxm4-80gb then carry" in found["answer"] or "one a100-sxm4-80gb then carries" in found["answer"]


# --- the same bytes, and going on -------------------------------------------------------------------------------------
def planned(**options: Any) -> bytes:
    axes = {"engine.max_num_seqs": [4, 16], "engine.policy": ["fcfs", "sjf"]}
    found: PlanResult = planner.plan(
        load("workload.num_requests=40", "workload.output_tokens.high=15"), axes, options=options
    )
    return json.dumps(plan_json(found)).encode() + plan_csv(plan_json(found)).encode()


def test_two_processes_find_the_bytes_of_one() -> None:
    assert planned(jobs=2) == planned(jobs=1)


def test_an_interrupted_plan_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = planned()
    asked: list[str] = []
    run_job = jobs.run_job

    def stop_after_two(task: jobs.CapacityJob) -> Any:
        asked.append(task.name)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return run_job(task)

    kept = Path(".kept")
    monkeypatch.setattr(jobs, "run_job", stop_after_two)
    with pytest.raises(Interrupted, match="add --resume to go on"):
        planned(resume_dir=kept)
    assert len(list(kept.iterdir())) == 2
    damaged = sorted(kept.iterdir())[0] / "answer.json"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    said: list[str] = []
    asked.clear()
    monkeypatch.setattr(jobs, "run_job", lambda task: asked.append(task.name) or run_job(task))
    assert planned(resume_dir=kept, resume=True, on_note=said.append) == whole
    assert len(said) == 1
    assert "damaged" in said[0]
    checkpoint.clear(kept)
    assert not kept.exists()


# --- trials -----------------------------------------------------------------------------------------------------------
def test_a_trial_is_the_run_of_the_scenario_at_that_rate() -> None:
    ready = for_trials(load("engine.max_num_seqs=8"), 1)
    trial = run_trial(set_up(ready), 300.0, base_rate(ready), 0)
    summary = served("engine.max_num_seqs=8", "workload.arrivals.rate_per_s=300", "warmup={requests: 12}")
    assert trial.numbers["ttft_ms.p99"] == summary["ttft_ms"]["p99"]
    assert trial.numbers["throughput.requests_per_s"] == summary["throughput"]["requests_per_s"]
    shares = [
        summary["slo"]["ttft_ms"]["p90"]["share_within"] - 0.9,
        summary["slo"]["tpot_ms"]["p99"]["share_within"] - 0.99,
        0.5,
    ]
    assert summary["saturated"] is False
    assert trial.margins == pytest.approx(shares)


@pytest.mark.parametrize("blocks", [24, 129])
def test_leaving_out_a_cache_that_finds_nothing_changes_nothing(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 24 blocks sequences are preempted, and find their own blocks again; with 129 nobody shares anything."""
    ready = for_trials(load("engine.max_num_seqs=16", f"engine.num_gpu_blocks={blocks}", "engine.max_model_len=128"), 1)
    setup = set_up(ready)
    assert setup.prefix_caching
    quick = [run_trial(setup, rate, base_rate(ready), 0) for rate in (100.0, 400.0)]
    from simkit.engine import run as module

    monkeypatch.setattr(module, "_finds_nothing", lambda setup, workload: False)
    slow = [run_trial(setup, rate, base_rate(ready), 0) for rate in (100.0, 400.0)]
    assert [trial.margins for trial in quick] == [trial.margins for trial in slow]
    assert [trial.waits for trial in quick] == [trial.waits for trial in slow]
    assert [trial.numbers for trial in quick] == [trial.numbers for trial in slow]
    assert (blocks == 24) == bool(quick[-1].numbers["num_preemptions"])


def test_waiting_time_is_told_apart() -> None:
    def waits(*sets: str) -> dict[str, float]:
        ready = for_trials(load(*sets), 1)
        return dict(run_trial(set_up(ready), 2000.0, base_rate(ready), 0).waits)

    slots = waits("engine.max_num_seqs=2")
    assert slots["slots"] > 0.9 * slots["waiting"] > 0.4
    memory = waits("engine.max_num_seqs=100", "engine.num_gpu_blocks=17")
    assert memory["kv"] > 0.5 * memory["waiting"] > 0.2
    budget = waits("engine.max_num_seqs=64", "engine.max_num_batched_tokens=64", "engine.num_gpu_blocks=2000")
    assert budget["budget"] > 0.3 * budget["waiting"] > 0.1
    assert 0.0 <= slots["tail_queued"] <= 1.0


@pytest.mark.parametrize(
    ("arrivals", "base"),
    [
        ("{process: constant, rate_per_s: 7}", 7.0),
        ("{process: gamma, rate_per_s: 7, cv: 2}", 7.0),
        ("{process: piecewise, segments: [{until_s: 10, rate_per_s: 2}, {until_s: 20, rate_per_s: 8}]}", 60 / 15),
    ],
)  # fmt: skip
def test_every_open_loop_can_be_sped_up(arrivals: str, base: float) -> None:
    one = load(f"workload.arrivals={arrivals}")
    assert base_rate(one) == base
    assert base_rate(at_rate(one, 3.5, base)) == pytest.approx(3.5)


def test_a_trace_is_sped_up_too() -> None:
    rows = "".join(f"2023-11-16 18:00:{second:02d}.0000000,100,20\n" for second in range(0, 60, 2))
    Path("log.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    text = TEXT.replace("num_requests: 60", "trace: {path: log.csv}")
    kept = [line for line in text.splitlines() if not line.strip().startswith(("arrivals", "prompt_", "output_"))]
    traced = scenario.loads("\n".join(kept))
    assert base_rate(traced) == pytest.approx(0.5)
    assert base_rate(at_rate(traced, 5.0, 0.5)) == pytest.approx(5.0)
    assert lengths(traced, 256).total_tokens == 120


def test_a_fleet_is_judged_over_as_long_a_time_as_one() -> None:
    assert for_trials(load("replicas=3"), 1).workload.num_requests == 180
    assert for_trials(load("warmup={requests: 7}"), 1).to_dict()["warmup"] == {"requests": 7}
    seconds = for_trials(load("workload.num_requests=null", "workload.duration_s=50"), 1)
    assert seconds.to_dict()["warmup"] == {"seconds": 10.0}


def test_a_growing_queue_is_refused_whatever_the_objectives_bound() -> None:
    assert [term.name for term in terms(load())] == ["ttft_ms.p90", "tpot_ms.p99", "queue.stable"]
    only_tpot = load("slo={tpot_ms: {p99: 50}}")
    assert [term.name for term in terms(only_tpot)] == ["tpot_ms.p99", "queue.stable"]


def test_trials_survive_the_disk() -> None:
    ready = for_trials(load(), 1)
    trial = run_trial(set_up(ready), 100.0, base_rate(ready), 0)
    from simkit.plain import canonical_json, typed

    assert typed(Trial, json.loads(canonical_json(trial))) == trial


def test_no_point_at_all_is_an_error() -> None:
    with pytest.raises(InputError, match="point max_num_seqs=0"):
        planner.plan(load(), {"engine.max_num_seqs": [0]})
