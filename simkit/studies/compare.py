"""Scenarios side by side that serve the same customers: every batcher with every KV allocator, or a grid of settings.

Owns which arms a comparison has and their paired differences, which points a sweep has, and its table.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Unpack

from simkit.engine.run import Progress
from simkit.errors import InputError
from simkit.metrics import catalogue
from simkit.metrics.catalogue import PAIRED, SWEEP_CSV, number, shown
from simkit.metrics.intervals import differences_range_95, half_width_95
from simkit.plain import Json
from simkit.runs.replication import Result
from simkit.scenario import Scenario, apply_sets
from simkit.studies.study import Failure, Options, Point, Settings, point_names, run_study, value_text

BASELINE = "static+contiguous"
GENERATIONS = ("static", "dynamic", "continuous")
ALLOCATORS = ("contiguous", "paged")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms by name in the order in which they were asked for, and for each the paired differences to the baseline.

    `failed` holds the arms that have no result; without the baseline there are no differences.
    """

    name: str
    baseline: str
    arms: dict[str, Result]
    paired: dict[str, dict[str, Json]]
    failed: dict[str, Failure] = field(default_factory=dict)

    def to_json(self) -> Json:
        """The content of compare.json."""
        return {
            "arms": {name: result.summary for name, result in self.arms.items()},
            "paired": self.paired,
            "failed": {name: failure.message for name, failure in self.failed.items()},
        }


def compare(
    scenario: Scenario,
    *,
    axes: Mapping[str, Sequence[Any]] | None = None,
    base_dir: Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Run all arms: six generations x allocators, each again for every axis value, then the file's variants.

    Every arm draws its customers from the same named streams, so differences are paired by replication. Raises
    InputError naming the arm that cannot be set up; an arm that fails later is in `failed`. For options see
    `studies.study.Options`.
    """
    if base_dir is not None:
        scenario = scenario.based_at(base_dir)
    points = []
    for name, change in _arms(scenario, axes or {}).items():
        try:
            points.append(Point(name, apply_sets(scenario, change, label=f"arm {name}"), change))
        except InputError as error:
            raise InputError(f"arm {name}: {error}") from None
    return _side_by_side(scenario.name, points, progress, options)


def compare_files(
    first: Scenario, second: Scenario, *, progress: Progress | None = None, **options: Unpack[Options]
) -> Comparison:
    """Two scenarios side by side, the first as baseline. Both draw from the same named streams of their seeds."""
    names = (first.name, second.name if second.name != first.name else f"{second.name} (2)")
    if first.replications != second.replications:
        raise InputError(f"arm {names[1]}: replications: expected {first.replications}, as in {names[0]}")
    return _side_by_side(
        f"{names[0]}-and-{names[1]}", [Point(names[0], first), Point(names[1], second)], progress, options
    )


def _side_by_side(name: str, points: Sequence[Point], progress: Progress | None, options: Options) -> Comparison:
    """Run the arms; the first of them is the baseline."""
    study = run_study(points, word="arm", progress=progress, **options)
    baseline = points[0].name
    return Comparison(name, baseline, study.results, _paired(study.results, baseline), study.failed)


def _arms(scenario: Scenario, axes: Mapping[str, Sequence[Any]]) -> dict[str, Settings]:
    """Arm name to the keys it changes."""
    base = {
        f"{batching}+{allocator}": {"engine.batching": batching, "engine.kv_allocator": allocator}
        for batching in GENERATIONS
        for allocator in ALLOCATORS
    }
    arms: dict[str, Settings] = dict(base)
    for key, values in axes.items():
        for value in values:
            for name, change in base.items():
                arms[f"{name}@{key}={value_text(value)}"] = {**change, key: value}
    for name, change in scenario.variants.items():
        if name in arms:
            what = f"expected names of their own, got {name!r}, an arm of every comparison"
            raise scenario.refuse("variants", what)
        arms[name] = dict(change)
    return arms


def _paired(arms: Mapping[str, Result], baseline: str) -> dict[str, dict[str, Json]]:
    """Arm minus baseline, replication by replication; the intervals need at least two replications. Both err alike, so
    that what step times have wrong in both is not in the difference."""
    if baseline not in arms:
        return {}
    base = arms[baseline]
    return {
        name: {metric.key: _difference(result, base, metric.key) for metric in shown(PAIRED)}
        for name, result in arms.items()
        if name != baseline
    }


def _difference(arm: Result, base: Result, metric: str) -> Json:
    found = _differences(arm.replications, base.replications, metric)
    if found is None:
        return {"difference": None, "ci95": None}
    half = half_width_95(found)
    told: Json = {"difference": sum(found) / len(found), "ci95": half}
    wrong = _differences(arm.erring, base.erring, metric) if arm.erring and base.erring else None
    return told if wrong is None else {**told, "range95": list(differences_range_95(found, wrong, half))}


def _differences(arm: Sequence[Json], base: Sequence[Json], metric: str) -> list[float] | None:
    """Of each replication; None where one lacks the metric."""
    pairs = [(number(a, metric), number(b, metric)) for a, b in zip(arm, base, strict=True)]
    known = [a - b for a, b in pairs if a is not None and b is not None]
    return known if len(known) == len(pairs) else None


# --- sweep ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Sweep:
    """Points by name in the order of the axes, the last axis fastest. `failed` holds those without a result."""

    name: str
    axes: dict[str, list[Any]]
    settings: dict[str, Settings]
    points: dict[str, Result]
    failed: dict[str, Failure] = field(default_factory=dict)

    def to_json(self) -> Json:
        """The content of sweep.json."""
        return {
            "axes": self.axes,
            "points": {
                name: {"settings": self.settings[name], "summary": result.summary}
                for name, result in self.points.items()
            },
            "failed": {
                name: {"settings": self.settings[name], "message": failure.message}
                for name, failure in self.failed.items()
            },
        }

    def to_csv(self) -> str:
        """The content of sweep.csv: a row a point; a number that does not exist is empty."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        columns = catalogue.shown(SWEEP_CSV)
        rows.writerow(["point", *self.axes, *(metric.name(SWEEP_CSV) for metric in columns), "failed"])
        for name, settings in self.settings.items():
            result, failure = self.points.get(name), self.failed.get(name)
            numbers = [_cell(result, metric.key) for metric in columns]
            rows.writerow(
                [name, *map(value_text, settings.values()), *numbers, failure.message if failure is not None else None]
            )
        return text.getvalue()


def sweep(
    scenario: Scenario,
    axes: Mapping[str, Sequence[Any]],
    *,
    base_dir: Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Sweep:
    """Run a scenario at every combination of the values of `axes` (dotted key -> values).

    All points share the seed, so they serve the same customers wherever the axes leave these alone. Raises InputError
    naming the point that cannot be set up; a point that fails later is in `failed`. For options see
    `studies.study.Options`.
    """
    if base_dir is not None:
        scenario = scenario.based_at(base_dir)
    if not axes:
        raise InputError("--axis: expected at least one, e.g. --axis engine.max_num_seqs=32,64")
    name_of = point_names(list(axes))
    points = []
    for values in product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        name = name_of(settings)
        try:
            points.append(Point(name, apply_sets(scenario, settings, label="--axis"), settings))
        except InputError as error:
            raise InputError(f"point {name}: {error}") from None
    study = run_study(points, word="point", progress=progress, **options)
    return Sweep(
        scenario.name,
        {key: list(values) for key, values in axes.items()},
        {point.name: dict(point.settings) for point in points},
        study.results,
        study.failed,
    )


def _cell(result: Result | None, key: str) -> Any:
    """A number of a summary; None where there is none."""
    found = None if result is None else catalogue.value(result.summary, key)
    return value_text(found) if isinstance(found, bool) else found
