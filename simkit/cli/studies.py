"""The commands that simulate: run, compare, sweep. They parse, call `api` and `planner`, write and print.

Owns their options, and what they say of failures and interruptions. Heavy modules are imported by the commands.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console, headroom
from simkit.cli.headroom import NoHeadroom
from simkit.errors import InputError, Interrupted

if TYPE_CHECKING:
    from simkit.runs.replication import Result
    from simkit.scenario import Scenario
    from simkit.studies.study import Failure, Options

File = Annotated[Path | None, typer.Argument(metavar="SCENARIO", help="Scenario file; `simkit init` prints one.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run directory (default ./runs/<name>).")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a scenario key; repeatable.")
]
WorkloadFile = Annotated[
    Path | None,
    typer.Option("--workload", metavar="FILE", help="Use the workload of this file, e.g. of `simkit trace fit`."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Shorthand for --set seed=N.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or paths on stderr.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Do not write report.html.")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="Processes to use (default: one a core; 1: this one).")
]
Dask = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="Use the workers of a Dask scheduler; auto: start a local one."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from what was kept when this was interrupted.")]


class Stopped(Exception):
    """An interrupt that has something to say, which typer would drop from a KeyboardInterrupt."""


def run(
    scenario: File = None,
    model: Annotated[str | None, typer.Option("--model", help="Instead of a file: model name.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Instead of a file: GPU name.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Instead of a file: requests per second.")] = None,
    prompt: Annotated[int | None, typer.Option("--prompt", help="Instead of a file: prompt tokens.")] = None,
    output: Annotated[int | None, typer.Option("--output", help="Instead of a file: output tokens.")] = None,
    workload: WorkloadFile = None,
    out: Out = None,
    sets: Sets = None,
    seed: Seed = None,
    jobs: Jobs = None,
    dask: Dask = None,
    resume: Resume = False,
    single_step: Annotated[
        bool, typer.Option("--single-step", help="Simulate every step one by one: slow, same result; for debugging.")
    ] = False,
    no_headroom: NoHeadroom = False,
    json: Json = False,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> None:
    """Simulate one scenario and write its run directory."""
    flags = {"--model": model, "--gpu": gpu, "--rate": rate, "--prompt": prompt, "--output": output}
    settings = settings_of(sets, seed)
    if scenario is None:
        if workload is not None:
            raise InputError("--workload: expected a scenario file with it")
        chosen = _from_flags(flags, settings)
    else:
        chosen = _from_file(scenario, flags, settings, workload)
    from simkit import api
    from simkit.runs import directory

    out_dir, overwrite = directory.choose(out, chosen.name)
    options = study_options(jobs, dask, resume, out_dir, quiet)
    with stoppable(out_dir), console.progress(quiet) as progress:
        if chosen.replications == 1 and dask is None:
            if resume and not quiet:
                console.say("note: --resume: nothing is kept of a single simulation")
            result = api.run(chosen, base_dir=chosen.base_dir, progress=progress, single_step=single_step)
        else:
            from simkit.engine.build import set_up
            from simkit.runs import run_length
            from simkit.runs.long_enough import long_enough
            from simkit.studies.study import run_scenario

            options["single_step"] = single_step
            ready = long_enough(set_up(chosen), progress, single_step=single_step)
            longer = run_length.same_length(chosen, ready.setup.scenario)
            result = api.with_length(run_scenario(longer, progress=progress, **options), ready.length)
        result = headroom.with_headroom(result, chosen, progress, wanted=not no_headroom)
        replaced = directory.name_of(out_dir) if overwrite else None
        if progress is not None:
            progress(1.0, "writing")
        with writing(out, out_dir):
            written = api.write(result, out_dir, overwrite=True, report=not no_report)
    _clear_kept(out_dir)
    if not quiet:
        say_notes(replaced, result.manifest)
        idle = result.manifest.get("without_effect")
        if idle:
            console.say(f"note: without effect here: {', '.join(idle)}")
    if json:
        console.out_bytes((written / "summary.json").read_bytes())
    else:
        from simkit.report.sections.runs import run as tables

        console.out(*tables.run_tables(result.summary, result.manifest, console.width()))
        headroom.say(result.summary)
    if not quiet:
        say_alarms(result, written)
        console.say(f"wrote {written}" + ("" if no_report else f"; open {written / 'report.html'}"))


def compare(
    scenarios: Annotated[
        list[Path], typer.Argument(metavar="SCENARIO [OTHER]", help="Scenario file, or two to set side by side.")
    ],
    axis: Annotated[
        list[str] | None,
        typer.Option("--axis", metavar="KEY=A,B", help="Further arms, one a value; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output directory (default ./runs/<name>-compare).")
    ] = None,
    workload: WorkloadFile = None,
    sets: Sets = None,
    seed: Seed = None,
    jobs: Jobs = None,
    dask: Dask = None,
    resume: Resume = False,
    json: Json = False,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> int:
    """Serve the same customers with every batcher and KV allocator, or set two scenarios side by side."""
    from simkit import scenario as schema

    if len(scenarios) > 2:
        raise InputError(f"compare: expected one or two scenario files, got {len(scenarios)}")
    if len(scenarios) == 2 and axis:
        raise InputError("--axis: expected one scenario file with it, got two")
    chosen, *other = [schema.load(path, settings_of(sets, seed), workload) for path in scenarios]
    axes = schema.parse_axes(chosen, axis or [])
    from simkit import api
    from simkit.runs import directory
    from simkit.studies import compare as planner

    out_dir, overwrite = directory.choose(out, f"{chosen.name}-compare")
    options = study_options(jobs, dask, resume, out_dir, quiet)
    with stoppable(out_dir), console.progress(quiet) as progress:
        if other:
            comparison = planner.compare_files(chosen, other[0], progress=progress, **options)
        else:
            comparison = planner.compare(chosen, axes=axes, base_dir=chosen.base_dir, progress=progress, **options)
        if not comparison.arms:
            return _report_failures("arm", comparison.failed, out_dir, quiet)
        replaced = directory.name_of(out_dir) if overwrite else None
        if progress is not None:
            progress(1.0, "writing")
        with writing(out, out_dir):
            written = api.write_comparison(comparison, out_dir, overwrite=True, report=not no_report)
    code = _report_failures("arm", comparison.failed, out_dir, quiet)
    if comparison.baseline in comparison.failed and not quiet:
        console.say(f"note: the baseline {comparison.baseline} failed, so there are no paired differences")
    if not quiet:
        say_notes(replaced, *(arm.manifest for arm in comparison.arms.values()))
    if json:
        console.out_bytes((written / "compare.json").read_bytes())
    else:
        from simkit.report.sections.runs import compare as tables

        arms = {name: (arm.summary, arm.manifest) for name, arm in comparison.arms.items()}
        console.out(*tables.compare_tables(arms, comparison.paired, console.width()))
    if not quiet:
        console.say(f"wrote {written}" + ("" if no_report else f"; open {written / 'report.html'}"))
    return code


def sweep(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file; `simkit init` prints one.")],
    axis: Annotated[
        list[str] | None,
        typer.Option("--axis", metavar="KEY=A,B", help="A setting and its values; repeat it for a grid."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output directory (default ./runs/<name>-sweep).")
    ] = None,
    workload: WorkloadFile = None,
    sets: Sets = None,
    seed: Seed = None,
    jobs: Jobs = None,
    dask: Dask = None,
    resume: Resume = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run one scenario at every combination of some settings, with the same customers."""
    from simkit import scenario as schema

    chosen = schema.load(scenario, settings_of(sets, seed), workload)
    axes = schema.parse_axes(chosen, axis or [])
    from simkit import api
    from simkit.runs import directory
    from simkit.studies import sweep as planner

    out_dir, overwrite = directory.choose(out, f"{chosen.name}-sweep")
    options = study_options(jobs, dask, resume, out_dir, quiet)
    with stoppable(out_dir), console.progress(quiet) as progress:
        swept = planner.sweep(chosen, axes, base_dir=chosen.base_dir, progress=progress, **options)
        if not swept.points:
            return _report_failures("point", swept.failed, out_dir, quiet)
        replaced = directory.name_of(out_dir) if overwrite else None
        if progress is not None:
            progress(1.0, "writing")
        with writing(out, out_dir):
            written = api.write_sweep(swept, out_dir, overwrite=True)
    code = _report_failures("point", swept.failed, out_dir, quiet)
    if not quiet:
        say_notes(replaced, *(result.manifest for result in swept.points.values()))
    if json:
        console.out_bytes((written / "sweep.json").read_bytes())
    else:
        from simkit.report.sections.runs import sweep as sweep_tables

        points = {name: (result.summary, result.manifest) for name, result in swept.points.items()}
        console.out(*sweep_tables.sweep_tables(points, list(swept.failed), console.width()))
    if not quiet:
        console.say(f"wrote {written}; {written / 'sweep.csv'} has a row a point")
    return code


def study_options(jobs: int | None, dask: str | None, resume: bool, out_dir: Path, quiet: bool) -> Options:
    """How a study is run."""
    from simkit.runs import directory

    if jobs is not None and dask not in (None, "auto"):
        raise InputError(f"--jobs: expected without --dask {dask}, whose workers are those of that scheduler")
    options: Options = {"jobs": jobs, "dask": dask, "resume_dir": directory.kept_dir(out_dir), "resume": resume}
    if not quiet:
        options["on_note"] = console.say
    return options


@contextlib.contextmanager
def stoppable(out_dir: Path) -> Iterator[None]:
    """SIGTERM stops like Ctrl-C; both say how to go on where something was kept."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before: Any = None
    with contextlib.suppress(ValueError):  # not in the main thread
        before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Interrupted as error:
        raise Stopped(str(error)) from None
    except KeyboardInterrupt:
        from simkit.runs import directory

        if directory.kept_dir(out_dir).is_dir():
            raise Stopped("interrupted: the simulations are kept; add --resume to go on") from None
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _report_failures(word: str, failed: Mapping[str, Failure], out_dir: Path, quiet: bool) -> int:
    """One line for everything that failed, and the exit code; kept simulations are of no more use without failures."""
    from simkit.runs import directory
    from simkit.studies.study import exit_code

    for name, failure in failed.items():
        console.say(f"{word} {failure.line(name)}")
    if not failed:
        _clear_kept(out_dir)
    elif directory.kept_dir(out_dir).is_dir() and not quiet:
        console.say("note: the finished simulations are kept; with --resume only the others are made again")
    return exit_code(failed)


def _clear_kept(out_dir: Path) -> None:
    from simkit.runs import directory

    if directory.kept_dir(out_dir).is_dir():
        from simkit.studies import checkpoint

        checkpoint.clear(directory.kept_dir(out_dir))


def settings_of(sets: list[str] | None, seed: int | None) -> list[str]:
    return [*(sets or []), *([f"seed={seed}"] if seed is not None else [])]


def _from_file(path: Path, flags: dict[str, Any], settings: list[str], workload: Path | None) -> Scenario:
    from simkit.scenario import load

    given = [name for name, value in flags.items() if value is not None]
    if given:
        raise InputError(f"{given[0]}: expected a scenario file or {', '.join(flags)}, got both; use --set with a file")
    return load(path, settings, workload)


def _from_flags(flags: dict[str, Any], settings: list[str]) -> Scenario:
    from simkit.scenario import from_flags

    missing = [name for name, value in flags.items() if value is None]
    if len(missing) == len(flags):
        raise InputError(f"run: expected a scenario file or {', '.join(flags)}; `simkit init` prints a scenario")
    if missing:
        raise InputError(
            f"run: {', '.join(missing)} missing; without a scenario file all of {', '.join(flags)} are needed"
        )
    model, gpu, rate, prompt, output = flags.values()
    return from_flags(model, gpu, rate, prompt, output, settings)


def say_notes(replaced: str | None, *manifests: Mapping[str, Any]) -> None:
    """What the reader should know about one or several runs, a line each, nothing twice.

    `replaced` names the run that was in the same place before.
    """
    if replaced is not None:
        console.say(f"note: replaced the earlier run {replaced!r} in the same place; choose --out to keep both")
    notes = [note for manifest in manifests for note in manifest.get("notes") or []]
    keys = [key for manifest in manifests for key in manifest.get("not_simulated") or []]
    line = console.not_simulated_line(list(dict.fromkeys(keys)))
    for text in dict.fromkeys([*notes, *([line] if line else [])]):
        console.say(text)


def say_alarms(result: Result, written: Path) -> None:
    """One line when a rule of the doctor finds something to do."""
    from simkit.diagnosis.rules import alarm_line, diagnose
    from simkit.studies.doctor import facts_of

    line = alarm_line(diagnose(facts_of(result)))
    if line is not None:
        console.say(f"doctor: {line}; `simkit doctor {written}` proves what helps")


class writing:
    """Says in one line why an output directory could not be written (disk full, permission)."""

    def __init__(self, out: Path | None, out_dir: Path) -> None:
        self._label = f"--out {out}" if out is not None else str(out_dir)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            from simkit.runs.directory import unwritable

            raise unwritable(self._label, error) from None
