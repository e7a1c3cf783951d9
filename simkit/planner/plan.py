"""The capacity planner: from a scenario to the settings, GPUs and money that its SLO asks for.

Owns which questions are asked, in which order: the capacity of every point of the grid, then of the best ones again
with more replications, then what the recommended one does at other rates and with other settings. Imports its siblings.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simkit.engine.run import Progress
from simkit.errors import CheckError, InputError
from simkit.planner import bounds, limits
from simkit.planner.capacity import Capacity, Curve, capacity, curves, ratio
from simkit.planner.offered import Lengths, base_rate, for_trials, lengths
from simkit.planner.points import SLOTS, Point, make_point, make_points
from simkit.planner.quest import Quest, pursue_all
from simkit.planner.search import COARSE, FINE, Effort
from simkit.planner.study import Failure, Options, setting
from simkit.planner.trial import Term, Trial, terms
from simkit.scenario import Scenario, apply_sets

MAX_REFINED = 4
"""Points that are searched again with more replications."""

LOOK_REPLICATIONS = 4
"""Replications of a rate that is only looked at."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a point: its trials, its capacity, and what binds there. Without a capacity no rate meets the
    SLO, or every one does."""

    point: Point
    trials: tuple[Trial, ...]
    effort: Effort
    capacity: Capacity | None
    limit: limits.Limit | None

    @property
    def always_passes(self) -> bool:
        """Whether no rate was too high."""
        return self.capacity is None and min(self.trials[-1].margins) >= 0

    @property
    def lowest(self) -> Trial:
        """The trial of replication 0 at the lowest rate: hardly a request meets another."""
        return self.trials[0]

    @property
    def per_gpu_per_s(self) -> float:
        """Capacity a GPU; 0 without one."""
        return 0.0 if self.capacity is None else self.capacity.estimate_per_s / self.point.gpus


@dataclass(frozen=True, slots=True)
class Plan:
    """What the planner found. `points` are in the order of the grid; `recommended` is None where no point meets the
    SLO; `looks` are trials of the recommended point at other rates, `variations` neighbouring settings, `fleets` what
    numbers of replicas do at the target rate.
    """

    scenario: Scenario
    base_per_s: float
    lengths: Lengths
    terms: tuple[Term, ...]
    axes: dict[str, list[Any]]
    points: dict[str, Found]
    failed: dict[str, Failure]
    recommended: Found | None
    looks: tuple[Trial, ...] = ()
    variations: dict[str, Found] = field(default_factory=dict)
    fleets: dict[int, tuple[Trial, ...]] = field(default_factory=dict)
    target_per_s: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Asking:
    """How questions are put: to whom, and what is told meanwhile."""

    base_per_s: float
    options: Options
    progress: Progress | None
    done: float = 0.0

    def ask(self, quests: Sequence[Quest], share: float, label: str) -> list[tuple[Trial, ...] | Failure]:
        """The answers; they take `share` of all the time."""

        def told(done: int, total: int) -> None:
            if self.progress is not None:
                self.progress(self.done + share * done / max(1, total), f"{label}: {done} of {total}")

        quests = [replace(quest, cwd=os.getcwd()) for quest in quests]
        answers = pursue_all(quests, self.options, told)
        self.done += share
        return answers


def plan(
    scenario: Scenario,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    target_per_s: float | None = None,
    progress: Progress | None = None,
    options: Options | None = None,
) -> Plan:
    """Find the capacity of a scenario at a grid of settings, and recommend one.

    Without `engine.max_num_seqs` among the `axes` its grid is automatic. Raises InputError when there is no SLO, no
    rate to change, or no point that can be set up.
    """
    base_per_s = _check(scenario)
    asking = _Asking(base_per_s, options or {}, progress)
    points, failed, notes, grid = make_points(scenario, dict(axes or {}))
    sizes = lengths(points[0].scenario, points[0].setup.max_model_len)
    found = _search(points, COARSE, asking, sizes, 0.55)
    failed |= {name: found.pop(name) for name in [*found] if isinstance(found[name], Failure)}  # type: ignore[misc]
    known: dict[str, Found] = {name: item for name, item in found.items() if isinstance(item, Found)}
    best = [item for item in contenders(list(known.values())) if item.capacity is not None][:MAX_REFINED]
    again = _search([item.point for item in best], FINE, asking, sizes, 0.2, known)
    known |= {name: item for name, item in again.items() if isinstance(item, Found)}
    known = _with_neighbours(known)
    chosen = recommend(list(known.values()))
    result = Plan(
        scenario, base_per_s, sizes, terms(points[0].scenario), grid, known, failed, chosen, target_per_s=target_per_s,
        notes=tuple(notes),
    )  # fmt: skip
    if chosen is None:
        _check_limits_seen(list(known.values()), failed)
        return result
    return _explore(result, chosen, asking)


def _check_limits_seen(found: Sequence[Found], failed: Mapping[str, Failure]) -> None:
    """No capacity at all must mean that the SLO cannot be met, nothing else."""
    if not found:
        name, failure = next(iter(failed.items()))
        raise (InputError if failure.kind == "input" else CheckError)(f"point {name}: {failure.message}")
    endless = next((item for item in found if item.always_passes), None)
    if endless is not None:
        scenario, rate = endless.point.scenario, endless.trials[-1].rate_per_s
        key = "num_requests" if scenario.workload.num_requests is not None else "duration_s"
        what = f"expected a run long enough to see a limit: {rate:g} requests/s still meet the SLO"
        raise InputError(scenario.blame(f"workload.{key}: {what} ({endless.point.name})"))


def _check(scenario: Scenario) -> float:
    """Refuse what has no answer; the rate of the scenario."""
    if scenario.slo is None or not scenario.slo.model_dump(exclude_none=True):
        what = "expected objectives to plan for, e.g. slo: {ttft_ms: {p99: 500}, tpot_ms: {p99: 50}}, got none"
        raise InputError(scenario.blame(f"slo: {what}"))
    streams = scenario.engine.stream if scenario.engine.stream is not None else scenario.engine.batching == "continuous"
    if not streams and (scenario.slo.tpot_ms is not None or scenario.slo.itl_ms is not None):
        key = "slo.tpot_ms" if scenario.slo.tpot_ms is not None else "slo.itl_ms"
        kind = scenario.engine.batching
        raise InputError(scenario.blame(f"{key}: expected no objective between tokens where {kind} does not stream"))
    return base_rate(scenario)


# --- the search -------------------------------------------------------------------------------------------------------
def _search(
    points: Sequence[Point],
    effort: Effort,
    asking: _Asking,
    sizes: Lengths,
    share: float,
    known: Mapping[str, Found] | None = None,
) -> dict[str, Found | Failure]:
    """The capacities of points; what is `known` of them is built upon."""
    quests = []
    for point in points:
        before = (known or {}).get(point.name)
        if before is not None and before.capacity is not None:
            guess, trials = before.capacity.estimate_per_s, before.trials
        else:
            guess, trials = bounds.guess_rate(point.setup, sizes), ()
        quests.append(Quest(point.name, point.scenario, asking.base_per_s, guess, effort, known=trials))
    answers = asking.ask(quests, share, "capacities" if known is None else "the best again")
    found: dict[str, Found | Failure] = {}
    for point, answer in zip(points, answers, strict=True):
        if isinstance(answer, Failure):
            found[point.name] = replace(answer, settings=point.settings)
        else:
            found[point.name] = _found(point, answer, effort)
    return found


def _found(point: Point, trials: tuple[Trial, ...], effort: Effort) -> Found:
    each: list[Curve] = curves(trials)
    value = capacity(each, terms(point.scenario), effort.resolution)
    limit = None if value is None else limits.recognise(each, value)
    return Found(point, trials, effort, value, limit)


def _with_neighbours(known: Mapping[str, Found]) -> dict[str, Found]:
    """Each limit seen beside the next larger number of slots, all else equal."""
    result = {}
    for name, item in known.items():
        others = {key: value for key, value in item.point.settings.items() if key != SLOTS}
        larger = [
            other
            for other in known.values()
            if other.point.slots > item.point.slots
            and other.capacity is not None
            and {key: value for key, value in other.point.settings.items() if key != SLOTS} == others
        ]
        next_one = min(larger, key=lambda other: other.point.slots, default=None)
        if item.limit is not None and item.capacity is not None and next_one is not None:
            item = replace(item, limit=limits.with_neighbour(item.limit, item.capacity, next_one.capacity))
        result[name] = item
    return result


# --- the recommendation -----------------------------------------------------------------------------------------------
def contenders(found: Sequence[Found]) -> list[Found]:
    """Points whose capacity a GPU is statistically as good as the best, smallest max_num_seqs and fewest GPUs first.

    As good: the 95 % interval of the paired ratio to the best one reaches 1.
    """
    able = [item for item in found if item.capacity is not None]
    if not able:
        return []
    best = max(able, key=lambda item: item.per_gpu_per_s)
    good = [item for item in able if is_as_good(item, best)]
    # The best itself stays in the race, and is compared with again.
    return sorted(good, key=lambda item: (item.point.slots, item.point.gpus))


def is_as_good(item: Found, best: Found) -> bool:
    """Whether a point is not worse than the best one by more than chance explains."""
    if item is best:
        return True
    assert item.capacity is not None
    assert best.capacity is not None
    resolution = max(item.effort.resolution, best.effort.resolution)
    gpus = item.point.gpus / best.point.gpus
    return ratio(item.capacity, best.capacity, resolution).high >= gpus


def recommend(found: Sequence[Found]) -> Found | None:
    """The smallest max_num_seqs whose capacity a GPU is statistically as good as the best."""
    fine = [item for item in found if item.capacity is not None and item.effort == FINE]
    return next(iter(contenders(fine)), None)


# --- around the recommended point -------------------------------------------------------------------------------------
LOOK_SHARES = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25)
"""Rates at which the recommended point is looked at, as shares of its capacity."""

LOADS = (0.5, 1.0, 2.0)
"""Of the load that is asked for: what happens at half and at double."""


def load_rates(result: Plan, chosen: Found) -> dict[float, float]:
    """The rates of `LOADS` for one point: shares of the target (spread over the replicas that carry it) or of the rate
    that the scenario offers."""
    base = result.base_per_s
    if result.target_per_s is not None:
        base = result.target_per_s / num_replicas(result.target_per_s, chosen) * chosen.point.scenario.replicas
    return {share: float(f"{share * base:.6g}") for share in LOADS}


def num_replicas(rate_per_s: float, chosen: Found) -> int:
    """Replicas that carry a rate, judged by the lower end of the capacity's interval."""
    assert chosen.capacity is not None
    return max(1, math.ceil(rate_per_s * chosen.point.scenario.replicas / chosen.capacity.low_per_s))


MAX_FLEET = 8
"""Replicas up to which a fleet is simulated rather than counted."""


def _explore(result: Plan, chosen: Found, asking: _Asking) -> Plan:
    """Look at the recommended point at other rates, with other settings, and as the fleet that carries the target."""
    assert chosen.capacity is not None
    scenario, capacity_per_s = chosen.point.scenario, chosen.capacity.estimate_per_s
    seen = {float(f"{share * capacity_per_s:.4g}") for share in LOOK_SHARES} | {*load_rates(result, chosen).values()}
    quests = [
        Quest(
            f"{rate_per_s:g}/s", scenario, asking.base_per_s, rates_per_s=(rate_per_s,), replications=LOOK_REPLICATIONS
        )
        for rate_per_s in sorted(seen)
    ]
    num_looks = len(quests)
    varied = _variations(chosen, result.scenario)
    quests += [Quest(point.name, point.scenario, asking.base_per_s, capacity_per_s, COARSE) for point in varied]
    fleets = _fleets(result, chosen)
    quests += [
        Quest(f"{count} replicas", fleet, asking.base_per_s, rates_per_s=(result.target_per_s or 0.0,),
              replications=LOOK_REPLICATIONS)
        for count, fleet in fleets.items()
    ]  # fmt: skip
    answers = asking.ask(quests, 0.25, "around the best")
    looks = [trial for answer in answers[:num_looks] if not isinstance(answer, Failure) for trial in answer]
    variations, failed = {}, dict(result.failed)
    for point, answer in zip(varied, answers[num_looks:], strict=False):
        if isinstance(answer, Failure):
            failed[point.name] = replace(answer, settings=point.settings)
        else:
            variations[point.name] = _found(point, answer, COARSE)
    seen_fleets = {}
    for count, answer in zip(fleets, answers[num_looks + len(varied) :], strict=True):
        if isinstance(answer, Failure):
            failed[f"{count} replicas"] = answer
        else:
            seen_fleets[count] = answer
    return replace(result, looks=tuple(looks), variations=variations, failed=failed, fleets=seen_fleets)


def _fleets(result: Plan, chosen: Found) -> dict[int, Scenario]:
    """The fleets that are simulated at the target rate: the one that carries it, and one replica less."""
    if result.target_per_s is None:
        return {}
    count = num_replicas(result.target_per_s, chosen)
    base = apply_sets(result.scenario, chosen.point.settings, label="plan")
    return {
        size: for_trials(apply_sets(base, {"replicas": size}, label="plan"), result.scenario.replicas)
        for size in (count - 1, count)
        if 1 <= size <= MAX_FLEET
    }


def _variations(chosen: Found, base: Scenario) -> list[Point]:
    """Neighbouring settings of the recommended point, those that the engine would start with."""
    engine = chosen.point.setup.scenario.engine
    budget, share = engine.max_num_batched_tokens, engine.gpu_memory_utilization
    assert budget is not None, "a resolved scenario has a budget"
    changes: list[tuple[str, Any]] = [
        ("engine.block_size", engine.block_size // 2),
        ("engine.block_size", engine.block_size * 2),
        ("engine.max_num_batched_tokens", budget // 2),
        ("engine.max_num_batched_tokens", budget * 2),
    ]
    if engine.num_gpu_blocks is None:
        lower, higher = round(share * 0.9, 3), min(0.99, round(share * 1.1, 3))
        changes += [("engine.gpu_memory_utilization", lower), ("engine.gpu_memory_utilization", higher)]
    else:
        blocks = engine.num_gpu_blocks
        changes += [("engine.num_gpu_blocks", round(blocks * 0.9)), ("engine.num_gpu_blocks", round(blocks * 1.1))]
    found = []
    for key, value in changes:
        try:
            changed = apply_sets(base, {**chosen.point.settings, key: value}, label="plan")
            found.append(make_point(setting(key, value), {**chosen.point.settings, key: value}, changed, base))
        except InputError:
            continue  # the engine refuses it: a neighbour that does not exist
    return found
