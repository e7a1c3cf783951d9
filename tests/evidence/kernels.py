"""Kernels: errors of the shipped profiles on measurements held out of their fits, and steps against kernels alone.

With the host terms at 0 a step is its kernels. What a real engine takes beyond that is a bound on the host's work, and
a prediction above the measured time would be wrong whatever the host did. These engines had no part in the profiles;
the launches of unequal decodes, which had, are on rows that were held out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence import NO_FIT, Curves, Line, Section, inputs, mape, off_pct
from evidence.inputs import Spec
from simkit.latency.host import VLLM, shipped
from simkit.latency.profile import Profile, list_profiles
from simkit.report.sections.specs import LISTED
from simkit.validation.rows.scenario import RowRun, run_of
from simkit.validation.rows.study import ZERO, Predicted, simulate

Content = Mapping[str, Any]
"""A part of what a profile says of itself."""

WHERE = {"held_out_inside": "between measured sizes", "held_out_outside": "at the edge of measured sizes"}


def _kernels(shared: Path) -> list[Line]:
    """By profile: all ops together, each op and region, launches of unlike sequences, rows not simply used."""
    found: list[Line] = []
    for profile in list_profiles():
        source = f"{profile.provenance['measured_by']} ({profile.provenance['software']})"
        reports = _reports(profile)
        found.append(_whole(profile, source, list(reports.values())))
        found += [line for op, report in reports.items() for line in _op(profile.name, source, op, report)]
        found += _launches(profile, source)
        found += [line for op, report in reports.items() for line in _left_out(profile.name, source, op, report)]
    return found


def _curves(shared: Path) -> Curves:
    """Held-out error and bias by profile and op, for the figure."""
    found: Curves = {}
    for profile in list_profiles():
        ops = {op: dict(_errors(report, "held_out_inside")) for op, report in _reports(profile).items()}
        found[profile.name] = {name: error for name, error in ops.items() if error.get("num")}
    return {"kernels": found}


def _gaps(shared: Path) -> list[str]:
    """What no profile, or not every profile, has measured."""
    profiles = list_profiles()
    lacking = {
        "a chunk beside decodes in one launch": [p.name for p in profiles if not p.mixed.measured],
        "decodes of unequal length": [p.name for p in profiles if not _launch_report(p, "skew").get("measured")],
        "the host's work of a step": [p.name for p in profiles if p.host is None and not p.engine_hosts],
        "elementwise kernels and the sampler": [p.name for p in profiles if p.op("sampler", "bfloat16") is None],
        "8-bit matrix products": [p.name for p in profiles if p.op("gemm", "fp8") is None],
        "all-reduce": [p.name for p in profiles if p.op("all_reduce", "bfloat16") is None],
    }
    return [
        f"Not measured on {len(names)} of {len(profiles)} profiles ({', '.join(names)}): {what}."
        for what, names in lacking.items()
        if names
    ]


def _reports(profile: Profile) -> Mapping[str, Content]:
    """What a profile says of the fit of each op and dtype."""
    return {f"{op} {dtype}": profile.report[op, dtype] for op, dtype in profile.ops}


def _fit(profile: str, op: str) -> str:
    return f"the profile {profile}: {op}, on the rest of its rows"


def _errors(report: Content, key: str) -> Content:
    found: Content = (report.get("errors") or {}).get(key) or {}
    return found


def _whole(profile: Profile, source: str, reports: Sequence[Content]) -> Line:
    """Mean over the held-out rows of all ops, inside and outside: each row counts once."""
    parts = [_errors(report, key) for report in reports for key in WHERE]
    parts = [part for part in parts if part.get("num")]
    total = sum(part["num"] for part in parts)
    bias = sum(part["num"] * part["bias_pct"] for part in parts) / total
    return Line(
        evidence=f"{profile.name}: all ops",
        source=source,
        n=total,
        metric="kernel time, held out, MAPE",
        error_pct=sum(part["num"] * part["mape_pct"] for part in parts) / total,
        fitted=_fit(profile.name, "all ops"),
        text=f"bias {bias:+.2f} %",
        note=f"{profile.provenance['table_rows']:,} rows in its table",
    )


def _op(profile: str, source: str, op: str, report: Content) -> Iterator[Line]:
    for key, where in WHERE.items():
        error = _errors(report, key)
        if error.get("num"):
            yield Line(
                evidence=f"{profile}: {op}, {where}",
                source=source,
                n=error["num"],
                metric="kernel time, held out, MAPE",
                error_pct=error["mape_pct"],
                judged=False,
                fitted=_fit(profile, op),
                text=_spread(error),
            )


def _launches(profile: Profile, source: str) -> Iterator[Line]:
    """Chunks beside decodes, and decodes of unequal length, where these were measured; else that they were not."""
    mixed, skew = _launch_report(profile, "mixed"), _launch_report(profile, "skew")
    if not mixed.get("measured"):
        yield _unmeasured(profile.name, source, "a chunk beside decodes", f"rule: {mixed.get('rule', 'sum')}")
    for name, error in (mixed.get("held_out") or {}).items():
        yield _launch(profile.name, source, f"a chunk beside {name}", error, f"rule: {mixed['rule']}")
    unequal = "decodes of unequal length"
    if not skew.get("measured"):
        yield _unmeasured(profile.name, source, unequal, "rule of another GPU" if skew else "none")
        return
    yield _launch(profile.name, source, unequal, skew["held_out"], "")
    at_mean = skew["held_out_at_the_mean"]
    yield _launch(profile.name, source, f"{unequal}, priced at their mean length", at_mean, "the effect off")


def _launch_report(profile: Profile, kind: str) -> Content:
    """What a profile says of its launches of unlike sequences (``mixed``) or of unequal decodes (``skew``)."""
    found: Content = profile.launches.get(kind) or {}  # type: ignore[assignment]
    return found


def _launch(profile: str, source: str, name: str, error: Content, note: str) -> Line:
    return Line(
        evidence=f"{profile}: {name}",
        source=source,
        n=error["num"],
        metric="launch time, held out, MAPE",
        error_pct=error["mape_pct"],
        judged=False,
        fitted=_fit(profile, "launches of unlike sequences"),
        text=_spread(error),
        note=note,
    )


def _spread(error: Content) -> str:
    return f"median {error['median_pct']:.2f} %, p95 {error['p95_pct']:.1f} %, bias {error['bias_pct']:+.2f} %"


def _unmeasured(profile: str, source: str, name: str, note: str) -> Line:
    evidence = f"{profile}: {name}"
    return Line(
        evidence=evidence, source=source, n=0, metric="launch time", judged=False, text="not measured", note=note
    )


def _left_out(profile: str, source: str, op: str, report: Content) -> Iterator[Line]:
    for key, why in LISTED:
        count = (report.get(key) or {}).get("count", 0)
        if count:
            yield _rows(profile, source, op, count, report["rows"], why)
    tested = sum(_errors(report, region).get("num", 0) for region in WHERE)
    clamped = (report.get("errors") or {}).get("clamped", 0)
    if clamped:
        yield _rows(profile, source, op, clamped, tested, "held-out prices raised to what the hardware allows")


def _rows(profile: str, source: str, op: str, count: int, total: int, why: str) -> Line:
    text = f"{count:,} of {total:,}: {why}"
    return Line(evidence=f"{profile}: {op}, rows", source=source, n=count, metric="rows", judged=False, text=text)


KERNELS = Section("Kernels", _kernels, curves=_curves, gaps=_gaps)


# --- step times -------------------------------------------------------------------------------------------------------
TPOT, DURATION = "mean_tpot_ms", "duration_s"


@dataclass(frozen=True, slots=True)
class Step:
    """Time of one step, ms: measured, and predicted with host terms at 0."""

    row: str
    sequences: int
    measured_ms: float
    predicted_ms: float


def _step_times(shared: Path) -> list[Line]:
    """A line a set of whole steps, and the launches of unequal decodes that were held out."""
    found = [_held_out(profile) for profile in list_profiles()]
    launches = [line for line in found if line is not None]
    sources = {spec["name"]: inputs.source_of(inputs.rows_of(shared, spec), spec) for spec in _specs(shared)}
    return [_of_steps(name, sources[name], steps) for name, steps in _steps(shared).items()] + launches


def _step_curves(shared: Path) -> Curves:
    """Measured and predicted step times by set."""
    return {"steps": {name: [[s.measured_ms, s.predicted_ms] for s in steps] for name, steps in _steps(shared).items()}}


def _step_gaps(shared: Path) -> list[str]:
    """What is assumed of the host, and how far that is from what whole steps leave for it."""
    fixed = [row.terms.fixed_us for row in shipped() if row.engine == VLLM and row.terms.fixed_us]
    assumed = f"The host's work of a step ships for each version of vLLM: {_range(fixed)} us and more for each sequence"
    judged = {spec["name"] for spec in inputs.specs() if inputs.is_judged(spec)}
    steps = [step for name, found in _steps(shared).items() if name in judged for step in found]
    left = [1e3 * (step.measured_ms - step.predicted_ms) for step in steps]
    told = f"whole steps of the sets that are judged leave {_range(left)} us, {fmean(left):,.0f} us in the mean"
    return [f"{assumed}; {told}."]


@functools.cache
def _steps(shared: Path) -> dict[str, list[Step]]:
    return {spec["name"]: _of_set(shared, spec) for spec in _specs(shared)}


def _specs(shared: Path) -> list[Spec]:
    return [spec for spec in inputs.specs() if inputs.is_here(shared, spec)]


def _of_set(shared: Path, spec: Spec) -> list[Step]:
    """The rows of a set with the fewest sequences at a time."""
    runs = [run_of(row, sets=tuple(spec.get("set", ()))) for row in inputs.rows_of(shared, spec)]
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


def _of_steps(name: str, source: str, steps: list[Step]) -> Line:
    errors = [off_pct(step.predicted_ms, step.measured_ms) for step in steps]
    left_us = [1e3 * (step.measured_ms - step.predicted_ms) for step in steps]
    above = sum(error > 0 for error in errors)
    sequences = sorted({step.sequences for step in steps})
    return Line(
        evidence=f"decode step of {sequences[0]} sequence{'s' if sequences[0] > 1 else ''}: {name}",
        source=source,
        n=len(steps),
        metric="time of a step by kernels alone, MAPE",
        error_pct=mape(errors),
        judged=False,
        fitted="none (independent of every fit)",
        rests_on=NO_FIT,
        text=f"bias {fmean(errors):+.1f} %; left for the host: {_range(left_us)} us a step",
        note=f"{above} of {len(steps)} predicted slower than measured, which no host work explains",
    )


def _range(values: list[float]) -> str:
    low, high = f"{min(values):,.0f}", f"{max(values):,.0f}"
    return low if low == high else f"{low} to {high}"


def _held_out(profile: Profile) -> Line | None:
    skew = _launch_report(profile, "skew")
    if not skew.get("measured"):
        return None
    error, at_mean = skew["held_out"], skew["held_out_at_the_mean"]
    return Line(
        evidence=f"attention of decodes of unequal length: {profile.name}",
        source="the profile's own table, rows held out",
        n=error["num"],
        metric="launch time, held out, MAPE",
        error_pct=error["mape_pct"],
        judged=False,
        fitted=f"its constants on the other {skew['rows'] - error['num']:,} launches of the same table",
        text=f"bias {error['bias_pct']:+.2f} %; priced at their mean length {at_mean['mape_pct']:.2f} %",
        note="the fit's own data, not independent evidence",
    )


STEP_TIMES = Section(
    "Step times",
    _step_times,
    curves=_step_curves,
    gaps=_step_gaps,
    needs=(inputs.table(),),
    partial=True,
    intro="Whole steps of real engines against their kernels alone, the host terms at 0: a prediction too fast "
    "leaves room for the host's work, one too slow would be wrong whatever the host did. Below them, launches "
    "of unequal decodes that were held out of the fit.",
)
