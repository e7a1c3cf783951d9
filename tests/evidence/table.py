"""The whole table of public benchmarks: every row that can be simulated, with the terms that ship and nothing fitted.

It shows how far off simkit is where nobody chose the rows.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean

from evidence import LEFT_OPEN, NO_FIT, Curves, Line, Section, inputs, mape, off_pct
from simkit.latency.host import shipped
from simkit.validation.rows.read import read_rows, select
from simkit.validation.rows.results import RowResult, RowStudy
from simkit.validation.rows.study import study_rows

TPOT, THROUGHPUT = "TPOT", "output throughput"
METRICS = {
    "mean_tpot_ms": (TPOT, "TPOT mean"),
    "median_tpot_ms": (TPOT, "TPOT median"),
    "output_tok_s": (THROUGHPUT, THROUGHPUT),
}
"""What a row is held against, the first of these that it has: which kind of error that is, and its name."""

FITTED = "the host terms that ship for engines, on some of these rows (data/engine_hosts.yaml names them)"
WITHIN_PCT = 20.0
COVERED, DRAWS = 4, 4
"""Every so many-th row is given an interval, from so many draws of the error of step times."""

_HINT = re.compile(r"; did you mean ('[^']*'|\"[^\"]*\")\?")


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one set, engine and GPU that are held against the same. `values` are (row, measured, predicted)."""

    name: str
    kind: str
    metric: str
    values: tuple[tuple[str, float, float], ...]


def _lines(shared: Path) -> list[Line]:
    """All rows by what they are held against, what is left out and left open, and each set, engine and GPU."""
    study = _study(shared / inputs.table())
    groups, used = grouped(study.rows), _used(shared / inputs.table())
    return [
        *_whole(groups, "every row that can be simulated"),
        *_whole(grouped(row for row in study.rows if row.id not in used), "those that no host term was fitted on"),
        *_first_tokens([row for row in study.rows if row.id not in used]),
        *_coverage(shared / inputs.table(), frozenset(row.id for row in study.rows) - used),
        _left_out(study),
        _left_open(study),
        *(_line(group.name, group.metric, group.values) for group in groups),
    ]


def _curves(shared: Path) -> Curves:
    """Each group by how many times too large or too small its predictions are."""
    groups = grouped(_study(shared / inputs.table()).rows)
    return {"public": [{"name": group.name, "metric": group.metric, **off(group)} for group in groups]}


def grouped(rows: Iterable[RowResult]) -> list[Group]:
    """The rows of rows.json by set, engine, GPU and what they are held against, in order of their names."""
    found: dict[tuple[str, str, str], list[tuple[str, float, float]]] = {}
    for row in rows:
        known = {name for name, values in row.metrics.items() if values.error_pct is not None}
        metric = next((name for name in METRICS if name in known), None)
        if metric is not None:
            values = row.metrics[metric]
            key = f"{row.set}: {row.engine}, {row.gpu}", *METRICS[metric]
            assert values.predicted is not None, "it has an error"
            found.setdefault(key, []).append((row.id, values.measured, values.predicted))
    return [Group(*key, tuple(values)) for key, values in sorted(found.items())]


def off(group: Group) -> dict[str, float]:
    """How far off a group is, alike for both kinds of error: the geometric mean of how many times too large or too
    small its predictions are, and of the times per token that they mean over those measured (above 1: too slow)."""
    logs = [log(predicted / measured) for _, measured, predicted in group.values]
    slower = 1.0 if group.kind == TPOT else -1.0
    return {"n": len(logs), "times": exp(mape(logs)), "slower": exp(slower * fmean(logs))}


@functools.cache
def _used(path: Path) -> frozenset[str]:
    """The rows of the table that host terms which ship were fitted on."""
    table = read_rows(path)
    fitted = (terms.select for terms in shipped() if terms.select)
    return frozenset(row.id for conditions in fitted for row in select(table, conditions))


def _whole(groups: list[Group], which: str) -> Iterator[Line]:
    """A line for each kind of error."""
    for kind in dict.fromkeys(kind for kind, _ in METRICS.values()):
        values = [value for group in groups if group.kind == kind for value in group.values]
        if values:
            yield _line(f"{which}, held against {kind}", kind, values)


@functools.cache
def _study(path: Path) -> RowStudy:
    return study_rows(read_rows(path).rows, name="all", source=path.name, at_zero=False, jobs=None)


def _line(evidence: str, metric: str, values: Iterable[tuple[str, float, float]]) -> Line:
    errors = [(row, off_pct(predicted, measured)) for row, measured, predicted in values]
    worst, largest = max(errors, key=lambda pair: abs(pair[1]))
    within = sum(abs(error) <= WITHIN_PCT for _, error in errors)
    return _shown(
        evidence,
        len(errors),
        f"{metric}, MAPE",
        f"bias {fmean(error for _, error in errors):+.1f} %, {within:,} of {len(errors):,} within {WITHIN_PCT:g} %",
        error_pct=mape(error for _, error in errors),
        note=f"worst: {worst} {largest:+.0f} %",
    )


def _coverage(path: Path, ids: frozenset[str]) -> Iterator[Line]:
    """How often a measured number lies outside the 90 % interval of what is predicted, which holds the error of step
    times and nothing of what a row leaves open."""
    found: dict[str, list[tuple[str, bool, float]]] = {}
    for row in _covered(path, ids).rows:
        metric = next((name for name in METRICS if name in row.metrics), None)
        if metric is not None and (outside := row.metrics[metric].outside) is not None:
            values = row.metrics[metric]
            assert values.high_90 is not None
            assert values.low_90 is not None
            found.setdefault(METRICS[metric][0], []).append((row.id, outside, values.high_90 / values.low_90))
    for kind, each in found.items():
        out = [row for row, outside, _ in each if outside]
        widths = sorted(width for _, _, width in each)
        yield _shown(
            f"every {COVERED}th of those that no host term was fitted on, held against {kind}",
            len(each),
            "rows outside their 90 % interval",
            f"{len(out)} of {len(each)}; upper over lower end {widths[len(widths) // 2]:.2f} in the median, "
            f"{widths[-1]:.2f} at most",
            error_pct=100.0 * len(out) / len(each),
            note="" if not out else f"outside: {', '.join(out[:8])}{' and others' if len(out) > 8 else ''}",
        )


def _first_tokens(rows: Iterable[RowResult]) -> Iterator[Line]:
    """How many times too large or too small TTFT is predicted, of all rows that have it and by set.

    Not a percentage: TTFT is off by factors, and an error of a ratio does not grow without end to one side alone.
    """
    by_set: dict[str, list[float]] = {}
    for row in rows:
        values = row.metrics.get("mean_ttft_ms")
        if values is not None and values.predicted:
            by_set.setdefault(row.set, []).append(log(values.predicted / values.measured))
    logs = [value for part in by_set.values() for value in part]
    if logs:
        sets = "; ".join(f"{name} {exp(mape(part)):.2f} ({len(part):,})" for name, part in sorted(by_set.items()))
        yield _shown(
            "those that no host term was fitted on, TTFT factor",
            len(logs),
            "TTFT mean, factor",
            f"{exp(mape(logs)):.2f} times too large or too small (geometric mean), {exp(fmean(logs)):.2f} in the mean",
            note=f"by set: {sets}",
        )


@functools.cache
def _covered(path: Path, ids: frozenset[str]) -> RowStudy:
    rows = [row for row in read_rows(path).rows if row.id in ids][::COVERED]
    return study_rows(rows, name="covered", source=path.name, draws=DRAWS, at_zero=False, jobs=None)


def _left_out(study: RowStudy) -> Line:
    """Rows that are not simulated, by the reason."""
    reasons = Counter(_HINT.sub("", reason) for reason in study.skipped_rows.values())
    return _shown("rows that are left out", len(study.skipped_rows), "rows", _listed(reasons))


def _left_open(study: RowStudy) -> Line:
    """What the rows that are simulated do not state, and what holds instead; beside it, where step times come from."""
    steps = f"step times: {_listed(study.step_times)}"
    open_ = Counter(study.assumed) + Counter({f"host terms: {what}": n for what, n in study.host_terms.items()})
    return _shown(LEFT_OPEN, len(study.rows), "rows", _listed(open_), note=steps)


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,}: {what}" for what, count in Counter(counts).most_common())


def _shown(evidence: str, n: int, metric: str, text: str, *, error_pct: float | None = None, note: str = "") -> Line:
    return Line(
        evidence=evidence,
        source=Path(inputs.table()).name,
        n=n,
        metric=metric,
        error_pct=error_pct,
        judged=False,
        fitted=FITTED,
        rests_on=NO_FIT,
        text=text,
        note=note,
    )


def _gaps(shared: Path) -> list[str]:
    """What is known to be missing of what these rows ran."""
    return [
        "TTFT of TensorRT-LLM in InferenceX, 1,024 tokens in and out, fewer than 8 GPUs: its script has prompts wait "
        "up to 20 steps for others (batch_wait_timeout_iters: 20), which is not simulated; TTFT is predicted some 18 "
        "times the time per token too short there, on 8 GPUs, which do not wait, some 3 times."
    ]


TABLE = Section(
    "All public rows",
    _lines,
    curves=_curves,
    gaps=_gaps,
    needs=(inputs.table(),),
    intro="No bar is set here: flags, versions, lengths and the state of caches are not stated for many rows "
    "(prompts may have come from a warm prefix cache). The rows judged above are in it again, without their "
    "fitted terms, and so is the run above, as one row of mean lengths. A positive error of TPOT is a "
    "prediction that is too slow, a positive error of throughput one that is too fast, so that the two are "
    "never averaged together.",
)
