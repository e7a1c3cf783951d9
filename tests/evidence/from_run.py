"""Host terms fitted to one run, and the errors before and after: on that run, and on others.

A fit to the run that has a record for each request is what `simkit calibrate --from-run` does. Other runs of an engine
and version are there as aggregate rows only: the fit is then on some of them, and the others tell before and after.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence import rows, runs, sets
from evidence.line import Line
from simkit.validation.runs.fit import fit_run

SECTION = "Host terms fitted to runs"
INTRO = (
    "What a fit of the few host terms gains: errors before and after, on the run that was fitted and on rows that were "
    "not. Nothing here is judged."
)
NEEDS = runs.NEEDS
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
TERMS = ("fixed_us", "per_seq_us", "first_token_us")


def lines(shared: Path | None) -> list[Line]:
    """Errors of the run that was fitted, and of rows that were not."""
    return [] if shared is None else [*_own(shared), *_others(shared)]


def gaps(shared: Path | None) -> list[str]:
    """What there is nothing to test on."""
    name = sets.chosen()["run"]["name"]
    return [f"{name}: no second run of this engine with a record for each request, to test terms fitted to it on."]


def _own(shared: Path) -> Iterator[Line]:
    run, facts = sets.chosen()["run"], _facts(shared)
    told = f"stored: {'yes' if facts['stored'] else 'no, the errors are hardly smaller'}"
    for metric in METRICS:
        mean = facts["errors"][metric]["mean"]
        yield Line(
            section=SECTION,
            evidence=f"{run['name']}: the run that was fitted",
            source=run["source"],
            n=facts["num_requests"][metric],
            metric=f"{metric.removesuffix('_ms').upper()}, mean",
            error_pct=mean["after_pct"],
            judged=False,
            fitted=f"what of {', '.join(TERMS)} the run tells, on this run",
            text=f"before {mean['before_pct']:+.2f} %, after {mean['after_pct']:+.2f} %; {told}",
        )


def _others(shared: Path) -> Iterator[Line]:
    """Sets of rows of which some were fitted: those that were not, before and after."""
    for found in rows.studies(shared):
        test = [point for point in found.points if point.test]
        if not found.fits or not test:
            continue
        before, after = (fmean(map(abs, rows.errors_pct(test, key))) for key in ("at_zero", "predicted"))
        yield Line(
            section=SECTION,
            evidence=f"{found.spec['name']}: rows that were not fitted",
            source=found.source,
            n=len(test),
            metric=f"{rows.UNITS[found.spec['metric']]}, MAPE",
            error_pct=after,
            judged=False,
            fitted=rows.fitted_text(found),
            text=f"before (host terms at 0) {before:.1f} %, after {after:.1f} %",
        )


@functools.cache
def _facts(shared: Path) -> Mapping[str, Any]:
    return fit_run(runs.asked(shared)).facts.to_json()
