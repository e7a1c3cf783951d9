"""The `trace` commands: what a log holds, a clean copy of it, a part of it. Owns their options, and those for reading.

Heavy modules are imported by the commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console
from simkit.cli.studies import Json, Quiet
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.logs.export import Exported
    from simkit.scenario import Trace

app = typer.Typer(
    name="trace",
    help="Read logs of real traffic: what they hold, clean copies, parts.",
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A log; what it is, is told by its content.")]
FormatName = Annotated[str, typer.Option("--format", help="Format of the log; auto: by content.")]
Map = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="NAME=COLUMN,...", help="Columns of a home-grown file: time=..,prompt=..,output=.."),
]
TimeUnit = Annotated[str, typer.Option("--time-unit", metavar="s|ms|us|ns", help="Unit of the times.")]
HashBlockTokens = Annotated[
    int | None, typer.Option("--hash-block-tokens", metavar="N", help="Tokens of a prompt block of hash_ids.")
]
Failed = Annotated[str, typer.Option("--failed", metavar="skip|prefill|error", help="Requests that were not served.")]
OnRestart = Annotated[str, typer.Option("--on-restart", metavar="sort|append|error", help="A file of several runs.")]
AllowBad = Annotated[bool, typer.Option("--allow-bad", help="Go on when more than 1 % of the rows cannot be read.")]
OutFile = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="NAME.parquet (canonical) or NAME.jsonl (Mooncake).")
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that simkit did not write.")]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        console.out_bytes((context.get_help() + "\n").encode())


@app.command()
def info(
    file: File,
    format: FormatName = "auto",
    map: Map = None,
    time_unit: TimeUnit = "auto",
    hash_block_tokens: HashBlockTokens = None,
    failed: Failed = "skip",
    on_restart: OnRestart = "sort",
    allow_bad: AllowBad = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write info.json and a picture (default: print only).")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what a log holds: what it was read as, rate, burstiness, lengths, sharing, sessions, and the dirt in it."""
    spec = trace_spec(file, format, map, time_unit, hash_block_tokens, failed, on_restart, allow_bad)
    from simkit.logs.describe import describe
    from simkit.runs import directory

    out_dir = None if out is None else directory.choose(out, "trace")[0]
    with console.progress(quiet) as progress:
        found = describe(spec, report=progress)
    if out_dir is not None:
        from simkit.api import write_trace_info

        try:
            written = write_trace_info(found.info, found.curves, out_dir, overwrite=True)
        except OSError as error:
            raise directory.unwritable(f"--out {out}", error) from None
        if not quiet:
            console.say(f"wrote {written}; open {written / 'trace.svg'}")
    if json:
        from simkit.plain import canonical_json

        console.out_bytes(canonical_json(found.info))
        return
    from simkit.report.sections.log import trace_tables

    console.out(*trace_tables(found.info))


@app.command()
def convert(
    file: File,
    out: OutFile,
    format: FormatName = "auto",
    map: Map = None,
    time_unit: TimeUnit = "auto",
    hash_block_tokens: HashBlockTokens = None,
    failed: Failed = "skip",
    on_restart: OnRestart = "sort",
    allow_bad: AllowBad = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write a clean copy of a log: canonical parquet, which holds everything, or Mooncake JSONL."""
    spec = trace_spec(file, format, map, time_unit, hash_block_tokens, failed, on_restart, allow_bad)
    from simkit.logs.export import convert as write

    with console.progress(quiet) as progress:
        done = write(spec, out, force=force, report=progress)
    _tell(done, out, quiet)


@app.command()
def sample(
    file: File,
    out: OutFile,
    start: Annotated[float, typer.Option("--start", metavar="S", help="Start of the window, s of the log.")] = 0.0,
    end: Annotated[float | None, typer.Option("--end", metavar="S", help="Its end, not included.")] = None,
    keep_share: Annotated[
        float, typer.Option("--keep-share", metavar="P", help="Share of the sessions to keep, each whole.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Draws them.")] = 0,
    max_requests: Annotated[int | None, typer.Option("--max-requests", metavar="N", help="The first so many.")] = None,
    format: FormatName = "auto",
    map: Map = None,
    time_unit: TimeUnit = "auto",
    hash_block_tokens: HashBlockTokens = None,
    failed: Failed = "skip",
    on_restart: OnRestart = "sort",
    allow_bad: AllowBad = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write a part of a log: a window, a share of its sessions, its first requests."""
    part = {"start_s": start, "end_s": end, "keep_share": keep_share, "max_requests": max_requests}
    spec = trace_spec(file, format, map, time_unit, hash_block_tokens, failed, on_restart, allow_bad, part)
    from simkit.logs.export import sample as write

    with console.progress(quiet) as progress:
        done = write(spec, out, seed, force=force, report=progress)
    _tell(done, out, quiet)


def trace_spec(
    file: Path,
    format: str,
    map: list[str] | None,
    time_unit: str,
    hash_block_tokens: int | None,
    failed: str,
    on_restart: str,
    allow_bad: bool,
    part: dict[str, Any] | None = None,
) -> Trace:
    """The options for reading, and those in `part`, as a scenario has them. InputError names the flag that is wrong."""
    from pydantic import ValidationError

    from simkit.scenario import Trace
    from simkit.scenario.explain import Origin, explain

    data = {
        "path": str(file),
        "format": format,
        "map": columns_of(map),
        "time_unit": time_unit,
        "hash_block_tokens": hash_block_tokens,
        "failed": failed,
        "on_restart": on_restart,
        "allow_bad": allow_bad,
        **(part or {}),
    }
    flags: dict[tuple[str, ...], str] = {(key,): flag_of(key) for key in data}
    flags["path",] = "FILE"
    try:
        return Trace.model_validate(data)
    except ValidationError as error:
        raise explain(error, Trace, data, Origin(labels=flags)) from None


def flag_of(key: str) -> str:
    """The option for a key of a scenario's trace."""
    return f"--{key.removesuffix('_s').replace('_', '-')}"


def columns_of(texts: list[str] | None) -> dict[str, str]:
    """``NAME=COLUMN,...`` texts as canonical name to column."""
    columns: dict[str, str] = {}
    for part in (part for text in texts or () for part in text.split(",")):
        name, equals, column = (piece.strip() for piece in part.partition("="))
        if not (name and equals and column):
            raise InputError(f"--map {part.strip()!r}: expected NAME=COLUMN,..., e.g. --map prompt=in_tokens,time=at")
        if name in columns:
            raise InputError(f"--map {name}: expected each name once")
        columns[name] = column
    return columns


def _tell(done: Exported, out: Path, quiet: bool) -> None:
    if quiet:
        return
    for note in done.notes:
        console.say(f"note: {note}")
    console.say(f"wrote {out}: {done.num_requests:,} requests over {done.span_s:,.3f} s")
