"""An answer is served again before it is told: at the lower end of its interval and at its estimate, much longer, with
fresh customers.

Owns how often, how long, and where the answer moves when it does not hold. Runs of the search can end before a memory
or a queue has filled that fills once in many; a rate that a user will serve for days must not rest on that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from simkit.planner.capacity import Capacity, curves, pooled_crossing
from simkit.planner.jobs import CapacityJob, JobRunner
from simkit.planner.result import Confirmation, PointResult, Served
from simkit.planner.search import STEPS_A_DOUBLING
from simkit.planner.trial import SloTerm, terms
from simkit.runs import run_length
from simkit.studies.study import Failure

TIMES = 10.0
"""How much longer than the runs of the search."""

RUNS = 4

FRESH = 1000
"""The first replication of fresh customers; the search uses those from 0 on."""

LARGEST_GAP = 2
"""Grid steps that may lie between a rate that held and one that did not."""

MAX_SERVED = 12


def confirm(item: PointResult, runner: JobRunner, share: float) -> PointResult:
    """The point with its capacity as long runs leave it; without one where no rate holds.

    The lower end must hold. When it does not, lower rates are served, each twice as far away, until one does, then
    rates between the two; the interval then begins at the rate that held. The estimate must hold for all long runs
    together. When it does not, it moves to where they cross an objective, and the interval ends no higher than the
    lowest rate that they miss together.
    """
    before = item.capacity
    assert before is not None
    times = TIMES if run_length.can_grow(item.point.scenario) else 1.0
    served: list[Served] = []

    def holds(rate_per_s: float) -> bool | None:
        """Whether it does; None where it could not be served."""
        found = _serve(item, rate_per_s, times, runner, 0.0 if served else share)
        if isinstance(found, Failure):
            return None
        served.append(found)
        return found.held

    held = _highest_held(_typed(before.low_per_s), holds)
    if not served:
        return item
    if held is not None and all(one.together for one in served):
        holds(_typed(before.estimate_per_s))
    capacity = None if held is None else _moved(before, held, served, terms(item.point.scenario))
    confirmation, rising = Confirmation(times, before, tuple(served)), item.rising
    if held is not None and times > 1:
        # The long runs know better than those of the search whether something still fills.
        trials = [trial for one in served if one.rate_per_s == held for trial in one.trials]
        rising = run_length.rising([trial.levels for trial in trials if trial.levels])
    return replace(item, capacity=capacity, rising=rising, confirmation=confirmation)


def _highest_held(first_per_s: float, holds: Callable[[float], bool | None]) -> float | None:
    """The first rate where it holds, else a lower one that does, next to one that does not; None where none does."""
    held: float | None = None
    missed, rate, stride = math.inf, first_per_s, 1
    for _ in range(MAX_SERVED):
        verdict = holds(rate)
        if verdict is None:
            break
        held, missed = (rate, missed) if verdict else (held, rate)
        if held is None:
            rate, stride = _typed(rate * 2 ** (-stride / STEPS_A_DOUBLING)), 2 * stride
        elif missed == math.inf or STEPS_A_DOUBLING * math.log2(missed / held) <= LARGEST_GAP + 0.1:
            break
        else:
            rate = _typed(math.sqrt(held * missed))
    return held


def _serve(item: PointResult, rate_per_s: float, times: float, runner: JobRunner, share: float) -> Served | Failure:
    """Long runs at a rate, each a question of its own, so that they are made side by side."""
    scenario = item.longer(times)
    count = 1 if run_length.is_same_every_time(scenario) else RUNS
    jobs = [
        CapacityJob(
            f"{item.point.name} at {rate_per_s:g}/s for long",
            scenario,
            runner.base_per_s,
            rates_per_s=(rate_per_s,),
            replications=1,
            first=FRESH + index,
        )
        for index in range(count)
    ]
    answers = runner.run(jobs, share, f"serving {rate_per_s:.3g}/s again, {times:g} times as long")
    failed = next((answer for answer in answers if isinstance(answer, Failure)), None)
    if failed is not None:
        return failed
    return Served(rate_per_s, tuple(answer.trials[0] for answer in answers if not isinstance(answer, Failure)))


def _moved(before: Capacity, held_per_s: float, served: list[Served], asked: Sequence[SloTerm]) -> Capacity:
    """The capacity of which `held_per_s` held."""
    low = before.low_per_s if served[0].held else held_per_s
    too_much = min((one.rate_per_s for one in served if not one.together), default=math.inf)
    crossed, _ = pooled_crossing(curves(trial for one in served for trial in one.trials), asked)
    estimate = max(low, min(before.estimate_per_s, crossed))
    high = max(estimate, min(before.high_per_s, too_much))
    return replace(before, low_per_s=low, estimate_per_s=estimate, high_per_s=high)


def _typed(rate_per_s: float) -> float:
    """A rate to four digits, not above it, so that it can be typed in."""
    digits = 10.0 ** (math.floor(math.log10(rate_per_s)) - 3)
    return float(f"{math.floor(rate_per_s / digits + 1e-9) * digits:.4g}")
