"""Options of the commands that serve a log by the engine of a scenario, and the scenario they make of it.

What is read and which part of it is played is the same for all of them. Heavy modules are imported inside functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import studies
from simkit.cli.trace import columns_of, flag_of
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.runs.replication import Result
    from simkit.scenario import Scenario


def option(flag: str, text: str, metavar: str | None = None) -> Any:
    """An option with its help."""
    return typer.Option(flag, help=text, metavar=metavar)


ScenarioFile = Annotated[Path | None, option("--scenario", "Scenario file: the engine that serves the log.", "FILE")]
Format = Annotated[str | None, option("--format", "Format of the log, instead of detecting it.", "NAME")]
TimeUnit = Annotated[str | None, option("--time-unit", "Unit of its times: s, ms, us or ns.", "UNIT")]
HashBlockTokens = Annotated[
    int | None, option("--hash-block-tokens", "Tokens that an entry of hash_ids stands for.", "N")
]
Failed = Annotated[str | None, option("--failed", "Rows not served: skip, prefill or error.", "WHAT")]
OnRestart = Annotated[str | None, option("--on-restart", "A log of several runs: sort, append or error.", "WHAT")]
AllowBad = Annotated[bool, option("--allow-bad", "Go on when more than 1 % of the rows are unreadable.")]
Start = Annotated[float | None, option("--start", "Replay from here, in time of the log.", "SECONDS")]
End = Annotated[float | None, option("--end", "Replay up to here, in time of the log.", "SECONDS")]
Warmup = Annotated[
    float | None, option("--warmup", "Serve so much before --start, unmeasured, to warm caches.", "SECONDS")
]
MaxRequests = Annotated[int | None, option("--max-requests", "Replay no more than so many.", "N")]


def trace_of(path: Path, map: list[str] | None, allow_bad: bool, given: Mapping[str, Any]) -> dict[str, Any]:
    """The `trace` section that the options give: keys without a value are left to their defaults."""
    found = {"path": str(path), "map": columns_of(map) or None, "allow_bad": allow_bad or None, **given}
    return {key: value for key, value in found.items() if value is not None}


def scenario_of(
    command: str, path: Path | None, trace: Mapping[str, Any], sets: list[str] | None, seed: int | None
) -> tuple[Scenario, list[str]]:
    """The scenario with the log in it, and what had to make way. InputError, also for a setting that was given twice.

    `trace` is the section that `trace_of` gives.
    """
    if path is None:
        what = "expected --scenario FILE, whose engine serves the log; `simkit init` prints one"
        raise InputError(f"{command}: {what}")
    from simkit import scenario as schema
    from simkit.scenario.load import REPLAYED_KEYS

    argument = {"replay": "TRACE", "validate": "MEASURED"}[command]
    labels = {key: {"path": argument, "rate_per_s": "--rate"}.get(key, flag_of(key)) for key in trace}
    before = schema.load(path)
    check_sets(sets or [], labels, argument)
    chosen = schema.load_replay(path, trace, labels, studies.settings_of(sets, seed))
    own = before.workload.model_fields_set - set(REPLAYED_KEYS)
    gone = sorted(key for key in own if getattr(before.workload, key) is not None)
    kept = sorted(before.workload.model_fields_set & set(REPLAYED_KEYS))
    told = [
        f"note: the log replaces workload.{', '.join(gone)} of {path}"
        + (f"; {', '.join(kept)} stay{'s' if len(kept) == 1 else ''}" if kept else "")
    ]
    if before.warmup not in ("auto", "none") and chosen.warmup == "auto":
        told.append(f"note: --warmup replaces warmup of {path}")
    if before.variants:
        told.append(f"note: variants of {path} are not run: {', '.join(before.variants)}")
    return chosen, told


def with_measured(result: Result, even: dict[str, Any] | None = None) -> Result:
    """`result` with what the log measured, and the `even` workload beside it, in its summary."""
    return replace(result, summary={**result.summary, "measured": result.measured, "even_workload": even})


def check_sets(sets: Sequence[str], labels: Mapping[str, str], argument: str) -> None:
    """Refuse a setting of what an argument or an option has said already."""
    for text in sets:
        key = text.partition("=")[0].strip()
        parts = key.split(".")
        if parts[:2] in (["workload"], ["workload", "trace"]):
            label = labels.get(parts[2]) if len(parts) > 2 else argument
            if label is not None:
                raise InputError(f"--set {key}: expected either this or {label}, got both")
