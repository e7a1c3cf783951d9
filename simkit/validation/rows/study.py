"""A table of benchmark rows predicted: every row with the host terms at 0 and with those that hold, and the errors.

    table = read_rows(Path("serving_bench.csv"))
    study = study_rows(select(table, ["set=silicon", "model=*Qwen3-32B*"]), fit=FitRows("max_concurrency", ("8", "32")))
    study.to_json()["errors"]["all"]["all"]["mean_tpot_ms"]

Owns the content of rows.json and rows.csv.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from simkit.engine.run import Progress
from simkit.errors import CheckError, InputError
from simkit.latency.host import HOST_FIXED_US
from simkit.latency.profile.values import HostTerms
from simkit.scenario import Scenario
from simkit.studies.study import Failure, Options
from simkit.types import Floats
from simkit.validation.rows.errors import RUNNING, error_pct, statistics
from simkit.validation.rows.fit import EngineFit, FitRows, fit_engines
from simkit.validation.rows.read import Row
from simkit.validation.rows.refusals import Unsuitable, refusals
from simkit.validation.rows.runs import Predicted, simulate
from simkit.validation.rows.scenario import RowRun, run_of

ZERO = HostTerms(0.0, 0.0, 0.0)
BEYOND = "beyond --max-rows"
LOST = "requests are cut, refused or unfinished in the simulation, so that it is not what was measured"
RUNNING_SLACK = 0.15
"""A logged count may lie below the mean over time by so much of it: a log shows moments between steps."""

COLUMNS = ("id", "set", "engine", "gpu", "model", "tp", "input_len", "output_len", "concurrency", "role")
VALUES = ("measured", "predicted", "error_pct", "predicted_zero", "error_zero_pct")


@dataclass(frozen=True, slots=True)
class RowStudy:
    """Rows with what was measured and predicted. `rows` are those of rows.json; `failed` are ids to messages of rows
    that could be set out as a scenario but not be simulated, which `skipped` counts among the others; `skipped_rows` is
    the reason of each row that was left out, by id, and `skipped_lines` its line in the file. `assumed`: what rows
    leave open and what their numbers rest on, to how many rows.
    """

    name: str
    source: str
    num_read: int
    rows: tuple[dict[str, Any], ...]
    skipped_rows: Mapping[str, str]
    skipped_lines: Mapping[str, int]
    failed: Mapping[str, str]
    fits: tuple[EngineFit, ...]
    assumed: Mapping[str, int]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What rows leave open and what their numbers rest on, with the number of rows behind it."""
        return tuple(f"{text} ({_rows(count)})" for text, count in self.assumed.items())

    @property
    def skipped(self) -> dict[str, int]:
        """Reason to how many rows were left out for it."""
        return dict(Counter(self.skipped_rows.values()))

    def to_json(self) -> dict[str, Any]:
        """The content of rows.json."""
        fits = [fit.to_json() for fit in self.fits]
        return {
            "name": self.name,
            "source": self.source,
            "num_rows": {
                "read": self.num_read,
                "simulated": len(self.rows),
                "skipped": len(self.skipped_rows),
            },
            "skipped": self.skipped,
            "skipped_rows": dict(self.skipped_rows),
            "skipped_lines": dict(self.skipped_lines),
            "failed": dict(self.failed),
            "fit": None if not fits else fits[0] if len(fits) == 1 else fits,
            "rows": list(self.rows),
            "errors": statistics(self.rows),
            "assumptions": list(self.assumptions),
        }

    def to_csv(self) -> str:
        """The content of rows.csv: a line for each metric of each row; a number that does not exist is empty."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow([*COLUMNS, "metric", *VALUES, "note"])
        for row in self.rows:
            for metric, values in row["metrics"].items():
                numbers = [values[name] for name in VALUES]
                lines.writerow([*(row[name] for name in COLUMNS), metric, *numbers, row["note"]])
        return text.getvalue()


def study_rows(
    rows: Sequence[Row],
    *,
    fit: FitRows | None = None,
    base: Scenario | None = None,
    sets: Sequence[str] = (),
    max_rows: int | None = None,
    name: str = "rows",
    source: str = "",
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> RowStudy:
    """Simulate the rows. `base` gives engine settings that rows leave open, `sets` (``KEY=VALUE``) hold for all rows,
    `max_rows` of those that can be simulated are taken, `fit` says which of them fit the host terms.

    Raises InputError when nothing can be simulated, or fitted as asked, and CheckError when a simulation goes wrong.
    """
    runs, skipped = _runs(rows, base, tuple(sets))
    if not runs:
        raise InputError(f"{source or 'rows'}: no row can be simulated: {_listed(Counter(skipped.values()))}")
    if max_rows is not None and len(runs) > max_rows:
        skipped |= dict.fromkeys((run.row.id for run in runs[max_rows:]), BEYOND)
        runs = runs[:max_rows]
    zero, failed = _simulated(runs, {}, ZERO, _part(progress, 0.0, 0.4), options)
    runs = [run for run in runs if run.row.id not in failed]
    if not runs:
        first = next(iter(failed.values()))
        raise InputError(f"{source or 'rows'}: no row can be simulated: {first}")
    fits: list[EngineFit] = []
    if fit is not None:
        share = _part(progress, 0.4, 0.4)  # how many rounds a fit takes is not known
        fits = fit_engines(runs, fit, lambda used, terms, metric: _predict(used, terms, metric, share, options))
    terms = {found.engine: found.found.terms for found in fits if found.found.fitted}
    final, more = _final(runs, terms, zero, _part(progress, 0.6, 1.0), options)
    failed |= more
    runs = [run for run in runs if run.row.id not in failed]
    if not runs:
        raise InputError(f"{source or 'rows'}: no row can be simulated: {next(iter(failed.values()))}")
    skipped |= refusals(failed)
    shown = tuple(_row(run, zero[run.row.id], final[run.row.id], _role(run, fits)) for run in runs)
    lines = {row.id: row.line for row in rows if row.id in skipped}
    assumed = Counter(text for run in runs for text in run.assumed) + _sources(final, runs)
    return RowStudy(name, source, len(rows), shown, skipped, lines, failed, tuple(fits), assumed)


def _runs(rows: Sequence[Row], base: Scenario | None, sets: tuple[str, ...]) -> tuple[list[RowRun], dict[str, str]]:
    """What can be simulated, and why the rest cannot. A setting for all rows that is wrong is an InputError."""
    runs, skipped, refused = [], dict[str, str](), dict[str, str]()
    for row in rows:
        try:
            runs.append(run_of(row, base, sets))
        except Unsuitable as error:
            skipped[row.id] = str(error)
        except InputError as error:
            if str(error).startswith("--set"):
                raise
            refused[row.id] = str(error)
    return runs, skipped | refusals(refused)


def _simulated(
    runs: Sequence[RowRun],
    terms: Mapping[str, HostTerms],
    default: HostTerms | None,
    progress: Progress | None,
    options: Options,
) -> tuple[dict[str, Predicted], dict[str, str]]:
    """Predictions, and messages of the rows that have none, with the terms of their engine."""
    found = simulate(runs, lambda run: terms.get(run.engine, default), progress, **options)
    broken = next((part for part in found.values() if isinstance(part, Failure) and part.kind != "input"), None)
    if broken is not None:
        raise CheckError(broken.message)
    done = {name: part for name, part in found.items() if isinstance(part, Predicted)}
    failed = {name: part.message for name, part in found.items() if isinstance(part, Failure)}
    return done, failed | {name: LOST for name, part in done.items() if part.num_lost}


def _final(
    runs: Sequence[RowRun],
    terms: Mapping[str, HostTerms],
    zero: Mapping[str, Predicted],
    progress: Progress | None,
    options: Options,
) -> tuple[dict[str, Predicted], dict[str, str]]:
    """With the terms that hold; a row that has none is not simulated again."""
    busy = [run for run in runs if not run.host_free]
    found, failed = _simulated(busy, terms, None, progress, options) if busy else ({}, {})
    return found | {run.row.id: zero[run.row.id] for run in runs if run.host_free}, failed


def _predict(
    runs: Sequence[RowRun], terms: HostTerms, metric: str, progress: Progress | None, options: Options
) -> Floats:
    found, failed = _simulated(runs, {}, terms, progress, options)
    if failed:
        name, message = next(iter(failed.items()))
        raise InputError(f"row {name}: {message}")
    missing = next((run.row.id for run in runs if metric not in found[run.row.id].metrics), None)
    if missing is not None:
        raise InputError(f"row {missing}: {metric} is measured, but not defined for what is simulated")
    return np.array([found[run.row.id].metrics[metric] for run in runs], dtype=np.float64)


def _row(run: RowRun, zero: Predicted, found: Predicted, role: str) -> dict[str, Any]:
    """A row of rows.json."""
    row, metrics = run.row, dict[str, dict[str, Any]]()
    for name, measured in row.measured.items():
        predicted, at_zero = found.metrics.get(name), zero.metrics.get(name)
        metrics[name] = {
            "measured": measured,
            "predicted": predicted,
            "error_pct": error_pct(predicted, measured),
            "predicted_zero": at_zero,
            "error_zero_pct": error_pct(at_zero, measured),
        }
    logged = run.logged_running
    if logged:
        metrics[RUNNING] = _running(logged, found, zero)
    model = run.scenario.model
    lengths = {name: _short(row.numbers[name]) for name in ("input_len", "output_len")}
    return {
        "id": row.id,
        "set": row.text("set"),
        "engine": run.engine,
        "gpu": run.scenario.hardware.gpu,
        "model": model,
        "tp": run.scenario.hardware.tensor_parallel_size,
        **lengths,
        "concurrency": run.concurrency,
        "role": role,
        "metrics": metrics,
        "note": "",
    }


def _running(logged: int, found: Predicted, zero: Predicted) -> dict[str, Any]:
    """The largest logged count beside the simulated one; it belongs between the mean over time and the peak."""
    low, high = (1 - RUNNING_SLACK) * found.running_mean, found.running_peak
    return {
        "measured": logged,
        "predicted": found.running_peak,
        "error_pct": error_pct(found.running_peak, logged),
        "predicted_zero": zero.running_peak,
        "error_zero_pct": error_pct(zero.running_peak, logged),
        "predicted_mean": found.running_mean,
        "predicted_peak": found.running_peak,
        "within": low <= logged <= high,
    }


def _role(run: RowRun, fits: Sequence[EngineFit]) -> str:
    """Which part a row has in the fit of its engine; "all" where there is none."""
    for fit in fits:
        if fit.engine == run.engine and not run.host_free:
            return "fit" if run.row.id in fit.rows else "test"
    return "all"


def _sources(found: Mapping[str, Predicted], runs: Sequence[RowRun]) -> Counter[str]:
    """Where the step times of the rows come from, and the host terms of those that have some."""
    counts = Counter(f"step times: {found[run.row.id].latency_source}" for run in runs)
    return counts + Counter(f"host terms: {_host(found[run.row.id].host_source)}" for run in runs if not run.host_free)


def _host(source: str) -> str:
    plain = {"default": f"the default, {HOST_FIXED_US:g} us a step", "scenario": "fitted, or as set"}
    return plain.get(source, source)


def _listed(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} ({count})" for reason, count in skipped.items())


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"


def _short(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _part(progress: Progress | None, start: float, end: float) -> Progress | None:
    if progress is None:
        return None
    return lambda done, label: progress(start + done * (end - start), label)
