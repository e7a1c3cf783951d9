"""A table of benchmark rows predicted: every row with the host terms at 0 and with those that hold, and the errors.

    table = read_rows(Path("serving_bench.csv"))
    study = study_rows(select(table, ["set=silicon", "model=*Qwen3-32B*"]), fit=FitRows("max_concurrency", ("8", "32")))
    study.errors["all"]["all"]["mean_tpot_ms"]

Owns which simulations are made, many at a time through one study, and what each is reduced to at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Unpack

import numpy as np

from simkit.engine.run import Progress
from simkit.errors import CheckError, InputError
from simkit.latency.host import GIVEN
from simkit.latency.profile.values import HostTerms
from simkit.metrics.catalogue import number
from simkit.runs.replication import Result
from simkit.scenario import Scenario, apply_sets
from simkit.studies.study import Failure, Options, Point, run_study
from simkit.types import Floats
from simkit.validation.rows.fit import EngineFit, FitRows, fit_engines
from simkit.validation.rows.read import METRICS, Row
from simkit.validation.rows.refusals import Unsuitable, refusals
from simkit.validation.rows.results import RUNNING, MetricResult, RowResult, RowStudy, RunningResult
from simkit.validation.rows.scenario import RowRun, places, run_of

NORMAL_90 = 1.645
"""Standard deviations that hold 90 % of a normal distribution."""

ZERO = HostTerms(0.0, 0.0, 0.0)
BEYOND = "beyond --max-rows"
LOST = "requests are cut, refused or unfinished in the simulation, so that it is not what was measured"
RUNNING_SLACK = 0.15
"""A logged count may lie below the mean over time by so much of it: a log shows moments between steps."""

CHUNK = 32
"""Rows whose results are held in memory at a time, with all their requests and steps."""

TermsOf = Callable[[RowRun], HostTerms | None]
"""The host terms of a row; None: those of its scenario."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a simulated row gives: `metrics` by column; running sequences over the makespan (mean) and at most.
    `num_lost`: requests that were refused, did not end, or ended before they should.
    """

    metrics: Mapping[str, float]
    running_mean: float
    running_peak: int
    latency_source: str
    host_source: str
    num_lost: int


def study_rows(
    rows: Sequence[Row],
    *,
    fit: FitRows | None = None,
    base: Scenario | None = None,
    sets: Sequence[str] = (),
    max_rows: int | None = None,
    draws: int = 0,
    at_zero: bool = True,
    name: str = "rows",
    source: str = "",
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> RowStudy:
    """Simulate the rows. `base` gives engine settings that rows leave open, `sets` (``KEY=VALUE``) hold for all rows,
    `max_rows` of those that can be simulated are taken, `fit` says which of them fit the host terms. Each row is
    simulated `draws` times more with step times that err by a draw, for its 90 % interval; of a GPU whose part is not
    stated, on the other part in half of them. Unless `at_zero`, which a fit needs, no row is simulated without host
    terms.

    Raises InputError when nothing can be simulated, or fitted as asked, and CheckError when a simulation goes wrong.
    """
    runs, skipped = _runs(rows, base, tuple(sets))
    if not runs:
        raise InputError(f"{source or 'rows'}: no row can be simulated: {_listed(Counter(skipped.values()))}")
    if max_rows is not None and len(runs) > max_rows:
        skipped |= dict.fromkeys((run.row.id for run in runs[max_rows:]), BEYOND)
        runs = runs[:max_rows]
    simulator = _Simulator(options, progress)
    zero, failed = simulator.part(0.0, 0.4).run(runs, {}, ZERO) if at_zero or fit is not None else ({}, {})
    runs = [run for run in runs if run.row.id not in failed]
    if not runs:
        raise _none_can_be(source, failed)
    # How many rounds a fit takes is not known.
    fits = [] if fit is None else fit_engines(runs, fit, simulator.part(0.4, 0.4).numbers)
    terms = {fitted.engine: fitted.host.terms for fitted in fits if fitted.host.fitted}
    final, more = simulator.part(0.6, 0.7 if draws else 1.0).final(runs, terms)
    failed |= more
    runs = [run for run in runs if run.row.id not in failed]
    if not runs:
        raise _none_can_be(source, failed)
    skipped |= refusals(failed)
    erring = [
        simulator.part(0.7 + 0.3 * draw / draws, 0.7 + 0.3 * (draw + 1) / draws).erring(runs, terms, draw)
        for draw in range(draws)
    ]
    shown = tuple(
        _row(
            run, zero.get(run.row.id), final[run.row.id], _role(run, fits), [found.get(run.row.id) for found in erring]
        )
        for run in runs
    )
    lines = {row.id: row.line for row in rows if row.id in skipped}
    assumed = Counter(text for run in runs for text in run.assumed)
    steps = Counter(final[run.row.id].latency_source for run in runs)
    hosts = Counter(_host(final[run.row.id].host_source) for run in runs)
    messages = {name: failure.message for name, failure in failed.items()}
    return RowStudy(name, source, len(rows), shown, skipped, lines, messages, tuple(fits), assumed, steps, hosts)


def _none_can_be(source: str, failed: Mapping[str, Failure]) -> InputError:
    return InputError(f"{source or 'rows'}: no row can be simulated: {next(iter(failed.values())).message}")


def _runs(rows: Sequence[Row], base: Scenario | None, sets: tuple[str, ...]) -> tuple[list[RowRun], dict[str, str]]:
    """What can be simulated, and why the rest cannot. A setting for all rows that is wrong is an InputError."""
    runs, skipped, refused = [], dict[str, str](), dict[str, Failure]()
    of_settings = places(sets)
    for row in rows:
        try:
            runs.append(run_of(row, base, sets))
        except Unsuitable as error:
            skipped[row.id] = str(error)
        except InputError as error:
            if error.where in of_settings:
                raise
            refused[row.id] = Failure.of(error)
    return runs, skipped | refusals(refused)


@dataclass(frozen=True, slots=True)
class _Simulator:
    """Simulates rows with some host terms. CheckError where one goes wrong for another reason than its input."""

    options: Options
    progress: Progress | None

    def part(self, start: float, end: float) -> _Simulator:
        """The same for this part of the progress."""
        return _Simulator(self.options, _part(self.progress, start, end))

    def run(
        self, runs: Sequence[RowRun], terms: Mapping[str, HostTerms], default: HostTerms | None
    ) -> tuple[dict[str, Predicted], dict[str, Failure]]:
        """Predictions, and the failures of rows that have none, with the terms of their engine."""
        found = simulate(runs, lambda run: terms.get(run.engine, default), self.progress, **self.options)
        broken = next((part for part in found.values() if isinstance(part, Failure) and part.kind != "input"), None)
        if broken is not None:
            raise CheckError(broken.message)
        done = {name: part for name, part in found.items() if isinstance(part, Predicted)}
        failed = {name: part for name, part in found.items() if isinstance(part, Failure)}
        return done, failed | {name: Failure("input", LOST) for name, part in done.items() if part.num_lost}

    def final(
        self, runs: Sequence[RowRun], terms: Mapping[str, HostTerms]
    ) -> tuple[dict[str, Predicted], dict[str, Failure]]:
        """With the terms that hold."""
        return self.run(runs, terms, None)

    def erring(self, runs: Sequence[RowRun], terms: Mapping[str, HostTerms], draw: int) -> dict[str, Predicted]:
        """With the terms that hold, step times that err and, of every other pair of draws, the GPU that may be meant
        as well; without the rows in which a simulation then fails."""
        others = [run.or_else if draw % 4 >= 2 and run.or_else is not None else run.scenario for run in runs]
        wrong = [
            replace(run, scenario=apply_sets(scenario, {"latency.error": draw}, label="error"))
            for run, scenario in zip(runs, others, strict=True)
        ]
        return self.run(wrong, terms, None)[0]

    def numbers(self, runs: Sequence[RowRun], terms: HostTerms, metric: str) -> Floats:
        """One number of each row. Raises InputError where one has none."""
        found, failed = self.run(runs, {}, terms)
        if failed:
            name, failure = next(iter(failed.items()))
            raise InputError(f"row {name}: {failure.message}")
        missing = next((run.row.id for run in runs if metric not in found[run.row.id].metrics), None)
        if missing is not None:
            raise InputError(f"row {missing}: {metric} is measured, but not defined for what is simulated")
        return np.array([found[run.row.id].metrics[metric] for run in runs], dtype=np.float64)


def _row(
    run: RowRun, zero: Predicted | None, found: Predicted, role: str, erring: Sequence[Predicted | None] = ()
) -> RowResult:
    """A row of rows.json."""
    row, hardware = run.row, run.scenario.hardware
    metrics = {
        name: MetricResult(
            *_compared(measured, found.metrics.get(name), None if zero is None else zero.metrics.get(name)),
            *_interval_90(name, found, erring),
        )
        for name, measured in row.measured.items()
    }
    logged = run.logged_running
    if logged:
        metrics[RUNNING] = _running(logged, found, zero)
    return RowResult(
        id=row.id,
        set=row.text("set"),
        engine=run.engine,
        gpu=hardware.gpu,
        model=run.scenario.model,
        tp=hardware.tensor_parallel_size,
        input_len=_short(row.numbers["input_len"]),
        output_len=_short(row.numbers["output_len"]),
        concurrency=run.concurrency,
        role=role,
        metrics=metrics,
    )


def _interval_90(
    name: str, found: Predicted, erring: Sequence[Predicted | None]
) -> tuple[float, float] | tuple[None, None]:
    """Of a predicted number, by how those of step times in error differ from it; none where they were not made."""
    right = found.metrics.get(name)
    wrong = [None if each is None else each.metrics.get(name) for each in erring]
    known = [value for value in wrong if value is not None and value > 0]
    if not known or right is None or right <= 0 or len(known) < len(wrong):
        return None, None
    squares = math.fsum(math.log(value / right) ** 2 for value in known)
    by = math.exp(NORMAL_90 * math.sqrt(squares / len(known)))
    return right / by, right * by


def _running(logged: int, found: Predicted, zero: Predicted | None) -> RunningResult:
    low, high = (1 - RUNNING_SLACK) * found.running_mean, found.running_peak
    peaks = _compared(logged, found.running_peak, None if zero is None else zero.running_peak)
    return RunningResult(
        *peaks, predicted_mean=found.running_mean, predicted_peak=found.running_peak, within=low <= logged <= high
    )


def _compared(
    measured: float, predicted: float | None, at_zero: float | None
) -> tuple[float, float | None, float | None, float | None, float | None]:
    """The numbers of a `MetricResult`."""
    errors = [None if value is None else 100 * (value / measured - 1) for value in (predicted, at_zero)]
    return measured, predicted, errors[0], at_zero, errors[1]


def _role(run: RowRun, fits: Sequence[EngineFit]) -> str:
    """Which part a row has in the fit of its engine; "all" where there is none."""
    for fit in fits:
        if fit.engine == run.engine:
            return "fit" if run.row.id in fit.rows else "test"
    return "all"


def _host(source: str) -> str:
    """The source of host terms in words."""
    return "fitted, or as set" if source == GIVEN.text else source


def with_terms(run: RowRun, terms: HostTerms | None) -> Scenario:
    """The scenario of a row with these host terms; its own for None."""
    if terms is None:
        return run.scenario
    values = {f"latency.host.{name}": value for name, value in asdict(terms).items()}
    return apply_sets(run.scenario, values, label="host terms")


def simulate(
    runs: Sequence[RowRun], terms_of: TermsOf, progress: Progress | None = None, **options: Unpack[Options]
) -> dict[str, Predicted | Failure]:
    """Prediction or failure of each row, by its id. A row that cannot be run leaves the others alone."""
    found: dict[str, Predicted | Failure] = {}
    # Those of a chunk wait for each other: alike ones together.
    runs = sorted(runs, key=_num_tokens)
    for first in range(0, len(runs), CHUNK):
        chunk = runs[first : first + CHUNK]
        share = _part(progress, first / len(runs), (first + len(chunk)) / len(runs))
        points = [Point(run.row.id, with_terms(run, terms_of(run))) for run in chunk]
        found |= _simulate(points, share, options)
    return found


def _num_tokens(run: RowRun) -> float:
    """Tokens that a row generates."""
    return run.row.numbers["output_len"] * (run.scenario.workload.num_requests or 1)


def _simulate(points: Sequence[Point], progress: Progress | None, options: Options) -> dict[str, Predicted | Failure]:
    try:
        study = run_study(points, progress=progress, **options)
    except InputError as error:  # none of them can be run
        if len(points) == 1:
            return {points[0].name: Failure.of(error)}
        return {name: part for point in points for name, part in _simulate([point], None, options).items()}
    return dict(study.failed) | {name: _reduce(result) for name, result in study.results.items()}


def _reduce(result: Result) -> Predicted:
    metrics = {}
    for column, (key, scale) in METRICS.items():
        predicted = number(result.summary, key)
        if predicted is not None:
            metrics[column] = predicted * scale
    spans = result.tables["steps"]
    running = spans["running"].to_numpy()
    lasted = spans["t_end_ns"].to_numpy() - spans["t_start_ns"].to_numpy()
    counts = result.summary["num_requests"]
    return Predicted(
        metrics=metrics,
        running_mean=float((running * lasted).sum() / lasted.sum()) if lasted.sum() else 0.0,
        running_peak=int(running.max(initial=0)),
        latency_source=result.summary["latency_source"],
        host_source=result.manifest["latency_effects"]["host"],
        num_lost=int(counts["arrived"] - counts["finished"] + result.summary["num_truncated"]),
    )


def _listed(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} ({count})" for reason, count in skipped.items())


def _short(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _part(progress: Progress | None, start: float, end: float) -> Progress | None:
    if progress is None:
        return None
    return lambda done, label: progress(start + done * (end - start), label)
