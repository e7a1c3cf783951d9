"""A study: many simulations that answer one question, each one replication of one named point.

Owns what is simulated, what becomes of failures, interruption and resumption, and that the results do not depend on how
the work was spread. Where it is computed is the affair of `executors`, what is kept on disk that of `checkpoint`.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from simkit.engine.build import Setup, set_up
from simkit.engine.run import Progress
from simkit.errors import OUT_OF_MEMORY, CheckError, InputError, Interrupted
from simkit.runs.replication import ReplicationResult, Result, assemble, replicate
from simkit.scenario import Scenario
from simkit.studies import checkpoint, executors
from simkit.studies.checkpoint import Checkpoint, Key, OnNote
from simkit.version import __version__

Settings = Mapping[str, object]
"""Dotted keys of a scenario, each with a value as a scenario file has it."""

Kind = Literal["input", "check", "error", "lost"]
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Point:
    """A scenario under a name, and the settings in which it differs from the others."""

    name: str
    scenario: Scenario
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a point has no result: its input was wrong, a check failed, an error nobody expected, or its worker died.

    `where` is the place that is to blame, empty where none is.
    """

    kind: Kind
    text: str
    settings: Settings = field(default_factory=dict)
    where: str = ""

    @classmethod
    def of(cls, error: InputError, settings: Settings | None = None) -> Failure:
        """The failure that wrong input is."""
        return cls("input", error.said, settings or {}, error.where)

    @property
    def message(self) -> str:
        """``WHERE: TEXT``, as the error would be told."""
        return f"{self.where}: {self.text}" if self.where else self.text

    def line(self, name: str) -> str:
        """What to tell of the point of this name, in one line, with the settings that the name does not show."""
        hidden = [text for text in map(setting, self.settings, self.settings.values()) if text not in name]
        return f"{name}: {self.message}" + (f" (with {', '.join(hidden)})" if hidden else "")


def setting(key: str, value: object) -> str:
    """A key and its value as the scenario file would have it: ``engine.max_num_seqs=64``."""
    return f"{key}={value_text(value)}"


def point_names(keys: Sequence[str]) -> Callable[[Settings], str]:
    """How points with these settings are called: each key's last part, or the whole key where two end alike."""
    last = [key.rpartition(".")[2] for key in keys]
    short = {key: end if last.count(end) == 1 else key for key, end in zip(keys, last, strict=True)}
    return lambda settings: ",".join(setting(short[key], value) for key, value in settings.items())


def value_text(value: object) -> str:
    """A value as the scenario file would have it."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Study:
    """Results and failures by the name of the point, both in the order of the points."""

    results: dict[str, Result]
    failed: dict[str, Failure]


class Options(TypedDict, total=False):
    """How a study is run. None of it changes a result.

    `jobs`: processes, None for one a core (default 1: this process). `dask`: the address of a scheduler, or ``auto``
    for a local cluster of `jobs` processes. `resume_dir`: where finished simulations are kept (until
    `checkpoint.clear`), and taken from unless `resume` is false. `on_note` is told remarks. `single_step` simulates
    every step one by one.
    """

    jobs: int | None
    dask: str | None
    resume_dir: Path | None
    resume: bool
    on_note: OnNote
    single_step: bool


@dataclass(frozen=True, slots=True)
class Task:
    """One replication of one point, as it goes to a worker. `cwd` is where relative paths start."""

    point: str
    scenario: Scenario
    replication: int
    single_step: bool
    version: str
    cwd: str


def run_study(
    points: Sequence[Point], *, word: str = "", progress: Progress | None = None, **options: Unpack[Options]
) -> Study:
    """Simulate all replications of all points.

    A point that cannot be run, or fails, leaves the others alone; when none can be run, that is an InputError, which
    names the first behind `word` (``arm NAME: ...``), and nothing runs. Ctrl-C raises Interrupted where finished
    simulations are kept, else it is the ordinary KeyboardInterrupt.
    """
    all_points = points
    setups, refused = _set_up_all(points, word)
    points = [point for point in points if point.name not in refused]
    tasks = _tasks(points, options.get("single_step", False))
    # A study of one simulation has nothing to go on from.
    folder = options.get("resume_dir") if len(tasks) > 1 else None
    kept = Checkpoint(folder, checkpoint.PARTS, options.get("on_note", checkpoint.ignore))
    keys = [] if folder is None else checkpoint.keys(setups)
    outcomes: dict[int, ReplicationResult | Failure] = dict(_resumed(kept, keys, options))
    num_kept = len(outcomes)
    try:
        for index, outcome in _run_rest(tasks, outcomes, progress, options):
            outcomes[index] = outcome
            if keys and isinstance(outcome, ReplicationResult):
                num_kept += kept.save(keys[index], outcome)
    except KeyboardInterrupt:
        if not num_kept:
            raise
        kept_here = f"{num_kept} of {len(tasks)} simulations kept"
        raise Interrupted(f"interrupted: {kept_here}; add --resume to go on") from None
    study = _sort_out(points, setups, tasks, outcomes)
    failed = study.failed | refused
    return Study(study.results, {point.name: failed[point.name] for point in all_points if point.name in failed})


def run_scenario(scenario: Scenario, *, progress: Progress | None = None, **options: Unpack[Options]) -> Result:
    """All replications of one scenario, as a study. Raises InputError and CheckError like `api.run`."""
    study = run_study([Point(scenario.name, scenario)], progress=progress, **options)
    for failure in study.failed.values():
        folder = options.get("resume_dir")
        hint = " (finished replications are kept; --resume uses them)" if folder and folder.is_dir() else ""
        raise (InputError if failure.kind == "input" else CheckError)(failure.message + hint)
    return study.results[scenario.name]


def exit_code(failed: Mapping[str, Failure]) -> int:
    """0 without failures, 2 when an input was wrong, else 1."""
    return 0 if not failed else 2 if any(failure.kind == "input" for failure in failed.values()) else 1


def work(task: Task, progress: Progress | None = None) -> ReplicationResult | Failure:
    """What a worker does with a task. Never raises but to be interrupted."""

    def simulate() -> ReplicationResult:
        scenario = located(task.scenario, task.cwd)
        return replicate(set_up(scenario), task.replication, progress, single_step=task.single_step)

    return guarded(task.version, simulate)


def located(scenario: Scenario, cwd: str) -> Scenario:
    """The scenario as a worker sees it, whose working directory may be another than `cwd`, where paths start."""
    return scenario if cwd == os.getcwd() else scenario.based_at(Path(cwd) / (scenario.base_dir or ""))


def guarded(version: str, do: Callable[[], Done]) -> Done | Failure:
    """What `do` gives, or why it gave nothing; a worker of another `version` does nothing."""
    try:
        if version != __version__:
            raise InputError(f"the worker has simkit {__version__}; expected {version}, as here")
        return do()
    except InputError as error:
        return Failure.of(error)
    except CheckError as error:
        return Failure("check", str(error))
    except MemoryError:
        return Failure("input", OUT_OF_MEMORY)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Failure("error", f"{text} ({Path(place.filename).name}:{place.lineno})")


def _set_up_all(points: Sequence[Point], word: str) -> tuple[list[Setup], dict[str, Failure]]:
    """The points that can be run, and why the others cannot: what does not fit is a result as well."""
    setups, refused = [], {}
    for point in points:
        try:
            setups.append(set_up(point.scenario))
        except InputError as error:
            refused[point.name] = Failure.of(error, point.settings)
    if not setups:
        name, failure = next(iter(refused.items()))
        if word:
            raise InputError(f"{word} {name}: {failure.message}")
        raise InputError(failure.text, where=failure.where)
    return setups, refused


def _tasks(points: Sequence[Point], single_step: bool) -> list[Task]:
    cwd = os.getcwd()
    return [
        Task(point.name, point.scenario, replication, single_step, __version__, cwd)
        for point in points
        for replication in range(point.scenario.replications)
    ]


def _resumed(
    kept: Checkpoint[ReplicationResult], keys: Sequence[Key], options: Options
) -> dict[int, ReplicationResult]:
    """What an interrupted study left, if it is to be used; what is kept of other studies is removed."""
    if kept.folder is None:
        return {}
    checkpoint.clear(kept.folder, but=keys)
    on_note, total = options.get("on_note", checkpoint.ignore), len(keys)
    if not options.get("resume", True):
        found = sum(map(kept.has, keys))
        if found:
            here = f"{found} of {total} simulations were kept when this study was interrupted"
            on_note(f"note: {here}; they are made anew, add --resume to use them")
        return {}
    loaded = {index: part for index, key in enumerate(keys) if (part := kept.load(key)) is not None}
    on_note(f"note: {len(loaded)} of {total} simulations were kept, the others are made now")
    return loaded


def _run_rest(
    tasks: Sequence[Task], done: Mapping[int, ReplicationResult | Failure], progress: Progress | None, options: Options
) -> Iterator[tuple[int, ReplicationResult | Failure]]:
    """The outcomes of the tasks that are not in `done`, which the caller fills; no more of a point that failed.

    Tasks are begun in order and finish once begun, so the first replication that fails is among them wherever it ran.
    """
    rest = [index for index in range(len(tasks)) if index not in done]
    failed: set[str] = set()
    for position, outcome in _spread([tasks[index] for index in rest], len(tasks), failed, progress, options):
        index = rest[position]
        if isinstance(outcome, executors.Lost):
            outcome = Failure("lost", outcome.reason)
        if isinstance(outcome, Failure):
            failed.add(tasks[index].point)
        yield index, outcome


def _spread(
    tasks: Sequence[Task], total: int, failed: set[str], progress: Progress | None, options: Options
) -> Iterator[tuple[int, Any]]:
    """(position, outcome) of tasks whose point is not in `failed`, from wherever `options` says; tells the progress."""
    jobs, dask = options.get("jobs", 1), options.get("dask")
    before = total - len(tasks)
    # In this process a simulation tells its progress itself.
    on_count = None if executors.is_here(len(tasks), jobs, dask) else progress
    if on_count is not None:
        on_count(before / total, f"{before} of {total}")
    outcomes = executors.spread(
        work,
        tasks,
        jobs,
        dask,
        wanted=lambda position: tasks[position].point not in failed,
        here=lambda position: work(tasks[position], _share(progress, before + position, total, tasks[position])),
    )
    for count, (position, outcome) in enumerate(outcomes, start=before + 1):
        if on_count is not None:
            on_count(count / total, f"{count} of {total}")
        yield position, outcome


def _share(progress: Progress | None, index: int, total: int, task: Task) -> Progress | None:
    """Progress of one task among several, in this process."""
    if progress is None:
        return None
    label = task.point if total > task.scenario.replications else f"replication {task.replication + 1} of {total}"
    return lambda done, _: progress((index + done) / total, label)


def _sort_out(
    points: Sequence[Point],
    setups: Sequence[Setup],
    tasks: Sequence[Task],
    outcomes: Mapping[int, ReplicationResult | Failure],
) -> Study:
    """The outcomes by point; of several failures of one point the one of the first replication."""
    found: dict[str, list[ReplicationResult | Failure]] = {point.name: [] for point in points}
    for index in sorted(outcomes):
        found[tasks[index].point].append(outcomes[index])
    study = Study({}, {})
    for point, setup in zip(points, setups, strict=True):
        failures = [outcome for outcome in found[point.name] if isinstance(outcome, Failure)]
        if failures:
            study.failed[point.name] = replace(failures[0], settings=point.settings)
        else:
            parts = [outcome for outcome in found[point.name] if isinstance(outcome, ReplicationResult)]
            study.results[point.name] = assemble(setup, parts)
    return study
