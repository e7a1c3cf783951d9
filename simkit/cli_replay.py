"""The replay command: a log in place of a scenario's workload, and what it shows beside a run. Heavy modules inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit import cli_studies, console
from simkit.cli_studies import Json, NoReport, Quiet, Seed, Sets
from simkit.cli_trace import Map, columns_of, flag_of
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.engine.build import Setup
    from simkit.parts import Result
    from simkit.scenario import Scenario


def _option(flag: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(flag, help=text, metavar=metavar)


def replay(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A log of requests; its format is detected.")],
    scenario: Annotated[
        Path | None, _option("--scenario", "Scenario file: the engine that serves the log.", "FILE")
    ] = None,
    format: Annotated[str | None, _option("--format", "Format of the log, instead of detecting it.", "NAME")] = None,
    map: Map = None,
    time_unit: Annotated[str | None, _option("--time-unit", "Unit of its times: s, ms, us or ns.", "UNIT")] = None,
    hash_block_tokens: Annotated[
        int | None, _option("--hash-block-tokens", "Tokens that an entry of hash_ids stands for.", "N")
    ] = None,
    failed: Annotated[str | None, _option("--failed", "Rows not served: skip, prefill or error.", "WHAT")] = None,
    on_restart: Annotated[
        str | None, _option("--on-restart", "A log of several runs: sort, append or error.", "WHAT")
    ] = None,
    allow_bad: Annotated[bool, _option("--allow-bad", "Go on when more than 1 % of the rows are unreadable.")] = False,
    start: Annotated[float | None, _option("--start", "Replay from here, in time of the log.", "SECONDS")] = None,
    end: Annotated[float | None, _option("--end", "Replay up to here, in time of the log.", "SECONDS")] = None,
    warmup: Annotated[
        float | None, _option("--warmup", "Serve so much before --start, unmeasured, to warm caches.", "SECONDS")
    ] = None,
    max_requests: Annotated[int | None, _option("--max-requests", "Replay no more than so many.", "N")] = None,
    keep_share: Annotated[
        float | None, _option("--keep-share", "Replay this share of the sessions, drawn.", "SHARE")
    ] = None,
    idle_gap_cap: Annotated[
        float | None, _option("--idle-gap-cap", "Shorten longer gaps to this, in time of the log.", "SECONDS")
    ] = None,
    spread_ties: Annotated[
        str | None, _option("--spread-ties", "Equal times over the clock's tick: none, uniform or even.", "HOW")
    ] = None,
    speed: Annotated[float | None, _option("--speed", "2 is twice as fast: gaps halved, lengths kept.", "X")] = None,
    rate: Annotated[float | None, _option("--rate", "Scale the gaps to so many requests a second.", "R")] = None,
    repeat: Annotated[int | None, _option("--repeat", "Play it so many times, one after the other.", "N")] = None,
    sessions: Annotated[
        str | None, _option("--sessions", "open: recorded times; closed: a turn waits for the last.", "HOW")
    ] = None,
    too_long: Annotated[
        str | None, _option("--too-long", "Prompts beyond max_model_len: reject, truncate or drop.", "WHAT")
    ] = None,
    no_twin: Annotated[bool, _option("--no-twin", "Leave out the even workload with equal means.")] = False,
    out: Annotated[Path | None, _option("--out", "Run directory (default ./runs/<scenario>-<trace>).", "DIR")] = None,
    sets: Sets = None,
    seed: Seed = None,
    json: Json = False,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> None:
    """Serve the requests of a production log by the engine of a scenario."""
    if scenario is None:
        raise InputError("replay: expected --scenario FILE, whose engine serves the log; `simkit init` prints one")
    given = {
        "path": str(trace), "format": format, "map": columns_of(map) or None, "time_unit": time_unit,
        "hash_block_tokens": hash_block_tokens, "failed": failed, "on_restart": on_restart,
        "allow_bad": allow_bad or None, "start_s": start, "end_s": end, "warmup_s": warmup,
        "max_requests": max_requests, "keep_share": keep_share, "idle_gap_cap_s": idle_gap_cap,
        "spread_ties": spread_ties, "speed": speed, "rate_per_s": rate, "repeat": repeat, "sessions": sessions,
        "too_long": too_long,
    }  # fmt: skip
    chosen, told = _scenario(scenario, {k: v for k, v in given.items() if v is not None}, sets, seed)
    from simkit import api, rundir

    out_dir, overwrite = rundir.choose(out, chosen.name)
    with cli_studies.stoppable(out_dir):
        result, problem = _served(chosen, quiet=quiet, with_twin=not no_twin)
        replaced = rundir.name_of(out_dir) if overwrite else None
        with cli_studies.writing(out, out_dir):
            written = api.write(result, out_dir, overwrite=True, report=not no_report)
    if not quiet:
        for text in told:
            console.say(text)
        cli_studies.say_notes(replaced, result.manifest)
        if problem is not None:
            console.say(f"note: no even workload beside it: {problem}")
    if json:
        console.out_bytes((written / "summary.json").read_bytes())
    else:
        from simkit.report import replay_tables, tables

        console.out(*tables.run_tables(result.summary, result.manifest, console.width()))
        console.out(*replay_tables.terminal(result.summary, console.width()))
    if not quiet:
        cli_studies.say_alarms(result, written)
        console.say(f"wrote {written}" + ("" if no_report else f"; open {written / 'report.html'}"))


def _scenario(
    path: Path, trace: Mapping[str, Any], sets: list[str] | None, seed: int | None
) -> tuple[Scenario, list[str]]:
    """The scenario with the log in it, and what had to make way."""
    from simkit import scenario as schema

    labels = {key: {"path": "TRACE", "rate_per_s": "--rate"}.get(key, flag_of(key)) for key in trace}
    before = schema.load(path)
    check_sets(sets or [], labels, "TRACE")
    chosen = schema.load_replay(path, trace, labels, cli_studies.settings_of(sets, seed))
    own = before.workload.model_fields_set - set(schema.REPLAYED_KEYS)
    gone = sorted(key for key in own if getattr(before.workload, key) is not None)
    kept = sorted(before.workload.model_fields_set & set(schema.REPLAYED_KEYS))
    told = [
        f"note: the log replaces workload.{', '.join(gone)} of {path}"
        + (f"; {', '.join(kept)} stay{'s' if len(kept) == 1 else ''}" if kept else "")
    ]
    if before.warmup != "none" and chosen.warmup == "none":
        told.append(f"note: --warmup replaces warmup of {path}")
    if before.variants:
        told.append(f"note: variants of {path} are not run: {', '.join(before.variants)}")
    return chosen, told


def check_sets(sets: list[str], labels: Mapping[str, str], log: str) -> None:
    """Refuse a setting of what an argument or an option has said already; `log` is the one that names the log."""
    for text in sets:
        key = text.partition("=")[0].strip()
        parts = key.split(".")
        if parts[:2] in (["workload"], ["workload", "trace"]):
            label = labels.get(parts[2]) if len(parts) > 2 else log
            if label is not None:
                raise InputError(f"--set {key}: expected either this or {label}, got both")


def _served(chosen: Scenario, *, quiet: bool, with_twin: bool) -> tuple[Result, str | None]:
    """The run, with what is shown beside it in its summary, and why there is no twin if one was wanted.

    The twin is simulated by a second process meanwhile.
    """
    from simkit.engine.build import set_up
    from simkit.planner.beside import Failed, beside
    from simkit.planner.even import serve_evenly

    setup = set_up(chosen)
    if not with_twin:
        return _with(_run(setup, quiet), None), None
    with beside(lambda: serve_evenly(setup)) as evenly:
        result = _run(setup, quiet)
        try:
            return _with(result, evenly()), None
        except Failed as error:
            return _with(result, None), str(error)


def _run(setup: Setup, quiet: bool) -> Result:
    from simkit import api

    with console.progress(quiet) as progress:
        return api.run_set_up(setup, progress=progress)


def _with(result: Result, even: dict[str, Any] | None) -> Result:
    return replace(result, summary={**result.summary, "measured": result.measured, "even_workload": even})
