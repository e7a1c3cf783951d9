"""What parts of the latency model contribute: host terms fitted to runs, and each effect switched off alone.

A fit to the run that has a record for each request is what `simkit calibrate --from-run` does. Other runs of an engine
and version are there as aggregate rows only: the fit is then on some of them, and the others tell before and after.

What an effect contributes is how far the mean error moves without it, the fitted host terms kept. An effect that a set
does not have (all-reduce on one GPU) is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence import NO_FIT, Curves, Line, Section, inputs, mape, off_pct, rows, runs
from evidence.rows import Found
from simkit.latency.effects import EFFECTS
from simkit.latency.profile.values import HostTerms
from simkit.validation.rows.scenario import RowRun, run_of
from simkit.validation.rows.study import ZERO, Predicted, simulate, with_terms
from simkit.validation.runs.fit import fit_run
from simkit.validation.runs.result import arms

# --- host terms -------------------------------------------------------------------------------------------------------
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
TERMS = ("fixed_us", "per_seq_us", "first_token_us")


def _fits(shared: Path) -> Iterator[Line]:
    """Errors of the run that was fitted, and of rows that were not."""
    run, facts = inputs.run(), _facts(shared)
    told = f"stored: {'yes' if facts['stored'] else 'no, the errors are hardly smaller'}"
    for metric in METRICS:
        mean = facts["errors"][metric]["mean"]
        yield Line(
            evidence=f"{run['name']}: the run that was fitted",
            source=run["source"],
            n=facts["num_requests"][metric],
            metric=f"{metric.removesuffix('_ms').upper()}, mean",
            error_pct=mean["after_pct"],
            judged=False,
            fitted=f"what of {', '.join(TERMS)} the run tells, on this run",
            text=f"before {mean['before_pct']:+.2f} %, after {mean['after_pct']:+.2f} %; {told}",
        )
    for found in rows.studies(shared):
        test = [point for point in found.points if point.test]
        if found.fits and test:
            yield _not_fitted(found, test)


def _not_fitted(found: Found, test: Sequence[rows.Point]) -> Line:
    """Rows of a set of which others were fitted, before and after."""
    before, after = (mape(rows.errors_pct(test, key)) for key in ("at_zero", "predicted"))
    return Line(
        evidence=f"{found.spec['name']}: rows that were not fitted",
        source=found.source,
        n=len(test),
        metric=f"{rows.UNITS[found.spec['metric']]}, MAPE",
        error_pct=after,
        judged=False,
        fitted=rows.fitted_text(found),
        rests_on=rows.rests_on(found),
        text=f"before (host terms at 0) {before:.1f} %, after {after:.1f} %",
    )


def _untested(shared: Path) -> list[str]:
    """What there is nothing to test on."""
    run = inputs.run()["name"]
    return [f"{run}: no second run of this engine with a record for each request, to test terms fitted to it on."]


@functools.cache
def _facts(shared: Path) -> Mapping[str, Any]:
    return fit_run(runs.asked(shared)).facts.to_json()


FITS = Section(
    "Host terms fitted to runs",
    _fits,
    gaps=_untested,
    needs=runs.NEEDS,
    intro="What a fit of the few host terms gains: errors before and after, on the run that was fitted and on rows "
    "that were not. Nothing here is judged.",
)


# --- effects ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Arms:
    """Errors in percent of a set or run, with their sign: all effects on, and by the effect that is off."""

    name: str
    source: str
    metric: str
    fitted: str
    rests_on: str
    all_on: Sequence[float]
    without: Mapping[str, Sequence[float]]


def _effects(shared: Path) -> list[Line]:
    """A line an effect of each judged set and of the run."""
    return [line for arms in _all_arms(shared) for line in _lines(arms)]


def _curves(shared: Path) -> Curves:
    """Mean error with its sign, by set and effect."""
    found = {
        f"{arms.name}: {arms.metric}": {
            "metric": arms.metric,
            "all_on": fmean(arms.all_on),
            "without": {effect: fmean(errors) for effect, errors in arms.without.items()},
        }
        for arms in _all_arms(shared)
    }
    return {"ablation": found}


@functools.cache
def _all_arms(shared: Path) -> tuple[Arms, ...]:
    judged = [found for found in rows.studies(shared) if inputs.is_judged(found.spec)]
    return (*_run_arms(shared), *(_arms(shared, found) for found in judged))


def _run_arms(shared: Path) -> Iterator[Arms]:
    """The run with a record for each request."""
    run = inputs.run()
    for key, (all_on, without) in runs.errors_without(shared).items():
        singles = {effect: (error,) for effect, error in without.items()}
        yield Arms(run["name"], run["source"], runs.NAMES[key], runs.fitted_text(), NO_FIT, (all_on,), singles)


def _arms(shared: Path, found: Found) -> Arms:
    """The test rows of a set, simulated again without each effect that it has."""
    spec, test = found.spec, {point.row: point for point in found.points if point.test}
    chosen = [row for row in inputs.rows_of(shared, spec) if row.id in test]
    terms = {fit["engine"]: HostTerms(**fit["terms"]) for fit in found.fits}
    made = [run_of(row, sets=tuple(spec.get("set", ()))) for row in chosen]
    switched = [arms(with_terms(run, terms.get(run.engine, ZERO))) for run in made]
    without = {}
    for effect in EFFECTS:
        if all(effect in each for each in switched):
            runs_off = [replace(run, scenario=each[effect]) for run, each in zip(made, switched, strict=True)]
            parts = simulate(runs_off, lambda run: None)
            without[effect] = [_error(found, run, parts[run.row.id]) for run in runs_off]
    return Arms(
        name=spec["name"],
        source=f"{found.source}, test rows",
        metric=rows.UNITS[spec["metric"]],
        fitted=rows.fitted_text(found),
        rests_on=rows.rests_on(found),
        all_on=rows.errors_pct([test[row.id] for row in chosen]),
        without=without,
    )


def _error(found: Found, run: RowRun, part: object) -> float:
    assert isinstance(part, Predicted), part
    metric = found.spec["metric"]
    if metric == rows.THROUGHPUT:
        return off_pct(run.row.measured[rows.DURATION], part.metrics[rows.DURATION])
    return off_pct(part.metrics[metric], run.row.measured[metric])


def _lines(arms: Arms) -> Iterator[Line]:
    for effect, errors in arms.without.items():
        yield Line(
            evidence=f"{arms.name}, {arms.metric}, without {effect.replace('_', ' ')}",
            source=arms.source,
            n=len(errors),
            metric="MAPE" if len(errors) > 1 else "error",
            error_pct=mape(errors),
            judged=False,
            fitted=arms.fitted,
            rests_on=arms.rests_on,
            text=f"with it {mape(arms.all_on):.1f} %; mean error {fmean(arms.all_on):+.1f} % to {fmean(errors):+.1f} %",
            note=EFFECTS[effect],
        )


ABLATION = Section(
    "Ablation",
    _effects,
    curves=_curves,
    needs=runs.NEEDS,
    intro="Each effect of the latency model switched off alone, the host terms kept: it contributes as much as the "
    "mean error moves without it. An effect that a set does not have is left out.",
)
