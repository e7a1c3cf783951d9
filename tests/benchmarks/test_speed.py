"""Speed as ratios, with slack for noisy neighbours: what grows with what. Bars and figures: ``run.py`` beside this.

Every limit lies between what is measured and what the mistake would cost that the test is about.
``pytest tests/benchmarks --benchmark-enable`` prints times as well.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import timeit
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from bars import PLAIN, Bar, calibrated, steps_to_price
from cases import BLOCK_SIZE, CASES
from measure import Speed, speed, timeouts_per_s

from simkit.engine.build import set_up
from simkit.engine.run import simulate
from simkit.metrics.summary import Summary
from simkit.runs.replication import metrics_of
from simkit.scenario import from_dict

REQUESTS = 500


@functools.cache
def yardstick() -> float:
    return timeouts_per_s(100_000)


@functools.cache
def measured(case: str, num_requests: int = REQUESTS, single_step: bool = False) -> Speed:
    return speed(case, num_requests, 2, yardstick(), single_step=single_step)


def summary(case: str, num_requests: int) -> Summary:
    setup = set_up(from_dict(CASES[case](num_requests)))
    facts = simulate(setup)
    return metrics_of(setup, facts).summary


def times(case: str, other: str) -> float:
    """The time of a request, in times of the other's."""
    return measured(case).seconds / measured(other).seconds


# --- the cases are what they say --------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES)
def test_a_case_serves_everybody(case: str, benchmark: Any) -> None:
    found = benchmark.pedantic(summary, (case, 200), rounds=1)
    assert found.num_requests.finished == 200
    assert (found.num_preemptions > 0) <= (case == "preempting")
    assert (found.prefix_cache_hit_rate or 0) == pytest.approx(0.68 if case == "shared prompts" else 0, abs=0.05)


def test_the_preempting_case_has_a_quarter_of_the_memory_and_preempts() -> None:
    setup = set_up(from_dict(CASES["preempting"](REQUESTS)))
    assert setup.capacity_tokens == setup.max_num_seqs * (512 + 256) / 4
    assert setup.capacity_tokens % BLOCK_SIZE == 0
    assert measured("preempting").num_preemptions > REQUESTS / 10


# --- what time grows with ---------------------------------------------------------------------------------------------
def test_a_request_costs_nearly_the_same_however_long_its_answer() -> None:
    assert times("512/2560 at 0.5", PLAIN) <= 4, "10 if every token cost something"


def test_with_caching_long_answers_cost_their_blocks_and_not_their_tokens() -> None:
    assert times("512/2560 at 0.5, caching", f"{PLAIN}, caching") <= 7


@pytest.mark.parametrize("case", [f"{PLAIN}, caching", "shared prompts", "preempting"])
def test_what_is_exact_costs_a_few_times_the_plain_case(case: str) -> None:
    assert times(case, PLAIN) <= 8


def test_many_steps_at_once_are_faster_than_one_by_one() -> None:
    case = "512/256 at 2"
    assert measured(case).num_steps == measured(case, single_step=True).num_steps
    assert measured(case, single_step=True).seconds >= 3 * measured(case).seconds


def test_time_grows_no_faster_than_requests() -> None:
    few, many = measured("ragged at 20"), measured("ragged at 20", 4 * REQUESTS)
    assert many.seconds <= 2 * 4 * few.seconds, "a queue that grows must not cost its length"


def test_four_replicas_cost_what_their_requests_cost() -> None:
    assert times("4 replicas", PLAIN) <= 4


# --- against SimPy ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("case", "floor"), [("512/256 at 8", 0.002), ("ragged at 20", 0.003), ("static", 0.005)])
def test_requests_are_simulated_in_the_time_of_some_hundred_timeouts(case: str, floor: float) -> None:
    assert measured(case).ratio >= floor


def test_steps_cost_a_few_timeouts() -> None:
    assert measured("512/256 at 2").steps_per_s >= 0.05 * yardstick()


# --- memory -----------------------------------------------------------------------------------------------------------
def peak_bytes(case: str, num_requests: int) -> int:
    """What Python and numpy hold at most during a simulation; the same every time."""
    tracemalloc.start()
    try:
        summary(case, num_requests)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_requests_by_their_rows_alone() -> None:
    summary(PLAIN, 10)  # what is imported and cached once
    few, many = peak_bytes(PLAIN, 1000), peak_bytes(PLAIN, 4000)
    assert many < 4 * few
    # A row of 19 numbers, four spans of 17 and a stay of 7 are 750 bytes; the 17 steps alone would be 2,300.
    assert (many - few) / 3000 <= 1900


def test_memory_does_not_depend_on_the_length_of_answers() -> None:
    summary(PLAIN, 10)
    assert peak_bytes("512/2560 at 0.5", 150) <= 2 * peak_bytes(PLAIN, 150)


# --- the script -------------------------------------------------------------------------------------------------------
def test_the_script_prints_a_table_and_json(tmp_path: Path) -> None:
    script, out = Path(__file__).with_name("run.py"), tmp_path / "speed.json"
    command = [sys.executable, str(script), "--requests", "30", "--rounds", "1", "--case", "static", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    header, row = done.stdout.splitlines()
    assert header.split()[:2] == ["case", "requests/s"]
    assert row.startswith("static ")
    (found,) = json.loads(out.read_text())
    assert found["num_requests"] == 30
    assert found["ratio"] == pytest.approx(found["num_requests"] / found["seconds"] / found["yardstick_per_s"])
    assert found["peak_mb"] > 20


@pytest.mark.parametrize(("at_most", "verdicts"), [(True, ["met", "met", "MISSED"]), (False, ["MISSED", "met", "met"])])
def test_a_bar_is_met_on_one_side(at_most: bool, verdicts: list[str]) -> None:
    assert [Bar("x", figure, 2, at_most).row()[-1] for figure in (1, 2, 3)] == verdicts


def test_ten_thousand_steps_cost_far_less_than_ten_thousand_calls(benchmark: Any) -> None:
    """A profile prices whole arrays: about 0.1 us a step, where one call for one step takes some 50 us."""
    model, many = calibrated("a100-sxm4-80gb"), steps_to_price(10_000)
    one = many.part(0, 1)
    alone = min(timeit.repeat(lambda: model.step_ns(one), number=50, repeat=5)) / 50
    together = min(timeit.repeat(lambda: model.step_ns(many), number=1, repeat=20))
    benchmark.pedantic(model.step_ns, (many,), rounds=1)
    assert together < 10_000 * alone / 20
