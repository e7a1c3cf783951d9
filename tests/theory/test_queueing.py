"""The engine against queueing theory: the formula inside a 99.9 % interval and the wrong formula outside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from evidence import exact
from queues import QUEUES, TWO_SERVERS, Queue, md1, mm2, saturated, simulate
from scipy import stats
from served import as_asked

from simkit import scenario


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.__name__)
def test_the_delay_is_that_of_its_formula_and_of_no_other(queue: Callable[[], Queue]) -> None:
    found = queue()
    assert found.measured.holds(found.theory_ms), (found.measured.interval_ms, found.theory_ms)
    for name, other_ms in found.others_ms.items():
        assert not found.measured.holds(other_ms), name


def test_the_evidence_page_prints_these_queues() -> None:
    lines = exact.THEORY.made(Path())
    assert [line.evidence for line in lines[: len(QUEUES)]] == [queue().name for queue in QUEUES]
    assert len(lines) == len(QUEUES) + 2
    assert {line.verdict for line in lines} == {"hit"}


def test_ten_steps_of_a_millisecond_are_a_service_of_ten() -> None:
    assert set(md1().measured.service_ms) == {10.0}


def test_regular_arrivals_do_not_wait() -> None:
    """D/D/1 below saturation: the delay comes from randomness, not from load."""
    arrivals = {"process": "constant", "rate_per_s": 70.0}
    workload = {"arrivals": arrivals, "output_tokens": {"dist": "fixed", "value": 10}, "num_requests": 300}
    assert (simulate({"max_num_seqs": 1}, workload).delays_ms == 0).all()


def test_least_outstanding_lies_between_one_queue_and_round_robin() -> None:
    """One shared queue (M/M/2) leaves no server idle while somebody waits; joining the shorter of two can."""
    shortest, turns = (
        simulate({"max_num_seqs": 1}, TWO_SERVERS, replicas=2, router=router)
        for router in ("least_outstanding", "round_robin")
    )
    # The same customers in all three, so differences are paired.
    for slower, faster in ((turns, shortest), (shortest, mm2().measured)):
        difference = slower.delays_ms - faster.delays_ms
        low, _ = stats.t.interval(0.999, len(difference) - 1, difference.mean(), stats.sem(difference))
        assert low > 0


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_saturation_throughput_is_batch_over_step_time(batching: str) -> None:
    found = saturated(batching)
    assert found.summary["makespan_s"] == pytest.approx(160 / 16 * 50 * 0.001)
    assert found.measured_per_s == pytest.approx(found.theory_per_s)
    assert found.summary["slot_utilization"] == 1.0


def test_overload_is_served_at_capacity_and_labelled() -> None:
    """Twice as many tokens offered as 16 slots can make: 16 a step come out, and the queue grows."""
    data = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"max_num_seqs": 16, "async_scheduling": False, "max_model_len": 4096},
        "workload": {
            "num_requests": 2000,
            "arrivals": {"process": "poisson", "rate_per_s": 2 * 16 / 0.040},
            "prompt_tokens": {"dist": "fixed", "value": 4},
            "output_tokens": {"dist": "uniform", "low": 20, "high": 60},
        },
        "latency": {"profile": "unit"},
    }
    summary = as_asked(scenario.from_dict(data)).summary
    assert summary["throughput"]["output_tokens_per_s"] == pytest.approx(16 / 0.001, rel=0.02)
    assert summary["saturated"]
    calm = scenario.from_dict(data)
    calm = scenario.apply_sets(calm, {"workload.arrivals.rate_per_s": 0.6 * 16 / 0.040})
    assert not as_asked(calm).summary["saturated"]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("batching", ["static", "dynamic", "continuous"])
def test_littles_law_between_steps_and_requests(batching: str, asynchronous: bool) -> None:
    """Slots held, integrated over the steps, are the time that requests spent in them: an identity of integers."""
    data = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {
            "batching": batching,
            "max_num_seqs": 8,
            "async_scheduling": asynchronous,
            "max_model_len": 1024,
            "stream": False,
        },
        "workload": {
            "finite": True,
            "num_requests": 300,
            "arrivals": {"process": "gamma", "rate_per_s": 5, "cv": 2},
            "prompt_tokens": {"dist": "uniform", "low": 10, "high": 300},
            "output_tokens": {"dist": "lognormal", "mean": 30, "cv": 1, "max": 300},
        },
        "latency": {"profile": "roofline"},
    }
    result = as_asked(scenario.from_dict(data))
    steps, requests, slots = result.steps, result.requests, result.slots
    held = int((steps["running"] * (steps["t_end_ns"] - steps["t_start_ns"])).sum())
    stays = int((slots["released_ns"] - slots["admitted_ns"]).sum())
    resident = int((requests["last_token_ns"] - requests["first_scheduled_ns"]).sum())
    assert stays == resident  # nobody was preempted
    if asynchronous and batching == "continuous":
        assert held > stays  # a slot comes back one step late
    else:
        assert held == stays
    makespan = int(requests["last_token_ns"].max() - requests["arrival_ns"].min())
    assert result.summary["concurrency_mean"] == pytest.approx(resident / makespan, rel=1e-12)
    if not asynchronous:
        busy = int((steps["t_end_ns"] - steps["t_start_ns"]).sum())
        assert result.summary["slot_occupancy"] == pytest.approx(held / (8 * busy), rel=1e-12)
