"""What comes of predicted rows: each with its numbers, errors by what rows have in common, and bands on these.

Owns the content of rows.json and rows.csv.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from simkit.errors import InputError, nearest
from simkit.plain import Json, plain
from simkit.validation import bands
from simkit.validation.bands import Band, Verdict
from simkit.validation.rows.fit import EngineFit
from simkit.validation.rows.read import METRICS, STATS, Row

GROUPS = ("all", "engine", "gpu", "model", "concurrency", "set")
RUNNING = "running"
"""Held against a range, so it has no error percentage of its own in the statistics."""

NO_ROW = "expected a metric of the rows that are judged, none has it"


@dataclass(frozen=True, slots=True)
class MetricResult:
    """A measured number and what is predicted, with the host terms that hold and with those at 0; errors in percent,
    predicted over measured less 1. `low_90` and `high_90`: the 90 % interval of what is predicted, None where none
    was asked for."""

    measured: float
    predicted: float | None
    error_pct: float | None
    predicted_zero: float | None
    error_zero_pct: float | None
    low_90: float | None = None
    high_90: float | None = None

    @property
    def outside(self) -> bool | None:
        """Whether the measured number lies outside the interval; None without one."""
        return None if self.low_90 is None or self.high_90 is None else not self.low_90 <= self.measured <= self.high_90


@dataclass(frozen=True, slots=True)
class RunningResult(MetricResult):
    """The largest count of running sequences that was logged, beside the simulated one; it belongs between the mean
    over time and the peak (`within`)."""

    predicted_mean: float = 0.0
    predicted_peak: int = 0
    within: bool = True


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row of rows.json. `role`: "fit" and "test" where host terms were fitted for its engine, else "all"."""

    id: str
    set: str
    engine: str
    gpu: str
    model: str
    tp: int
    input_len: float
    output_len: float
    concurrency: int | None
    role: str
    metrics: Mapping[str, MetricResult]
    note: str = ""


@dataclass(frozen=True, slots=True)
class RowErrors:
    """Errors of `n` rows in percent; `worst_pct` has the largest absolute value, sign kept, and `mape_zero_pct` is the
    mean absolute error with the host terms at 0. `outside_90_pct`: the share of rows outside their 90 % interval, None
    without intervals."""

    n: int
    mape_pct: float
    bias_pct: float
    worst_pct: float
    mape_zero_pct: float
    outside_90_pct: float | None = None


Errors = dict[str, dict[str, dict[str, RowErrors]]]
"""Group to value to metric, of the rows that were not fitted."""


@dataclass(frozen=True, slots=True)
class RowStudy:
    """Rows with what was measured and predicted.

    `failed` are ids to messages of rows that could be set out as a scenario but not be simulated, which `skipped`
    counts among the others; `skipped_rows` is the reason of each row that was left out, by id, and `skipped_lines` its
    line in the file. `assumed`: what rows leave open, `step_times` and `host_terms` what their numbers rest on, each to
    how many rows.
    """

    name: str
    source: str
    num_read: int
    rows: tuple[RowResult, ...]
    skipped_rows: Mapping[str, str]
    skipped_lines: Mapping[str, int]
    failed: Mapping[str, str]
    fits: tuple[EngineFit, ...]
    assumed: Mapping[str, int]
    step_times: Mapping[str, int]
    host_terms: Mapping[str, int]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What rows leave open and what their numbers rest on, with the number of rows behind it."""
        sources = {"step times": self.step_times, "host terms": self.host_terms}
        named = ((f"{what}: {text}", count) for what, found in sources.items() for text, count in found.items())
        return tuple(counted(text, count) for text, count in (*self.assumed.items(), *named))

    @property
    def skipped(self) -> dict[str, int]:
        """Reason to how many rows were left out for it."""
        return dict(Counter(self.skipped_rows.values()))

    @property
    def errors(self) -> Errors:
        """Errors of the rows that were not fitted, by what they have in common."""
        return statistics(self.rows)

    def to_json(self) -> Json:
        """The content of rows.json."""
        fits = [fit.to_json() for fit in self.fits]
        counts = {"read": self.num_read, "simulated": len(self.rows), "skipped": len(self.skipped_rows)}
        content: Json = plain(
            {
                "name": self.name,
                "source": self.source,
                "num_rows": counts,
                "skipped": self.skipped,
                "skipped_rows": self.skipped_rows,
                "skipped_lines": self.skipped_lines,
                "failed": self.failed,
                "fit": None if not fits else fits[0] if len(fits) == 1 else fits,
                "rows": self.rows,
                "errors": self.errors,
                "assumptions": self.assumptions,
            }
        )
        return content

    def to_csv(self) -> str:
        """The content of rows.csv: a line for each metric of each row; a number that does not exist is empty."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        *own, _, note = (field.name for field in fields(RowResult))
        numbers = [field.name for field in fields(MetricResult)]
        lines.writerow([*own, "metric", *numbers, note])
        for row in self.rows:
            for metric, values in row.metrics.items():
                cells = [getattr(row, name) for name in own]
                lines.writerow([*cells, metric, *(getattr(values, name) for name in numbers), row.note])
        return text.getvalue()


def counted(text: str, count: int) -> str:
    """An assumption with the number of rows behind it."""
    return f"{text} ({'1 row' if count == 1 else f'{count} rows'})"


# --- errors by what rows have in common
def statistics(rows: Sequence[RowResult]) -> Errors:
    """The errors of the `rows` that were not fitted."""
    judged = [row for row in rows if row.role != "fit"]
    found: Errors = {}
    for group in GROUPS:
        parts: dict[str, list[RowResult]] = {}
        for row in judged:
            parts.setdefault("all" if group == "all" else _text(getattr(row, group)), []).append(row)
        found[group] = {value: _by_metric(parts[value]) for value in sorted(parts, key=_order)}
    return found


def _by_metric(rows: Sequence[RowResult]) -> dict[str, RowErrors]:
    errors: dict[str, list[tuple[float, float, bool | None]]] = {}
    for row in rows:
        for metric, values in row.metrics.items():
            error, zero = values.error_pct, values.error_zero_pct
            if metric != RUNNING and error is not None:
                errors.setdefault(metric, []).append((error, error if zero is None else zero, values.outside))
    return {metric: _errors(found) for metric, found in errors.items()}


def _errors(found: Sequence[tuple[float, float, bool | None]]) -> RowErrors:
    values, outside = [value for value, _, _ in found], [out for _, _, out in found if out is not None]
    return RowErrors(
        n=len(values),
        mape_pct=sum(map(abs, values)) / len(values),
        bias_pct=sum(values) / len(values),
        worst_pct=max(values, key=abs),
        mape_zero_pct=sum(abs(zero) for _, zero, _ in found) / len(values),
        outside_90_pct=100.0 * sum(outside) / len(outside) if outside else None,
    )


def _text(value: str | int | None) -> str:
    return "-" if value in (None, "") else str(value)


def _order(text: str) -> tuple[bool, int, str]:
    """Numbers by size, before words."""
    return (not text.isdecimal(), int(text) if text.isdecimal() else 0, text)


# --- bands
def parse_bands(texts: Iterable[str]) -> list[Band]:
    """Bands on the mean absolute errors of rows, from ``METRIC=PCT`` texts. Raises InputError."""
    return bands.parse(texts, _wrong, "expected a percentage >= 0 behind the =, got {!r}", "metric")


def _wrong(text: str) -> str | None:
    metric, equals, _ = (part.strip() for part in text.partition("="))
    if equals and metric in METRICS:
        return None
    return f"expected METRIC=PERCENT, e.g. mean_tpot_ms=5{nearest(_swapped(metric), METRICS)}"


def _swapped(metric: str) -> str:
    """``tpot_ms.mean``, as `summary.json` has it, in the words of the table: ``mean_tpot_ms``."""
    name, _, stat = metric.partition(".")
    word = {"p50": "median", "": "mean"}.get(stat, stat)
    return metric if metric.split("_")[0] in STATS else f"{word}_{name if '_' in name else f'{name}_ms'}"


def check_measured(wanted: Iterable[Band], rows: Iterable[Row]) -> None:
    """InputError for a band on what none of the `rows` measured, before they are simulated."""
    measured = {metric for row in rows for metric in row.measured}
    for band in wanted:
        if band.key not in measured:
            have = f"; they have {', '.join(sorted(measured))}" if measured else ""
            raise InputError(f"--max-error {band.key}: {NO_ROW}{have}")


def judge(wanted: Iterable[Band], errors: Errors) -> list[Verdict]:
    """Each band with the error it is for. Raises InputError for a metric that no judged row has."""
    overall = errors["all"].get("all", {})
    verdicts, unknown = bands.judge(wanted, lambda key: overall[key].mape_pct if key in overall else None)
    if unknown:
        raise InputError(f"--max-error {unknown[0]}: {NO_ROW}")
    return verdicts
