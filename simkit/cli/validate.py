"""The validate command: the requests of a measured run on the simulated engine, and how far the prediction is off.

Aggregate rows are the affair of `validate_rows`. Heavy modules are imported by the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simkit.cli import console, output, validate_rows
from simkit.cli.options import LoadOptions, RunOptions, ScenarioOptions, Workers, flag_of, given, option, values_of
from simkit.cli.run import with_measured
from simkit.errors import CheckError, InputError

if TYPE_CHECKING:
    from simkit.engine.build import Setup
    from simkit.logs import PlayedLog
    from simkit.metrics.histogram import DurationHistogram
    from simkit.runs.replication import Result
    from simkit.scenario import Scenario
    from simkit.validation.runs.comparison import Comparison
    from simkit.validation.samples import Samples

PAGE = "validation.html"


@dataclass(frozen=True, slots=True)
class MeasuredOptions:
    """What else is held against a log, and how large an error may be; the last for rows as well."""

    series: Path | None = given("--series", "Samples over time: CSV with t, running, waiting, kv_cache_pct.", "FILE")
    ablate: bool = given("--ablate", "Also simulate without each effect of the latency model.", default=False)
    max_error: list[str] | None = given(
        "--max-error", "Exit with 1 where an error is larger, e.g. tpot_ms.mean=3; repeatable.", "NAME=PCT"
    )


def validate(
    *,
    measured: Annotated[
        Path | None,
        typer.Argument(metavar="MEASURED", help="A log of requests of a real run, with times; its format is detected."),
    ] = None,
    load: LoadOptions,
    against: MeasuredOptions,
    rows: validate_rows.RowOptions,
    out: Annotated[Path | None, option("--out", "Run directory (default ./runs/<scenario>-<log>).", "DIR")] = None,
    change: ScenarioOptions,
    workers: Workers,
    printing: RunOptions,
) -> None:
    """Set what simkit predicts beside what was measured, with the error of every number."""
    _check_one(measured, load, against, rows)
    if rows.summary is not None:
        validate_rows.run_rows(
            rows.summary, rows, max_error=against.max_error or [], scenario=load.scenario, out=out, change=change,
            workers=workers, printing=printing,
        )  # fmt: skip
        return
    assert measured is not None
    _run(measured, load, against, out, change, workers, printing)


def _check_one(
    measured: Path | None, load: LoadOptions, against: MeasuredOptions, rows: validate_rows.RowOptions
) -> None:
    """Refuse neither or both of a log and rows, and options of the one beside the other."""
    if (measured is None) == (rows.summary is None):
        got = "nothing" if measured is None else "both"
        raise InputError(f"validate: expected either MEASURED, the log of a run, or --summary ROWS, got {got}")
    of_log = {**values_of(load), "series": against.series, "ablate": against.ablate}
    of_rows = values_of(rows)
    del of_log["scenario"], of_rows["summary"]
    other, instead = (of_log, "--summary") if rows.summary is not None else (of_rows, "MEASURED")
    for key, value in other.items():
        if value is not None and value is not False:
            raise InputError(f"{flag_of(key)}: expected without {instead}")


def _run(
    measured: Path,
    load: LoadOptions,
    against: MeasuredOptions,
    out: Path | None,
    change: ScenarioOptions,
    workers: Workers,
    printing: RunOptions,
) -> None:
    chosen, made_way = load.scenario_with("validate", load.section(measured), "MEASURED", change)
    from simkit import api
    from simkit.report.render import terminal
    from simkit.report.sections.validation import report
    from simkit.validation import bands as judging
    from simkit.validation.runs import result as results
    from simkit.validation.runs.comparison import measured_metrics

    bands = judging.parse_bands(against.max_error or [])
    setup, trace = _played(chosen)
    samples = _samples(against.series)
    judging.check_measured(
        bands, measured_metrics(trace, stream=setup.stream), None if samples is None else samples.values
    )
    target = output.Target.choose(out, chosen.name)
    options = workers.options(printing)
    with target.stoppable():
        with console.progress(printing.quiet) as progress:
            result, gaps = results.serve(setup, progress)
        comparison = _compared(chosen, result, trace, gaps, samples)
        verdicts, lacking = judging.judge(bands, comparison.error_pct)
        unknown = [judging.no_error(key, comparison.errors) for key in lacking]
        ablated = None
        if against.ablate:
            with console.progress(printing.quiet) as progress:
                ablated = results.ablate(chosen, trace, progress=progress, **options)
        found = results.validation(result, trace, comparison, verdicts=verdicts, ablated=ablated,
                                   first_token_ns=setup.first_token_ns)  # fmt: skip
        result = with_measured(result)
        content, fitted = found.to_json(), setup.fitted_effects
        with target.writing() as path:
            written = api.write_validation(
                result, content, fitted, path, PAGE, overwrite=True, report=not printing.no_report
            )
    output.finish(
        printing,
        lambda: terminal.render(report(content, fitted), console.width()),
        found.errors,
        before=[*made_way, *_notes(result, found.notes, target.replaced)],
        after=[output.wrote(written, printing, PAGE)],
    )
    missed = [verdict.line() for verdict in verdicts if not verdict.ok]
    if bands and comparison.left_out.is_too_much:
        missed.append(comparison.left_out.too_much())
    if missed:
        raise CheckError("--max-error: " + "; ".join([*missed, *unknown]))
    if unknown:
        raise InputError("--max-error " + "; ".join(unknown))


def _notes(result: Result, found: Iterable[str], replaced: str | None) -> Iterator[str]:
    yield from output.notes(replaced, [result])
    yield from (f"note: {note}" for note in found if note not in result.manifest["notes"])


def _played(chosen: Scenario) -> tuple[Setup, PlayedLog]:
    """The engine and the requests. InputError where the log measured nothing, before anything is simulated."""
    from simkit.engine.build import set_up
    from simkit.logs import play_log
    from simkit.streams import Streams
    from simkit.validation.runs.comparison import has_times
    from simkit.validation.runs.result import check_as_it_was

    check_as_it_was(chosen)
    setup = set_up(chosen)
    spec = chosen.workload.trace
    assert spec is not None
    try:
        trace = play_log(spec, chosen.base_dir, streams=Streams(chosen.seed, 0), max_model_len=setup.max_model_len)
    except InputError as error:
        raise chosen.blame(error) from None
    if not has_times(trace):
        raise InputError(
            f"MEASURED {spec.path}: no request has a measured time: expected a log with TTFT or E2E (vLLM records, "
            "vllm bench serve --save-detailed, AIPerf, GuideLLM results, or --map ttft=COLUMN,e2e=COLUMN)"
        )
    return setup, trace


def _samples(series: Path | None) -> Samples | None:
    if series is None:
        return None
    from simkit.validation.samples import read_samples

    return read_samples(series)


def _compared(
    chosen: Scenario, result: Result, trace: PlayedLog, gaps: DurationHistogram, samples: Samples | None
) -> Comparison:
    """InputError where not one request can be compared."""
    from simkit.units import ns_to_s
    from simkit.validation.runs.comparison import compare
    from simkit.validation.samples import sample

    spec = chosen.workload.trace
    assert spec is not None
    found = None
    if samples is not None:
        begin_s = spec.start_s - spec.warmup_s
        cut_short = spec.max_requests is not None and len(trace) - trace.num_warm >= spec.max_requests
        last_s = begin_s + ns_to_s(int(trace.arrival_ns.max())) if cut_short else None
        capacity = result.summary["kv"]["capacity_tokens"]
        found = sample(samples, result.tables["steps"], capacity_tokens=capacity,
                       begin_s=begin_s, end_s=spec.end_s, last_s=last_s)  # fmt: skip
    comparison = compare(result, trace, found, gaps)
    if not comparison.num_requests["compared"]:
        lost = comparison.left_out
        why = lost.words() or "none of them has a measured time"
        raise InputError(
            f"MEASURED {spec.path}: no request can be compared: of {lost.num_played} that {lost.are} played: {why}"
        )
    return comparison
