"""The `trace` commands: what a log holds, a clean copy of it, a part of it. Owns their options, and those for reading.

Heavy modules are imported by the commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit import console
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.scenario import Trace

app = typer.Typer(
    name="trace",
    help="Read logs of real traffic: what they hold, clean copies, parts.",
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A log; what it is, is told by its content.")]
FormatName = Annotated[str, typer.Option("--format", help="Format of the log; auto: by content.")]
Map = Annotated[
    str | None,
    typer.Option("--map", metavar="NAME=COLUMN,...", help="Columns of a home-grown file: time=..,prompt=..,output=.."),
]
TimeUnit = Annotated[str, typer.Option("--time-unit", metavar="s|ms|us|ns", help="Unit of the times.")]
HashBlockTokens = Annotated[
    int | None, typer.Option("--hash-block-tokens", metavar="N", help="Tokens of a prompt block of hash_ids.")
]
Failed = Annotated[str, typer.Option("--failed", metavar="skip|prefill|error", help="Requests that were not served.")]
OnRestart = Annotated[str, typer.Option("--on-restart", metavar="sort|append|error", help="A file of several runs.")]
AllowBad = Annotated[bool, typer.Option("--allow-bad", help="Go on when more than 1 % of the rows cannot be read.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that simkit did not write.")]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        console.out_bytes((context.get_help() + "\n").encode())


def trace_spec(
    file: Path,
    format: str,
    map: str | None,
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
    from simkit.scenario_errors import Origin, explain

    data = {
        "path": str(file),
        "format": format,
        "map": _mapping(map),
        "time_unit": time_unit,
        "hash_block_tokens": hash_block_tokens,
        "failed": failed,
        "on_restart": on_restart,
        "allow_bad": allow_bad,
        **(part or {}),
    }
    flags: dict[tuple[str, ...], str] = {(key,): f"--{key.removesuffix('_s').replace('_', '-')}" for key in data}
    try:
        return Trace.model_validate(data)
    except ValidationError as error:
        raise explain(error, Trace, data, Origin(labels=flags)) from None


def _mapping(text: str | None) -> dict[str, str]:
    """``prompt=a,output=b`` as a mapping."""
    found: dict[str, str] = {}
    for item in text.split(",") if text else ():
        name, equals, column = item.partition("=")
        if not (equals and name.strip() and column.strip()):
            raise InputError(f"--map: expected NAME=COLUMN,..., got {item!r}")
        if name.strip() in found:
            raise InputError(f"--map: {name.strip()!r} is given more than once")
        found[name.strip()] = column.strip()
    return found
