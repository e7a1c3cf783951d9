"""The load that a scenario offers: its request rate, the same customers at another rate, and the length of a run.

Owns what a rate means for every arrival process. Knows no engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import Any

from simkit.errors import InputError
from simkit.runs.run_length import is_same_every_time
from simkit.scenario import AllAtOnce, ClosedLoop, PiecewiseArrivals, Scenario, apply_sets
from simkit.types import Request
from simkit.units import NS_PER_S
from simkit.workload.build import Workload, build_workload
from simkit.workload.servegen import ServeGenClients

WARMUP_SHARE = 5
"""Where a scenario leaves it to simkit, one in so many requests is left out at the start: the engine starts empty."""

MEAN_OF = 2000
"""Requests whose lengths are averaged."""

MIN_FOR_P99 = 1000
"""Requests below which a p99 is marked: fewer than ten of them lie beyond it."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Means over the workload's first requests, in tokens; `p95_tokens` is of prompt and answer together."""

    prompt_tokens: float
    output_tokens: float
    p95_tokens: float

    @property
    def total_tokens(self) -> float:
        """Prompt and answer."""
        return self.prompt_tokens + self.output_tokens

    @property
    def held_tokens(self) -> float:
        """Tokens that a sequence holds on average while it runs: the prompt and half of the answer."""
        return self.prompt_tokens + self.output_tokens / 2


def base_rate(scenario: Scenario) -> float:
    """Requests per second that the scenario offers. Raises InputError where arrivals have no rate of their own."""
    workload = scenario.workload
    if workload.trace is not None:
        played = _workload(scenario)
        if played.successors is not None:
            what = "expected open: requests that wait for an answer come as fast as they are served, at no rate"
            raise scenario.refuse("workload.trace.sessions", what)
        times = [request.arrival_ns for request in played.requests if request.id >= played.num_warm]
        if len(times) < 2 or times[-1] == times[0]:
            raise scenario.refuse("workload.trace", "expected requests at different times: no rate to change")
        return (len(times) - 1) * NS_PER_S / (times[-1] - times[0])
    if workload.servegen is not None:
        return _servegen(scenario).rate_per_s
    arrivals = workload.arrivals
    if arrivals is None or isinstance(arrivals, ClosedLoop | AllAtOnce):
        kind = arrivals.process if arrivals else "none"
        what = f"expected arrivals with a rate (poisson, gamma, constant, piecewise or a trace), got {kind}"
        raise scenario.refuse("workload.arrivals", what)
    if isinstance(arrivals, PiecewiseArrivals):
        return _piecewise_rate(arrivals, workload.num_requests, workload.duration_s)
    return arrivals.rate_per_s


def _piecewise_rate(arrivals: PiecewiseArrivals, num_requests: int | None, duration_s: float | None) -> float:
    """Mean rate from the start until the last request that is sent, or the last segment ends."""
    sent, start_s = 0.0, 0.0
    limit_s = math.inf if duration_s is None else duration_s
    for segment in arrivals.segments:
        end_s = min(segment.until_s, limit_s)
        more = max(0.0, end_s - start_s) * segment.rate_per_s
        if num_requests is not None and sent + more >= num_requests:
            return num_requests / (start_s + (num_requests - sent) / segment.rate_per_s)
        sent, start_s = sent + more, max(start_s, end_s)
    if not sent:
        raise InputError("expected requests before the end of the run", key="workload.arrivals.segments")
    return sent / start_s


def at_rate(scenario: Scenario, rate_per_s: float, base_per_s: float) -> Scenario:
    """The same customers, `rate_per_s` of them a second where the scenario has `base_per_s`."""
    workload, factor = scenario.workload, rate_per_s / base_per_s
    if workload.trace is not None:
        key = "speed" if workload.trace.rate_per_s is None else "rate_per_s"
        return apply_sets(scenario, {f"workload.trace.{key}": getattr(workload.trace, key) * factor}, label="rate")
    if workload.servegen is not None:
        scale = workload.servegen.rate_scale * factor
        return apply_sets(scenario, {"workload.servegen.rate_scale": scale}, label="rate")
    if isinstance(workload.arrivals, PiecewiseArrivals):
        # The whole profile is played faster: more customers in the same segments would be others.
        segments = [
            {"until_s": segment.until_s / factor, "rate_per_s": segment.rate_per_s * factor}
            for segment in workload.arrivals.segments
        ]
        changes: dict[str, Any] = {"workload.arrivals.segments": segments}
        if workload.drift:
            changes["workload.drift"] = [
                period.model_dump(mode="json") | {"until_s": period.until_s / factor} for period in workload.drift
            ]
        if workload.arrivals.tick_s is not None:
            changes["workload.arrivals.tick_s"] = workload.arrivals.tick_s / factor
        if workload.duration_s is not None:
            changes["workload.duration_s"] = workload.duration_s / factor
        return apply_sets(scenario, changes, label="rate")
    return apply_sets(scenario, {"workload.arrivals.rate_per_s": rate_per_s}, label="rate")


def for_trials(scenario: Scenario, base_replicas: int) -> Scenario:
    """The scenario as it is simulated many times: one replication, a warm-up, and as many requests a replica as the
    base scenario has, so that a fleet is judged over as long a time as a single replica."""
    changes: dict[str, Any] = {"replications": 1, "variants": {}}
    workload = scenario.workload
    count = workload.num_requests
    # Segments and windows have an end: the same customers are then shared by more replicas.
    can_grow = workload.servegen is None and not isinstance(workload.arrivals, PiecewiseArrivals)
    if count is not None and can_grow and scenario.replicas != base_replicas:
        count = max(1, round(count * scenario.replicas / base_replicas))
        changes["workload.num_requests"] = count
    # A finite load is measured whole, and the warm-up window of a trace is one.
    if scenario.warmup == "auto" and not workload.is_finite and not (workload.trace and workload.trace.warmup_s):
        if count is None and workload.trace is not None:
            count = sum(1 for _ in first_requests(scenario, None))
            if not workload.is_finite and is_same_every_time(scenario):
                # All of the log counts, after a first time that fills the system.
                changes["workload.trace.repeat"] = 2 * workload.trace.repeat
                count *= WARMUP_SHARE
        if count is not None:
            changes["warmup"] = {"requests": count // WARMUP_SHARE}
        else:
            duration_s = workload.duration_s
            if duration_s is None:
                assert workload.servegen is not None, "a synthetic workload has a number of requests or a duration"
                duration_s = _servegen(scenario).span_s
            changes["warmup"] = {"seconds": duration_s / WARMUP_SHARE}
    return apply_sets(scenario, changes, label="plan")


def lengths(scenario: Scenario, max_model_len: int) -> Lengths:
    """Mean lengths of the first requests, of those that the engine would take."""
    taken = [r for r in first_requests(scenario, MEAN_OF, max_model_len) if r.prompt_tokens < max_model_len]
    if not taken:
        raise scenario.refuse("workload", f"no prompt is shorter than max_model_len ({max_model_len})")
    totals = sorted(min(r.prompt_tokens + r.output_tokens, max_model_len) for r in taken)
    prompt = sum(r.prompt_tokens for r in taken) / len(taken)
    return Lengths(
        prompt, sum(totals) / len(taken) - prompt, float(totals[min(len(totals) - 1, len(totals) * 95 // 100)])
    )


def _servegen(scenario: Scenario) -> ServeGenClients:
    assert scenario.workload.servegen is not None
    try:
        return ServeGenClients(scenario.workload.servegen, scenario.base_dir)
    except InputError as error:
        raise scenario.blame(error) from None


def first_requests(scenario: Scenario, count: int | None, max_model_len: int = 2**31 - 1) -> list[Request]:
    """The first requests of replication 0; all of them for a `count` of None."""
    return list(islice(_workload(scenario, max_model_len).everyone(), count))


def played(scenario: Scenario, max_model_len: int) -> tuple[list[Request], int]:
    """All requests of replication 0, and how many of the first only warm the caches.

    Turns of sessions come when the log says they did.
    """
    workload = _workload(scenario, max_model_len)
    return list(workload.everyone()), workload.num_warm


def _workload(scenario: Scenario, max_model_len: int = 2**31 - 1) -> Workload:
    """The workload of replication 0."""
    try:
        return build_workload(
            scenario.workload,
            seed=scenario.seed,
            replication=0,
            max_model_len=max_model_len,
            base_dir=scenario.base_dir,
        )
    except InputError as error:
        raise scenario.blame(error) from None
