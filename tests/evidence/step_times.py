"""Step times: the decode step of one sequence in real engines, against kernels alone.

With the host terms at 0 a step is its kernels. What a real engine takes beyond that is a bound on the host's work, and
a prediction above the measured time would be wrong whatever the host did. These engines had no part in the profiles;
the launches of unequal decodes, which had, are on rows that were held out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence import sets
from evidence.line import Line
from evidence.sets import Spec
from simkit.latency.host import HOST_FIXED_US
from simkit.latency.profile import list_profiles
from simkit.validation.rows.scenario import RowRun, run_of
from simkit.validation.rows.study import ZERO, Predicted, simulate

SECTION = "Step times"
INTRO = (
    "Whole steps of real engines against their kernels alone, the host terms at 0: a prediction too fast leaves room "
    "for the host's work, one too slow would be wrong whatever the host did. Below them, "
    "launches of unequal decodes that were held out of the fit."
)
NEEDS = (sets.chosen()["tables"]["shared"],)
PARTIAL = True
INDEPENDENT = "none (independent of every fit)"
TPOT, DURATION = "mean_tpot_ms", "duration_s"


@dataclass(frozen=True, slots=True)
class Step:
    """Time of one step, ms: measured, and predicted with host terms at 0."""

    row: str
    sequences: int
    measured_ms: float
    predicted_ms: float


def lines(shared: Path | None) -> list[Line]:
    """A line a set of whole steps, and the launches of unequal decodes that were held out."""
    found = [_held_out(profile.name, profile.launches) for profile in list_profiles()]
    launches = [line for line in found if line is not None]
    if shared is None:
        return launches
    sources = {spec["name"]: sets.source_of(sets.rows_of(shared, spec), spec) for spec in _specs(shared)}
    return [_line(name, sources[name], steps) for name, steps in _steps(shared).items()] + launches


def curves(shared: Path | None) -> dict[str, Any]:
    """Measured and predicted step times by set."""
    if shared is None:
        return {}
    return {"steps": {name: [[s.measured_ms, s.predicted_ms] for s in steps] for name, steps in _steps(shared).items()}}


def gaps(shared: Path | None) -> list[str]:
    """What is assumed of the host, and how far that is from what whole steps leave for it."""
    assumed = f"The host's work of a step is assumed where no run was fitted: {HOST_FIXED_US:g} us on every GPU"
    if shared is None:
        return [f"{assumed}."]
    judged = {spec["name"] for spec in sets.specs() if sets.is_judged(spec)}
    steps = [step for name, found in _steps(shared).items() if name in judged for step in found]
    left = [1e3 * (step.measured_ms - step.predicted_ms) for step in steps]
    told = f"whole steps of the sets that are judged leave {_range(left)} us, {fmean(left):,.0f} us in the mean"
    return [f"{assumed}; {told}."]


@functools.cache
def _steps(shared: Path) -> dict[str, list[Step]]:
    return {spec["name"]: _of_set(shared, spec) for spec in _specs(shared)}


def _specs(shared: Path) -> list[Spec]:
    return [spec for spec in sets.specs() if sets.is_here(shared, spec)]


def _of_set(shared: Path, spec: Spec) -> list[Step]:
    """The rows of a set with the fewest sequences at a time."""
    runs = [run_of(row, sets=tuple(spec.get("set", ()))) for row in sets.rows_of(shared, spec)]
    counts = [run.concurrency for run in runs if run.concurrency is not None]
    fewest = [run for run in runs if run.concurrency == min(counts)]
    found = simulate(fewest, lambda run: ZERO)
    return [_step(run, part) for run in fewest if isinstance(part := found[run.row.id], Predicted)]


def _step(run: RowRun, found: Predicted) -> Step:
    """A row with a TPOT is its decode step; one with a duration alone, duration over output tokens (prefill inside)."""
    measured, predicted = run.row.measured, found.metrics
    sequences = run.concurrency or 0
    if TPOT in measured:
        return Step(run.row.id, sequences, measured[TPOT], predicted[TPOT])
    ms = 1e3 / run.row.numbers["output_len"]
    return Step(run.row.id, sequences, ms * measured[DURATION], ms * predicted[DURATION])


def _line(name: str, source: str, steps: list[Step]) -> Line:
    errors = [100.0 * (step.predicted_ms / step.measured_ms - 1.0) for step in steps]
    left_us = [1e3 * (step.measured_ms - step.predicted_ms) for step in steps]
    above = sum(error > 0 for error in errors)
    sequences = sorted({step.sequences for step in steps})
    return Line(
        section=SECTION,
        evidence=f"decode step of {sequences[0]} sequence{'s' if sequences[0] > 1 else ''}: {name}",
        source=source,
        n=len(steps),
        metric="time of a step by kernels alone, MAPE",
        error_pct=fmean(map(abs, errors)),
        judged=False,
        fitted=INDEPENDENT,
        text=f"bias {fmean(errors):+.1f} %; left for the host: {_range(left_us)} us a step",
        note=f"{above} of {len(steps)} predicted slower than measured, which no host work explains",
    )


def _range(values: list[float]) -> str:
    low, high = f"{min(values):,.0f}", f"{max(values):,.0f}"
    return low if low == high else f"{low} to {high}"


def _held_out(profile: str, launches: Mapping[str, Any]) -> Line | None:
    skew = launches.get("skew") or {}
    if not skew.get("measured"):
        return None
    error, at_mean = skew["held_out"], skew["held_out_at_the_mean"]
    return Line(
        section=SECTION,
        evidence=f"attention of decodes of unequal length: {profile}",
        source="the profile's own table, rows held out",
        n=error["num"],
        metric="launch time, held out, MAPE",
        error_pct=error["mape_pct"],
        judged=False,
        fitted=f"its constants on the other {skew['rows'] - error['num']:,} launches of the same table",
        text=f"bias {error['bias_pct']:+.2f} %; priced at their mean length {at_mean['mape_pct']:.2f} %",
        note="the fit's own data, not independent evidence",
    )
