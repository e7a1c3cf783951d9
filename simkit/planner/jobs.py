"""A task of the planner, wherever it is done: the capacity of a setting, or what some rates look like.

Owns what travels to workers, and what is kept on disk of those that are done.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simkit.engine.build import Setup, erring, set_up
from simkit.engine.run import Progress
from simkit.errors import InputError, Interrupted
from simkit.plain import canonical_json, plain, typed
from simkit.planner.points import guess_rate
from simkit.planner.search import Effort, Search
from simkit.planner.trial import Trial, run_trial, terms
from simkit.runs import run_length
from simkit.scenario import Scenario
from simkit.studies import checkpoint, executors
from simkit.studies.checkpoint import Checkpoint, Key
from simkit.studies.offered_load import Lengths, lengths
from simkit.studies.study import Failure, Options, guarded, located
from simkit.version import __version__

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
class CapacityJob:
    """What is asked of one setting: its capacity (where there is an `effort`), and all of some `rates_per_s`.

    `scenario` is as `offered_load.for_trials` makes it, `base_per_s` is its rate as it stands. `guesses_per_s` are as
    in `Search.run`; without any the worker makes one from `lengths`. `known` holds trials that need not be made
    again, of runs `factor` times as long as the scenario's. Where it `grows` runs are made longer until the system
    has had time to fill. `first` is the first of the replications at `rates_per_s`: others are other customers. Where
    `erring` is a number step times err by what a replication draws, counted on from there.
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
    erring: int | None = None
    version: str = __version__
    cwd: str = "."


@dataclass(frozen=True, slots=True)
class Answer:
    """Trials, by replication and rate, of runs `factor` times as long as the scenario's; and what of the system was
    still `rising` at the capacity when they could not be made longer."""

    trials: tuple[Trial, ...]
    factor: float = 1.0
    rising: str | None = None


def run_job(job: CapacityJob) -> Answer | Failure:
    """What a worker does with a job. Never raises but to be interrupted."""
    return guarded(job.version, lambda: _answer(job, set_up(located(job.scenario, job.cwd))))


def _answer(job: CapacityJob, setup: Setup) -> Answer:
    if job.effort is not None:
        return _capacity(job, job.effort, setup)
    search = _search(job, setup, job.factor)
    for rate_per_s in job.rates_per_s:
        for replication in range(job.first, job.first + job.replications):
            search.trial(rate_per_s, replication)
    return Answer(search.trials, job.factor)


def _search(job: CapacityJob, setup: Setup, factor: float) -> Search:
    """A search among runs `factor` times as long as the scenario's."""
    long = setup
    if factor > 1:
        long = replace(setup, scenario=run_length.longer(setup.scenario, factor))

    set_ups: dict[int, Setup] = {}

    def attempt(rate_per_s: float, replication: int) -> Trial:
        if job.erring is not None and replication not in set_ups:
            set_ups[replication] = erring(long, job.erring + replication)
        return run_trial(set_ups.get(replication, long), rate_per_s, job.base_per_s, replication)

    return Search(attempt, terms(setup.scenario), job.known if factor == job.factor else ())


def _capacity(job: CapacityJob, effort: Effort, setup: Setup) -> Answer:
    """Search, with longer runs as long as those that were made prove too short."""
    guesses, factor = job.guesses_per_s, job.factor
    if not guesses:
        guesses = (guess_rate(setup, job.lengths or lengths(setup.scenario, setup.max_model_len)),)
    if run_length.is_same_every_time(setup.scenario):
        effort = replace(effort, replications=1)
    may_grow = job.grows and run_length.can_grow(setup.scenario)
    most = max(factor, MAX_REQUESTS / (setup.scenario.workload.num_requests or MAX_REQUESTS / 2**MAX_GROWTHS))
    rises = 0
    for attempt in range(MAX_GROWTHS + 1):
        grows = may_grow and attempt < MAX_GROWTHS and factor < most
        search = _search(job, setup, factor)
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


OnDone = Callable[[int, int], None]
"""Called with (jobs done, of how many)."""


def run_jobs(jobs: Sequence[CapacityJob], options: Options, on_done: OnDone) -> list[Answer | Failure]:
    """The outcomes of all jobs, in their order, wherever `options` has them done.

    What is done is kept in ``options["resume_dir"]`` and taken from there with ``resume``. Raises Interrupted by Ctrl-C
    where something is kept.
    """
    kept = Checkpoint(options.get("resume_dir"), ANSWERS, options.get("on_note", checkpoint.ignore))
    keys = [None] * len(jobs) if kept.folder is None else [_key(job) for job in jobs]
    outcomes: dict[int, Answer | Failure] = {}
    for index, key in enumerate(keys):
        found = kept.load(key) if key is not None and options.get("resume", True) else None
        if found is not None:
            outcomes[index] = found
    on_done(len(outcomes), len(jobs))
    rest = [index for index in range(len(jobs)) if index not in outcomes]
    todo = [jobs[index] for index in rest]
    try:
        spread = executors.spread(
            run_job, todo, options.get("jobs", 1), options.get("dask"), here=lambda position: run_job(todo[position])
        )
        for position, outcome in spread:
            index = rest[position]
            outcomes[index] = Failure("lost", outcome.reason) if isinstance(outcome, executors.Lost) else outcome
            if (key := keys[index]) is not None and isinstance(outcome, Answer):
                kept.save(key, outcome)
            on_done(len(outcomes), len(jobs))
    except KeyboardInterrupt:
        if kept.is_empty:
            raise
        raise Interrupted("interrupted: what is finished is kept; add --resume to go on") from None
    return [outcomes[index] for index in range(len(jobs))]


@dataclass(slots=True)
class JobRunner:
    """Has the jobs of a plan done wherever `options` says, and tells the progress of the plan."""

    base_per_s: float
    options: Options
    progress: Progress | None
    done: float = 0.0

    def run(self, jobs: Sequence[CapacityJob], share: float, label: str) -> list[Answer | Failure]:
        """The outcomes; they take `share` of all the time."""

        def on_done(done: int, total: int) -> None:
            if self.progress is not None:
                self.progress(self.done + share * done / max(1, total), f"{label}: {done} of {total}")

        jobs = [replace(job, cwd=os.getcwd()) for job in jobs]
        answers = run_jobs(jobs, self.options, on_done)
        self.done += share
        return answers


def _key(job: CapacityJob) -> Key | None:
    """Identifies a job and everything that its answer depends on; a setting that cannot be set up has no key."""
    try:
        setup = set_up(job.scenario)
    except InputError:
        return None
    asked = (job.base_per_s, job.guesses_per_s, job.lengths, job.effort, job.rates_per_s)
    more = (job.replications, job.known, job.factor, job.grows, job.first, job.erring)
    content = {"simulation": plain(checkpoint.keys([setup])[0]), "asked": plain(asked), "more": plain(more)}
    return Key(hashlib.sha256(canonical_json(content)).hexdigest())


def _answer_files(answer: Answer, inputs: str) -> checkpoint.Files:
    return {"answer.json": canonical_json(answer)}


def _answer_of(files: checkpoint.Files, inputs: str) -> Answer:
    return typed(Answer, json.loads(files["answer.json"]))


ANSWERS = checkpoint.Form("answer", "what is finished", _answer_files, _answer_of)
