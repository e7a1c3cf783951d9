"""Rows simulated: many runs through one study, each reduced at once to the numbers that its row can be held against.

Owns that reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Unpack

from simkit.engine.run import Progress
from simkit.errors import InputError
from simkit.latency.profile.values import HostTerms
from simkit.metrics.catalogue import number
from simkit.runs.replication import Result
from simkit.scenario import Scenario, apply_sets
from simkit.studies.study import Failure, Options, Point, run_study
from simkit.validation.rows.read import METRICS
from simkit.validation.rows.scenario import RowRun

CHUNK = 32
"""Rows whose results are held in memory at a time, with all their requests and steps."""

TermsOf = Callable[[RowRun], HostTerms | None]
"""The host terms of a row; None: those of its scenario."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a simulated row gives: `metrics` by column; running sequences over the makespan (mean) and at most.
    `num_lost`: requests that were refused, did not end, or ended before they should.
    """

    metrics: Mapping[str, float]
    running_mean: float
    running_peak: int
    latency_source: str
    host_source: str
    num_lost: int


def with_terms(run: RowRun, terms: HostTerms | None) -> Scenario:
    """The scenario of a row with these host terms; its own where it has no host work."""
    if terms is None or run.host_free:
        return run.scenario
    return apply_sets(run.scenario, {"latency.host": asdict(terms)}, label="host terms")


def simulate(
    runs: Sequence[RowRun], terms_of: TermsOf, progress: Progress | None = None, **options: Unpack[Options]
) -> dict[str, Predicted | Failure]:
    """Prediction or failure of each row, by its id. A row that cannot be run leaves the others alone."""
    found: dict[str, Predicted | Failure] = {}
    for first in range(0, len(runs), CHUNK):
        chunk = runs[first : first + CHUNK]
        points = [Point(run.row.id, with_terms(run, terms_of(run))) for run in chunk]
        found |= _simulate(points, _share(progress, first, len(chunk), len(runs)), options)
    return found


def _simulate(points: Sequence[Point], progress: Progress | None, options: Options) -> dict[str, Predicted | Failure]:
    try:
        study = run_study(points, progress=progress, **options)
    except InputError as error:  # none of them can be run
        if len(points) == 1:
            return {points[0].name: Failure("input", str(error))}
        return {name: part for point in points for name, part in _simulate([point], None, options).items()}
    return dict(study.failed) | {name: _reduce(result) for name, result in study.results.items()}


def _reduce(result: Result) -> Predicted:
    metrics = {}
    for column, (key, scale) in METRICS.items():
        predicted = number(result.summary, key)
        if predicted is not None:
            metrics[column] = predicted * scale
    spans = result.tables["steps"]
    running = spans["running"].to_numpy()
    lasted = spans["t_end_ns"].to_numpy() - spans["t_start_ns"].to_numpy()
    counts = result.summary["num_requests"]
    return Predicted(
        metrics=metrics,
        running_mean=float((running * lasted).sum() / lasted.sum()) if lasted.sum() else 0.0,
        running_peak=int(running.max(initial=0)),
        latency_source=result.summary["latency_source"],
        host_source=result.manifest["latency_effects"]["host"],
        num_lost=int(counts["arrived"] - counts["finished"] + result.summary["num_truncated"]),
    )


def _share(progress: Progress | None, first: int, count: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, label: progress((first + done * count) / total, label)
