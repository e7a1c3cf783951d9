"""The doctor command: findings of a run directory, each advice proven by running it. Heavy modules inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console
from simkit.cli.studies import Dask, Jobs, Json, Quiet
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.report.read.run import Run


def doctor(
    run_dir: Annotated[Path | None, typer.Argument(metavar="RUN_DIR", help="A run, or an arm of a comparison.")] = None,
    no_proof: Annotated[bool, typer.Option("--no-proof", help="Diagnose only; run nothing again.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="Print all thresholds and exit.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write doctor.json and doctor.md there.")
    ] = None,
    base_dir: Annotated[
        Path | None,
        typer.Option("--base-dir", metavar="DIR", help="Where relative paths of the scenario start (default: here)."),
    ] = None,
    jobs: Jobs = None,
    dask: Dask = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what is wrong with a run and which setting to change, and prove it by running the same customers again."""
    if rules:
        from simkit.report.sections import doctor as doctor_text

        console.out(*doctor_text.rules_tables(console.width()))
        return
    if run_dir is None:
        raise InputError("doctor: expected a run directory, e.g. `simkit doctor runs/NAME`")
    run = _load(run_dir)
    target = _target(out, run_dir)
    from simkit.diagnosis.facts import gather
    from simkit.plain import canonical_json
    from simkit.studies import doctor as planner
    from simkit.studies import verdict

    facts = gather(run.manifest, run.summary, run.requests, run.steps)
    scenario = None
    if not no_proof:
        scenario = planner.rebuild(run.manifest, f"{run_dir / 'manifest.json'}", base_dir)
    with console.progress(quiet) as progress:
        found = planner.examine(scenario, facts, progress=progress, jobs=jobs, dask=dask)
    content = canonical_json(found)
    from simkit.report.sections import doctor as doctor_text

    if target is not None:
        _write(target, content, doctor_text.markdown(found, verdict.labels(found)).encode())
    if json:
        console.out_bytes(content)
    else:
        console.out(*doctor_text.doctor_tables(found, verdict.labels(found), console.width()))
    if target is not None and not quiet:
        console.say(f"wrote {target / 'doctor.json'} and {target / 'doctor.md'}")


def _load(run_dir: Path) -> Run:
    """The run in a directory. A study holds several runs: then say which."""
    from simkit.report.read.run import load_run, read_json

    manifest: Any = read_json(run_dir / "manifest.json")
    for kind in ("arms", "points"):
        held = manifest.get(kind)
        if held and "scenario" not in manifest:
            names = ", ".join(str(run_dir / folder) for folder in list(held.values())[:3])
            raise InputError(f"{run_dir}: expected one run, got {len(held)} {kind}: name one of them, e.g. {names}")
    if "scenario" not in manifest:
        raise InputError(f"{run_dir}: expected a run directory of simkit, got none (its manifest holds no scenario)")
    return load_run(str(manifest.get("name", run_dir.name)), run_dir)


def _target(out: Path | None, run_dir: Path) -> Path | None:
    """Where to write, checked before the work. Files of another kind are left alone, so any directory will do."""
    if out is None:
        return None
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: expected a directory, got a file")
    if out.resolve() == run_dir.resolve():
        raise InputError(f"--out {out}: expected another directory than the run, whose files never change")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    return out


def _write(out: Path, json: bytes, markdown: bytes) -> None:
    try:
        (out / "doctor.json").write_bytes(json)
        (out / "doctor.md").write_bytes(markdown)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror or error}") from None
