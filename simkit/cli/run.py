"""The commands of one run: `run`, and `replay`, which serves a log in place of the workload. They parse, call, print.

Owns what both say at their end, the headroom, and what is shown beside a replay. Heavy modules are imported by the
command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console, output
from simkit.cli.options import (
    File,
    LoadOptions,
    NoHeadroom,
    Out,
    RunOptions,
    ScenarioOptions,
    StudyOptions,
    WorkloadFile,
    given,
    option,
    trace_keys,
    values_of,
)
from simkit.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simkit.engine.build import Setup
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
    from simkit.report.sections.run import run_tables

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


# --- replay -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PlayOptions:
    """How what was read is played."""

    keep_share: float | None = given("--keep-share", "Replay this share of the sessions, drawn.", "SHARE")
    idle_gap_cap: float | None = given("--idle-gap-cap", "Shorten longer gaps to this, in time of the log.", "SECONDS")
    spread_ties: str | None = given("--spread-ties", "Equal times over the clock's tick: none, uniform or even.", "HOW")
    speed: float | None = given("--speed", "2 is twice as fast: gaps halved, lengths kept.", "X")
    rate: float | None = given("--rate", "Scale the gaps to so many requests a second.", "R")
    repeat: int | None = given("--repeat", "Play it so many times, one after the other.", "N")
    sessions: str | None = given("--sessions", "open: recorded times; closed: a turn waits for the last.", "HOW")
    too_long: str | None = given("--too-long", "Prompts beyond max_model_len: reject, truncate or drop.", "WHAT")


def replay(
    *,
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A log of requests; its format is detected.")],
    load: LoadOptions,
    play: PlayOptions,
    no_twin: Annotated[bool, option("--no-twin", "Leave out the even workload with equal means.")] = False,
    no_headroom: NoHeadroom = False,
    out: Annotated[Path | None, option("--out", "Run directory (default ./runs/<scenario>-<trace>).", "DIR")] = None,
    change: ScenarioOptions,
    printing: RunOptions,
) -> None:
    """Serve the requests of a production log by the engine of a scenario."""
    section = load.section(trace) | trace_keys(play)
    chosen, made_way = load.scenario_with("replay", section, "TRACE", change)
    from simkit import api

    target = output.Target.choose(out, chosen.name)
    with target.stoppable():
        result, problem = _served(chosen, quiet=printing.quiet, with_twin=not no_twin)
        with console.progress(printing.quiet) as progress:
            result = with_headroom(result, chosen, progress, wanted=not no_headroom)
        with target.writing() as path:
            written = api.write(result, path, overwrite=True, report=not printing.no_report)
    untwinned = [] if problem is None else [f"note: no even workload beside it: {problem}"]
    output.finish(
        printing,
        lambda: _tables(result),
        written / "summary.json",
        lines=headroom_lines(result),
        before=[*made_way, *output.notes(target.replaced, [result]), *untwinned],
        after=told(result, written, printing),
    )


def with_measured(result: Result, even: Mapping[str, Any] | None = None) -> Result:
    """`result` with what the log measured, and the `even` workload beside it, in its summary."""
    return replace(result, summary={**result.summary, "measured": result.measured, "even_workload": even})


def _tables(result: Result) -> Iterator[RenderableType]:
    from simkit.report.sections import log
    from simkit.report.sections.run import run_tables

    yield from run_tables(result.summary, result.manifest, console.width())
    yield from log.replay_terminal(result.summary, console.width())


def _served(chosen: Scenario, *, quiet: bool, with_twin: bool) -> tuple[Result, str | None]:
    """The run, with what is shown beside it in its summary, and why there is no twin if one was wanted.

    The twin is simulated by a second process meanwhile.
    """
    from simkit.engine.build import set_up
    from simkit.studies.uniform_twin import BackgroundError, in_background, serve_uniform_twin

    setup = set_up(chosen)
    if not with_twin:
        return with_measured(_run(setup, quiet)), None
    with in_background(lambda: serve_uniform_twin(setup)) as evenly:
        result = _run(setup, quiet)
        try:
            return with_measured(result, evenly()), None
        except BackgroundError as error:
            return with_measured(result), str(error)


def _run(setup: Setup, quiet: bool) -> Result:
    from simkit import api

    with console.progress(quiet) as progress:
        return api.run_long_enough(setup, progress=progress)
