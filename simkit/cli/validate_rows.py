"""`simkit validate --summary`: rows of a table of benchmarks, each simulated. Heavy modules inside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simkit.cli import console, output
from simkit.cli.options import RunOptions, ScenarioOptions, Workers, given
from simkit.errors import CheckError, InputError
from simkit.version import __version__

if TYPE_CHECKING:
    from simkit.scenario import Scenario
    from simkit.validation.bands import Band, Verdict
    from simkit.validation.rows.fit import FitRows
    from simkit.validation.rows.read import Row, Table
    from simkit.validation.rows.results import RowStudy


NOTHING_FITTED = "nothing could be fitted: host work is hidden behind the GPU; the terms stay as they were"


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Rows of a table, which of them are simulated, and which fit the host terms."""

    summary: Path | None = given(
        "--summary",
        "Aggregate rows of many runs instead of a log: CSV with row_id, engine, model, gpu, input_len, "
        "output_len, a load (max_concurrency, request_rate or batch_size) and what was measured, e.g. mean_tpot_ms; "
        "cached_prompt_share where part of the prompts was cached before.",
        "FILE",
    )
    select: list[str] | None = given("--select", "Rows whose column matches; repeatable.", "COLUMN=GLOB")
    fit: str | None = given("--fit", "Rows that fit the host terms; the others test them.", "COLUMN=A,B")
    fit_metric: str | None = given(
        "--fit-metric", "What is fitted to rows (default: TPOT, throughput or duration).", "METRIC"
    )
    max_rows: int | None = given("--max-rows", "Simulate so many.", "N", min=1)
    draws: int | None = given(
        "--draws", "Also simulate each row N times with step times in error, for its 90 % interval.", "N", min=2
    )


def run_rows(
    summary: Path,
    options: RowOptions,
    *,
    max_error: Sequence[str],
    scenario: Path | None,
    out: Path | None,
    change: ScenarioOptions,
    workers: Workers,
    printing: RunOptions,
) -> None:
    """Simulate the rows of `summary` and write what was measured, what is predicted and the errors.

    Raises InputError, and CheckError when an error is outside the band that `max_error` sets; all is written then.
    """
    from simkit import api
    from simkit.logs.read.text import sha256_of
    from simkit.plain import plain
    from simkit.report.render import terminal
    from simkit.report.sections.rows import report
    from simkit.validation.rows import results
    from simkit.validation.rows.read import read_rows
    from simkit.validation.rows.study import study_rows

    bands = results.parse_bands(max_error)
    name = _name(summary)
    target = output.Target.choose(out, name)
    table = read_rows(summary)
    how = workers.options(printing)
    rows, fit = _chosen(table, options, bands, change.settings)
    base = _base(scenario, change.settings)
    with target.stoppable(), console.progress(printing.quiet) as progress:
        study = study_rows(
            rows, fit=fit, base=base, sets=change.settings, max_rows=options.max_rows, name=name, source=summary.name,
            draws=options.draws or 0, progress=progress, **how,
        )  # fmt: skip
    content = {**study.to_json(), "assumptions": [*study.assumptions, *_unused(table, summary)]}
    judged = results.judge(bands, study.errors) if bands else []
    content |= {"bands": plain(judged), "version": __version__}
    facts = {
        "name": name, "summary": summary.name, "sha256": sha256_of(summary), "select": options.select or [],
        "fit": options.fit, "fit_metric": options.fit_metric, "max_rows": options.max_rows, "draws": options.draws,
        "set": change.sets or [], "seed": change.seed, "scenario": None if scenario is None else scenario.name,
    }  # fmt: skip
    with target.writing() as path:
        written = api.write_rows(content, study.to_csv(), facts, path, overwrite=True, report=not printing.no_report)
    output.finish(
        printing,
        lambda: terminal.render(report(content), console.width()),
        content,
        after=[*_notes(study, scenario, target.replaced), output.wrote(written, printing)],
    )
    _check(judged)


def _chosen(
    table: Table, options: RowOptions, bands: Sequence[Band], settings: Sequence[str]
) -> tuple[list[Row], FitRows | None]:
    """The rows that are simulated, and those of them that fit host terms. Raises InputError."""
    from simkit.validation.rows.fit import parse_fit
    from simkit.validation.rows.read import check_column, select
    from simkit.validation.rows.results import check_measured

    if options.fit is None and options.fit_metric is not None:
        raise InputError("--fit-metric: expected --fit with it")
    fit = None if options.fit is None else parse_fit(options.fit, options.fit_metric)
    if fit is not None:
        check_column(fit.column, table, fit.label)
        for text in settings:
            if text.partition("=")[0].strip().startswith("latency.host"):
                raise InputError(f"--set {text}: expected without --fit, which finds the host terms")
    rows = select(table, options.select or [])
    if options.draws is not None:
        for text in settings:
            if text.partition("=")[0].strip() == "latency.error":
                raise InputError(f"--set {text}: expected without --draws, which draws the error of step times")
    check_measured(bands, (row for row in rows if fit is None or not fit.takes(row)))
    return rows, fit


def _base(path: Path | None, settings: Sequence[str]) -> Scenario | None:
    """The scenario that rows are completed from. InputError for step times of no hardware, which have no host terms."""
    from simkit import scenario as schema
    from simkit.validation.rows.scenario import given_in

    base = None if path is None else schema.load(path)
    given = given_in(settings, "latency").get("profile")
    label = f"--set latency.profile={given}" if given is not None else f"--scenario {path}: latency.profile"
    profile = None if base is None else base.latency.profile
    if (given if given is not None else profile) == "unit":
        raise InputError(f"{label}: expected step times of hardware, which those that were measured are held against")
    return base


def _unused(table: Table, path: Path) -> Iterator[str]:
    """What of the file was not used."""
    odd = [f"{path}:{row.line}: {row.odd[0]}" for row in table.rows if row.odd]
    if odd:
        have = "1 row has" if len(odd) == 1 else f"{len(odd)} rows have"
        yield f"{have} cells that cannot be read: {'; '.join(odd[:3])}{' ...' if odd[3:] else ''}"
    if table.ignored:
        yield f"columns that are not read: {', '.join(name or '(no name)' for name in table.ignored)}"
    if table.num_zeros:
        yield f"measured numbers of 0 are taken as not measured ({table.num_zeros} in the file)"


def _notes(study: RowStudy, scenario: Path | None, replaced: str | None) -> Iterator[str]:
    if scenario is not None:
        yield f"note: what rows leave open of engine, latency and interconnect is from {scenario}, as is the seed"
    for found in study.fits:
        terms = found.host.terms
        if not found.host.fitted:
            yield f"note: {found.engine}: {NOTHING_FITTED}"
            continue
        what = ", ".join(f"{name} {getattr(terms, name):.4g}" for name in found.host.fitted)
        yield f"note: {found.engine}: {what}, fitted to {found.metric} of {len(found.rows)} rows"
        for text in found.limits:
            yield f"note: {found.engine}: {text}"
    for metric, errors in study.errors["all"].get("all", {}).items():
        if errors.outside_90_pct is not None:
            share = f"{errors.outside_90_pct:.0f} % of {errors.n} rows"
            yield f"note: {metric}: {share} were measured outside their 90 % interval"
    if replaced is not None:
        yield f"note: replaced the earlier run {replaced!r}"


def _check(judged: Sequence[Verdict]) -> None:
    missed = [band for band in judged if not band.ok]
    if missed:
        listed = ", ".join(f"{b.key}: {b.error_pct:.2f} % (at most {b.limit_pct:g} %)" for b in missed)
        raise CheckError(f"outside its band: {listed}")


def _name(summary: Path) -> str:
    """The name of the study: that of the file without its endings."""
    stem = re.sub(r"(\.(csv|gz|zstd?))+$", "", summary.name, flags=re.IGNORECASE)
    return re.sub(r"[^\w.+@-]+", "-", f"{stem}-rows").strip("-.+@")
