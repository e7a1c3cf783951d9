"""Serving an answer again, with made-up trials: where it moves when it does not hold, and what if nothing does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from simkit import scenario
from simkit.planner import confirm, plan
from simkit.planner.capacity import Capacity, capacity, curves
from simkit.planner.jobs import Answer, CapacityJob, JobRunner
from simkit.planner.points import make_points
from simkit.planner.result import PointResult
from simkit.planner.search import FINE, STEPS_A_DOUBLING, Search
from simkit.planner.trial import SloTerm, Trial
from simkit.studies.study import Failure
from tests.theory.test_planner_theory import customers
from tests.unit.test_plan import TEXT

TERM = (SloTerm("ttft_ms", "p90", 10.0),)
FEW, MANY = "max_num_seqs=8", "max_num_seqs=32"
CAPACITY = {FEW: 8.0, MANY: 10.0}


def found(name: str, *sets: str) -> PointResult:
    """A point whose replications cross about CAPACITY."""
    base = scenario.loads(TEXT, sets=sets)
    points, *_ = make_points(base, {"engine.max_num_seqs": [8, 32]})
    point = next(point for point in points if point.name == name)
    logs = math.log(CAPACITY[name]) + np.random.default_rng(7).normal(0.0, 0.03, FINE.replications)
    search = Search(customers(logs, 1.0), TERM)
    search.run([8.0], FINE)
    value = capacity(curves(search.trials), TERM, FINE.resolution)
    assert value is not None
    return PointResult(point, search.trials, FINE, value, None, factor=2.0)


class Serving(JobRunner):
    """Answers jobs without a simulation: long runs of a point hold up to `holds_to` times 1.02, 1.01, 1, 0.99."""

    def __init__(self, holds_to: Mapping[str, float], fails_below: float = 0.0) -> None:
        super().__init__(100.0, {}, None)
        self.holds_to, self.fails_below = holds_to, fails_below
        self.asked: list[CapacityJob] = []

    def run(self, jobs: Sequence[CapacityJob], share: float, label: str) -> list[Answer | Failure]:
        self.asked += jobs
        return [self._served(job, index) for index, job in enumerate(jobs)]

    def _served(self, job: CapacityJob, index: int) -> Answer | Failure:
        (rate,) = job.rates_per_s
        if rate < self.fails_below:
            return Failure("check", "no progress")
        limit = self.holds_to[job.name.partition(" ")[0]] * (1.02 - 0.01 * index)
        margin = min(0.1, 3 * (limit / rate - 1))
        return Answer((Trial(rate, job.first, 1000, (margin, 0.01, 0.5), {}, {}),))


def capacity_of(item: PointResult) -> Capacity:
    assert item.capacity is not None
    return item.capacity


def test_an_answer_that_holds_at_once_does_not_move() -> None:
    before, runner = found(MANY), Serving({MANY: 20.0})
    after = confirm.confirm(before, runner, 0.1)
    assert after.capacity == before.capacity
    assert after.confirmation is not None
    assert not after.confirmation.moved
    low, estimate = capacity_of(before).low_per_s, capacity_of(before).estimate_per_s
    for served, rate in zip(after.confirmation.served, (low, estimate), strict=True):
        assert 0.999 * rate < served.rate_per_s <= rate
    assert after.is_sustained
    # Four runs of customers of their own, ten times as long as those of the search, which were twice as long.
    assert confirm.TIMES == 10.0
    assert [job.first for job in runner.asked] == 2 * [1000, 1001, 1002, 1003]
    assert {job.replications for job in runner.asked} == {1}
    assert {job.scenario.workload.num_requests for job in runner.asked} == {60 * 2 * 10}


def test_an_estimate_that_long_runs_miss_moves_to_where_they_cross() -> None:
    before = found(MANY)
    low, estimate, high = (getattr(capacity_of(before), name) for name in ("low_per_s", "estimate_per_s", "high_per_s"))
    limit = math.sqrt(low * estimate)
    assert 0.99 * limit > low
    assert 1.005 * limit < estimate
    after = confirm.confirm(before, Serving({MANY: limit}), 0.1)
    value = capacity_of(after)
    assert value.low_per_s == low
    assert value.estimate_per_s == pytest.approx(1.005 * limit, rel=0.005)
    assert value.estimate_per_s < value.high_per_s <= min(high, estimate)
    assert after.confirmation is not None
    assert not after.confirmation.moved
    assert after.is_sustained


@pytest.mark.parametrize("holds_to", [9.0, 8.0, 6.5, 3.0, 0.1])
def test_an_answer_that_does_not_hold_moves_to_a_rate_that_did(holds_to: float) -> None:
    before = found(MANY)
    after = confirm.confirm(before, Serving({MANY: holds_to}), 0.1)
    value, confirmation = capacity_of(after), after.confirmation
    assert confirmation is not None
    assert confirmation.moved
    assert confirmation.before == before.capacity
    held = [one.rate_per_s for one in confirmation.served if one.held]
    missed = [one.rate_per_s for one in confirmation.served if not one.held]
    assert value.low_per_s == max(held)
    assert value.low_per_s <= value.estimate_per_s <= value.high_per_s <= capacity_of(before).high_per_s
    # The unluckiest run ends at 0.99 times the limit, all together at 1.005 times.
    assert max(held) <= 0.99 * holds_to < min(missed)
    steps = STEPS_A_DOUBLING * math.log2(min(missed) / max(held))
    if holds_to > 1:
        assert steps <= confirm.LARGEST_GAP + 0.1
    else:  # a hundredth of what the search said: as far as so many tries go
        assert len(confirmation.served) == confirm.MAX_SERVED
    together = [one.rate_per_s for one in confirmation.served if not one.together]
    assert value.high_per_s <= min(together)
    assert value.estimate_per_s < min(together)
    assert after.is_sustained


def test_the_rate_that_held_counts_whichever_was_tried_last() -> None:
    """While rates are bisected the last one tried may miss."""
    last = set()
    for holds_to in np.linspace(5.0, 8.5, 15):
        after = confirm.confirm(found(MANY), Serving({MANY: float(holds_to)}), 0.1)
        assert after.confirmation is not None
        assert after.confirmation.held is not None
        assert after.confirmation.held.rate_per_s == capacity_of(after).low_per_s
        assert after.is_sustained
        last.add(after.confirmation.served[-1].held)
    assert last == {True, False}


def test_where_nothing_holds_there_is_no_capacity() -> None:
    after = confirm.confirm(found(MANY), Serving({MANY: 1e-30}), 0.1)
    assert after.capacity is None
    assert after.confirmation is not None
    assert len(after.confirmation.served) == confirm.MAX_SERVED
    assert not after.is_sustained
    assert not after.always_passes


def test_runs_that_fail_leave_the_point_as_it_was_or_as_far_as_it_was_seen() -> None:
    before = found(MANY)
    assert confirm.confirm(before, Serving({MANY: 20.0}, fails_below=99.0), 0.1) is before
    stuck = confirm.confirm(before, Serving({MANY: 5.0}, fails_below=8.0), 0.1)
    assert stuck.capacity is None  # nothing that was served held
    assert stuck.confirmation is not None


def test_a_load_with_an_end_is_served_as_it_is() -> None:
    runner = Serving({MANY: 20.0})
    after = confirm.confirm(found(MANY, "workload.finite=true"), runner, 0.1)
    assert {job.scenario.workload.num_requests for job in runner.asked} == {60}
    assert after.confirmation is not None
    assert after.confirmation.times == 1.0
    assert not after.is_sustained


def test_another_point_is_recommended_when_it_is_better_after_the_move() -> None:
    """32 slots carry 10 by the search, and 5 for long; 8 slots carry 8, for long as well."""
    known = {name: found(name) for name in (FEW, MANY)}
    assert plan.recommend(list(known.values())) is known[MANY]
    sizes = plan.lengths(known[MANY].point.scenario, 256)
    runner = Serving({FEW: 20.0, MANY: 5.0})
    after = plan._confirmed(known, runner, sizes)
    chosen = plan.recommend(list(after.values()))
    assert chosen is after[FEW]
    assert capacity_of(chosen) == known[FEW].capacity
    assert chosen.confirmation is not None
    assert not chosen.confirmation.moved
    assert capacity_of(after[MANY]).estimate_per_s == pytest.approx(5.0, rel=0.05)
    # Nothing is asked of a point twice.
    assert len(runner.asked) == len({(job.name, job.first) for job in runner.asked})

    still = plan._confirmed(known, Serving({FEW: 20.0, MANY: 9.2}), sizes)
    chosen = plan.recommend(list(still.values()))
    assert chosen is still[MANY]  # moved, and better all the same
    assert chosen.confirmation is not None
    assert chosen.confirmation.moved

    nothing = plan._confirmed(known, Serving({FEW: 1e-30, MANY: 1e-30}), sizes)
    assert plan.recommend(list(nothing.values())) is None
