"""The replay command: a log in place of a scenario's workload, and what it shows beside a run. Heavy modules inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simkit.cli import console, headroom, log_options, studies
from simkit.cli.headroom import NoHeadroom
from simkit.cli.log_options import (
    AllowBad,
    End,
    Failed,
    Format,
    HashBlockTokens,
    MaxRequests,
    OnRestart,
    ScenarioFile,
    Start,
    TimeUnit,
    Warmup,
    option,
)
from simkit.cli.studies import Json, NoReport, Quiet, Seed, Sets
from simkit.cli.trace import Map

if TYPE_CHECKING:
    from simkit.engine.build import Setup
    from simkit.runs.replication import Result
    from simkit.scenario import Scenario


def replay(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A log of requests; its format is detected.")],
    scenario: ScenarioFile = None,
    format: Format = None,
    map: Map = None,
    time_unit: TimeUnit = None,
    hash_block_tokens: HashBlockTokens = None,
    failed: Failed = None,
    on_restart: OnRestart = None,
    allow_bad: AllowBad = False,
    start: Start = None,
    end: End = None,
    warmup: Warmup = None,
    max_requests: MaxRequests = None,
    keep_share: Annotated[
        float | None, option("--keep-share", "Replay this share of the sessions, drawn.", "SHARE")
    ] = None,
    idle_gap_cap: Annotated[
        float | None, option("--idle-gap-cap", "Shorten longer gaps to this, in time of the log.", "SECONDS")
    ] = None,
    spread_ties: Annotated[
        str | None, option("--spread-ties", "Equal times over the clock's tick: none, uniform or even.", "HOW")
    ] = None,
    speed: Annotated[float | None, option("--speed", "2 is twice as fast: gaps halved, lengths kept.", "X")] = None,
    rate: Annotated[float | None, option("--rate", "Scale the gaps to so many requests a second.", "R")] = None,
    repeat: Annotated[int | None, option("--repeat", "Play it so many times, one after the other.", "N")] = None,
    sessions: Annotated[
        str | None, option("--sessions", "open: recorded times; closed: a turn waits for the last.", "HOW")
    ] = None,
    too_long: Annotated[
        str | None, option("--too-long", "Prompts beyond max_model_len: reject, truncate or drop.", "WHAT")
    ] = None,
    no_twin: Annotated[bool, option("--no-twin", "Leave out the even workload with equal means.")] = False,
    no_headroom: NoHeadroom = False,
    out: Annotated[Path | None, option("--out", "Run directory (default ./runs/<scenario>-<trace>).", "DIR")] = None,
    sets: Sets = None,
    seed: Seed = None,
    json: Json = False,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> None:
    """Serve the requests of a production log by the engine of a scenario."""
    given = {
        "format": format, "time_unit": time_unit, "hash_block_tokens": hash_block_tokens, "failed": failed,
        "on_restart": on_restart, "start_s": start, "end_s": end, "warmup_s": warmup, "max_requests": max_requests,
        "keep_share": keep_share, "idle_gap_cap_s": idle_gap_cap, "spread_ties": spread_ties, "speed": speed,
        "rate_per_s": rate, "repeat": repeat, "sessions": sessions, "too_long": too_long,
    }  # fmt: skip
    section = log_options.trace_of(trace, map, allow_bad, given)
    chosen, told = log_options.scenario_of("replay", scenario, section, sets, seed)
    from simkit import api
    from simkit.runs import directory

    out_dir, overwrite = directory.choose(out, chosen.name)
    with studies.stoppable(out_dir):
        result, problem = _served(chosen, quiet=quiet, with_twin=not no_twin)
        with console.progress(quiet) as progress:
            result = headroom.with_headroom(result, chosen, progress, wanted=not no_headroom)
        replaced = directory.name_of(out_dir) if overwrite else None
        with studies.writing(out, out_dir):
            written = api.write(result, out_dir, overwrite=True, report=not no_report)
    if not quiet:
        for text in told:
            console.say(text)
        studies.say_notes(replaced, result.manifest)
        if problem is not None:
            console.say(f"note: no even workload beside it: {problem}")
    if json:
        console.out_bytes((written / "summary.json").read_bytes())
    else:
        from simkit.report.sections.runs import replay as replay_tables
        from simkit.report.sections.runs import run

        console.out(*run.run_tables(result.summary, result.manifest, console.width()))
        console.out(*replay_tables.terminal(result.summary, console.width()))
        headroom.say(result.summary)
    if not quiet:
        studies.say_alarms(result, written)
        console.say(f"wrote {written}" + ("" if no_report else f"; open {written / 'report.html'}"))


def _served(chosen: Scenario, *, quiet: bool, with_twin: bool) -> tuple[Result, str | None]:
    """The run, with what is shown beside it in its summary, and why there is no twin if one was wanted.

    The twin is simulated by a second process meanwhile.
    """
    from simkit.engine.build import set_up
    from simkit.studies.background import BackgroundError, in_background
    from simkit.studies.uniform_twin import serve_uniform_twin

    setup = set_up(chosen)
    if not with_twin:
        return log_options.with_measured(_run(setup, quiet)), None
    with in_background(lambda: serve_uniform_twin(setup)) as evenly:
        result = _run(setup, quiet)
        try:
            return log_options.with_measured(result, evenly()), None
        except BackgroundError as error:
            return log_options.with_measured(result), str(error)


def _run(setup: Setup, quiet: bool) -> Result:
    from simkit import api

    with console.progress(quiet) as progress:
        return api.run_long_enough(setup, progress=progress)
