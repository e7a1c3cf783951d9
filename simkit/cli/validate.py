"""The validate command: the requests of a measured run on the simulated engine, and how far the prediction is off.

Owns its options; aggregate rows are the affair of `validate_rows`. Heavy modules are imported by the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console, log_options, studies
from simkit.cli.log_options import (
    AllowBad,
    End,
    Failed,
    Format,
    HashBlockTokens,
    MaxRequests,
    OnRestart,
    ScenarioFile,
    Start,
    TimeUnit,
    Warmup,
    option,
)
from simkit.cli.studies import Dask, Jobs, Json, NoReport, Quiet, Seed, Sets
from simkit.cli.trace import Map, flag_of
from simkit.errors import CheckError, InputError

if TYPE_CHECKING:
    from simkit.engine.build import Setup
    from simkit.logs import PlayedLog
    from simkit.metrics.histogram import DurationHistogram
    from simkit.runs.replication import Result
    from simkit.scenario import Scenario
    from simkit.studies.study import Options
    from simkit.validation.runs.comparison import Comparison
    from simkit.validation.samples import Samples

PAGE = "validation.html"


def validate(
    measured: Annotated[
        Path | None,
        typer.Argument(metavar="MEASURED", help="A log of requests of a real run, with times; its format is detected."),
    ] = None,
    scenario: ScenarioFile = None,
    format: Format = None,
    map: Map = None,
    time_unit: TimeUnit = None,
    hash_block_tokens: HashBlockTokens = None,
    failed: Failed = None,
    on_restart: OnRestart = None,
    allow_bad: AllowBad = False,
    start: Start = None,
    end: End = None,
    warmup: Warmup = None,
    max_requests: MaxRequests = None,
    series: Annotated[
        Path | None, option("--series", "Samples over time: CSV with t, running, waiting, kv_cache_pct.", "FILE")
    ] = None,
    ablate: Annotated[bool, option("--ablate", "Also simulate without each effect of the latency model.")] = False,
    max_error: Annotated[
        list[str] | None,
        option("--max-error", "Exit with 1 where an error is larger, e.g. tpot_ms.mean=3; repeatable.", "NAME=PCT"),
    ] = None,
    summary: Annotated[
        Path | None,
        option(
            "--summary",
            "Aggregate rows of many runs instead of a log: CSV with row_id, engine, model, gpu, input_len, output_len, "
            "a load (max_concurrency, request_rate or batch_size) and what was measured, e.g. mean_tpot_ms.",
            "FILE",
        ),
    ] = None,
    select: Annotated[
        list[str] | None, option("--select", "Rows whose column matches; repeatable.", "COLUMN=GLOB")
    ] = None,
    fit: Annotated[
        str | None, option("--fit", "Rows that fit the host terms; the others test them.", "COLUMN=A,B")
    ] = None,
    fit_metric: Annotated[
        str | None,
        option("--fit-metric", "What is fitted to rows (default: TPOT, throughput or duration).", "METRIC"),
    ] = None,
    max_rows: Annotated[int | None, typer.Option("--max-rows", metavar="N", min=1, help="Simulate so many.")] = None,
    out: Annotated[Path | None, option("--out", "Run directory (default ./runs/<scenario>-<log>).", "DIR")] = None,
    sets: Sets = None,
    seed: Seed = None,
    jobs: Jobs = None,
    dask: Dask = None,
    json: Json = False,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> None:
    """Set what simkit predicts beside what was measured, with the error of every number."""
    reading = {
        "format": format, "time_unit": time_unit, "hash_block_tokens": hash_block_tokens, "failed": failed,
        "on_restart": on_restart, "start_s": start, "end_s": end, "warmup_s": warmup, "max_requests": max_requests,
    }  # fmt: skip
    of_rows: dict[str, Any] = {"select": select, "fit": fit, "fit_metric": fit_metric, "max_rows": max_rows}
    of_log = {**reading, "map": map, "allow_bad": allow_bad or None, "series": series, "ablate": ablate or None}
    _check_one(measured, summary, of_log, of_rows)
    common: dict[str, Any] = {"sets": sets, "seed": seed, "jobs": jobs, "dask": dask, "max_error": max_error,
                              "out": out, "json": json, "quiet": quiet, "no_report": no_report}  # fmt: skip
    if summary is not None:
        from simkit.cli import validate_rows

        validate_rows.run_rows(summary, scenario=scenario, **of_rows, **common)
        return
    assert measured is not None
    section = log_options.trace_of(measured, map, allow_bad, reading)
    _run(section, scenario, series=series, ablate=ablate, **common)


def _check_one(
    measured: Path | None, summary: Path | None, of_log: Mapping[str, Any], of_rows: Mapping[str, Any]
) -> None:
    """Refuse neither or both of a log and rows, and options of the one beside the other."""
    if (measured is None) == (summary is None):
        got = "nothing" if measured is None else "both"
        raise InputError(f"validate: expected either MEASURED, the log of a run, or --summary ROWS, got {got}")
    beside, other = ("--summary", of_log) if summary is not None else ("MEASURED", of_rows)
    for key, value in other.items():
        if value is not None:
            raise InputError(f"{flag_of(key)}: expected without {beside}")


def _run(
    section: dict[str, Any],
    scenario: Path | None,
    *,
    series: Path | None,
    ablate: bool,
    max_error: list[str] | None,
    out: Path | None,
    sets: list[str] | None,
    seed: int | None,
    jobs: int | None,
    dask: str | None,
    json: bool,
    quiet: bool,
    no_report: bool,
) -> None:
    chosen, told = log_options.scenario_of("validate", scenario, section, sets, seed)
    from simkit import api
    from simkit.plain import canonical_json
    from simkit.runs import directory
    from simkit.validation import bands as judging
    from simkit.validation.runs import result as results
    from simkit.validation.runs.comparison import measured_metrics

    bands = judging.parse_bands(max_error or [])
    setup, trace = _played(chosen)
    samples = _samples(series)
    judging.check_measured(
        bands, measured_metrics(trace, stream=setup.stream), None if samples is None else samples.values
    )
    out_dir, overwrite = directory.choose(out, chosen.name)
    options = studies.study_options(jobs, dask, False, out_dir, quiet)
    options["resume_dir"] = None
    with studies.stoppable(out_dir):
        with console.progress(quiet) as progress:
            result, gaps = results.serve(setup, progress)
        comparison = _compared(chosen, result, trace, gaps, samples)
        verdicts, lacking = judging.judge(bands, comparison.error_pct)
        unknown = [judging.no_error(key, comparison.errors) for key in lacking]
        ablated = _ablated(chosen, trace, options, quiet) if ablate else None
        found = results.validation(result, trace, comparison, verdicts=verdicts, ablated=ablated,
                                   first_token_ns=setup.first_token_ns)  # fmt: skip
        result = log_options.with_measured(result)
        replaced = directory.name_of(out_dir) if overwrite else None
        with studies.writing(out, out_dir):
            content = found.to_json()
            written = api.write_validation(result, content, out_dir, PAGE, overwrite=True, report=not no_report)
    if not quiet:
        for text in told:
            console.say(text)
        studies.say_notes(replaced, result.manifest)
        for note in found.notes:
            if note not in result.manifest["notes"]:
                console.say(f"note: {note}")
    if json:
        console.out_bytes(canonical_json(found.errors))
    else:
        from simkit.report.render import terminal
        from simkit.report.sections import validation as pages

        console.out(*terminal.render(pages.report(content), console.width()))
    if not quiet:
        console.say(f"wrote {written}" + ("" if no_report else f"; open {written / PAGE}"))
    missed = [verdict.line() for verdict in verdicts if not verdict.ok]
    if bands and comparison.left_out.is_too_much:
        missed.append(comparison.left_out.too_much())
    if missed:
        raise CheckError("--max-error: " + "; ".join([*missed, *unknown]))
    if unknown:
        raise InputError("--max-error " + "; ".join(unknown))


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


def _ablated(chosen: Scenario, trace: PlayedLog, options: Options, quiet: bool) -> dict[str, dict[str, float | None]]:
    from simkit.validation.runs.result import ablate

    with console.progress(quiet) as progress:
        return ablate(chosen, trace, progress=progress, **options)
