"""The validate command: predicted against measured. Heavy modules inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simkit import cli_validate_rows
from simkit.cli_studies import Dask, Jobs, Json, NoReport, Quiet, Seed, Sets
from simkit.errors import InputError


def _option(flag: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(flag, help=text, metavar=metavar)


def validate(
    summary: Annotated[
        Path | None, _option("--summary", "Table of aggregate rows instead of a log (CSV, may be packed).", "FILE")
    ] = None,
    scenario: Annotated[
        Path | None, _option("--scenario", "Scenario file: engine settings that rows leave open.", "FILE")
    ] = None,
    select: Annotated[
        list[str] | None, _option("--select", "Rows whose column matches; repeatable.", "COLUMN=GLOB")
    ] = None,
    fit: Annotated[
        str | None, _option("--fit", "Rows that fit the host terms; the others test them.", "COLUMN=A,B")
    ] = None,
    fit_metric: Annotated[str | None, _option("--fit-metric", "What is fitted (default: the TPOT).", "METRIC")] = None,
    max_rows: Annotated[int | None, typer.Option("--max-rows", metavar="N", min=1, help="Simulate so many.")] = None,
    max_error: Annotated[
        list[str] | None, _option("--max-error", "Exit with 1 beyond this mean error; repeatable.", "METRIC=PCT")
    ] = None,
    out: Annotated[Path | None, _option("--out", "Run directory (default ./runs/<name>-rows).", "DIR")] = None,
    sets: Sets = None,
    seed: Seed = None,
    jobs: Jobs = None,
    dask: Dask = None,
    json: Json = False,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> None:
    """Set what simkit predicts beside what was measured."""
    if summary is None:
        raise InputError("validate: expected --summary FILE")
    cli_validate_rows.run_rows(
        summary, scenario=scenario, select=select, fit=fit, fit_metric=fit_metric, max_rows=max_rows,
        max_error=max_error, sets=sets, seed=seed, out=out, jobs=jobs, dask=dask, json=json, quiet=quiet,
        no_report=no_report,
    )  # fmt: skip
