"""The capacity planner: from a scenario to the settings, GPUs and money that its SLO asks for.

Owns which questions are asked, in which order: the capacity of every point of the grid, then of the best ones again
with more replications, then what the recommended one does at other rates and with other settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simkit.engine.run import Progress
from simkit.errors import CheckError, InputError
from simkit.planner.capacity import ratio
from simkit.planner.confirm import confirm
from simkit.planner.jobs import CapacityJob, JobRunner
from simkit.planner.points import SLOTS, PlanPoint, make_points
from simkit.planner.result import PlanResult, PointResult, result_of_point, with_neighbour
from simkit.planner.search import COARSE, FINE, Effort
from simkit.planner.sensitivity import with_sensitivity
from simkit.planner.trial import Trial, terms
from simkit.scenario import Scenario, WarmupRequests, WarmupSeconds
from simkit.studies.offered_load import Lengths, base_rate, lengths
from simkit.studies.study import Failure, Options

REFINED_AT_ONCE = 2
"""Points that are searched again with more replications beside the best one, before it is asked whether they are as
good."""


def plan(
    scenario: Scenario,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    target_per_s: float | None = None,
    spare: int = 0,
    progress: Progress | None = None,
    options: Options | None = None,
) -> PlanResult:
    """Find the capacity of a scenario at a grid of settings, and recommend one.

    Without `engine.max_num_seqs` among the `axes` its grid is automatic. Raises InputError when there is no SLO, no
    rate to change, or no point that can be set up.
    """
    base_per_s = _check(scenario)
    runner = JobRunner(base_per_s, options or {}, progress)
    points, failed, notes, grid = make_points(scenario, dict(axes or {}))
    sizes = lengths(points[0].scenario, points[0].setup.max_model_len)
    found = _search(points, COARSE, runner, sizes, 0.5)
    failed |= {name: found.pop(name) for name in [*found] if isinstance(found[name], Failure)}  # type: ignore[misc]
    known: dict[str, PointResult] = {name: item for name, item in found.items() if isinstance(item, PointResult)}
    _check_limits_seen(list(known.values()), failed)
    known = _with_neighbours(_confirmed(known, runner, sizes))
    chosen = recommend(list(known.values()))
    result = PlanResult(
        scenario, base_per_s, sizes, terms(points[0].scenario), grid, known, failed, chosen, target_per_s=target_per_s,
        spare=spare, notes=tuple(notes),
    )  # fmt: skip
    if chosen is None:
        return result
    return with_sensitivity(result, chosen, runner)


def _check_limits_seen(found: Sequence[PointResult], failed: Mapping[str, Failure]) -> None:
    """Something must have been found, and no point may pass at every rate: it could not be ranked."""
    if not found:
        name, failure = next(iter(failed.items()))
        raise (InputError if failure.kind == "input" else CheckError)(f"point {name}: {failure.message}")
    endless = next((item for item in found if item.always_passes), None)
    if endless is not None:
        scenario, rate = endless.point.scenario, endless.trials[-1].rate_per_s
        key = "num_requests" if scenario.workload.num_requests is not None else "duration_s"
        if scenario.workload.trace is not None:
            key = "trace"
        what = f"expected a run long enough to see a limit: {rate:,.6g} requests/s still meet the SLO"
        raise scenario.refuse(f"workload.{key}", f"{what} ({endless.point.name})")


def _check(scenario: Scenario) -> float:
    """Refuse what has no answer; the rate of the scenario."""
    if scenario.slo is None or not scenario.slo.model_dump(exclude_none=True):
        what = "expected objectives to plan for, e.g. slo: {ttft_ms: {p99: 500}, tpot_ms: {p99: 50}}, got none"
        raise scenario.refuse("slo", what)
    if scenario.failures:
        what = (
            "expected none in a plan: at other rates they fall elsewhere in the run (--spare simulates lost replicas)"
        )
        raise scenario.refuse("failures", what)
    _check_warmup(scenario)
    streams = scenario.engine.stream if scenario.engine.stream is not None else scenario.engine.batching == "continuous"
    if not streams and (scenario.slo.tpot_ms is not None or scenario.slo.itl_ms is not None):
        key = "slo.tpot_ms" if scenario.slo.tpot_ms is not None else "slo.itl_ms"
        kind = scenario.engine.batching
        raise scenario.refuse(key, f"expected no objective between tokens where {kind} does not stream")
    return base_rate(scenario)


def _check_warmup(scenario: Scenario) -> None:
    """A warm-up must be the same share of the run at every rate."""
    warmup, workload = scenario.warmup, scenario.workload
    if isinstance(warmup, WarmupSeconds) and workload.duration_s is None:
        what = "expected {requests: N}, for at other rates the same seconds are another share of the run"
        raise scenario.refuse("warmup", what)
    count = workload.num_requests
    if isinstance(warmup, WarmupRequests) and count is not None and warmup.requests >= count:
        what = f"expected fewer than the {count} requests of the run, got {warmup.requests}"
        raise scenario.refuse("warmup", what)


# --- the search -------------------------------------------------------------------------------------------------------
def _search(
    points: Sequence[PlanPoint],
    effort: Effort,
    runner: JobRunner,
    sizes: Lengths,
    share: float,
    known: Mapping[str, PointResult] | None = None,
) -> dict[str, PointResult | Failure]:
    """The capacities of points; what is `known` of them is built upon."""
    jobs = []
    for point in points:
        before = (known or {}).get(point.name)
        guesses: tuple[float, ...] = ()
        trials: tuple[Trial, ...] = ()
        factor = 1.0
        if before is not None and before.capacity is not None:
            guesses, trials, factor = before.capacity.crossings_per_s, before.trials, before.factor
        jobs.append(
            CapacityJob(
                point.name, point.scenario, runner.base_per_s, guesses, sizes, effort, known=trials, factor=factor,
                grows=True,
            )
        )  # fmt: skip
    answers = runner.run(jobs, share, "capacities" if known is None else "the best again")
    found: dict[str, PointResult | Failure] = {}
    for point, answer in zip(points, answers, strict=True):
        if isinstance(answer, Failure):
            found[point.name] = replace(answer, settings=point.settings)
        else:
            found[point.name] = result_of_point(point, answer, effort)
    return found


def _with_neighbours(known: Mapping[str, PointResult]) -> dict[str, PointResult]:
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
            item = replace(item, limit=with_neighbour(item.limit, item.capacity, next_one.capacity))
        result[name] = item
    return result


def _confirmed(known: Mapping[str, PointResult], runner: JobRunner, sizes: Lengths) -> dict[str, PointResult]:
    """The points, the best of them searched again, and the recommended one served again until its answer holds: what
    moves there can make another one the best."""
    result, shares = dict(known), [(0.15, 0.15)]
    while True:
        again, once_more = shares.pop() if shares else (0.0, 0.0)
        result = _refine(result, runner, sizes, again)
        chosen = recommend(list(result.values()))
        if chosen is None or chosen.confirmation is not None:
            return result
        result[chosen.point.name] = confirm(chosen, runner, once_more)
        if result[chosen.point.name].confirmation is None:
            return result  # it could not be served: the failure is told where the point is looked at


def _refine(
    known: Mapping[str, PointResult], runner: JobRunner, sizes: Lengths, share: float
) -> dict[str, PointResult]:
    """Search the best point again, and the smallest that seem as good, until one of those is."""
    result = dict(known)
    line = contenders(list(known.values()))
    best = max(line, key=lambda item: item.per_gpu_per_s, default=None)
    if best is None:
        return result
    rest = [item for item in line if item is not best]
    todo = [best, *rest[:REFINED_AT_ONCE]]
    rest = rest[REFINED_AT_ONCE:]
    while todo:
        fresh = [item.point for item in todo if item.effort != FINE]
        if fresh:
            again = _search(fresh, FINE, runner, sizes, share, result)
            result |= {name: item for name, item in again.items() if isinstance(item, PointResult)}
        chosen = recommend(list(result.values()))
        if chosen is None or chosen.point.name != best.point.name:
            break
        todo, rest, share = rest[:REFINED_AT_ONCE], rest[REFINED_AT_ONCE:], 0.0
    return result


# --- the recommendation -----------------------------------------------------------------------------------------------
def contenders(found: Sequence[PointResult]) -> list[PointResult]:
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


def is_as_good(item: PointResult, best: PointResult) -> bool:
    """Whether a point is not worse than the best one by more than chance explains."""
    if item is best:
        return True
    assert item.capacity is not None
    assert best.capacity is not None
    resolution = max(item.effort.resolution, best.effort.resolution)
    gpus = item.point.gpus / best.point.gpus
    return ratio(item.capacity, best.capacity, resolution).high >= gpus


def recommend(found: Sequence[PointResult]) -> PointResult | None:
    """The smallest max_num_seqs whose capacity a GPU is statistically as good as the best."""
    fine = [item for item in found if item.capacity is not None and item.effort == FINE]
    return next(iter(contenders(fine)), None)
