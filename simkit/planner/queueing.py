"""Requests that wait: what for, told apart by what is taken; and how many may, before a run is hopeless and given up.

Owns the thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from simkit.engine.build import Setup
from simkit.engine.run import RunFacts
from simkit.metrics.definitions import RunMetrics
from simkit.metrics.latencies import values_ns
from simkit.runs import run_length
from simkit.scenario import WarmupRequests, WarmupSeconds
from simkit.types import Ints

WAITS = ("waiting", "slots", "kv", "budget", "turn", "full", "peak_running", "peak_kv", "tail_queued")
"""What `waits` tells."""

FULL_BUDGET = 0.95
"""Share of the token budget from which on a step counts as full."""


def waits(facts: RunFacts, metrics: RunMetrics, setup: Setup) -> dict[str, float]:
    """Shares of the time from the first measured arrival on, all replicas together: what a waiting request waits for.

    `waiting`: somebody waits; of this `slots`: all slots are taken; else `kv`: free memory is less than a mean prompt;
    else `budget`: the step is full of tokens; else `turn`: for the next step. `full`: a step is full of tokens,
    whether or not somebody waits. `peak_running` and `peak_kv` are no shares of time but the most sequences of a
    replica, and the largest share of its memory. `tail_queued`: of the TTFT of the slowest 1 % of requests, the share
    that passed before they were first scheduled.
    """
    spans = facts.record.spans.to_dict()
    engine = setup.scenario.engine
    requests = metrics.requests
    measured = requests["measured"] != 0
    since = int(requests["arrival_ns"][measured].min()) if measured.any() else 0
    if not len(spans["t_end_ns"]):
        return dict.fromkeys(WAITS, 0.0)
    time = np.maximum(spans["t_end_ns"] - np.maximum(spans["t_start_ns"], since), 0)
    whole = max(1, (int(spans["t_end_ns"].max()) - since) * setup.scenario.replicas)
    prompt = float(requests["prompt_tokens"].mean())
    tokens = spans["num_decode"] + spans["prefill_tokens"] / np.maximum(spans["num_steps"], 1)
    waiting = spans["waiting"] > 0
    slots = waiting & (spans["running"] >= setup.max_num_active_seqs)
    memory = waiting & ~slots & (spans["kv_free_tokens"] < prompt + engine.block_size)
    full = tokens >= FULL_BUDGET * (engine.max_num_batched_tokens or np.inf)
    budget = waiting & ~slots & ~memory & full
    turn = waiting & ~slots & ~memory & ~budget
    kinds = {"waiting": waiting, "slots": slots, "kv": memory, "budget": budget, "turn": turn, "full": full}
    shares = {name: int(time[kind].sum()) / whole for name, kind in kinds.items()}
    peak_kv = int(spans["kv_allocated_tokens"].max()) / max(1, setup.capacity_tokens)
    peaks = {"peak_running": float(spans["running"].max()), "peak_kv": peak_kv}
    return {**shares, **peaks, "tail_queued": _tail_queued(requests)}


def _tail_queued(requests: Mapping[str, Ints]) -> float:
    counted = (requests["measured"] != 0) & (requests["first_token_ns"] >= 0)
    if not counted.any():
        return 0.0
    ttft, queue = (values_ns(requests, latency)[counted] for latency in ("ttft_ms", "queue_ms"))
    slow = ttft >= np.percentile(ttft, 99)
    return int(queue[slow].sum()) / max(1, int(ttft[slow].sum()))


# --- hopeless runs ----------------------------------------------------------------------------------------------------
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
