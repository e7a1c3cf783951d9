"""The `trace` commands: what a log holds, a clean copy or a part of it, a workload that stands for it.

Heavy modules are imported by the commands.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simkit.cli import console, output
from simkit.cli.options import Force, Jobs, Printing, Quiet, ReadOptions, expanded, given, option
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.logs.export import Exported
    from simkit.logs.fit.fit import Fit
    from simkit.logs.play.load import Log
    from simkit.scenario import Scenario, Trace
    from simkit.studies.fit_check import FitCheck

app = typer.Typer(
    name="trace",
    help="Read logs of real traffic: what they hold, clean copies, parts.",
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A log; what it is, is told by its content.")]
OutFile = Annotated[Path, option("--out", "NAME.parquet (canonical) or NAME.jsonl (Mooncake).", "FILE")]


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """A part of a log by time."""

    start: float = given("--start", "Start of the window, s of the log.", "S", default=0.0)
    end: float | None = given("--end", "Its end, not included.", "S")


@dataclass(frozen=True, slots=True)
class SampleOptions(WindowOptions):
    """A part of that by session and by number."""

    keep_share: float = given("--keep-share", "Share of the sessions to keep, each whole.", "P", default=1.0)
    seed: int = given("--seed", "Draws them.", "N", min=0, default=0)
    max_requests: int | None = given("--max-requests", "The first so many.", "N")


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        console.out_bytes((context.get_help() + "\n").encode())


@app.command()
@expanded
def info(
    *,
    file: File,
    read: ReadOptions,
    out: Annotated[Path | None, option("--out", "Write info.json and a picture (default: print only).", "DIR")] = None,
    printing: Printing,
) -> None:
    """Say what a log holds: what it was read as, rate, burstiness, lengths, sharing, sessions, and the dirt in it."""
    spec = read.trace(file)
    from simkit.logs.describe import describe
    from simkit.report.sections.log import trace_tables

    target = None if out is None else output.Target.choose(out, "trace")
    with console.progress(printing.quiet) as progress:
        found = describe(spec, report=progress)
    if target is not None:
        from simkit.api import write_trace_info

        with target.writing() as path:
            written = write_trace_info(found.info, found.curves, path, overwrite=True)
        output.say(printing, [f"wrote {written}; open {written / 'trace.svg'}"])

    output.finish(printing, lambda: trace_tables(found.info), found.info)


@app.command()
@expanded
def convert(
    *,
    file: File,
    out: OutFile,
    read: ReadOptions,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write a clean copy of a log: canonical parquet, which holds everything, or Mooncake JSONL."""
    spec = read.trace(file)
    from simkit.logs.export import convert as write

    with console.progress(quiet) as progress:
        done = write(spec, out, force=force, report=progress)
    _tell(done, out, quiet)


@app.command()
@expanded
def sample(
    *,
    file: File,
    out: OutFile,
    part: SampleOptions,
    read: ReadOptions,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write a part of a log: a window, a share of its sessions, its first requests."""
    spec = read.trace(
        file, start_s=part.start, end_s=part.end, keep_share=part.keep_share, max_requests=part.max_requests
    )
    from simkit.logs.export import sample as write

    with console.progress(quiet) as progress:
        done = write(spec, out, part.seed, force=force, report=progress)
    _tell(done, out, quiet)


def _tell(done: Exported, out: Path, quiet: bool) -> None:
    wrote = f"wrote {out}: {done.num_requests:,} requests over {done.span_s:,.3f} s"
    output.say(Printing(quiet=quiet), [*(f"note: {note}" for note in done.notes), wrote])


@app.command()
@expanded
def fit(
    *,
    file: File,
    out: Annotated[Path, option("--out", "The workload file to write (YAML).", "FILE")],
    window: WindowOptions,
    scenario: Annotated[
        Path | None,
        option("--scenario", "Engine for the check (default: an 8B model, one A100).", "SCENARIO"),
    ] = None,
    no_check: Annotated[bool, option("--no-check", "Do not simulate the log and the fit.")] = False,
    read: ReadOptions,
    force: Force = False,
    jobs: Jobs = None,
    printing: Printing,
) -> None:
    """Fit a synthetic workload on a log, which can be given away, and show how well it stands for the log."""
    spec = read.trace(file, start_s=window.start, end_s=window.end)
    _check_target(out, force)
    chosen = _engine(scenario, no_check)
    from simkit.logs.fit import fit as fitting
    from simkit.logs.fit.fit import workload_yaml
    from simkit.logs.play.load import load_log
    from simkit.report.sections.log import fit_tables
    from simkit.version import __version__

    log = load_log(spec)
    output.say(printing, (f"trace {spec.path}: {note}" for note in log.notes))
    fitted = fitting.fit(log, spec)
    with output.writing(out, out):
        out.write_text(workload_yaml(fitted, log.format.title, __version__), encoding="utf-8", newline="")
    output.say(printing, (f"fit: {remark}" for remark in fitted.remarks))
    check = None if no_check else _checked(chosen, spec, log, fitted, jobs, printing.quiet).to_json()

    output.finish(
        printing,
        lambda: [] if check is None else fit_tables(check, console.width()),
        {"workload": fitted.workload, "remarks": fitted.remarks, "check": check},
        after=[f"wrote {out}; use it with `simkit run SCENARIO --workload {out}`"],
    )


def _check_target(out: Path, force: bool) -> None:
    """Refuse, before the work, what cannot be written or would be lost."""
    from simkit.logs.fit.fit import TITLE

    if out.is_dir():
        raise InputError(f"--out {out}: expected a file, got a directory")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: cannot be written: no directory {out.parent}")
    if out.exists() and not force:
        with output.writing(out, out), out.open("rb") as file:
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


def _checked(scenario: Scenario | None, spec: Trace, log: Log, fitted: Fit, jobs: int | None, quiet: bool) -> FitCheck:
    from simkit.studies.fit_check import check_fit, default_scenario

    chosen = scenario or default_scenario(log)
    # The scenario may lie elsewhere; paths on the command line start here.
    trace = spec.model_dump(mode="json", exclude_unset=True) | {"path": str(Path(spec.path).resolve())}
    with console.progress(quiet) as progress:
        return check_fit(chosen, trace, fitted, progress=progress, jobs=jobs)
