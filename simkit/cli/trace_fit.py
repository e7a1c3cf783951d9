"""`simkit trace fit`: a workload that stands for a log and holds none of its requests. Heavy modules inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console
from simkit.cli.studies import Jobs, Json, Quiet, writing
from simkit.cli.trace import (
    AllowBad,
    Failed,
    File,
    Force,
    FormatName,
    HashBlockTokens,
    Map,
    OnRestart,
    TimeUnit,
    trace_spec,
)
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.logs.fit.fit import Fit
    from simkit.logs.play.load import Log
    from simkit.scenario import Scenario, Trace


def fit(
    file: File,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The workload file to write (YAML).")],
    start: Annotated[float, typer.Option("--start", metavar="S", help="Start of the window, s of the log.")] = 0.0,
    end: Annotated[float | None, typer.Option("--end", metavar="S", help="Its end, not included.")] = None,
    scenario: Annotated[
        Path | None,
        typer.Option("--scenario", metavar="SCENARIO", help="Engine for the check (default: an 8B model, one A100)."),
    ] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not simulate the log and the fit.")] = False,
    format: FormatName = "auto",
    map: Map = None,
    time_unit: TimeUnit = "auto",
    hash_block_tokens: HashBlockTokens = None,
    failed: Failed = "skip",
    on_restart: OnRestart = "sort",
    allow_bad: AllowBad = False,
    force: Force = False,
    jobs: Jobs = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a synthetic workload on a log, which can be given away, and show how well it stands for the log."""
    part = {"start_s": start, "end_s": end}
    spec = trace_spec(file, format, map, time_unit, hash_block_tokens, failed, on_restart, allow_bad, part)
    _check_target(out, force)
    chosen = _engine(scenario, no_check)
    from simkit.logs.fit import fit as fitting
    from simkit.logs.fit.fit import workload_yaml
    from simkit.logs.play.load import load_log
    from simkit.plain import canonical_json
    from simkit.version import __version__

    log = load_log(spec)
    if not quiet:
        for note in log.notes:
            console.say(f"trace {spec.path}: {note}")
    fitted = fitting.fit(log, spec)
    with writing(out, out):
        out.write_text(workload_yaml(fitted, log.format.title, __version__), encoding="utf-8", newline="")
    if not quiet:
        for remark in fitted.remarks:
            console.say(f"fit: {remark}")
    check = None if no_check else _checked(chosen, spec, log, fitted, jobs, quiet)
    if json:
        console.out_bytes(canonical_json({"workload": fitted.workload, "remarks": fitted.remarks, "check": check}))
    elif check is not None:
        from simkit.report.sections.log import fit_tables

        console.out(*fit_tables(check, console.width()))
    if not quiet:
        console.say(f"wrote {out}; use it with `simkit run SCENARIO --workload {out}`")


def _check_target(out: Path, force: bool) -> None:
    """Refuse, before the work, what cannot be written or would be lost."""
    from simkit.logs.fit.fit import TITLE

    if out.is_dir():
        raise InputError(f"--out {out}: expected a file, got a directory")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: cannot be written: no directory {out.parent}")
    if out.exists() and not force:
        with writing(out, out), out.open("rb") as file:
            ours = file.read(len(TITLE)) == TITLE.encode()
        if not ours:
            raise InputError(f"--out {out}: already there and not written by simkit; --force replaces it")


def _engine(scenario: Path | None, no_check: bool) -> Scenario | None:
    """The scenario to check on, None for the default one."""
    if scenario is None:
        return None
    if no_check:
        raise InputError("--scenario: expected without --no-check, which simulates nothing")
    from simkit.scenario import load

    return load(scenario)


def _checked(
    scenario: Scenario | None, spec: Trace, log: Log, fitted: Fit, jobs: int | None, quiet: bool
) -> Mapping[str, Any]:
    from simkit.studies.fit_check import check_fit, default_scenario

    chosen = scenario or default_scenario(log)
    # The scenario may lie elsewhere; paths on the command line start here.
    trace = spec.model_dump(mode="json", exclude_unset=True) | {"path": str(Path(spec.path).resolve())}
    with console.progress(quiet) as progress:
        return check_fit(chosen, trace, fitted, progress=progress, jobs=jobs).to_json()
