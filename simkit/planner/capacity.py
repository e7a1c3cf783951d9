"""From trials to a capacity: the highest rate at which the SLO holds, with its interval.

Owns the statistics. A replication serves the same customers at every rate and in every setting (common random numbers),
so it has a curve: its margins against the rate. Replications are the independent observations. Simulates nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from simkit.metrics.intervals import NORMAL_95, jackknife_error, mean_and_deviation, normal_quantile_95, student_t_95
from simkit.planner.trial import SloTerm, Trial

SOFT_SPREAD = 1.2
"""A limit is soft when the chance to pass falls from 0.9 to 0.1 over more than 20 % in rate."""

LIKELY, UNLIKELY = 0.9, 0.1

MAX_QUANTILE = 3.0
"""Standard deviations below the mean crossing at which a capacity may lie."""

Curve = tuple[Trial, ...]
"""The trials of one replication, by rate."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Where the share of all replications together crosses its target. `low` and `high`: its 95 % interval.

    `pooled` is where that of those that were simulated does, which a few more would lower (see `capacity`).
    `crossings_per_s` are the rates up to which each replication by itself meets every term. `term` is the one that is
    missed first. `likely` and `unlikely` are the rates that a single run passes with chance 0.9 and 0.1. `spread` is
    the factor sqrt(1 + q^2 / 2) / sqrt(R) by which the deviation of crossings becomes that of the estimate.

    `interval` says what the interval rests on: how replications differ, how parts of one run do where all replications
    would be that run (`without_per_s`: its crossing with each part left out), or nothing, where it is no interval but
    the grid of rates. `error`: the standard deviation of the logarithm of the estimate by the error of step times, None
    where that was not looked at.
    """

    estimate_per_s: float
    low_per_s: float
    high_per_s: float
    pooled_per_s: float
    term: str
    crossings_per_s: tuple[float, ...]
    likely_per_s: float
    unlikely_per_s: float
    spread: float
    interval: Literal["replications", "parts", "none"] = "replications"
    without_per_s: tuple[float, ...] = ()
    error: float | None = None

    @property
    def range_per_s(self) -> tuple[float, float] | None:
        """The 95 % interval that holds the error of step times too: both are taken as normal in the logarithm, and
        their variances are added."""
        if self.error is None:
            return None
        by, estimate = NORMAL_95 * self.error, self.estimate_per_s
        below = math.hypot(math.log(estimate / self.low_per_s), by)
        above = math.hypot(math.log(self.high_per_s / estimate), by)
        return estimate * math.exp(-below), estimate * math.exp(above)

    @property
    def carried_per_s(self) -> float:
        """The rate that may be promised: the lower end of the interval that holds most."""
        return self.low_per_s if self.range_per_s is None else self.range_per_s[0]

    @property
    def replications(self) -> int:
        """How many there were."""
        return len(self.crossings_per_s)

    @property
    def soft(self) -> bool:
        """Whether the chance to pass falls slowly."""
        return self.unlikely_per_s > SOFT_SPREAD * self.likely_per_s

    def chance(self, rate_per_s: float) -> float:
        """Share of replications that a rate suits."""
        return sum(crossing > rate_per_s for crossing in self.crossings_per_s) / self.replications

    def verdict(self, rate_per_s: float) -> str:
        """What the interval says of a rate: accepted, refused or undecided."""
        return (
            "accepted" if rate_per_s <= self.low_per_s else "refused" if rate_per_s >= self.high_per_s else "undecided"
        )


def curves(trials: Iterable[Trial]) -> list[Curve]:
    """The trials of each replication, by rate."""
    found: dict[int, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.replication, []).append(trial)
    return [tuple(sorted(found[index], key=lambda trial: trial.rate_per_s)) for index in sorted(found)]


def crossing(curve: Curve, terms: Sequence[SloTerm]) -> float:
    """The rate up to which one replication meets every term; 0 and infinite where no trial shows it."""
    return min(
        _crossing([(trial.rate_per_s, _score(terms[term], trial.margins[term])) for trial in curve])
        for term in range(len(terms))
    )


def pooled_crossing(found: Sequence[Curve], terms: Sequence[SloTerm]) -> tuple[float, int]:
    """The rate at which a term of all replications together is first missed, and which one; 0 or infinite as above."""
    tried = sorted({trial.rate_per_s for curve in found for trial in curve})
    each = []
    for index, term in enumerate(terms):
        scores = [(rate, _score(term, _pooled(found, rate, index, term))) for rate in tried]
        each.append((_crossing(scores), index))
    return min(each)


def capacity(found: Sequence[Curve], terms: Sequence[SloTerm], resolution: float) -> Capacity | None:
    """The capacity that curves show; None where a replication always passes or never does.

    The logarithms of the crossings are taken as normal: mean m, deviation s. The estimate is where the share of all
    such replications together crosses its target. It lies q deviations below m, because the unluckiest miss first and
    by much, so its interval is that of a normal quantile, m - s t / sqrt(R) with t of the non-central distribution
    (Meeker, Hahn and Escobar, Statistical Intervals, 2nd edition 2017, section 4.4). Rates are tried `resolution` apart
    (a ratio); a crossing lies anywhere between two of them, so the ends are half of that further out.
    """
    if len(found) == 1:
        return _capacity_of_one(found[0], terms, resolution)
    crossings = [crossing(curve, terms) for curve in found]
    pooled, term = pooled_crossing(found, terms)
    if not crossings or not all(0 < rate < math.inf for rate in (*crossings, pooled)):
        return None
    logs = [math.log(rate) for rate in crossings]
    mean, deviation = mean_and_deviation(logs)
    deviation = max(deviation, LEAST_DEVIATION)
    estimate, term = _expected_crossing(found, crossings, terms, mean, deviation)
    quantile = min(MAX_QUANTILE, max(0.0, (mean - math.log(estimate)) / deviation))
    spread = math.sqrt((1 + quantile * quantile / 2) / len(logs))
    low, high = normal_quantile_95(mean, deviation, quantile, len(logs))
    return Capacity(
        estimate_per_s=estimate,
        low_per_s=min(estimate, math.exp(low)) / math.sqrt(resolution),
        high_per_s=max(estimate, math.exp(high)) * math.sqrt(resolution),
        pooled_per_s=pooled,
        term=terms[term].name,
        crossings_per_s=tuple(crossings),
        likely_per_s=math.exp(_percentile(logs, 1 - LIKELY)),
        unlikely_per_s=math.exp(_percentile(logs, 1 - UNLIKELY)),
        spread=spread,
    )


def crossings_without(curve: Curve, terms: Sequence[SloTerm]) -> tuple[float, ...]:
    """The crossing of a run with each of its parts left out in turn; empty where it was not parted."""
    num_parts = max((len(trial.without) for trial in curve), default=0)
    return tuple(
        crossing(
            tuple(replace(trial, margins=trial.without[part]) if trial.without else trial for trial in curve), terms
        )
        for part in range(num_parts)
    )


def _capacity_of_one(curve: Curve, terms: Sequence[SloTerm], resolution: float) -> Capacity | None:
    """The capacity of a run that every replication would repeat: where it crosses its targets.

    Its interval is that of the jackknife over consecutive parts (Efron and Tibshirani, An Introduction to the
    Bootstrap, 1993, chapter 11): the crossing t_i without part i has the standard error
    sqrt((n - 1) / n sum (t_i - mean)^2), in logarithms. It answers for another log of this kind and length.
    """
    pooled, term = pooled_crossing([curve], terms)
    if not 0 < pooled < math.inf:
        return None
    # A part without which no rate tried misses, or all do, counts as far out as was tried.
    first, last = curve[0].rate_per_s, curve[-1].rate_per_s
    without = tuple(min(max(rate, first), last) for rate in crossings_without(curve, terms))
    half = math.log(resolution) / 2
    if without:
        half += student_t_95(len(without) - 1) * jackknife_error([math.log(rate) for rate in without])
    return Capacity(
        estimate_per_s=pooled,
        low_per_s=pooled * math.exp(-half),
        high_per_s=pooled * math.exp(half),
        pooled_per_s=pooled,
        term=terms[term].name,
        crossings_per_s=(pooled,),
        likely_per_s=pooled,
        unlikely_per_s=pooled,
        spread=1.0,
        interval="parts" if without else "none",
        without_per_s=without,
    )


LEAST_DEVIATION = 1e-6
"""Of the logarithms of crossings, where nothing varies."""

DEVIATIONS = 4.0
"""How far from the mean the normal distribution of crossings is followed."""

NORMAL_POINTS = 161


def _expected_crossing(
    found: Sequence[Curve], crossings: Sequence[float], terms: Sequence[SloTerm], mean: float, deviation: float
) -> tuple[float, int]:
    """The rate at which the mean margin of replications with normal log crossings is first 0, and of which term.

    Far from its crossing every replication loses alike: the margin at a distance is the mean over the curves that were
    tried so far out. A sample of a few replications hardly holds those of the far tail, which miss by most.
    """
    reach = 2 * DEVIATIONS * deviation
    distances = [reach * (2 * index / (NORMAL_POINTS - 1) - 1) for index in range(NORMAL_POINTS)]
    points = [DEVIATIONS * (2 * index / (NORMAL_POINTS - 1) - 1) for index in range(NORMAL_POINTS)]
    weights = [math.exp(-point * point / 2) for point in points]
    best = (math.inf, 0)
    for index, term in enumerate(terms):
        typical = [(distance, _typical(found, crossings, index, term, distance)) for distance in distances]

        def lost(log_rate: float, typical: Sequence[tuple[float, float]] = typical) -> float:
            margins = [_linear(typical, log_rate - mean - deviation * point) for point in points]
            return float(sum(map(operator.mul, weights, margins))) / sum(weights)

        low, high = mean - DEVIATIONS * deviation, mean + DEVIATIONS * deviation
        if lost(high) >= 0:
            continue
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if lost(middle) >= 0 else (low, middle)
        best = min(best, (low, index))
    log_rate, index = best
    return (math.exp(log_rate), index) if log_rate < math.inf else pooled_crossing(found, terms)


def _typical(found: Sequence[Curve], crossings: Sequence[float], index: int, term: SloTerm, distance: float) -> float:
    """Mean margin at a log distance from the own crossing, of the curves that were tried so far out.

    Beyond what any curve shows, below the crossing nobody misses, above it all miss as they last did.
    """
    factor = math.exp(distance)
    pairs = [(curve, rate * factor) for curve, rate in zip(found, crossings, strict=True)]
    near = [(curve, rate) for curve, rate in pairs if curve[0].rate_per_s <= rate <= curve[-1].rate_per_s]
    if not near and distance < 0 and term.allowed is not None:
        return term.allowed
    chosen = near or pairs
    return sum(_margin(curve, rate, index, term) for curve, rate in chosen) / len(chosen)


def _linear(points: Sequence[tuple[float, float]], at: float) -> float:
    """Linear interpolation on an even grid, flat beyond it."""
    first, last = points[0][0], points[-1][0]
    place = (at - first) / (last - first) * (len(points) - 1)
    if place <= 0:
        return points[0][1]
    if place >= len(points) - 1:
        return points[-1][1]
    below = int(place)
    return points[below][1] + (place - below) * (points[below + 1][1] - points[below][1])


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two capacities, with its 95 % interval."""

    estimate: float
    low: float
    high: float


def ratio(one: Capacity, other: Capacity, resolution: float) -> Ratio:
    """``one / other``. The interval is that of paired differences: replication i has the same customers in both, and
    where there is one run of the same customers, part i."""
    estimate = one.estimate_per_s / other.estimate_per_s
    if one.interval != "replications" or other.interval != "replications":
        half = math.log(resolution)
        if len(one.without_per_s) == len(other.without_per_s) > 1:
            logs = [math.log(a / b) for a, b in zip(one.without_per_s, other.without_per_s, strict=True)]
            grid = math.log(resolution) / math.sqrt(12)
            half = student_t_95(len(logs) - 1) * math.hypot(jackknife_error(logs), grid)
        return Ratio(estimate, estimate * math.exp(-half), estimate * math.exp(half))
    count = min(one.replications, other.replications)
    pairs = zip(one.crossings_per_s[:count], other.crossings_per_s[:count], strict=True)
    _, deviation = mean_and_deviation([math.log(a / b) for a, b in pairs])
    deviation = math.hypot(deviation, math.log(resolution) / math.sqrt(12))
    spread = max(one.spread, other.spread) * math.sqrt(max(one.replications, other.replications) / count)
    half = student_t_95(count - 1) * deviation * spread if count > 1 else math.inf
    return Ratio(estimate, estimate * math.exp(-half), estimate * math.exp(half))


def error_of_step_times(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """`Capacity.error` from the crossings of the same replications with step times as they are, and `wrong` by a draw;
    None where no replication has both."""
    pairs = [pair for pair in zip(right, wrong, strict=False) if all(0 < rate < math.inf for rate in pair)]
    squares = [math.log(err / own) ** 2 for own, err in pairs]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else None


def to_json(found: Capacity) -> Mapping[str, object]:
    """What plan.json says of a capacity."""
    names = ("estimate_per_s", "low_per_s", "high_per_s", "pooled_per_s", "term", "replications", "soft",
             "likely_per_s", "unlikely_per_s", "crossings_per_s", "interval", "without_per_s", "error",
             "range_per_s")  # fmt: skip
    return {name: getattr(found, name) for name in names}


FLOOR = 5e-4
"""A share of misses so small that less of them means nothing, where shares are compared by their logarithm."""


def _score(term: SloTerm, margin: float) -> float:
    """A margin on the scale on which a curve is nearly straight: >= 0 where the margin is.

    The share of requests that miss grows exponentially with the rate, so it is its logarithm that is interpolated.
    """
    if term.allowed is None:
        return margin
    return math.log((term.allowed + FLOOR) / (max(0.0, term.allowed - margin) + FLOOR))


def _unscored(term: SloTerm, score: float) -> float:
    """The margin of a score."""
    if term.allowed is None:
        return score
    return (term.allowed + FLOOR) * (1 - math.exp(-score))


def _pooled(found: Sequence[Curve], rate_per_s: float, index: int, term: SloTerm) -> float:
    """Margin of all measured requests together at a rate; a curve is interpolated between its trials."""
    total = sum(curve[0].num_measured for curve in found)
    return sum(curve[0].num_measured * _margin(curve, rate_per_s, index, term) for curve in found) / total


def _margin(curve: Curve, rate_per_s: float, index: int, term: SloTerm) -> float:
    """Margin of one replication at a rate, that of the nearest trial beyond those that were made."""
    if rate_per_s <= curve[0].rate_per_s:
        return curve[0].margins[index]
    for before, after in pairwise(curve):
        if rate_per_s <= after.rate_per_s:
            first, last = _score(term, before.margins[index]), _score(term, after.margins[index])
            share = math.log(rate_per_s / before.rate_per_s) / math.log(after.rate_per_s / before.rate_per_s)
            return _unscored(term, first + share * (last - first))
    return curve[-1].margins[index]


def _crossing(points: Sequence[tuple[float, float]]) -> float:
    """The rate at which a value first falls below 0, linear in log rate between `points` (rate, value)."""
    for index, (rate, value) in enumerate(points):
        if value < 0:
            if index == 0:
                return 0.0
            rate_before, before = points[index - 1]
            return math.exp(math.log(rate_before) + math.log(rate / rate_before) * before / (before - value))
    return math.inf


def _percentile(values: Sequence[float], share: float) -> float:
    """Linear percentile, as numpy's."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
