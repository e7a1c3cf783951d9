"""One scenario at every combination of some settings, with the same customers.

Owns which points there are, and their table.
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
from simkit.metrics.catalogue import SWEEP_CSV
from simkit.plain import Json
from simkit.runs.replication import Result
from simkit.scenario import Scenario, apply_sets
from simkit.studies.study import Failure, Options, Point, Settings, point_names, run_study, value_text


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
