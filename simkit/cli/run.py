"""The command of one run: `run`. It parses, calls `api` or a study, writes and prints.

Owns what commands of one run say at their end: the headroom. Heavy modules are imported by the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simkit.cli import console, output
from simkit.cli.options import (
    File,
    NoHeadroom,
    Out,
    RunOptions,
    ScenarioOptions,
    StudyOptions,
    WorkloadFile,
    given,
    option,
    values_of,
)
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.runs.replication import Result
    from simkit.scenario import Scenario


@dataclass(frozen=True, slots=True)
class ScenarioFlags:
    """A scenario without a file: all of them, or none."""

    model: str | None = given("--model", "Instead of a file: model name.")
    gpu: str | None = given("--gpu", "Instead of a file: GPU name.")
    rate: float | None = given("--rate", "Instead of a file: requests per second.")
    prompt: int | None = given("--prompt", "Instead of a file: prompt tokens.")
    output: int | None = given("--output", "Instead of a file: output tokens.")


def run(
    *,
    scenario: File = None,
    flags: ScenarioFlags,
    workload: WorkloadFile = None,
    out: Out = None,
    change: ScenarioOptions,
    study: StudyOptions,
    single_step: Annotated[
        bool, option("--single-step", "Simulate every step one by one: slow, same result; for debugging.")
    ] = False,
    no_headroom: NoHeadroom = False,
    printing: RunOptions,
) -> None:
    """Simulate one scenario and write its run directory."""
    chosen = _scenario(scenario, flags, workload, change)
    from simkit import api
    from simkit.report.sections.runs.run import run_tables

    target = output.Target.choose(out, chosen.name)
    options = target.options(study, printing)
    with target.stoppable(), console.progress(printing.quiet) as progress:
        if chosen.replications == 1 and study.dask is None:
            if study.resume:
                output.say(printing, ["note: --resume: nothing is kept of a single simulation"])
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
        result = with_headroom(result, chosen, progress, wanted=not no_headroom)
        with target.writing(progress) as path:
            written = api.write(result, path, overwrite=True, report=not printing.no_report)
    target.clear_kept()
    output.finish(
        printing,
        lambda: run_tables(result.summary, result.manifest, console.width()),
        written / "summary.json",
        lines=headroom_lines(result),
        before=_notes(result, target.replaced),
        after=told(result, written, printing),
    )


def headroom_lines(result: Result) -> Iterator[str]:
    """The headroom as the last line of a run's tables, where it was looked for."""
    found = result.summary.get("headroom")
    if found:
        yield found["text"]


def told(result: Result, written: Path, printing: RunOptions) -> Iterator[str]:
    """What is said last of one run: an alarm, and where it was written."""
    yield from output.alarms(result, written)
    yield output.wrote(written, printing)


def _notes(result: Result, replaced: str | None) -> Iterator[str]:
    yield from output.notes(replaced, [result])
    idle = result.manifest.get("without_effect")
    if idle:
        yield f"note: without effect here: {', '.join(idle)}"


def _scenario(path: Path | None, flags: ScenarioFlags, workload: Path | None, change: ScenarioOptions) -> Scenario:
    """The scenario of the file, or of the flags in its place."""
    from simkit.scenario import from_flags, load

    given = {f"--{name}": value for name, value in values_of(flags).items()}
    missing = [name for name, value in given.items() if value is None]
    if path is not None:
        for name in (name for name in given if name not in missing):
            raise InputError(f"{name}: expected a scenario file or {', '.join(given)}, got both; use --set with a file")
        return load(path, change.settings, workload)
    if workload is not None:
        raise InputError("--workload: expected a scenario file with it")
    if len(missing) == len(given):
        raise InputError(f"run: expected a scenario file or {', '.join(given)}; `simkit init` prints a scenario")
    if missing:
        raise InputError(
            f"run: {', '.join(missing)} missing; without a scenario file all of {', '.join(given)} are needed"
        )
    model, gpu, rate, prompt, output_tokens = given.values()
    return from_flags(model, gpu, rate, prompt, output_tokens, change.settings)


def with_headroom(
    result: Result, scenario: Scenario, progress: console.Report | None = None, *, wanted: bool = True
) -> Result:
    """`result` with its headroom in the summary, where it is `wanted` and there is any to look for."""
    if not wanted or scenario.slo is None:
        return result
    from simkit.plain import plain
    from simkit.planner.headroom import headroom, is_asked

    if not is_asked(scenario):
        return result
    found = headroom(scenario, result.summary, _ran(result, scenario), progress)
    told = {**plain(found), "text": found.text}
    return replace(result, summary={**result.summary, "headroom": told})


def _ran(result: Result, scenario: Scenario) -> Scenario | None:
    """The scenario as long as the run was, None where it was as long as asked for."""
    if not result.manifest.get("run_length"):
        return None
    from simkit import scenario as schema

    ran = result.manifest["scenario"]
    changes = {f"workload.{key}": ran["workload"][key] for key in ("num_requests", "duration_s")}
    return schema.apply_sets(scenario, {**changes, "warmup": ran["warmup"]}, label="run length")
