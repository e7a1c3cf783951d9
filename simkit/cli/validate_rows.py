"""`simkit validate --summary`: rows of a table of benchmarks, each simulated. Heavy modules inside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from simkit.cli import console, studies
from simkit.errors import CheckError, InputError
from simkit.version import __version__

if TYPE_CHECKING:
    from simkit.studies.study import Options
    from simkit.validation.bands import Band, Verdict
    from simkit.validation.rows.read import Table
    from simkit.validation.rows.results import RowStudy


NOTHING_FITTED = "nothing could be fitted: host work is hidden behind the GPU; the terms stay as they were"


def run_rows(
    summary: Path,
    *,
    scenario: Path | None = None,
    select: list[str] | None = None,
    fit: str | None = None,
    fit_metric: str | None = None,
    max_rows: int | None = None,
    max_error: list[str] | None = None,
    sets: list[str] | None = None,
    seed: int | None = None,
    out: Path | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    json: bool = False,
    quiet: bool = False,
    no_report: bool = False,
) -> None:
    """Simulate the rows of `summary` and write what was measured, what is predicted and the errors.

    Raises InputError, and CheckError when an error is outside the band that `max_error` sets; all is written then.
    """
    from simkit import api
    from simkit.plain import canonical_json, plain
    from simkit.runs import directory
    from simkit.validation.rows import results
    from simkit.validation.rows.read import read_rows

    bands = results.parse_bands(max_error or [])
    name = _name(summary)
    out_dir, overwrite = directory.choose(out, name)
    table = read_rows(summary)
    options: Options = studies.study_options(jobs, dask, False, out_dir, quiet)
    options["resume_dir"] = None  # rows are many small studies
    study = _study(table, select, fit, fit_metric, scenario, studies.settings_of(sets, seed), max_rows,
                   name, summary, out_dir, quiet, options, bands)  # fmt: skip
    content = {**study.to_json(), "assumptions": [*study.assumptions, *_told(table)]}
    judged = results.judge(bands, study.errors) if bands else []
    content |= {"bands": plain(judged), "version": __version__}
    facts = {"name": name, "summary": summary.name, "sha256": _sha256(summary), "select": select or [], "fit": fit,
             "fit_metric": fit_metric, "max_rows": max_rows, "set": sets or [], "seed": seed,
             "scenario": None if scenario is None else scenario.name}  # fmt: skip
    replaced = directory.name_of(out_dir) if overwrite else None
    with studies.writing(out, out_dir):
        written = api.write_rows(content, study.to_csv(), facts, out_dir, overwrite=True, report=not no_report)
    if json:
        console.out_bytes(canonical_json(content))
    else:
        from simkit.report.render import terminal
        from simkit.report.sections import rows

        console.out(*terminal.render(rows.report(content), console.width()))
    if not quiet:
        if scenario is not None:
            console.say(
                f"note: what rows leave open of engine, latency and interconnect is from {scenario}, as is the seed"
            )
        for found in study.fits:
            terms = found.host.terms
            if not found.host.fitted:
                console.say(f"note: {found.engine}: {NOTHING_FITTED}")
                continue
            what = f"{terms.fixed_us:.0f} us a step and {terms.per_seq_us:.1f} us a sequence"
            console.say(f"note: {found.engine}: {what}, fitted to {found.metric} of {len(found.rows)} rows")
        if replaced is not None:
            console.say(f"note: replaced the earlier run {replaced!r}")
        console.say(f"wrote {written}" + ("" if no_report else f"; open {written / 'report.html'}"))
    _check(judged)


def _study(
    table: Table,
    select: list[str] | None,
    fit: str | None,
    fit_metric: str | None,
    scenario: Path | None,
    settings: list[str],
    max_rows: int | None,
    name: str,
    summary: Path,
    out_dir: Path,
    quiet: bool,
    options: Options,
    bands: list[Band],
) -> RowStudy:
    from simkit import scenario as schema
    from simkit.validation.rows import read as tables
    from simkit.validation.rows.fit import parse_fit
    from simkit.validation.rows.results import check_measured
    from simkit.validation.rows.study import study_rows

    if fit is None and fit_metric is not None:
        raise InputError("--fit-metric: expected --fit with it")
    chosen = None if fit is None else parse_fit(fit, fit_metric)
    if chosen is not None:
        tables.check_column(chosen.column, table, chosen.label)
        for text in settings:
            if text.partition("=")[0].strip().startswith("latency.host"):
                raise InputError(f"--set {text}: expected without --fit, which finds the host terms")
    rows = tables.select(table, select or [])
    check_measured(bands, (row for row in rows if chosen is None or not chosen.takes(row)))
    base = None if scenario is None else schema.load(scenario)
    _check_profile(settings, None if base is None else base.latency.profile, scenario)
    with studies.stoppable(out_dir), console.progress(quiet) as progress:
        return study_rows(
            rows,
            fit=chosen,
            base=base,
            sets=settings,
            max_rows=max_rows,
            name=name,
            source=summary.name,
            progress=progress,
            **options,
        )


def _check_profile(settings: list[str], of_base: str | None, scenario: Path | None) -> None:
    """InputError for step times of no hardware, which have no host terms."""
    from simkit.validation.rows.scenario import given_in

    given = given_in(settings, "latency").get("profile")
    label = f"--set latency.profile={given}" if given is not None else f"--scenario {scenario}: latency.profile"
    if (given if given is not None else of_base) == "unit":
        raise InputError(f"{label}: expected step times of hardware, which those that were measured are held against")


def _told(table: Table) -> list[str]:
    """What of the file was not used."""
    told = []
    odd = [row.odd[0] for row in table.rows if row.odd]
    if odd:
        have = "1 row has" if len(odd) == 1 else f"{len(odd)} rows have"
        told.append(f"{have} cells that cannot be read: {'; '.join(odd[:3])}{' ...' if odd[3:] else ''}")
    if table.ignored:
        told.append(f"columns that are not read: {', '.join(name or '(no name)' for name in table.ignored)}")
    if table.num_zeros:
        told.append(f"measured numbers of 0 are taken as not measured ({table.num_zeros} in the file)")
    return told


def _check(judged: list[Verdict]) -> None:
    missed = [band for band in judged if not band.ok]
    if missed:
        listed = ", ".join(f"{b.key}: {b.error_pct:.2f} % (at most {b.limit_pct:g} %)" for b in missed)
        raise CheckError(f"outside its band: {listed}")


def _name(summary: Path) -> str:
    """The name of the study: that of the file without its endings."""
    stem = re.sub(r"(\.(csv|gz|zstd?))+$", "", summary.name, flags=re.IGNORECASE)
    return re.sub(r"[^\w.+@-]+", "-", f"{stem}-rows").strip("-.+@")


def _sha256(path: Path) -> str:
    from simkit.logs.files import sha256_of

    return sha256_of(path)
