"""The replay command: a log in place of a scenario's workload, and what it shows beside a run. Heavy modules inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console, output, run
from simkit.cli.options import LoadOptions, NoHeadroom, RunOptions, ScenarioOptions, given, option, trace_keys

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simkit.engine.build import Setup
    from simkit.runs.replication import Result
    from simkit.scenario import Scenario


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
            result = run.with_headroom(result, chosen, progress, wanted=not no_headroom)
        with target.writing() as path:
            written = api.write(result, path, overwrite=True, report=not printing.no_report)
    untwinned = [] if problem is None else [f"note: no even workload beside it: {problem}"]
    output.finish(
        printing,
        lambda: _tables(result),
        written / "summary.json",
        lines=run.headroom_lines(result),
        before=[*made_way, *output.notes(target.replaced, [result]), *untwinned],
        after=run.told(result, written, printing),
    )


def with_measured(result: Result, even: Mapping[str, Any] | None = None) -> Result:
    """`result` with what the log measured, and the `even` workload beside it, in its summary."""
    return replace(result, summary={**result.summary, "measured": result.measured, "even_workload": even})


def _tables(result: Result) -> Iterator[RenderableType]:
    from simkit.report.sections.runs import replay as replayed
    from simkit.report.sections.runs.run import run_tables

    yield from run_tables(result.summary, result.manifest, console.width())
    yield from replayed.terminal(result.summary, console.width())


def _served(chosen: Scenario, *, quiet: bool, with_twin: bool) -> tuple[Result, str | None]:
    """The run, with what is shown beside it in its summary, and why there is no twin if one was wanted.

    The twin is simulated by a second process meanwhile.
    """
    from simkit.engine.build import set_up
    from simkit.studies.background import BackgroundError, in_background
    from simkit.studies.uniform_twin import serve_uniform_twin

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
