"""The points of a plan: every combination of settings that is tried, and the automatic grid of max_num_seqs.

Owns which points there are and which fail before they are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from simkit.engine.build import Setup, set_up
from simkit.errors import InputError
from simkit.planner import bounds
from simkit.scenario import Scenario, apply_sets
from simkit.studies.offered_load import for_trials, lengths
from simkit.studies.study import Failure, Settings, point_names

SLOTS = "engine.max_num_seqs"


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One combination of settings, ready to be tried."""

    name: str
    settings: Settings
    scenario: Scenario
    setup: Setup
    physical: bounds.Physical

    @property
    def slots(self) -> int:
        """max_num_seqs."""
        return self.setup.max_num_seqs

    @property
    def gpus(self) -> int:
        """GPUs of all its replicas."""
        return self.scenario.replicas * self.scenario.hardware.tensor_parallel_size


def make_points(
    scenario: Scenario, axes: dict[str, Sequence[Any]]
) -> tuple[list[PlanPoint], dict[str, Failure], list[str], dict[str, list[Any]]]:
    """(points, failed ones, notes, the axes with the values of max_num_seqs).

    Without `engine.max_num_seqs` among the `axes` its grid is automatic. Raises InputError when no point can be set up.
    """
    name_of = point_names([SLOTS, *(key for key in axes if key != SLOTS)])
    combinations, failed = _combinations(scenario, {key: axes[key] for key in axes if key != SLOTS}, name_of)
    automatic = SLOTS not in axes
    slots = _automatic(scenario, combinations, failed, name_of) if automatic else list(axes[SLOTS])
    points: list[PlanPoint] = []
    for settings, changed in combinations:
        if name_of(settings) in failed:
            continue  # it does not start with a single slot
        for count in slots:
            whole = {SLOTS: count, **settings}
            try:
                ready = apply_sets(changed, {SLOTS: count}, label="--axis")
                points.append(make_point(name_of(whole), whole, ready, scenario))
            except InputError as error:
                failed[name_of(whole)] = Failure.of(error, whole)
    if not points:
        name, failure = next(iter(failed.items()))
        raise InputError(f"point {name}: {failure.message}")
    notes: list[str] = []
    if automatic:
        slots = _starting(slots, points, failed, notes)
    grid = {SLOTS: slots, **{key: list(values) for key, values in axes.items() if key != SLOTS}}
    return points, failed, notes, grid


def _starting(slots: list[int], points: list[PlanPoint], failed: dict[str, Failure], notes: list[str]) -> list[int]:
    """Of an automatic grid what the engine starts with, somewhere; nobody asked for the rest, so it did not fail."""
    starting = [count for count in slots if any(point.settings[SLOTS] == count for point in points)]
    left_out = [count for count in slots if count not in starting]
    for name in [name for name, failure in failed.items() if failure.settings.get(SLOTS) in left_out]:
        del failed[name]
    if left_out:
        notes.append(f"max_num_seqs {', '.join(map(str, left_out))}: left out, the engine does not start with them")
    return starting


def _combinations(
    scenario: Scenario, axes: Mapping[str, Sequence[Any]], name_of: Callable[[Settings], str]
) -> tuple[list[tuple[Settings, Scenario]], dict[str, Failure]]:
    found: list[tuple[Settings, Scenario]] = []
    failed: dict[str, Failure] = {}
    for values in product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        try:
            found.append((settings, apply_sets(scenario, settings, label="--axis")))
        except InputError as error:
            failed[name_of(settings)] = Failure.of(error, settings)
    return found, failed


def make_point(name: str, settings: Settings, scenario: Scenario, base: Scenario) -> PlanPoint:
    """A combination of settings made ready. Raises InputError for what the engine would refuse."""
    ready = for_trials(scenario, base.replicas)
    setup = set_up(ready)
    return PlanPoint(name, settings, ready, setup, bounds.physical(setup, lengths(ready, setup.max_model_len)))


def _automatic(
    scenario: Scenario,
    combinations: Sequence[tuple[Settings, Scenario]],
    failed: dict[str, Failure],
    name_of: Callable[[Settings], str],
) -> list[int]:
    """Powers and half-powers of two up to the physical bound, and the scenario's own value."""
    slots: set[int] = set()
    for settings, changed in combinations:
        try:
            one = make_point("", settings, apply_sets(changed, {SLOTS: 1}, label="plan"), scenario)
        except InputError as error:
            failed[name_of(settings) or scenario.name] = Failure.of(error, settings)
            continue
        slots.update(bounds.grid(one.physical.bound))
    if not slots:
        name, failure = next(iter(failed.items()))
        raise InputError(failure.message if name == scenario.name else f"point {name}: {failure.message}")
    given = scenario.engine.max_num_seqs
    return sorted(slots if given is None else slots | {given})
