"""When a run at some rate is hopeless: how many requests may be in the system before it is given up."""

from __future__ import annotations

import math

from simkit.engine.build import Setup
from simkit.runs import run_length
from simkit.scenario import WarmupRequests, WarmupSeconds

WAIT_FACTOR = 4.0
"""A queue that takes so many times the largest time limit to serve holds more requests than may be late."""

QUEUE_SHARE, FREE_QUEUE_SHARE, LEAST_QUEUE = 0.02, 0.1, 64
"""Of the run's requests, those that may wait at once: with a limit on TTFT or E2E, without one, and at least."""


def most_in_system(setup: Setup, rate_per_s: float) -> int | None:
    """Requests in the system from which on the run is overload: all slots taken (twice over where a batch forms while
    another is served), and a queue behind them."""
    scenario = setup.scenario
    if scenario.slo is None or not run_length.can_grow(scenario) or scenario.workload.trace is not None:
        return None
    slo = scenario.slo.model_dump(exclude_none=True)
    limits_ms = [value for metric in ("ttft_ms", "e2e_ms") for value in slo.get(metric, {}).values()]
    share = QUEUE_SHARE if limits_ms else FREE_QUEUE_SHARE
    queue = max(share * _num_requests(setup, rate_per_s), WAIT_FACTOR * rate_per_s * max(limits_ms, default=0) / 1000)
    slots = setup.max_num_active_seqs * scenario.replicas * (1 if scenario.engine.batching == "continuous" else 2)
    return slots + max(LEAST_QUEUE, math.ceil(queue))


def _num_requests(setup: Setup, rate_per_s: float) -> float:
    workload = setup.scenario.workload
    return workload.num_requests or rate_per_s * (workload.duration_s or 0.0)


def most_measured(setup: Setup, rate_per_s: float) -> int:
    """Requests that the whole run would have measured."""
    warmup = setup.scenario.warmup
    left_out = 0.0
    if isinstance(warmup, WarmupRequests):
        left_out = warmup.requests
    elif isinstance(warmup, WarmupSeconds):
        left_out = rate_per_s * warmup.seconds
    return max(1, round(_num_requests(setup, rate_per_s) - left_out))
