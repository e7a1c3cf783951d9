"""Aggregate rows: sets of public benchmark rows, simulated row by row."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from evidence import AT_ZERO, FITS, HIT, MISSED, NO_FIT, Curves, Line, Section, inputs, mape, off_pct
from evidence.inputs import Spec
from simkit.validation.rows.fit import FitRows
from simkit.validation.rows.results import counted
from simkit.validation.rows.scenario import REQUESTS_UNSTATED
from simkit.validation.rows.study import RUNNING_SLACK, study_rows

THROUGHPUT, DURATION, RUNNING = "throughput", "duration_s", "running"
UNITS = {"mean_tpot_ms": "TPOT [ms]", "output_tok_s": "output [tokens/s]", THROUGHPUT: "throughput [tokens/s]"}
ALONE = "fitted on this GPU alone"
"""How a set that shares its host terms with another is shown beside."""

FAR_APART = 0.25
"""Share of a term by which it may move when fitted to one of the sets that share it, and still be called determined."""

FITTED_TO = {"mean_tpot_ms": "TPOT", "output_tok_s": "output throughput", DURATION: "duration"}
"""The metric of a fit (`--fit-metric`), in words."""

BY = {"max_concurrency": "max concurrency", "num_prompts": "requests at once", "batch_size": "batch size"}


@dataclass(frozen=True, slots=True)
class Point:
    """A row of a set: `metric` measured, predicted with the terms that hold, and with host terms at 0."""

    row: str
    concurrency: int
    measured: float
    predicted: float
    at_zero: float
    test: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A set, simulated. `fits` are those of rows.json; `running` has the logged and simulated counts by row; `ttft_pct`
    the error of the mean TTFT of each row that is judged and has one; `unstated` are the assumptions about how many
    requests there were."""

    spec: Spec
    points: tuple[Point, ...]
    fits: tuple[Mapping[str, Any], ...]
    running: Mapping[str, Mapping[str, Any]]
    source: str
    num_skipped: int
    assumptions: tuple[str, ...]
    unstated: tuple[str, ...]
    ttft_pct: tuple[float, ...] = ()


def _all_lines(shared: Path) -> list[Line]:
    """For each set: what is judged, the same with host terms at 0, the rows of the fit, running counts, and what it is
    under other assumptions."""
    return [line for found in studies(shared) for line in _with_others(found, shared)]


def _curves(shared: Path) -> Curves:
    """The points of every set."""
    return {"sets": {found.spec["name"]: _curve(found) for found in studies(shared)}}


def _gaps(shared: Path) -> list[str]:
    """Sets whose table is not there."""
    lacking = [spec for spec in inputs.specs() if not inputs.is_here(shared, spec)]
    return [f"{spec['name']}: left out, for want of ../shared/{inputs.table_of(spec)}" for spec in lacking]


@functools.cache
def studies(shared: Path) -> tuple[Found, ...]:
    """Every set of sets.yaml, simulated once. Sets that are fitted `together` share their terms."""
    groups: dict[str, list[Spec]] = {}
    specs = [spec for spec in inputs.specs() if inputs.is_here(shared, spec)]
    for spec in specs:
        groups.setdefault(spec.get("together", spec["name"]), []).append(spec)
    found: dict[str, Found] = {}
    # Those that take the terms of another set come after it.
    for group in sorted(groups.values(), key=lambda group: "terms_of" in group[0]):
        found |= {each.spec["name"]: each for each in _study(shared, group, found)}
    return tuple(found[spec["name"]] for spec in specs)


def _study(shared: Path, specs: list[Spec], before: Mapping[str, Found]) -> list[Found]:
    """Sets that are simulated and fitted at once: they have the metric, fit and settings of the first."""
    spec = specs[0]
    fit = spec.get("fit")
    given = before[spec["terms_of"]].fits if "terms_of" in spec else ()
    sets = [*spec.get("set", ()), *(f"latency.host={json.dumps(fit['terms'])}" for fit in given)]
    metric = DURATION if spec["metric"] == THROUGHPUT else spec["metric"]
    wanted = None if fit is None else FitRows(fit["column"], tuple(fit["values"]), metric)
    chosen = [inputs.rows_of(shared, each) for each in specs]
    together = [row for rows in chosen for row in rows]
    study = study_rows(together, fit=wanted, sets=sets, name=spec["name"])
    content = study.to_json()
    fits = content["fit"] or list(given)
    simulated = [row for row in content["rows"] if metric in row["metrics"]]
    found = []
    for each, own in zip(specs, chosen, strict=True):
        ids = {row.id for row in own}
        rows = [row for row in simulated if row["id"] in ids]
        found.append(
            Found(
                spec=each,
                points=tuple(_point(row, metric, inverse=spec["metric"] == THROUGHPUT) for row in rows),
                fits=tuple(fits) if isinstance(fits, list) else (fits,),
                running={row["id"]: row["metrics"][RUNNING] for row in rows if RUNNING in row["metrics"]},
                source=inputs.source_of(own, each),
                num_skipped=len(own) - len(rows),
                assumptions=study.assumptions,
                unstated=tuple(counted(text, n) for text, n in study.assumed.items() if text in REQUESTS_UNSTATED),
                ttft_pct=tuple(
                    row["metrics"]["mean_ttft_ms"]["error_pct"]
                    for row in rows
                    if row["role"] != "fit" and "mean_ttft_ms" in row["metrics"]
                ),
            )
        )
    return found


def column_of(spec: Spec) -> str:
    """The column that tells the rows of a set apart by load."""
    return str(spec["fit"]["column"] if "fit" in spec else spec.get("by", "max_concurrency"))


def _with_others(found: Found, shared: Path) -> list[Line]:
    """The lines of a set; the first says what other assumptions, the last of them, make of it."""
    first, *rest = _lines(found)
    others = {f"{loops} requests a client": _with_loops(found, shared, loops) for loops in found.spec.get("loops", ())}
    told = []
    if "together" in found.spec:
        own = _alone(found, shared)
        test = [point for point in own.points if point.test]
        others[ALONE] = _line(own, test, f"test rows, {ALONE}", "predicted", judged=False)
        told = [apart(found.fits[0]["terms"], own.fits[0]["terms"])]
    told += [beyond(first, which, line) for which, line in others.items()]
    return [replace(first, note="; ".join(text for text in (first.note, *told) if text)), *rest, *others.values()]


def beyond(line: Line, which: str, other: Line) -> str:
    """What a line that is met says of one with another assumption, by which its bar would be missed; else ""."""
    missed = replace(other, judged=True, bar_pct=line.bar_pct).outcome == MISSED
    return f"with {which} {other.error_pct:.1f} %: the bar would be missed" if missed and line.outcome == HIT else ""


def apart(shared: Mapping[str, float], own: Mapping[str, float]) -> str:
    """What a set that shares its terms says of those fitted to it alone."""
    far = any(abs(own[name] - value) > FAR_APART * value for name, value in shared.items())
    return f"{ALONE}: {_terms(own)}" + (", so that the pair is poorly determined" if far else "")


def _alone(found: Found, shared: Path) -> Found:
    """A set of those that share their terms, with terms fitted to its own rows only."""
    (own,) = _study(shared, [{key: value for key, value in found.spec.items() if key != "together"}], {})
    return own


def _with_loops(found: Found, shared: Path, loops: int) -> Line:
    """A set of closed loops with another number of requests a client, where its rows do not say how many there were."""
    spec = found.spec
    rows = [
        replace(row, numbers={**row.numbers, "num_prompts": loops * row.numbers["max_concurrency"]})
        for row in inputs.rows_of(shared, spec)
    ]
    content = study_rows(rows, sets=spec.get("set", ()), name=spec["name"]).to_json()
    points = tuple(_point(row, spec["metric"], inverse=False) for row in content["rows"])
    other = replace(found, points=points, num_skipped=len(rows) - len(points))
    return _line(other, points, f"{loops} requests a client", "predicted", judged=False)


def _point(row: Mapping[str, Any], metric: str, *, inverse: bool) -> Point:
    values = row["metrics"][metric]
    measured, predicted, at_zero = (values[name] for name in ("measured", "predicted", "predicted_zero"))
    if inverse:
        tokens = row["concurrency"] * row["output_len"]
        measured, predicted, at_zero = tokens / measured, tokens / predicted, tokens / at_zero
    return Point(row["id"], row["concurrency"], measured, predicted, at_zero, test=row["role"] != "fit")


def errors_pct(points: Sequence[Point], key: str = "predicted") -> list[float]:
    """Predicted over measured of every point, percent off."""
    return [off_pct(getattr(point, key), point.measured) for point in points]


def _lines(found: Found) -> list[Line]:
    test = [point for point in found.points if point.test]
    fitted = [point for point in found.points if not point.test]
    judged = inputs.is_judged(found.spec)
    which = "test rows" if fitted else "all rows"
    made = [_line(found, test, which, "predicted", judged=judged)]
    if found.fits:
        made.append(_line(found, test, f"{which}, {AT_ZERO}", "at_zero", judged=False))
    if fitted:
        made.append(_line(found, fitted, "rows of the fit", "predicted", judged=False))
        made.append(_line(found, fitted, f"rows of the fit, {AT_ZERO}", "at_zero", judged=False))
    made += [_running(found)] if "running" in found.spec else []
    return made + ([_ttft(found, which)] if "ttft" in found.spec and found.ttft_pct else [])


def _ttft(found: Found, which: str) -> Line:
    """The mean time to the first token, which has no bar."""
    return Line(
        evidence=f"{found.spec['name']}, {which}, TTFT",
        source=found.source,
        n=len(found.ttft_pct),
        metric="mean TTFT [ms], MAPE",
        error_pct=mape(found.ttft_pct),
        judged=False,
        fitted=fitted_text(found),
        rests_on=rests_on(found),
        text=f"bias {fmean(found.ttft_pct):+.1f} %, largest {max(found.ttft_pct, key=abs):+.1f} %",
        note=f"not judged: {found.spec['ttft']}",
    )


def _line(found: Found, points: Sequence[Point], which: str, key: str, *, judged: bool) -> Line:
    spec, off = found.spec, errors_pct(points, key)
    worst = max(range(len(off)), key=lambda i: abs(off[i]))
    by = BY[column_of(spec)]
    skipped = f"; {found.num_skipped} rows not simulated" if found.num_skipped else ""
    return Line(
        evidence=f"{spec['name']}, {which}",
        source=found.source,
        n=len(points),
        metric=f"{UNITS[spec['metric']]}, MAPE",
        error_pct=mape(off),
        bar_pct=spec.get("bar_pct"),
        judged=judged,
        peer=spec.get("peer", "") if judged else "",
        fitted=fitted_text(found) if key == "predicted" else "none",
        rests_on=rests_on(found) if key == "predicted" else AT_ZERO,
        text=f"bias {fmean(off):+.1f} %, largest {off[worst]:+.1f} % at {by} {points[worst].concurrency}",
        note="; ".join(text for text in (spec.get("why_shown", ""), skipped.removeprefix("; "), *_told(found)) if text),
    )


def _told(found: Found) -> list[str]:
    """What rows of this set leave open about how many requests there were."""
    return list(found.unstated) if "loops" in found.spec else []


def fitted_text(found: Found) -> str:
    """Which host terms were fitted, to what value, on which rows."""
    if not found.fits:
        return f"the host terms that ship, {found.spec['ships']}" if "ships" in found.spec else "none on these rows"
    if "terms_of" in found.spec:
        engine, what = found.fits[0]["engine"], _terms(found.fits[0]["terms"])
        return f"none on these rows; the host terms of {engine} ({what}) fitted for other rows of it"
    column, values = found.spec["fit"]["column"], ", ".join(found.spec["fit"]["values"])
    told = []
    for fit in found.fits:
        terms = fit["terms"]
        if not terms:
            told.append(f"none of {fit['engine']}, whose host work is hidden")
            continue
        told.append(f"{len(fit['fitted'])} host terms of {fit['engine']} ({_terms(terms)})")
    what = FITTED_TO[found.fits[0]["metric"]]
    return (
        f"{'; '.join(told)} on the {what} of {sum(len(fit['rows']) for fit in found.fits)} rows ({BY[column]} {values})"
    )


def rests_on(found: Found) -> str:
    """Whether host terms were fitted on rows of a set."""
    own = "terms_of" not in found.spec and any(fit["terms"] for fit in found.fits)
    return FITS if own or "ships" in found.spec else NO_FIT


def _terms(terms: Mapping[str, float]) -> str:
    named = {"per_request_us": "a new request", "gap_us": "between steps"}
    more = [f"{terms[name]:,.0f} us {what}" for name, what in named.items() if terms.get(name)]
    return ", ".join([f"{terms['fixed_us']:,.0f} us a step", f"{terms['per_seq_us']:.1f} us a sequence", *more])


def _running(found: Found) -> Line:
    """Logged running sequences where the pool binds."""
    chosen = {point.row for point in found.points if point.concurrency >= found.spec["running"]["from"]}
    told = [values for row, values in found.running.items() if row in chosen]
    outside = sum(not values["within"] for values in told)
    shown = ", ".join(f"{v['measured']:g} in {v['predicted_mean']:.0f} to {v['predicted_peak']:g}" for v in told)
    return Line(
        evidence=f"{found.spec['name']}, running sequences from {found.spec['running']['from']} requests",
        source=found.source,
        n=len(told),
        metric=f"logged counts outside time mean - {100 * RUNNING_SLACK:.0f} % to peak",
        error_pct=100.0 * outside / len(told) if told else None,
        bar_pct=0.0,
        fitted=fitted_text(found),
        rests_on=rests_on(found),
        text=f"{outside} of {len(told)} outside",
        note=f"logged in simulated mean to peak: {shown}",
    )


def _curve(found: Found) -> Curves:
    return {
        "unit": UNITS[found.spec["metric"]],
        "by": BY[column_of(found.spec)],
        "bar_pct": found.spec.get("bar_pct"),
        "points": [{"by": point.concurrency, **asdict(point)} for point in found.points],
        "assumed": found.assumptions,
    }


ROWS = Section(
    "Aggregate rows",
    _all_lines,
    curves=_curves,
    gaps=_gaps,
    needs=(inputs.table(),),
    partial=True,
    intro="A row holds the means of one benchmark: each is simulated with the load, lengths and settings that it "
    "states. Where host terms were fitted, it is on the rows that are named, and the error judged is that of "
    "the others.",
)
