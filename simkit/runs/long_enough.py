"""A run that goes on until it is long enough: the rules of `run_length`, applied to the run itself.

Owns what `run` does with a number of requests that its user gave: it is the least. A log is served as it is, and so is
a finite load; how long those last is their own affair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simkit.engine.build import Setup
from simkit.engine.run import Progress, RunFacts, simulate
from simkit.metrics import record as rec
from simkit.metrics.summary import RunMetrics
from simkit.runs import run_length
from simkit.runs.manifest import RunLength
from simkit.runs.replication import ReplicationResult, metrics_of, replication_result
from simkit.scenario import GammaArrivals, PoissonArrivals, Workload, apply_sets
from simkit.units import ns_to_s

PRECISION = 0.02
"""Half width of the 95 % interval that the rate of output tokens, and so their cost, is to have."""

PRECISE_ROOM = 1.05
"""A run that is made longer for its precision gets so much more than is missing. The spread of lengths is known better
then and may be greater, and a run should not be simulated again for one per cent."""

NORMAL_95 = 1.96

FEWEST = 100.0
"""Requests of a run in which fewer than two were answered, where fewer were sent."""

MAX_PRECISE_REQUESTS = 20_000
"""Requests of which more are not sent for the sake of precision alone."""

MAX_REQUESTS = 200_000
"""Requests up to which a run is made longer for the system to fill."""

MAX_GROWTHS, MAX_RISING_GROWTHS = 4, 2
"""How often a run is made longer, and how often because something still rises; after that the manifest says so."""

FILLS = {
    "in_system": "requests in the system",
    "running": "running sequences",
    "kv_tokens": "KV memory in use",
}


@dataclass(frozen=True, slots=True)
class LongEnough:
    """A set-up whose runs are long enough, its first replication, and what the manifest says of the length."""

    setup: Setup
    first: ReplicationResult
    length: RunLength | None


def long_enough(setup: Setup, progress: Progress | None = None, *, single_step: bool = False) -> LongEnough:
    """Simulate the first replication, again with more arrivals while that is too few.

    Arrivals must last `run_length.FILL_TIMES` times the p99 of E2E, what fills the system must have levelled off, and
    the rate of output tokens must be known to PRECISION. A queue that grows ends it: more of that tells nothing.
    Raises what `simulate` raises.
    """
    if setup.scenario.replications > 1 and run_length.is_same_every_time(setup.scenario):
        return _once(setup, progress, single_step)
    asked, factor, why = setup, 1.0, ""
    for growth in range(MAX_GROWTHS + 1):
        part, metrics, facts = _served(setup, progress, single_step)
        if not _may_grow(setup):
            return LongEnough(setup, part, None)
        rising = run_length.rising([_levels(metrics, facts)])
        if part.summary.saturated:
            break
        missing, reason = _missing(setup, metrics, rising if growth < MAX_RISING_GROWTHS else None)
        most = max(1.0, MAX_REQUESTS / max(1, len(metrics.requests["id"])))
        missing = min(missing, most)
        if missing <= 1 or growth == MAX_GROWTHS:
            break
        factor, why = factor * missing, reason
        setup = replace(asked, scenario=run_length.longer(asked.scenario, factor))
    return LongEnough(setup, part, _length(asked, setup, why, rising if not part.summary.saturated else None))


def _once(setup: Setup, progress: Progress | None, single_step: bool) -> LongEnough:
    """One replication where the others would be the same run: numbers that cannot differ have no interval."""
    asked = setup.scenario.replications
    one = replace(setup, scenario=apply_sets(setup.scenario, {"replications": 1}, label="run length"))
    ready = long_enough(one, progress, single_step=single_step)
    text = f"1 replication instead of {asked}: each would be the same run, so there is no interval"
    if ready.length is None:
        workload = setup.scenario.workload
        return replace(ready, length=RunLength(workload.num_requests, workload.duration_s, None, text))
    return replace(ready, length=replace(ready.length, text=f"{text}; {ready.length.text}"))


def _may_grow(setup: Setup) -> bool:
    return run_length.can_grow(setup.scenario) and setup.scenario.workload.trace is None and not setup.scenario.failures


def _served(
    setup: Setup, progress: Progress | None, single_step: bool
) -> tuple[ReplicationResult, RunMetrics, RunFacts]:
    facts = simulate(setup, 0, progress, single_step=single_step)
    metrics = metrics_of(setup, facts)
    return replication_result(setup, 0, facts, metrics), metrics, facts


def _levels(metrics: RunMetrics, facts: RunFacts) -> dict[str, tuple[float, ...]]:
    measured = metrics.requests["measured"] != 0
    arrival = metrics.requests["arrival_ns"]
    if not measured.any():
        return dict.fromkeys(run_length.SERIES, (0.0,) * run_length.BATCHES)
    return run_length.levels(facts.record.spans.to_dict(), int(arrival[measured].min()), int(arrival.max()))


def _missing(setup: Setup, metrics: RunMetrics, rising: str | None) -> tuple[float, str]:
    """The factor by which arrivals are too few (1 where they suffice), and the reason that asks for most."""
    table = metrics.requests
    finished = table["status"] == rec.FINISHED
    if not finished.any():
        return 1.0, ""
    span_s = ns_to_s(int(table["arrival_ns"].max() - table["arrival_ns"].min()))
    stay_s = (metrics.summary.e2e_ms.p99 or 0.0) / 1000
    fills = run_length.missing_factor(span_s, stay_s)
    reasons = [
        (fills, f"arrivals last {run_length.FILL_TIMES} times the p99 of E2E"),
        (run_length.LONGER if rising else 1.0, f"{FILLS.get(rising or '', '')} have levelled off"),
        (_precision_factor(setup, metrics), f"the rate of tokens is known to {100 * PRECISION:g} %"),
    ]
    return max(reasons, key=lambda pair: pair[0])


def _precision_factor(setup: Setup, metrics: RunMetrics) -> float:
    """By how much too few requests are measured for the rate of output tokens to be known to PRECISION.

    Tokens that arrive in a time are a compound renewal process: the squared relative error of their rate is
    (cv^2 of gaps + cv^2 of lengths) / n (Cox, Renewal Theory, 1962, section 8.3).
    """
    table = metrics.requests
    outputs = table["output_tokens"][table["status"] == rec.FINISHED].astype(np.float64)
    measured = int((table["measured"] != 0).sum())
    if len(outputs) < 2 or not measured:
        # A single answer says nothing of how they spread.
        return max(1.0, FEWEST / max(1, len(table["id"])))
    spread = float(outputs.var()) / float(outputs.mean()) ** 2
    squares = _gap_cv(setup) ** 2 + spread
    needed = (NORMAL_95 / PRECISION) ** 2 * squares / setup.scenario.replications
    sent = len(table["id"])
    if needed <= measured:
        return 1.0
    return max(1.0, min(PRECISE_ROOM * needed * sent / measured, MAX_PRECISE_REQUESTS) / sent)


def _gap_cv(setup: Setup) -> float:
    arrivals = setup.scenario.workload.arrivals
    if isinstance(arrivals, GammaArrivals):
        return arrivals.cv
    # Of a closed loop the clients set the pace, and what they wait for is in the lengths.
    return 1.0 if isinstance(arrivals, PoissonArrivals) else 0.0


def _length(asked: Setup, setup: Setup, why: str, rising: str | None) -> RunLength | None:
    """What the manifest says of the length; None for a run that is as it was asked for and has levelled off."""
    if setup is asked and rising is None:
        return None
    before, after = asked.scenario.workload, setup.scenario.workload
    text = ""
    if setup is not asked:
        text = f"{_amounts(after, before)}, so that {why}"
        if not isinstance(asked.scenario.warmup, str):
            text += "; the warm-up is longer in proportion"
    if rising is not None:
        text += f"{'; ' if text else ''}{FILLS[rising]} still rise at the end: no steady state was seen"
    return RunLength(before.num_requests, before.duration_s, rising, text)


def _amounts(after: Workload, before: Workload) -> str:
    if after.num_requests is not None:
        return f"{after.num_requests:,} requests instead of {before.num_requests:,}"
    return f"{after.duration_s:,.6g} s instead of {before.duration_s:,.6g} s"
