"""How far a run is from missing its objectives: the rate up to which it holds them, and whether fewer replicas would.

Every trial is one simulation of the run's own customers, with the warm-up of a plan and no more of them than it takes
to see a limit, so that both find the same one. One replication: "about", never an interval.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from simkit.engine.build import Setup, set_up
from simkit.engine.run import Progress
from simkit.errors import CheckError, InputError
from simkit.plain import Json
from simkit.planner.points import guess_rate
from simkit.planner.search import Effort, Search, rate_text
from simkit.planner.trial import QUEUE, Trial, run_trial, terms
from simkit.runs import run_length
from simkit.scenario import PiecewiseArrivals, Scenario, WarmupSeconds, Workload, apply_sets
from simkit.studies.offered_load import base_rate, for_trials, lengths

EFFORT = Effort(replications=1, gap=2)
OWN = 0.015
"""Rates so near to the run's own (a ratio) stand for it: they are nearer than neighbours that are tried."""

LONG = 20_000
"""Requests of a run from which on few trials are made."""
FEW_TRIALS, MANY_TRIALS = 6, 60
MOST_TIMES = 8
"""Where a higher rate means more customers, rates go up to so many times the run's own, or to `LONG` requests."""
FEW_FOR_REPLICAS = 2
"""Of the few trials, those kept for fewer replicas."""
FARTHEST_GUESS = 4.0
"""The first rate that is tried is no further (a ratio) from the run's own."""
ENOUGH = 6000
"""Requests of a trial, where it takes no more for the system to fill: what a run has beyond them is for its means."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What trials showed of a run at `rate_per_s`. `reason`: why nothing is known, and then the rest is None.

    `holds_to_per_s` is the highest rate that passed below all that failed, None where none did; `limit_seen` says
    whether any failed. `fewest_replicas` is the smallest number that met the objectives at the run's own rate, None
    where that was not looked for.
    """

    rate_per_s: float
    meets: bool | None = None
    holds_to_per_s: float | None = None
    limit_seen: bool | None = None
    replicas: int = 1
    fewest_replicas: int | None = None
    trials: int = 0
    reason: str | None = None

    @property
    def text(self) -> str:
        """One line."""
        if self.reason is not None:
            return f"headroom: unknown, {self.reason}"
        if self.holds_to_per_s is None:
            but = (
                "meets its objectives, but with the start left out at no"
                if self.meets
                else "misses its objectives at any"
            )
            return f"headroom: {but} rate that was tried"
        times = self.holds_to_per_s / self.rate_per_s
        rate = f"about {rate_text(self.holds_to_per_s)} requests/s ({rate_text(times)} x this rate)"
        if self.meets and times >= 1:
            if not self.limit_seen:
                rate += " and further: a longer run shows where it ends"
            return f"headroom: holds to {rate}{self._fewer()}"
        if not self.meets and times < 1:
            return f"headroom: misses its objectives already; would hold at {rate}"
        # The run counts its start, which trials leave out.
        verdict = "meets" if self.meets else "misses"
        return f"headroom: {verdict} its objectives just about; of the rates tried the highest that held is {rate}"

    def _fewer(self) -> str:
        """What fewer replicas would do."""
        count = self.fewest_replicas
        if self.replicas == 1 or count is None:
            return ""
        if count == self.replicas:
            return "; no fewer replicas meet it"
        return f"; {count:,} replica{' also meets' if count == 1 else 's also meet'} it"


def is_asked(scenario: Scenario) -> bool:
    """Whether a run has headroom: objectives, and open arrivals at a rate that could be another."""
    if scenario.workload.is_finite or all(term.target_ms is None for term in terms(scenario)):
        return False
    try:
        return base_rate(scenario) > 0
    except InputError:
        return False


def headroom(
    scenario: Scenario, summary: Json, ran: Scenario | None = None, progress: Progress | None = None
) -> Headroom:
    """The headroom of a run that `is_asked`, from its summary; `ran` is the scenario made as long as the run was, where
    it went on beyond what was asked for. Raises no error of a trial."""
    base_per_s = base_rate(scenario)
    found = Headroom(base_per_s, meets=_meets(summary), replicas=scenario.replicas)
    num_requests = summary["num_requests"]["arrived"]
    if ran is not None and scenario.workload.trace is None:
        num_requests *= _amount(scenario.workload) / _amount(ran.workload)
        longer = as_long(scenario, ran, base_per_s, (summary["e2e_ms"]["p99"] or 0.0) / 1000)
        num_requests *= _amount(longer.workload) / _amount(scenario.workload)
        scenario = longer
    trials = _Trials(scenario, base_per_s, num_requests, progress)
    try:
        own = _own(scenario, base_per_s)
        setup = set_up(own)
        _check(setup)
        found = _with_limit(found, setup, trials)
        if (found.holds_to_per_s or 0.0) >= base_per_s and found.replicas > 1:
            found = replace(found, fewest_replicas=_fewest(found, own, trials))
    except (InputError, CheckError) as error:
        found = Headroom(base_per_s, replicas=scenario.replicas, reason=str(error))
    except MemoryError:
        found = Headroom(base_per_s, replicas=scenario.replicas, reason="out of memory")
    return replace(found, trials=trials.done)


def _meets(summary: Json) -> bool:
    """Whether the run itself met its objectives, as it says."""
    return all(result["met"] is not False for values in (summary["slo"] or {}).values() for result in values.values())


def as_long(scenario: Scenario, ran: Scenario, base_per_s: float, e2e_p99_s: float) -> Scenario:
    """The scenario made as long as the run was, but no longer than the system needs to fill (or ENOUGH requests, or as
    it was asked for): that a run knows its means better moves no limit."""
    asked, whole = _amount(scenario.workload), _amount(ran.workload)
    per_s = 1.0 if scenario.workload.num_requests is None else base_per_s
    fill = asked * run_length.missing_factor(asked / per_s, e2e_p99_s)
    most = max(asked, fill, ENOUGH * per_s / base_per_s)
    return run_length.same_length(scenario, ran) if whole <= most else run_length.longer(scenario, most / asked)


def _amount(workload: Workload) -> float:
    """Requests, or seconds where a time is given."""
    found = workload.num_requests if workload.num_requests is not None else workload.duration_s
    assert found is not None, "a synthetic workload has a number of requests or a duration"
    return found


class _Enough(Exception):
    """No more trials may be made."""


class _Trials:
    """Makes trials, and counts them."""

    def __init__(self, scenario: Scenario, base_per_s: float, num_requests: float, progress: Progress | None) -> None:
        self._base_per_s = base_per_s
        self._progress = progress
        self.most = FEW_TRIALS if num_requests > LONG else MANY_TRIALS
        most_times = max(MOST_TIMES, LONG / max(1.0, num_requests))
        self._most_per_s = most_times * base_per_s if _grows_with_rate(scenario) else math.inf
        self.done = 0

    def attempt(self, setup: Setup, most: int) -> Callable[[float, int], Trial]:
        """What `Search` calls. Raises _Enough after `most` trials."""

        def made(rate_per_s: float, replication: int) -> Trial:
            if self.done >= most or rate_per_s > self._most_per_s:
                raise _Enough
            if self._progress is not None:
                self._progress(self.done / (self.done + 2), f"headroom: simulation {self.done + 1}")
            self.done += 1
            rate = self._base_per_s if is_own(rate_per_s, self._base_per_s) else rate_per_s
            trial = run_trial(setup, rate, self._base_per_s, replication)
            return replace(_while_filling(trial, setup.scenario), rate_per_s=rate_per_s)

        return made


def _while_filling(trial: Trial, scenario: Scenario) -> Trial:
    """The trial, one that fails where it only passes while the system is still filling. A log and a profile of rates
    rise and fall by themselves."""
    if not run_length.can_grow(scenario) or scenario.workload.trace is not None or not trial.levels:
        return trial
    if trial.passes and run_length.rising([trial.levels]) is not None:
        margins = zip(terms(scenario), trial.margins, strict=True)
        return replace(trial, margins=tuple(-0.5 if term == QUEUE else margin for term, margin in margins))
    return trial


def is_own(rate_per_s: float, base_per_s: float) -> bool:
    """Whether a rate that is tried stands for the run's own."""
    return abs(rate_per_s / base_per_s - 1) < OWN


def _own(scenario: Scenario, base_per_s: float) -> Scenario:
    """The run as a plan would simulate it; a warm-up in seconds is one of requests where rates change its share."""
    if scenario.failures:
        raise InputError("failures come at set times, which at other rates fall elsewhere in the run")
    workload, warmup = scenario.workload, scenario.warmup
    if isinstance(warmup, WarmupSeconds) and not _grows_with_rate(scenario) and workload.servegen is None:
        changes = {"warmup": {"requests": round(warmup.seconds * base_per_s)}}
        scenario = apply_sets(scenario, changes, label="headroom")
    if isinstance(warmup, str) and not workload.trace:
        # Whether a run measures its start or not, the rate that can be sustained is the same.
        scenario = apply_sets(scenario, {"warmup": "auto"}, label="headroom")
    return for_trials(scenario, scenario.replicas)


def _grows_with_rate(scenario: Scenario) -> bool:
    """Whether a higher rate means more customers, and not the same ones in a shorter time."""
    workload = scenario.workload
    lasts = workload.duration_s is not None and not isinstance(workload.arrivals, PiecewiseArrivals)
    return lasts or workload.servegen is not None


def _check(setup: Setup) -> None:
    slo = setup.scenario.slo
    if not setup.stream and slo is not None and (slo.tpot_ms is not None or slo.itl_ms is not None):
        raise InputError("nothing is streamed, so an objective between tokens cannot be judged")


def _with_limit(found: Headroom, setup: Setup, trials: _Trials) -> Headroom:
    """The rate up to which the objectives hold."""
    kept = FEW_FOR_REPLICAS if trials.most == FEW_TRIALS and found.replicas > 1 else 0
    search = Search(trials.attempt(setup, trials.most - kept), terms(setup.scenario))
    with contextlib.suppress(_Enough):
        search.run((_guess(found, setup),), EFFORT)
    failed = [trial.rate_per_s for trial in search.trials if not trial.passes]
    least = min(failed, default=math.inf)
    passed = [trial for trial in search.trials if trial.passes and trial.rate_per_s < least]
    best = max(passed, key=lambda trial: trial.rate_per_s, default=None)
    if best is None:
        return replace(found, limit_seen=True)
    own = is_own(best.rate_per_s, found.rate_per_s)
    return replace(
        found,
        holds_to_per_s=found.rate_per_s if own else best.rate_per_s,
        limit_seen=bool(failed),
    )


def _guess(found: Headroom, setup: Setup) -> float:
    """Where the search begins: where arithmetic expects the limit, but not too far from the run's own rate."""
    own = found.rate_per_s
    least = own if found.meets else own / FARTHEST_GUESS
    try:
        guess = guess_rate(setup, lengths(setup.scenario, setup.max_model_len))
    except InputError:
        return own  # no prompt fits: trials say so
    return min(max(guess, least), own * FARTHEST_GUESS)


def _fewest(found: Headroom, own: Scenario, trials: _Trials) -> int | None:
    """The smallest number of replicas that meets the objectives at the run's own rate, each one simulated.

    The first guess is what each replica carries at the limit. None where trials run out.
    """
    assert found.holds_to_per_s is not None

    def meets(replicas: int) -> bool:
        setup = set_up(apply_sets(own, {"replicas": replicas}, label="headroom"))
        return trials.attempt(setup, trials.most)(found.rate_per_s, 0).passes

    most = found.replicas
    guess = max(1, min(most - 1, math.ceil(most * found.rate_per_s / found.holds_to_per_s)))
    fewest = most
    try:
        if meets(guess):
            fewest = guess
            while fewest > 1 and meets(fewest - 1):
                fewest -= 1
            return fewest
        for replicas in range(guess + 1, most):
            if meets(replicas):
                return replicas
    except _Enough:
        return fewest if fewest < most else None
    return most
