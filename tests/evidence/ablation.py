"""Ablation: the error with each effect switched off alone, the fitted host terms kept.

What an effect contributes is how far the mean error moves without it. An effect that a set does not have (all-reduce on
one GPU) is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence import rows, runs, sets
from evidence.line import Line
from evidence.rows import Found
from simkit.latency.effects import EFFECTS
from simkit.latency.profile.values import HostTerms
from simkit.validation.rows.scenario import RowRun, run_of
from simkit.validation.rows.study import ZERO, Predicted, simulate, with_terms
from simkit.validation.runs.result import arms

SECTION = "Ablation"
INTRO = (
    "Each effect of the latency model switched off alone, the host terms kept: it contributes as much as the mean "
    "error moves without it. An effect that a set does not have is left out."
)
NEEDS = runs.NEEDS


@dataclass(frozen=True, slots=True)
class Arms:
    """Errors in percent of a set or run, with their sign: all effects on, and by the effect that is off."""

    name: str
    source: str
    metric: str
    fitted: str
    all_on: tuple[float, ...]
    without: Mapping[str, tuple[float, ...]]


def lines(shared: Path | None) -> list[Line]:
    """A line an effect of each judged set and of the run."""
    return [] if shared is None else [line for arms in _all_arms(shared) for line in _lines(arms)]


def curves(shared: Path | None) -> dict[str, Any]:
    """Mean error with its sign, by set and effect."""
    if shared is None:
        return {}
    return {
        "ablation": {
            f"{arms.name}: {arms.metric}": {
                "metric": arms.metric,
                "all_on": fmean(arms.all_on),
                "without": {effect: fmean(errors) for effect, errors in arms.without.items()},
            }
            for arms in _all_arms(shared)
        }
    }


@functools.cache
def _all_arms(shared: Path) -> tuple[Arms, ...]:
    judged = [found for found in rows.studies(shared) if sets.is_judged(found.spec)]
    return (*_run_arms(shared), *(_arms(shared, found) for found in judged))


def _run_arms(shared: Path) -> Iterator[Arms]:
    """The run with a record for each request."""
    run = sets.chosen()["run"]
    for key, (all_on, without) in runs.errors_without(shared).items():
        singles = {effect: (error,) for effect, error in without.items()}
        yield Arms(run["name"], run["source"], runs.NAMES[key], runs.fitted_text(), (all_on,), singles)


def _arms(shared: Path, found: Found) -> Arms:
    """The test rows of a set, simulated again without each effect that it has."""
    spec, test = found.spec, {point.row: point for point in found.points if point.test}
    chosen = [row for row in sets.rows_of(shared, spec) if row.id in test]
    terms = {fit["engine"]: HostTerms(**fit["terms"]) for fit in found.fits}
    made = [run_of(row, sets=tuple(spec.get("set", ()))) for row in chosen]
    switched = [arms(with_terms(run, terms.get(run.engine, ZERO))) for run in made]
    without = {}
    for effect in EFFECTS:
        if all(effect in each for each in switched):
            runs_off = [replace(run, scenario=each[effect]) for run, each in zip(made, switched, strict=True)]
            parts = simulate(runs_off, lambda run: None)
            without[effect] = tuple(_error(found, run, parts[run.row.id]) for run in runs_off)
    return Arms(
        name=spec["name"],
        source=f"{found.source}, test rows",
        metric=rows.UNITS[spec["metric"]],
        fitted=rows.fitted_text(found),
        all_on=tuple(rows.errors_pct([test[row.id] for row in chosen])),
        without=without,
    )


def _error(found: Found, run: RowRun, part: Any) -> float:
    assert isinstance(part, Predicted), part
    spec = found.spec
    if spec["metric"] == rows.THROUGHPUT:
        return 100.0 * (run.row.measured[rows.DURATION] / part.metrics[rows.DURATION] - 1.0)
    return 100.0 * (part.metrics[spec["metric"]] / run.row.measured[spec["metric"]] - 1.0)


def _lines(arms: Arms) -> Iterator[Line]:
    mape, bias = _sizes(arms.all_on), fmean(arms.all_on)
    for effect, errors in arms.without.items():
        yield Line(
            section=SECTION,
            evidence=f"{arms.name}, {arms.metric}, without {effect.replace('_', ' ')}",
            source=arms.source,
            n=len(errors),
            metric="MAPE" if len(errors) > 1 else "error",
            error_pct=_sizes(errors),
            judged=False,
            fitted=arms.fitted,
            text=f"with it {mape:.1f} %; mean error {bias:+.1f} % to {fmean(errors):+.1f} %",
            note=EFFECTS[effect],
        )


def _sizes(errors: tuple[float, ...]) -> float:
    return fmean(map(abs, errors))
