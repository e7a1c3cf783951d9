"""A task of the planner, wherever it is done: the capacity of a setting, or what some rates look like.

Owns what travels to workers, and what is kept on disk of those that are done.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simkit.engine.build import Setup, set_up
from simkit.errors import InputError, Interrupted
from simkit.plain import canonical_json, plain
from simkit.planner.bounds import guess_rate
from simkit.planner.search import Effort, Search
from simkit.planner.trial import Trial, run_trial, terms
from simkit.runs import run_length
from simkit.scenario import Scenario
from simkit.studies import checkpoint, executors
from simkit.studies.offered_load import Lengths, lengths
from simkit.studies.study import Failure, Options, Say, guarded, located
from simkit.version import __version__

_PREFIX = "plan-"


MAX_GROWTHS, MAX_RISING_GROWTHS = 5, 2
"""How often runs are made longer, and how often of these because something still rises: at the very rate at which a
queue begins to grow something always does."""

LEAST_REPLICATIONS = 5
"""With runs that were made longer because they had not levelled off."""

MOST_AT_ONCE = 8.0
"""How much longer runs become at once: a run that is far too short passes at rates that no longer one does."""

MAX_REQUESTS = 200_000
"""Of one run that is made longer."""


@dataclass(frozen=True, slots=True)
class Quest:
    """What is asked of one setting: its capacity (where there is an `effort`), and all of some `rates_per_s`.

    `scenario` is as `offered.for_trials` makes it, `base_per_s` is its rate as it stands. `guesses_per_s` are as in
    `Search.run`; without any the worker makes one from `lengths`. `known` holds trials that need not be made again,
    of runs `factor` times as long as the scenario's. Where it `grows` runs are made longer until the system has had
    time to fill. `first` is the first of the replications at `rates_per_s`: others are other customers.
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
    factor: float = 1.0
    grows: bool = False
    first: int = 0
    version: str = __version__
    cwd: str = "."


@dataclass(frozen=True, slots=True)
class Answer:
    """Trials, by replication and rate, of runs `factor` times as long as the scenario's; and what of the system was
    still `rising` at the capacity when they could not be made longer."""

    trials: tuple[Trial, ...]
    factor: float = 1.0
    rising: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """The answer of which `plain` made `data`."""
        return cls(tuple(map(Trial.from_json, data["trials"])), data["factor"], data["rising"])


def pursue(quest: Quest) -> Answer | Failure:
    """What a worker does with a quest. Never raises but to be interrupted."""
    return guarded(quest.version, lambda: _answer(quest, set_up(located(quest.scenario, quest.cwd))))


def _answer(quest: Quest, setup: Setup) -> Answer:
    if quest.effort is not None:
        return _capacity(quest, quest.effort, setup)
    search = _search(quest, setup, quest.factor)
    for rate_per_s in quest.rates_per_s:
        for replication in range(quest.first, quest.first + quest.replications):
            search.trial(rate_per_s, replication)
    return Answer(search.trials, quest.factor)


def _search(quest: Quest, setup: Setup, factor: float) -> Search:
    """A search among runs `factor` times as long as the scenario's."""
    long = setup
    if factor > 1:
        long = replace(setup, scenario=run_length.longer(setup.scenario, factor))

    def attempt(rate_per_s: float, replication: int) -> Trial:
        return run_trial(long, rate_per_s, quest.base_per_s, replication)

    return Search(attempt, terms(setup.scenario), quest.known if factor == quest.factor else ())


def _capacity(quest: Quest, effort: Effort, setup: Setup) -> Answer:
    """Search, with longer runs as long as those that were made prove too short."""
    guesses, factor = quest.guesses_per_s, quest.factor
    if not guesses:
        guesses = (guess_rate(setup, quest.lengths or lengths(setup.scenario, setup.max_model_len)),)
    if run_length.is_same_every_time(setup.scenario):
        effort = replace(effort, replications=1)
    may_grow = quest.grows and run_length.can_grow(setup.scenario)
    most = max(factor, MAX_REQUESTS / (setup.scenario.workload.num_requests or MAX_REQUESTS / 2**MAX_GROWTHS))
    rises = 0
    for attempt in range(MAX_GROWTHS + 1):
        grows = may_grow and attempt < MAX_GROWTHS and factor < most
        search = _search(quest, setup, factor)
        missing = search.run(guesses, effort, grows=grows)
        rises += missing == run_length.LONGER
        if missing <= 1 or not grows or rises > MAX_RISING_GROWTHS:
            break
        if missing == run_length.LONGER:
            # Twice the time of half the replications tells as much, and less of it is start.
            effort = replace(effort, replications=max(LEAST_REPLICATIONS, effort.replications // 2))
        factor = min(most, _two_digits_up(factor * min(missing, MOST_AT_ONCE)))
        guesses = search.crossings_per_s or guesses
    return Answer(search.trials, factor, search.rising() if may_grow and effort.levels else None)


def _two_digits_up(factor: float) -> float:
    """The next larger number of two digits, so that a factor can be read."""
    step = 10.0 ** (math.floor(math.log10(factor)) - 1)
    return round(math.ceil(factor / step - 1e-9) * step, 9)


Told = Callable[[int, int], None]
"""Called with (quests done, of how many)."""


def pursue_all(quests: Sequence[Quest], options: Options, told: Told) -> list[Answer | Failure]:
    """The outcomes of all quests, in their order, wherever `options` has them done.

    What is done is kept in ``options["resume_dir"]`` and taken from there with ``resume``. Raises Interrupted by Ctrl-C
    where something is kept.
    """
    shelf = _Shelf(options)
    keys = [_key(quest) for quest in quests] if shelf.is_open else [""] * len(quests)
    outcomes: dict[int, Answer | Failure] = {}
    for index, key in enumerate(keys):
        found = shelf.load(key)
        if found is not None:
            outcomes[index] = found
    told(len(outcomes), len(quests))
    rest = [index for index in range(len(quests)) if index not in outcomes]
    try:
        with executors.no_warnings():
            for position, outcome in _spread([quests[index] for index in rest], options):
                index = rest[position]
                outcomes[index] = Failure("lost", outcome.reason) if isinstance(outcome, executors.Lost) else outcome
                shelf.save(keys[index], outcomes[index])
                told(len(outcomes), len(quests))
    except KeyboardInterrupt:
        if shelf.is_empty:
            raise
        raise Interrupted("interrupted: what is finished is kept; add --resume to go on") from None
    return [outcomes[index] for index in range(len(quests))]


def _spread(quests: Sequence[Quest], options: Options) -> Iterator[tuple[int, Any]]:
    dask, jobs = options.get("dask"), options.get("jobs", 1)
    jobs = min(jobs or executors.usable_cores(), len(quests))
    if dask is None and jobs <= 1:
        yield from ((position, pursue(quest)) for position, quest in enumerate(quests))
        return
    if quests:
        yield from executors.spread(pursue, quests, jobs, dask, lambda position: True)


def _key(quest: Quest) -> str:
    """Identifies a quest and everything that its answer depends on; a setting that cannot be set up has no key."""
    try:
        inputs = checkpoint.keys([set_up(quest.scenario)])[0]
    except InputError:
        return ""
    asked = (quest.base_per_s, quest.guesses_per_s, quest.lengths, quest.effort, quest.rates_per_s)
    more = (quest.replications, quest.known, quest.factor, quest.grows, quest.first)
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

    def load(self, key: str) -> Answer | None:
        """The answer that is kept under `key`; a damaged one is as good as none."""
        if self._folder is None or not self._resume or not key:
            return None
        path = self._folder / f"{_PREFIX}{key}.json"
        try:
            data: Mapping[str, Any] = json.loads(path.read_bytes())
            if data["digest"] != _digest(data["answer"]):
                raise ValueError("the digest differs")
            return Answer.from_json(data["answer"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self._tell(f"note: a kept answer is damaged and is made anew: {path}")
            return None

    def _tell(self, text: str) -> None:
        if self._say is not None:
            self._say(text)

    def save(self, key: str, outcome: Answer | Failure) -> None:
        """Keep an answer; a folder that cannot be written costs the chance to resume and nothing else."""
        if self._folder is None or not key or isinstance(outcome, Failure):
            return
        answer = plain(outcome)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".partial-", delete=False) as file:
                file.write(canonical_json({"digest": _digest(answer), "answer": answer}))
            Path(file.name).replace(self._folder / f"{_PREFIX}{key}.json")
        except OSError as error:
            self._tell(f"note: what is finished cannot be kept in {self._folder}: {error.strerror or error}")
            self._folder = None


def _digest(answer: Any) -> str:
    return hashlib.sha256(canonical_json(answer)).hexdigest()


def forget(folder: Path) -> None:
    """Remove what a plan kept, and the folder when nothing else is in it."""
    with suppress(OSError):
        for path in [*folder.glob(f"{_PREFIX}*.json"), *folder.glob(".partial-*")]:
            if path.is_file():
                path.unlink()
        folder.rmdir()
