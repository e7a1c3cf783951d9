"""A task of the planner, wherever it is done: the capacity of a setting, or what some rates look like.

Owns what travels to workers, and what is kept on disk of those that are done. Imports search, trial, study, kept.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simkit import __version__
from simkit.engine.build import Setup, set_up
from simkit.errors import InputError, Interrupted
from simkit.manifest import canonical_json, plain
from simkit.planner import backends, kept
from simkit.planner.bounds import guess_rate
from simkit.planner.offered import Lengths, lengths
from simkit.planner.search import Effort, Search
from simkit.planner.study import Failure, Options, Say, guarded, located
from simkit.planner.trial import Trial, run_trial, terms
from simkit.scenario import Scenario

_PREFIX = "plan-"


@dataclass(frozen=True, slots=True)
class Quest:
    """What is asked of one setting: its capacity (where there is an `effort`), and all of some `rates_per_s`.

    `scenario` is as `offered.for_trials` makes it, `base_per_s` is its rate as it stands. `guesses_per_s` are as in
    `Search.run`; without any the worker makes one from `lengths`. `known` holds trials that need not be made again.
    """

    name: str
    scenario: Scenario
    base_per_s: float
    guesses_per_s: tuple[float, ...] = ()
    lengths: Lengths | None = None
    effort: Effort | None = None
    rates_per_s: tuple[float, ...] = ()
    replications: int = 0
    known: tuple[Trial, ...] = ()
    version: str = __version__
    cwd: str = "."


def pursue(quest: Quest) -> tuple[Trial, ...] | Failure:
    """What a worker does with a quest. Never raises but to be interrupted."""
    return guarded(quest.version, lambda: _trials(quest, set_up(located(quest.scenario, quest.cwd))))


def _trials(quest: Quest, setup: Setup) -> tuple[Trial, ...]:
    def attempt(rate_per_s: float, replication: int) -> Trial:
        return run_trial(setup, rate_per_s, quest.base_per_s, replication)

    search = Search(attempt, terms(setup.scenario), quest.known)
    if quest.effort is not None:
        guesses = quest.guesses_per_s
        if not guesses:
            guesses = (guess_rate(setup, quest.lengths or lengths(setup.scenario, setup.max_model_len)),)
        search.run(guesses, quest.effort)
    for rate_per_s in quest.rates_per_s:
        for replication in range(quest.replications):
            search.trial(rate_per_s, replication)
    return search.trials


Told = Callable[[int, int], None]
"""Called with (quests done, of how many)."""


def pursue_all(quests: Sequence[Quest], options: Options, told: Told) -> list[tuple[Trial, ...] | Failure]:
    """The outcomes of all quests, in their order, wherever `options` has them done.

    What is done is kept in ``options["resume_dir"]`` and taken from there with ``resume``. Raises Interrupted by Ctrl-C
    where something is kept.
    """
    shelf = _Shelf(options)
    keys = [_key(quest) for quest in quests] if shelf.is_open else [""] * len(quests)
    outcomes: dict[int, tuple[Trial, ...] | Failure] = {}
    for index, key in enumerate(keys):
        found = shelf.load(key)
        if found is not None:
            outcomes[index] = found
    told(len(outcomes), len(quests))
    rest = [index for index in range(len(quests)) if index not in outcomes]
    try:
        with backends.no_warnings():
            for position, outcome in _spread([quests[index] for index in rest], options):
                index = rest[position]
                outcomes[index] = Failure("lost", outcome.reason) if isinstance(outcome, backends.Lost) else outcome
                shelf.save(keys[index], outcomes[index])
                told(len(outcomes), len(quests))
    except KeyboardInterrupt:
        if shelf.is_empty:
            raise
        raise Interrupted("interrupted: what is finished is kept; add --resume to go on") from None
    return [outcomes[index] for index in range(len(quests))]


def _spread(quests: Sequence[Quest], options: Options) -> Iterator[tuple[int, Any]]:
    dask, jobs = options.get("dask"), options.get("jobs", 1)
    jobs = min(jobs or backends.usable_cores(), len(quests))
    if dask is None and jobs <= 1:
        yield from ((position, pursue(quest)) for position, quest in enumerate(quests))
        return
    if quests:
        yield from backends.spread(pursue, quests, jobs, dask, lambda position: True)


def _key(quest: Quest) -> str:
    """Identifies a quest and everything that its answer depends on; a setting that cannot be set up has no key."""
    try:
        inputs = kept.keys([set_up(quest.scenario)])[0]
    except InputError:
        return ""
    asked = (quest.base_per_s, quest.guesses_per_s, quest.lengths, quest.effort, quest.rates_per_s)
    more = (quest.replications, quest.known)
    content = {"run_id": inputs.run_id, "inputs": inputs.inputs, "asked": plain(asked), "more": plain(more)}
    return hashlib.sha256(canonical_json(content)).hexdigest()


class _Shelf:
    """Answers on disk, a JSON file each with its own digest. Does nothing without a folder."""

    def __init__(self, options: Options) -> None:
        self._folder = options.get("resume_dir")
        self._resume = options.get("resume", True)
        self._say: Say | None = options.get("say")

    @property
    def is_open(self) -> bool:
        """Whether anything is kept at all."""
        return self._folder is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to go on from."""
        return self._folder is None or not any(self._folder.glob(f"{_PREFIX}*.json"))

    def load(self, key: str) -> tuple[Trial, ...] | None:
        """The answer that is kept under `key`; a damaged one is as good as none."""
        if self._folder is None or not self._resume or not key:
            return None
        path = self._folder / f"{_PREFIX}{key}.json"
        try:
            data: Mapping[str, Any] = json.loads(path.read_bytes())
            if data["digest"] != _digest(data["trials"]):
                raise ValueError("the digest differs")
            return tuple(Trial.from_json(trial) for trial in data["trials"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self._tell(f"note: a kept answer is damaged and is made anew: {path}")
            return None

    def _tell(self, text: str) -> None:
        if self._say is not None:
            self._say(text)

    def save(self, key: str, outcome: tuple[Trial, ...] | Failure) -> None:
        """Keep an answer; a folder that cannot be written costs the chance to resume and nothing else."""
        if self._folder is None or not key or isinstance(outcome, Failure):
            return
        trials = plain(outcome)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".partial-", delete=False) as file:
                file.write(canonical_json({"digest": _digest(trials), "trials": trials}))
            Path(file.name).replace(self._folder / f"{_PREFIX}{key}.json")
        except OSError as error:
            self._tell(f"note: what is finished cannot be kept in {self._folder}: {error.strerror or error}")
            self._folder = None


def _digest(trials: Any) -> str:
    return hashlib.sha256(canonical_json(trials)).hexdigest()


def forget(folder: Path) -> None:
    """Remove what a plan kept, and the folder when nothing else is in it."""
    with suppress(OSError):
        for path in [*folder.glob(f"{_PREFIX}*.json"), *folder.glob(".partial-*")]:
            if path.is_file():
                path.unlink()
        folder.rmdir()
