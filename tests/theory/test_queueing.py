"""The engine against queueing theory: the formula inside a 99.9 % interval and the wrong formula outside it.

With one slot, synchronous scheduling and no caching the engine *is* a single-server queue whose service time is the sum
of a request's step times. With c slots and steps much shorter than a request it is a queue with c servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from simkit import api, scenario
from simkit.types import Floats

REPLICATIONS = 8
REQUESTS = 1200
WARMUP = 200


@dataclass(frozen=True)
class Measured:
    """Mean delay of each replication, and all service times (first scheduled to last token), in ms."""

    delays_ms: Floats
    service_ms: Floats

    @property
    def interval_ms(self) -> tuple[float, float]:
        """99.9 % Student-t interval of the mean delay."""
        low, high = stats.t.interval(0.999, len(self.delays_ms) - 1, self.delays_ms.mean(), stats.sem(self.delays_ms))
        return float(low), float(high)

    def holds(self, theory_ms: float) -> bool:
        low, high = self.interval_ms
        return low <= theory_ms <= high


def simulate(engine: dict[str, Any], workload: dict[str, Any], **top: Any) -> Measured:
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"async_scheduling": False, "enable_prefix_caching": False, "max_model_len": 4096} | engine,
        "workload": {"num_requests": REQUESTS, "prompt_tokens": {"dist": "fixed", "value": 1}} | workload,
        "latency": {"profile": "unit"},
        "replications": REPLICATIONS,
        "seed": 20,
    }
    frame = api.run(scenario.from_dict(data | top)).requests
    frame = frame[frame["id"] >= WARMUP]
    delay = (frame["first_scheduled_ns"] - frame["arrival_ns"]) / 1e6
    service = (frame["last_token_ns"] - frame["first_scheduled_ns"]) / 1e6
    return Measured(delay.groupby(frame["replication"]).mean().to_numpy(), service.to_numpy())


def poisson(rate_per_ms: float) -> dict[str, Any]:
    return {"process": "poisson", "rate_per_s": 1000 * rate_per_ms}


def pollaczek_khinchine(rate: float, service: Floats) -> float:
    """Mean delay of M/G/1: rate E[S^2] / (2 (1 - rate E[S]))."""
    return float(rate * (service**2).mean() / (2 * (1 - rate * service.mean())))


def erlang_c(rate: float, mean_service: float, servers: int) -> float:
    """Mean delay of M/M/c (Erlang, 1917)."""
    load = rate * mean_service
    rho = load / servers
    last = load**servers / factorial(servers) / (1 - rho)
    waits = last / (sum(load**k / factorial(k) for k in range(servers)) + last)
    return waits * mean_service / (servers * (1 - rho))


def test_deterministic_service_is_md1() -> None:
    """Ten steps of 1 ms at load 0.7. M/M/1 has twice the delay, D/M/1 about 0.85 of M/M/1."""
    rate, service = 0.07, 10.0
    found = simulate({"max_num_seqs": 1}, {"arrivals": poisson(rate), "output_tokens": {"dist": "fixed", "value": 10}})
    assert set(found.service_ms) == {service}
    theory = rate * service**2 / (2 * (1 - rate * service))
    assert found.holds(theory), (found.interval_ms, theory)
    assert not found.holds(2 * theory)
    sigma = optimize.brentq(lambda s: s - np.exp(-(1 - s) / (rate * service)), 1e-9, 1 - 1e-9)
    assert not found.holds(service * sigma / (1 - sigma))


def test_regular_arrivals_do_not_wait() -> None:
    """D/D/1 below saturation: the delay comes from randomness, not from load."""
    arrivals = {"process": "constant", "rate_per_s": 70.0}
    workload = {"arrivals": arrivals, "output_tokens": {"dist": "fixed", "value": 10}, "num_requests": 300}
    assert (simulate({"max_num_seqs": 1}, workload).delays_ms == 0).all()


def test_lognormal_service_is_mg1() -> None:
    """Pollaczek-Khinchine with the moments of the real step times (roofline): neither M/D/1 nor M/M/1."""
    outputs = {"dist": "lognormal", "mean": 20, "cv": 0.7}
    probe = simulate(
        {"max_num_seqs": 1},
        {"arrivals": {"process": "all_at_once"}, "output_tokens": outputs},
        latency={"profile": "roofline"},
        replications=1,
    )
    rate = 0.65 / probe.service_ms.mean()
    found = simulate(
        {"max_num_seqs": 1}, {"arrivals": poisson(rate), "output_tokens": outputs}, latency={"profile": "roofline"}
    )
    first = found.service_ms[: len(probe.service_ms)]
    assert np.array_equal(first, probe.service_ms)  # the queue does not change the work
    mean = found.service_ms.mean()
    theory = pollaczek_khinchine(rate, found.service_ms)
    assert found.holds(theory), (found.interval_ms, theory)
    assert not found.holds(pollaczek_khinchine(rate, np.full(1, mean)))  # M/D/1
    assert not found.holds(rate * mean**2 / (1 - rate * mean))  # M/M/1


EXPONENTIAL = {"dist": "exponential", "mean": 100}


def test_slots_are_servers() -> None:
    """Four slots, exponential answers much longer than a step: M/M/4, not four M/M/1 and not one fast server."""
    workload = {"arrivals": poisson(0.028), "output_tokens": EXPONENTIAL, "num_requests": 1200}
    found = simulate({"max_num_seqs": 4}, workload)
    mean = found.service_ms.mean()
    theory = erlang_c(0.028, mean, 4)
    assert found.holds(theory), (found.interval_ms, theory)
    assert not found.holds(erlang_c(0.028 / 4, mean, 1))
    assert not found.holds(erlang_c(0.028, mean / 4, 1))


def test_round_robin_gives_every_replica_erlang_arrivals() -> None:
    """Every second arrival of a Poisson process: E2/M/1 for each of two replicas, not M/M/1 and not M/M/2.

    Delay of G/M/1: mean x s / (1 - s), where s = A*((1 - s) / mean), A* the transform of the gaps.
    """
    rate = 0.014
    found = simulate(
        {"max_num_seqs": 1}, {"arrivals": poisson(rate), "output_tokens": EXPONENTIAL}, replicas=2, router="round_robin"
    )
    mean = found.service_ms.mean()
    sigma = optimize.brentq(lambda s: s - (rate / (rate + (1 - s) / mean)) ** 2, 1e-9, 0.99)
    theory = mean * sigma / (1 - sigma)
    assert found.holds(theory), (found.interval_ms, theory)
    assert not found.holds(erlang_c(rate / 2, mean, 1))
    assert not found.holds(erlang_c(rate, mean, 2))


def test_least_outstanding_lies_between_one_queue_and_round_robin() -> None:
    """One shared queue (M/M/2) leaves no server idle while somebody waits; joining the shorter of two can."""
    rate = 0.014
    workload = {"arrivals": poisson(rate), "output_tokens": EXPONENTIAL, "num_requests": 1000}
    shortest, turns = (
        simulate({"max_num_seqs": 1}, workload, replicas=2, router=router)
        for router in ("least_outstanding", "round_robin")
    )
    shared = simulate({"max_num_seqs": 2}, workload)
    # The same customers in all three, so differences are paired.
    for slower, faster in ((turns, shortest), (shortest, shared)):
        difference = slower.delays_ms - faster.delays_ms
        low, _ = stats.t.interval(0.999, len(difference) - 1, difference.mean(), stats.sem(difference))
        assert low > 0
    assert shared.holds(erlang_c(rate, shared.service_ms.mean(), 2))


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_saturation_throughput_is_batch_over_step_time(batching: str) -> None:
    """16 slots that are always full give 16 tokens a step; equal lengths, so a static batch loses nothing either."""
    data = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"batching": batching, "max_num_seqs": 16, "async_scheduling": False, "max_model_len": 1024},
        "workload": {
            "num_requests": 160,
            "arrivals": {"process": "all_at_once"},
            "prompt_tokens": {"dist": "fixed", "value": 4},
            "output_tokens": {"dist": "fixed", "value": 50},
        },
        "latency": {"profile": "unit"},
    }
    result = api.run(scenario.from_dict(data))
    assert result.summary["makespan_s"] == pytest.approx(160 / 16 * 50 * 0.001)
    assert result.summary["throughput"]["output_tokens_per_s"] == pytest.approx(16 / 0.001)
    assert result.summary["slot_utilization"] == 1.0


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
    summary = api.run(scenario.from_dict(data)).summary
    assert summary["throughput"]["output_tokens_per_s"] == pytest.approx(16 / 0.001, rel=0.02)
    assert summary["saturated"]
    calm = scenario.from_dict(data)
    calm = scenario.apply_sets(calm, {"workload.arrivals.rate_per_s": 0.6 * 16 / 0.040})
    assert not api.run(calm).summary["saturated"]


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
            "num_requests": 300,
            "arrivals": {"process": "gamma", "rate_per_s": 5, "cv": 2},
            "prompt_tokens": {"dist": "uniform", "low": 10, "high": 300},
            "output_tokens": {"dist": "lognormal", "mean": 30, "cv": 1, "max": 300},
        },
        "latency": {"profile": "roofline"},
    }
    result = api.run(scenario.from_dict(data))
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
