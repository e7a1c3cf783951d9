"""The doctor command: findings of a run directory, each advice proven by running it. Heavy modules inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simkit.cli import console, output
from simkit.cli.options import Printing, Workers, option
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.report.read.run import Run


def doctor(
    *,
    run_dir: Annotated[Path | None, typer.Argument(metavar="RUN_DIR", help="A run, or an arm of a comparison.")] = None,
    no_proof: Annotated[bool, option("--no-proof", "Diagnose only; run nothing again.")] = False,
    rules: Annotated[bool, option("--rules", "Print all thresholds and exit.")] = False,
    out: Annotated[Path | None, option("--out", "Also write doctor.json and doctor.md there.", "DIR")] = None,
    base_dir: Annotated[
        Path | None,
        option("--base-dir", "Where relative paths of the scenario start (default: here).", "DIR"),
    ] = None,
    workers: Workers,
    printing: Printing,
) -> None:
    """Say what is wrong with a run and which setting to change, and prove it by running the same customers again."""
    if rules:
        from simkit.report.sections import doctor as sections

        console.out(*sections.rules_tables(console.width()))
        return
    if run_dir is None:
        raise InputError("doctor: expected a run directory, e.g. `simkit doctor runs/NAME`")
    run = _load(run_dir)
    folder = _folder(out, run_dir)
    from simkit.diagnosis.facts import gather
    from simkit.plain import canonical_json
    from simkit.studies import doctor as studies

    facts = gather(run.manifest, run.summary, run.requests, run.steps)
    scenario = None
    if not no_proof:
        scenario = studies.rebuild(run.manifest, f"{run_dir / 'manifest.json'}", base_dir)
    with console.progress(printing.quiet) as progress:
        found = studies.examine(scenario, facts, progress=progress, jobs=workers.jobs, dask=workers.dask)
    from simkit.report.sections import doctor as sections

    if folder is not None:
        with output.writing(out, folder):
            (folder / "doctor.json").write_bytes(canonical_json(found))
            (folder / "doctor.md").write_bytes(sections.markdown(found, studies.labels(found)).encode())

    output.finish(
        printing,
        lambda: sections.doctor_tables(found, studies.labels(found), console.width()),
        found,
        after=[] if folder is None else [f"wrote {folder / 'doctor.json'} and {folder / 'doctor.md'}"],
    )


def _load(run_dir: Path) -> Run:
    """The run in a directory. A study holds several runs: then say which."""
    from simkit.report.read.run import load_run, read_json

    manifest = read_json(run_dir / "manifest.json")
    for kind in ("arms", "points"):
        held = manifest.get(kind)
        if held and "scenario" not in manifest:
            names = ", ".join(str(run_dir / folder) for folder in list(held.values())[:3])
            raise InputError(f"{run_dir}: expected one run, got {len(held)} {kind}: name one of them, e.g. {names}")
    if "scenario" not in manifest:
        raise InputError(f"{run_dir}: expected a run directory of simkit, got none (its manifest holds no scenario)")
    return load_run(str(manifest.get("name", run_dir.name)), run_dir)


def _folder(out: Path | None, run_dir: Path) -> Path | None:
    """Where to write, checked before the work. Files of another kind are left alone, so any directory will do."""
    if out is None:
        return None
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: expected a directory, got a file")
    if out.resolve() == run_dir.resolve():
        raise InputError(f"--out {out}: expected another directory than the run, whose files never change")
    with output.writing(out, out):
        out.mkdir(parents=True, exist_ok=True)
    return out
