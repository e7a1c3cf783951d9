"""Around the recommended point: other rates, neighbouring settings, and the fleet that carries a target.

Owns which of them are looked at. What they mean is told by `plan_json`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simkit.errors import InputError
from simkit.plain import Json
from simkit.planner.capacity import crossing, curves, error_of_step_times
from simkit.planner.jobs import Answer, CapacityJob, JobRunner
from simkit.planner.points import PlanPoint, make_point
from simkit.planner.result import FleetSize, PlanResult, PointResult, result_of_point
from simkit.planner.search import COARSE
from simkit.runs import run_length
from simkit.scenario import Scenario, apply_sets
from simkit.studies.doctor import examine
from simkit.studies.offered_load import at_rate, for_trials
from simkit.studies.study import Failure, Options, run_scenario, setting

RATE_REPLICATIONS, LONG_RATE_REPLICATIONS = 4, 2
"""Replications of a rate that is only looked at, as the scenario has it and in runs at least twice as long."""


RATE_SHARES = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25)
"""Rates at which the recommended point is looked at, as shares of its capacity."""

LOADS = (0.5, 1.0, 2.0)
"""Of the load that is asked for: what happens at half and at double."""


def load_rates(result: PlanResult, chosen: PointResult) -> dict[float, float]:
    """The rates of `LOADS` for one point: shares of the target (spread over the replicas that carry it) or of the rate
    that the scenario offers."""
    base = result.base_per_s
    if result.target_per_s is not None:
        base = result.target_per_s / num_replicas(result.target_per_s, chosen) * chosen.point.scenario.replicas
    return {share: float(f"{share * base:.6g}") for share in LOADS}


def num_replicas(rate_per_s: float, chosen: PointResult) -> int:
    """Replicas that carry a rate, judged by the lower end of the capacity's interval, the wider one where there is one:
    the error of step times is common to all of them."""
    assert chosen.capacity is not None
    return max(1, math.ceil(rate_per_s * chosen.point.scenario.replicas / chosen.capacity.carried_per_s))


ERRORS_OF_ONE_RUN = 4
"""Draws of the error of step times where every replication would be the same run."""

MAX_FLEET = 8
"""Replicas up to which a fleet is simulated rather than counted."""


def with_sensitivity(result: PlanResult, chosen: PointResult, runner: JobRunner) -> PlanResult:
    """The plan with its best point at other rates, with other settings, and as the fleet that carries the target."""
    assert chosen.capacity is not None
    guesses, factor = chosen.capacity.crossings_per_s, _least_factor(chosen)
    again = CapacityJob(
        chosen.point.name, chosen.point.scenario, runner.base_per_s, guesses, effort=COARSE, factor=factor
    )
    right, *wrong = runner.run([again, *_erring(chosen, runner, guesses, factor)], 0.05, "the error of step times")
    variations, failed = _known_and_failed([chosen.point], [right], dict(result.failed))
    chosen = _with_error(result, chosen, variations.get(chosen.point.name), wrong)
    assert chosen.capacity is not None
    result = replace(result, recommended=chosen, points={**result.points, chosen.point.name: chosen})
    scenario, capacity_per_s = chosen.scenario, chosen.capacity.estimate_per_s
    replications = RATE_REPLICATIONS if chosen.factor < 2 else LONG_RATE_REPLICATIONS
    if run_length.is_same_every_time(scenario):
        replications = 1
    seen = {float(f"{share * capacity_per_s:.4g}") for share in RATE_SHARES} | {*load_rates(result, chosen).values()}
    jobs = [
        CapacityJob(
            f"{rate_per_s:g}/s", scenario, runner.base_per_s, rates_per_s=(rate_per_s,), replications=replications
        )
        for rate_per_s in sorted(seen)
    ]
    num_rates = len(jobs)
    varied = _variations(chosen, result.scenario)
    jobs += [
        CapacityJob(point.name, point.scenario, runner.base_per_s, guesses, effort=COARSE, factor=factor)
        for point in varied
    ]
    fleets = _fleets(result, chosen)
    jobs += [
        CapacityJob(f"{size.replicas} replicas", fleet, runner.base_per_s, rates_per_s=(result.target_per_s or 0.0,),
              replications=replications)
        for size, fleet in fleets.items()
    ]  # fmt: skip
    answers = runner.run(jobs, 0.2, "around the best")
    other_rates = [
        trial for answer in answers[:num_rates] if not isinstance(answer, Failure) for trial in answer.trials
    ]
    more, failed = _known_and_failed(varied, answers[num_rates : num_rates + len(varied)], failed)
    variations |= more
    seen_fleets = {}
    for size, answer in zip(fleets, answers[num_rates + len(varied) :], strict=True):
        if isinstance(answer, Failure):
            failed[f"{size.replicas} replicas"] = answer
        else:
            seen_fleets[size] = answer.trials
    return replace(
        result, other_rates=tuple(other_rates), variations=variations, failed=failed, fleets=seen_fleets,
        doctor=_diagnosed(chosen, runner),
    )  # fmt: skip


def _known_and_failed(
    points: Sequence[PlanPoint], answers: Sequence[Answer | Failure], failed: dict[str, Failure]
) -> tuple[dict[str, PointResult], dict[str, Failure]]:
    """What is known of points, and those that failed beside others that did."""
    known, wrong = {}, dict(failed)
    for point, answer in zip(points, answers, strict=True):
        if isinstance(answer, Failure):
            wrong[point.name] = replace(answer, settings=point.settings)
        else:
            known[point.name] = result_of_point(point, answer, COARSE)
    return known, wrong


# --- the error of step times
def _erring(chosen: PointResult, runner: JobRunner, guesses: tuple[float, ...], factor: float) -> list[CapacityJob]:
    """The capacity of the point once more, each replication with step times that err by a draw."""
    point = chosen.point
    if not point.setup.errs:
        return []
    draws = range(ERRORS_OF_ONE_RUN if run_length.is_same_every_time(point.scenario) else 1)
    return [
        CapacityJob(
            f"{point.name}, step times in error {draw + 1}", point.scenario, runner.base_per_s, guesses, effort=COARSE,
            factor=factor, erring=draw,
        )
        for draw in draws
    ]  # fmt: skip


def _with_error(
    result: PlanResult, chosen: PointResult, right: PointResult | None, answers: Sequence[Answer | Failure]
) -> PointResult:
    """The point with what the error of step times does to its capacity."""
    if right is None or right.capacity is None or chosen.capacity is None:
        return chosen
    own, wrong = right.capacity.crossings_per_s, []
    for answer in answers:
        if not isinstance(answer, Failure):
            wrong += [crossing(curve, result.terms) for curve in curves(answer.trials)]
    own = own * len(wrong) if len(own) == 1 else own
    return replace(chosen, capacity=replace(chosen.capacity, error=error_of_step_times(own, wrong)))


def _least_factor(chosen: PointResult) -> float:
    """How much longer than the scenario's runs must be for the time that requests stay at the capacity."""
    missing = [
        run_length.missing_factor(trial.span_s / chosen.factor, (trial.numbers.get("e2e_ms.p99") or 0.0) / 1000)
        for trial in chosen.at_capacity
    ]
    return min(chosen.factor, max(missing))


def _diagnosed(chosen: PointResult, runner: JobRunner) -> Json:
    """What the doctor finds at the recommended point, at the lower end of its interval."""
    assert chosen.capacity is not None
    rate_per_s = float(f"{chosen.capacity.low_per_s:.4g}")
    scenario = at_rate(chosen.scenario, rate_per_s, runner.base_per_s)
    # Nothing of this is kept, and it is too little to be worth a cluster.
    options: Options = {"jobs": 1 if runner.options.get("dask") else runner.options.get("jobs", 1)}
    return {"rate_per_s": rate_per_s, **examine(scenario, run_scenario(scenario), **options)}


def _fleets(result: PlanResult, chosen: PointResult) -> dict[FleetSize, Scenario]:
    """The fleets that are simulated at the target rate: the one that carries it, one replica less, and the whole one
    with its spares, as many of which are lost halfway."""
    if result.target_per_s is None:
        return {}
    count = num_replicas(result.target_per_s, chosen)
    base = apply_sets(result.scenario, {**chosen.point.settings, "failures": []}, label="plan")
    found = {}
    for size in (FleetSize(count - 1, 0), FleetSize(count, 0), FleetSize(count + result.spare, result.spare)):
        if not 1 <= size.replicas <= MAX_FLEET or size in found:
            continue
        fleet = for_trials(apply_sets(base, {"replicas": size.replicas}, label="plan"), result.scenario.replicas)
        if chosen.factor > 1 and run_length.can_grow(fleet):
            fleet = run_length.longer(fleet, chosen.factor)
        halfway_s = _halfway_s(fleet, result.target_per_s)
        if size.lost and halfway_s is not None:
            lost = [{"replica": index, "at_s": halfway_s, "for_s": None} for index in range(size.lost)]
            fleet = apply_sets(fleet, {"failures": lost}, label="plan")
        if not size.lost or halfway_s is not None:
            found[size] = fleet
    return found


def _halfway_s(fleet: Scenario, rate_per_s: float) -> float | None:
    """When half of the requests have come; None for a trace."""
    workload = fleet.workload
    if workload.duration_s is not None:
        return workload.duration_s / 2
    return None if workload.num_requests is None else workload.num_requests / rate_per_s / 2


def _variations(chosen: PointResult, base: Scenario) -> list[PlanPoint]:
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
        changes.append(("engine.gpu_memory_utilization", round(share * 0.9, 3)))
        # Beside the budget there must be room for what the engine keeps there.
        higher = min(chosen.point.setup.memory.highest_gpu_memory_utilization, round(share * 1.1, 3))
        if higher > share:
            changes.append(("engine.gpu_memory_utilization", higher))
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
