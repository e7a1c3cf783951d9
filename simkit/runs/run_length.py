"""How long a run must last: until the system has had time to fill, and has levelled off.

Owns the rules, and how a scenario becomes longer. A run starts empty. Its sequences, its KV memory and its queue fill
over the time that a long request stays, so arrivals must last several times that, and what they fill must have stopped
rising: both are looked at in the run itself, since a full memory makes requests stay longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from simkit.batching.policies import POLICIES
from simkit.metrics.intervals import mean_and_deviation, one_sided_t_95
from simkit.scenario import (
    AllAtOnce,
    ConstantArrivals,
    FixedLength,
    ListLength,
    PiecewiseArrivals,
    Scenario,
    WarmupRequests,
    WarmupSeconds,
    apply_sets,
)
from simkit.types import Ints

FILL_TIMES = 5
"""Arrivals last at least so many times the p99 of E2E: the first fifth of them, which is left out, is one such time."""

ROOM = 1.3
"""A run that is made longer gets so much more than is missing, for a fuller system makes requests stay longer."""

LONGER = 2.0
"""How much longer a run is made that has not levelled off."""

BATCHES = 8
"""Parts of the measured time whose means are compared."""

MATERIAL_RISE = 0.05
"""A series whose later half lies less than 5 % above the earlier one has levelled off, however sure the difference."""

SERIES = ("in_system", "running", "kv_tokens")
"""What fills: requests in the system (so the queue is seen), running sequences, allocated KV tokens."""

Levels = Mapping[str, Sequence[float]]
"""Of each of SERIES, its mean in each of BATCHES parts of the measured time, in order."""


def can_grow(scenario: Scenario) -> bool:
    """Whether the load can last longer and stay what it is. A finite load, a profile of rates or lengths over time and
    a recording of clients have an end of their own; a log can be played again."""
    workload = scenario.workload
    has_end = workload.is_finite or workload.servegen or workload.drift
    return not (has_end or isinstance(workload.arrivals, PiecewiseArrivals))


def is_same_every_time(scenario: Scenario) -> bool:
    """Whether all replications are the same run: a log that is played as it stands, or arrivals and lengths that
    nothing is drawn for."""
    workload, engine = scenario.workload, scenario.engine
    if workload.prefix or workload.reuse or workload.servegen:
        return False
    decides_by = POLICIES[engine.policy].drawn_key
    if decides_by is not None and getattr(workload, decides_by):
        return False
    if workload.trace is not None:
        return workload.trace.keep_share == 1 and workload.trace.spread_ties != "uniform"
    fixed = (FixedLength, ListLength)
    is_constant = isinstance(workload.arrivals, ConstantArrivals | AllAtOnce)
    return is_constant and isinstance(workload.prompt_tokens, fixed) and isinstance(workload.output_tokens, fixed)


def longer(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with `factor` (>= 1) times the arrivals, its warm-up in proportion; a log is played again as often
    as that takes."""
    workload, warmup = scenario.workload, scenario.warmup
    assert can_grow(scenario), "only a load without an end of its own can last longer"
    assert factor >= 1, factor
    changes: dict[str, object] = {}
    if workload.trace is not None:
        times = math.ceil(factor)
        changes["workload.trace.repeat"], factor = workload.trace.repeat * times, float(times)
    elif workload.duration_s is not None:
        changes["workload.duration_s"] = workload.duration_s * factor
    else:
        assert workload.num_requests is not None, "a synthetic workload has a number of requests or a duration"
        changes["workload.num_requests"] = math.ceil(workload.num_requests * factor)
    if isinstance(warmup, WarmupRequests):
        changes["warmup"] = {"requests": math.floor(warmup.requests * factor)}
    elif isinstance(warmup, WarmupSeconds):
        changes["warmup"] = {"seconds": warmup.seconds * factor}
    return apply_sets(scenario, changes, label="run length")


def same_length(scenario: Scenario, other: Scenario) -> Scenario:
    """The scenario with as many arrivals and replications, and the warm-up, of `other`, which is it made ready."""
    workload = other.workload
    changes: dict[str, object] = {"replications": other.replications}
    if workload.trace is not None:
        changes["workload.trace.repeat"] = workload.trace.repeat
    elif workload.duration_s is not None:
        changes["workload.duration_s"] = workload.duration_s
    else:
        changes["workload.num_requests"] = workload.num_requests
    if not isinstance(other.warmup, str):
        changes["warmup"] = other.warmup.model_dump()
    return apply_sets(scenario, changes, label="run length")


def levels(spans: Mapping[str, Ints], since_ns: int, until_ns: int) -> dict[str, tuple[float, ...]]:
    """Of each of SERIES, all replicas together, its time average in each of BATCHES equal parts from `since_ns` to
    `until_ns`. `spans` has the columns of a record's spans; between spans nothing is in the system."""
    edges = np.linspace(since_ns, until_ns, BATCHES + 1).astype(np.int64)
    start, end = spans["t_start_ns"], spans["t_end_ns"]
    values = {
        "in_system": spans["running"] + spans["waiting"],
        "running": spans["running"],
        "kv_tokens": spans["kv_allocated_tokens"],
    }
    found: dict[str, list[float]] = {name: [] for name in SERIES}
    for first, last in pairwise(edges.tolist()):
        overlap = np.maximum(np.minimum(end, last) - np.maximum(start, first), 0).astype(np.float64)
        for name in SERIES:
            found[name].append(float((overlap * values[name]).sum()) / max(1, int(last - first)))
    return {name: tuple(each) for name, each in found.items()}


def rising(found: Sequence[Levels]) -> str | None:
    """The first of SERIES that is still rising, None where all have levelled off.

    `found` has the levels of each replication. A series rises when its later half lies above its earlier half by more
    than MATERIAL_RISE of its level and by more than chance explains (one-sided 5 %): of the differences between
    replications, or for a single one between its parts.
    """
    if not found:
        return None
    for name in SERIES:
        halves = [_halves(each[name]) for each in found]
        level = sum(early + late for early, late in halves) / (2 * len(halves))
        if len(halves) > 1:
            rise, deviation = mean_and_deviation([late - early for early, late in halves])
            error, degrees = deviation / math.sqrt(len(halves)), len(halves) - 1
        else:
            early, late = halves[0]
            rise, error, degrees = late - early, _error_between(found[0][name]), BATCHES - 2
        if rise > MATERIAL_RISE * level and rise > one_sided_t_95(degrees) * error:
            return name
    return None


def _halves(parts: Sequence[float]) -> tuple[float, float]:
    half = len(parts) // 2
    return sum(parts[:half]) / half, sum(parts[half:]) / (len(parts) - half)


def _error_between(parts: Sequence[float]) -> float:
    """Standard error of the difference of the means of both halves, their parts taken as independent."""
    half = len(parts) // 2
    (_, one), (_, other) = mean_and_deviation(parts[:half]), mean_and_deviation(parts[half:])
    return math.sqrt((one * one + other * other) / half)


def missing_factor(span_s: float, e2e_p99_s: float) -> float:
    """By how much arrivals that last `span_s` must become longer to last FILL_TIMES such times; 1 where they do."""
    short_by = FILL_TIMES * e2e_p99_s / span_s if span_s > 0 else 1.0
    return ROOM * short_by if short_by > 1 else 1.0
