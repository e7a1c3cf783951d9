"""Queues that the engine becomes in the right setting, each with its formula and with formulas that do not fit.

With one slot, synchronous scheduling and no caching the engine *is* a single-server queue whose service time is the sum
of a request's step times. With c slots and steps much shorter than a request it is a queue with c servers.

The tests judge these, and the evidence page prints them; knows nothing of either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import factorial
from typing import Any

import numpy as np
from scipy import optimize, stats

from simkit import api, scenario
from simkit.engine.build import set_up
from simkit.types import Floats

REPLICATIONS = 8
REQUESTS = 1200
WARMUP = 200
CONFIDENCE = 0.999


@dataclass(frozen=True)
class Measured:
    """Mean delay of each replication, and all service times (first scheduled to last token), in ms."""

    delays_ms: Floats
    service_ms: Floats

    @property
    def interval_ms(self) -> tuple[float, float]:
        """99.9 % Student-t interval of the mean delay."""
        mean, error = self.delays_ms.mean(), stats.sem(self.delays_ms)
        low, high = stats.t.interval(CONFIDENCE, len(self.delays_ms) - 1, mean, error)
        return float(low), float(high)

    def holds(self, theory_ms: float) -> bool:
        """Whether a mean delay lies in the interval."""
        low, high = self.interval_ms
        return low <= theory_ms <= high


@dataclass(frozen=True)
class Queue:
    """A queue as it was simulated, the mean delay by its formula, and by formulas of other queues."""

    name: str
    formula: str
    theory_ms: float
    measured: Measured
    others_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Saturated:
    """Output tokens per second of slots that are always full: batch / step time, and as simulated."""

    batching: str
    theory_per_s: float
    summary: Mapping[str, Any]

    @property
    def measured_per_s(self) -> float:
        """Of the whole run."""
        return float(self.summary["throughput"]["output_tokens_per_s"])


def simulate(engine: dict[str, Any], workload: dict[str, Any], **top: Any) -> Measured:
    """Replications of a queue; the first customers of each are left out."""
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"async_scheduling": False, "enable_prefix_caching": False, "max_model_len": 4096} | engine,
        "workload": {"num_requests": REQUESTS, "prompt_tokens": {"dist": "fixed", "value": 1}} | workload,
        "latency": {"profile": "unit"},
        "replications": REPLICATIONS,
        "seed": 20,
    }
    frame = api.run_set_up(set_up(scenario.from_dict(data | top))).requests
    frame = frame[frame["id"] >= WARMUP]
    delay = (frame["first_scheduled_ns"] - frame["arrival_ns"]) / 1e6
    service = (frame["last_token_ns"] - frame["first_scheduled_ns"]) / 1e6
    return Measured(delay.groupby(frame["replication"]).mean().to_numpy(), service.to_numpy())


def poisson(rate_per_ms: float) -> dict[str, Any]:
    """Arrivals of a scenario."""
    return {"process": "poisson", "rate_per_s": 1000 * rate_per_ms}


# --- formulas ---------------------------------------------------------------------------------------------------------
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


def gm1(mean_service: float, transform: Callable[[float], float]) -> float:
    """Mean delay of G/M/1: mean x s / (1 - s), where s = A*((1 - s) / mean), A* the transform of the gaps."""
    sigma = optimize.brentq(lambda s: s - transform((1 - s) / mean_service), 1e-9, 1 - 1e-9)
    return float(mean_service * sigma / (1 - sigma))


PK = "Pollaczek-Khinchine with the moments of the simulated service times"
ERLANG = "Erlang C with the mean of the simulated service times"
GM1 = "G/M/1, gaps of two exponential parts, with the mean of the simulated service times"

# --- queues -----------------------------------------------------------------------------------------------------------
EXPONENTIAL = {"dist": "exponential", "mean": 100}


@cache
def md1() -> Queue:
    """Ten steps of 1 ms at load 0.7. M/M/1 has twice the delay, D/M/1 about 0.85 of M/M/1."""
    rate, service = 0.07, 10.0
    found = simulate({"max_num_seqs": 1}, {"arrivals": poisson(rate), "output_tokens": {"dist": "fixed", "value": 10}})
    theory = rate * service**2 / (2 * (1 - rate * service))
    others = {"M/M/1": 2 * theory, "D/M/1": gm1(service, lambda s: float(np.exp(-s / rate)))}
    return Queue("M/D/1", "rate S^2 / (2 (1 - rate S))", theory, found, others)


@cache
def mg1() -> Queue:
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
    assert np.array_equal(first, probe.service_ms), "the queue does not change the work"
    mean = found.service_ms.mean()
    others = {"M/D/1": pollaczek_khinchine(rate, np.full(1, mean)), "M/M/1": rate * mean**2 / (1 - rate * mean)}
    return Queue("M/G/1", PK, pollaczek_khinchine(rate, found.service_ms), found, others)


@cache
def mm4() -> Queue:
    """Four slots, exponential answers much longer than a step: M/M/4, not four M/M/1 and not one fast server."""
    rate = 0.028
    found = simulate({"max_num_seqs": 4}, {"arrivals": poisson(rate), "output_tokens": EXPONENTIAL})
    mean = found.service_ms.mean()
    others = {"four M/M/1": erlang_c(rate / 4, mean, 1), "one fast server": erlang_c(rate, mean / 4, 1)}
    return Queue("M/M/4, four slots", ERLANG, erlang_c(rate, mean, 4), found, others)


@cache
def round_robin() -> Queue:
    """Every second arrival of a Poisson process: E2/M/1 for each of two replicas, not M/M/1 and not M/M/2."""
    rate = 0.014
    found = simulate(
        {"max_num_seqs": 1}, {"arrivals": poisson(rate), "output_tokens": EXPONENTIAL}, replicas=2, router="round_robin"
    )
    mean = found.service_ms.mean()
    theory = gm1(mean, lambda s: (rate / (rate + s)) ** 2)
    others = {"M/M/1": erlang_c(rate / 2, mean, 1), "M/M/2": erlang_c(rate, mean, 2)}
    return Queue("E2/M/1, two replicas in turn", GM1, theory, found, others)


TWO_SERVERS = {"arrivals": poisson(0.014), "output_tokens": EXPONENTIAL, "num_requests": 1000}


@cache
def mm2() -> Queue:
    """One queue before two slots: M/M/2."""
    found = simulate({"max_num_seqs": 2}, TWO_SERVERS)
    return Queue("M/M/2, two slots", ERLANG, erlang_c(0.014, found.service_ms.mean(), 2), found)


QUEUES = (md1, mg1, mm4, mm2, round_robin)


@cache
def saturated(batching: str) -> Saturated:
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
    return Saturated(batching, 16 / 0.001, api.run_set_up(set_up(scenario.from_dict(data))).summary)
