"""Host terms fitted to some rows of a table and tested on the others: one pair for each engine and version.

Owns which rows are which and the metric that is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simkit.errors import InputError, nearest
from simkit.latency.profile.values import HostTerms
from simkit.types import Floats
from simkit.validation.rows.read import METRICS, Row
from simkit.validation.rows.scenario import RowRun
from simkit.validation.runs.host_fit import HostFit, fit_host, reach_limit

FITTED = ("fixed_us", "per_seq_us", "per_request_us", "gap_us")
"""Of fewer rows than terms so many are fitted, the first of them, and the others are 0."""

LEAST_ROWS = 2
START = HostTerms(fixed_us=1500.0, per_seq_us=40.0, first_token_us=0.0, per_request_us=1000.0, gap_us=100.0)
"""Large enough that the GPU's time does not hide them under async scheduling, where they would seem to do nothing."""

CANDIDATES = ("mean_tpot_ms", "output_tok_s", "duration_s")
"""What is fitted: the first that all rows of the fit have."""

Terms = Mapping[str, HostTerms]
"""Host terms by engine."""

Predict = Callable[[Sequence[RowRun], HostTerms, str], Floats]
"""Rows, terms and metric to what is predicted, in the order of the rows."""


@dataclass(frozen=True, slots=True)
class FitRows:
    """Rows whose cell in `column` is one of `values` fit the terms. `metric`: None for the first of CANDIDATES."""

    column: str
    values: tuple[str, ...]
    metric: str | None = None

    def takes(self, row: Row) -> bool:
        """Whether a row is one of them."""
        text = row.text(self.column)
        cells = {text, str(row.numbers.get(self.column, text))}
        return any(_same(cell, value) for cell in cells for value in self.values)

    @property
    def label(self) -> str:
        """As the option has it."""
        return f"--fit {self.column}={','.join(self.values)}"


@dataclass(frozen=True, slots=True)
class EngineFit:
    """The terms of one engine, what they were fitted to and which rows test them."""

    engine: str
    metric: str
    host: HostFit
    rows: tuple[str, ...]
    test_rows: tuple[str, ...]
    reach_seqs: int = 0
    """The most sequences that run at once in the rows of the fit."""

    @property
    def limits(self) -> tuple[str, ...]:
        """What the fit does not tell, in sentences."""
        fitted = self.host.fitted
        if not fitted:
            return ()
        do = "does" if len(fitted) == 1 else "do together"
        found = [f"{name} acts here as {' and '.join(fitted)} {do}" for name in self.host.alike]
        return (*found, *reach_limit(fitted, self.reach_seqs))

    def to_json(self) -> dict[str, object]:
        """As in rows.json; errors are the mean absolute ones of the fitted rows, with the start's terms and after; no
        terms where none could be fitted: those that hold without a fit stay."""
        terms = self.host.terms
        names = (*FITTED, "first_token_us") if self.host.fitted else ()
        return {
            "engine": self.engine,
            "metric": self.metric,
            "terms": {name: round(getattr(terms, name), 3) for name in names},
            "fitted": list(self.host.fitted),
            "idle": list(self.host.idle),
            "alike": list(self.host.alike),
            "limits": list(self.limits),
            "fit_mape_pct": 100 * float(np.abs(self.host.after).mean()),
            "rows": list(self.rows),
            "test_rows": list(self.test_rows),
        }


def parse_fit(text: str, metric: str | None = None) -> FitRows:
    """``COLUMN=v1,v2,...`` of the command line. Raises InputError."""
    column, equals, listed = text.partition("=")
    values = tuple(part.strip() for part in listed.split(",") if part.strip())
    if not equals or not column.strip() or not values:
        raise InputError(f"--fit {text}: expected COLUMN=VALUE,VALUE,..., e.g. --fit max_concurrency=8,32")
    if metric is not None and metric not in METRICS:
        raise InputError(f"--fit-metric {metric}: expected one of {', '.join(METRICS)}{nearest(metric, METRICS)}")
    return FitRows(column.strip(), values, metric)


def fit_engines(runs: Sequence[RowRun], fit: FitRows, predict: Predict) -> list[EngineFit]:
    """A fit for each engine that has rows for it. Raises InputError when there are too few, or none."""
    for value in fit.values:
        if not any(_same(run.row.text(fit.column), value) for run in runs):
            raise InputError(f"{fit.label}: no row that can be simulated has {fit.column} {value}")
    groups: dict[str, list[RowRun]] = {}
    for run in runs:
        groups.setdefault(run.engine, []).append(run)
    fits = [
        _fit(engine, group, fit, predict) for engine, group in groups.items() if any(fit.takes(r.row) for r in group)
    ]
    if not fits:
        raise InputError(f"{fit.label}: expected rows with host terms to fit")
    return fits


def _fit(engine: str, group: Sequence[RowRun], fit: FitRows, predict: Predict) -> EngineFit:
    used = [run for run in group if fit.takes(run.row)]
    if len(used) < LEAST_ROWS:
        raise InputError(f"{fit.label}: {engine}: expected at least {LEAST_ROWS} rows, got {len(used)}")
    metric = fit.metric or next((name for name in CANDIDATES if all(name in run.row.measured for run in used)), None)
    without = [run.row.id for run in used if metric is None or metric not in run.row.measured]
    if metric is None or without:
        wanted = fit.metric or f"one of {', '.join(CANDIDATES)}"
        raise InputError(f"{fit.label}: {engine}: expected {wanted} in all rows of the fit, got none in {without[0]}")
    measured = np.array([run.row.measured[metric] for run in used], dtype=np.float64)
    names = FITTED[: len(used)]
    start = replace(START, **dict.fromkeys(FITTED[len(used) :], 0.0))
    found = fit_host(lambda terms: predict(used, terms, metric), measured, start, names)
    rest = tuple(run.row.id for run in group if not fit.takes(run.row))
    reach = max(_running(run) for run in used)
    return EngineFit(engine, metric, found, tuple(run.row.id for run in used), rest, reach)


def _running(run: RowRun) -> int:
    """The most sequences that a row can have running."""
    slots = run.scenario.engine.max_num_seqs
    clients = run.concurrency if run.concurrency is not None else run.scenario.workload.num_requests or 0
    return clients if slots is None else min(clients, slots)


def _same(cell: str, value: str) -> bool:
    """Alike as texts in any case, or as numbers."""
    if cell.lower() == value.lower():
        return True
    try:
        return float(cell) == float(value)
    except ValueError:
        return False
