"""Options that several commands share, grouped in dataclasses, and how typer gets to see them one by one.

A command is a function that takes groups; `expanded` gives typer a parameter for each field of a group, where the
group stands. A group also owns what its options mean: the settings, the section of a log, how a study is run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from simkit.cli import console
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.scenario import Scenario, Trace
    from simkit.studies.study import Options

Outcome = TypeVar("Outcome")


def option(
    flag: str, help: str, metavar: str | None = None, *, short: str | None = None, min: int | None = None
) -> Any:
    """An option with its help, for the annotation of a parameter."""
    return typer.Option(flag, *([short] if short else []), help=help, metavar=metavar, min=min)


def given(flag: str, help: str, metavar: str | None = None, *, min: int | None = None, default: object = None) -> Any:
    """An option with its help and its default, as the field of a group."""
    return field(default=default, metadata={OPTION: option(flag, help, metavar, min=min)})


OPTION = "option"


def expanded(command: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """The command as typer registers it: every option of a group is a parameter of its own, where the group stands."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    parameters = list[inspect.Parameter]()
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @functools.wraps(command)
    def call(**values: Any) -> Outcome:
        for name, group in groups.items():
            values[name] = group(**{part.name: values.pop(part.name) for part in fields(group)})
        return command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameters(group: type[Any]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for part in fields(group):
        kind = hints[part.name]
        if OPTION in part.metadata:
            kind = Annotated[kind, part.metadata[OPTION]]
        yield inspect.Parameter(part.name, inspect.Parameter.KEYWORD_ONLY, default=part.default, annotation=kind)


# --- single options ---------------------------------------------------------------------------------------------------
File = Annotated[Path | None, typer.Argument(metavar="SCENARIO", help="Scenario file; `simkit init` prints one.")]
WorkloadFile = Annotated[
    Path | None,
    option("--workload", "Use the workload of this file, e.g. of `simkit trace fit`.", "FILE"),
]
Sets = Annotated[list[str] | None, option("--set", "Change a scenario key; repeatable.", "KEY=VALUE")]
Json = Annotated[bool, option("--json", "Print JSON instead of tables.")]
Map = Annotated[
    list[str] | None,
    option("--map", "Columns of a home-grown file: time=..,prompt=..,output=..", "NAME=COLUMN,..."),
]
Out = Annotated[Path | None, option("--out", "Run directory (default ./runs/<name>).", "DIR")]
NoHeadroom = Annotated[bool, option("--no-headroom", "Do not look for the rate up to which the slo holds.")]
Quiet = Annotated[bool, option("--quiet", "No progress, notes or paths on stderr.", short="-q")]
Jobs = Annotated[int | None, option("--jobs", "Processes to use (default: one a core; 1: this one).", "N", min=1)]
Force = Annotated[bool, option("--force", "Replace a file that simkit did not write.")]


# --- groups -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """What is changed in a scenario."""

    sets: Sets = None
    seed: int | None = given("--seed", "Shorthand for --set seed=N.")

    @property
    def settings(self) -> list[str]:
        """``KEY=VALUE`` texts in the order in which they apply."""
        return [*(self.sets or []), *([f"seed={self.seed}"] if self.seed is not None else [])]


@dataclass(frozen=True, slots=True)
class Printing:
    """What goes to stdout and stderr."""

    json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True, slots=True)
class RunOptions(Printing):
    """The same, and whether a report is written."""

    no_report: bool = given("--no-report", "Do not write report.html.", default=False)


@dataclass(frozen=True, slots=True)
class Workers:
    """Where simulations are made."""

    jobs: Jobs = None
    dask: str | None = given("--dask", "Use the workers of a Dask scheduler; auto: start a local one.", "ADDRESS")

    def options(self, printing: Printing) -> Options:
        """How a study is run of which nothing is kept. Raises InputError."""
        if self.jobs is not None and self.dask not in (None, "auto"):
            raise InputError(f"--jobs: expected without --dask {self.dask}, whose workers are those of that scheduler")
        options: Options = {"jobs": self.jobs, "dask": self.dask, "resume_dir": None, "resume": False}
        if not printing.quiet:
            options["on_note"] = console.say
        return options


@dataclass(frozen=True, slots=True)
class StudyOptions(Workers):
    """The same, and whether to go on from what was kept."""

    resume: bool = given("--resume", "Go on from what was kept when this was interrupted.", default=False)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a log is read."""

    format: str = given("--format", "Format of the log; auto: by content.", default="auto")
    map: Map = None
    time_unit: str = given("--time-unit", "Unit of the times.", "s|ms|us|ns", default="auto")
    hash_block_tokens: int | None = given("--hash-block-tokens", "Tokens of a prompt block of hash_ids.", "N")
    failed: str = given("--failed", "Requests that were not served.", "skip|prefill|error", default="skip")
    on_restart: str = given("--on-restart", "A file of several runs.", "sort|append|error", default="sort")
    allow_bad: bool = given("--allow-bad", "Go on when more than 1 % of the rows cannot be read.", default=False)

    def trace(self, file: Path, **part: Any) -> Trace:
        """What is read of `file`, and which `part` of it, as a scenario has it. InputError names the wrong option."""
        from pydantic import ValidationError

        from simkit.scenario import Trace
        from simkit.scenario.explain import Origin, explain

        data = {"path": str(file), **values_of(self), "map": columns_of(self.map), **part}
        flags: dict[tuple[str, ...], str] = {(key,): flag_of(key) for key in data}
        flags["path",] = "FILE"
        try:
            return Trace.model_validate(data)
        except ValidationError as error:
            raise explain(error, Trace, data, Origin(labels=flags)) from None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The engine that serves a log, how the log is read, and which part of it is played."""

    scenario: Path | None = given("--scenario", "Scenario file: the engine that serves the log.", "FILE")
    format: str | None = given("--format", "Format of the log, instead of detecting it.", "NAME")
    map: Map = None
    time_unit: str | None = given("--time-unit", "Unit of its times: s, ms, us or ns.", "UNIT")
    hash_block_tokens: int | None = given("--hash-block-tokens", "Tokens that an entry of hash_ids stands for.", "N")
    failed: str | None = given("--failed", "Rows not served: skip, prefill or error.", "WHAT")
    on_restart: str | None = given("--on-restart", "A log of several runs: sort, append or error.", "WHAT")
    allow_bad: bool = given("--allow-bad", "Go on when more than 1 % of the rows are unreadable.", default=False)
    start: float | None = given("--start", "Replay from here, in time of the log.", "SECONDS")
    end: float | None = given("--end", "Replay up to here, in time of the log.", "SECONDS")
    warmup: float | None = given("--warmup", "Serve so much before --start, unmeasured, to warm caches.", "SECONDS")
    max_requests: int | None = given("--max-requests", "Replay no more than so many.", "N")

    def section(self, path: Path) -> dict[str, Any]:
        """The `trace` of a scenario that serves the log at `path`: keys that were not given keep their defaults."""
        return {"path": str(path), **trace_keys(self)}

    def scenario_with(
        self, command: str, trace: Mapping[str, Any], argument: str, change: ScenarioOptions
    ) -> tuple[Scenario, list[str]]:
        """The scenario with the log in it, and notes on what had to make way. `argument` is how the log was given.

        Raises InputError, also for a setting that was given twice.
        """
        if self.scenario is None:
            what = "expected --scenario FILE, whose engine serves the log; `simkit init` prints one"
            raise InputError(f"{command}: {what}")
        from simkit import scenario as schema
        from simkit.scenario.load import REPLAYED_KEYS

        labels = {key: {"path": argument, "rate_per_s": "--rate"}.get(key, flag_of(key)) for key in trace}
        before = schema.load(self.scenario)
        check_sets(change.sets or [], labels, argument)
        chosen = schema.for_replay(before, trace, labels, change.settings)
        own = before.workload.model_fields_set - set(REPLAYED_KEYS)
        gone = sorted(key for key in own if getattr(before.workload, key) is not None)
        kept = sorted(before.workload.model_fields_set & set(REPLAYED_KEYS))
        notes = [
            f"note: the log replaces workload.{', '.join(gone)} of {self.scenario}"
            + (f"; {', '.join(kept)} stay{'s' if len(kept) == 1 else ''}" if kept else "")
        ]
        if before.warmup not in ("auto", "none") and chosen.warmup == "auto":
            notes.append(f"note: --warmup replaces warmup of {self.scenario}")
        if before.variants:
            notes.append(f"note: variants of {self.scenario} are not run: {', '.join(before.variants)}")
        return chosen, notes


# --- what options mean ------------------------------------------------------------------------------------------------
_KEYS = {
    "start": "start_s",
    "end": "end_s",
    "warmup": "warmup_s",
    "idle_gap_cap": "idle_gap_cap_s",
    "rate": "rate_per_s",
}


def values_of(group: Any) -> dict[str, Any]:
    """The options of a group by name."""
    return {part.name: getattr(group, part.name) for part in fields(group)}


def trace_keys(group: Any) -> dict[str, Any]:
    """The options of a group that were given, but for a scenario, as keys of its `trace`."""
    values = values_of(group)
    values.pop("scenario", None)
    if "map" in values:
        values["map"] = columns_of(values["map"]) or None
    return {_KEYS.get(name, name): value for name, value in values.items() if value is not None and value is not False}


def flag_of(key: str) -> str:
    """The option that a parameter, or a key of a scenario's trace, is given by."""
    return f"--{key.removesuffix('_s').replace('_', '-')}"


def columns_of(texts: Sequence[str] | None) -> dict[str, str]:
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


def check_sets(sets: Sequence[str], labels: Mapping[str, str], argument: str) -> None:
    """Refuse a setting of what an argument or an option has said already."""
    for text in sets:
        key = text.partition("=")[0].strip()
        parts = key.split(".")
        if parts[:2] in (["workload"], ["workload", "trace"]):
            label = labels.get(parts[2]) if len(parts) > 2 else argument
            if label is not None:
                raise InputError(f"--set {key}: expected either this or {label}, got both")
