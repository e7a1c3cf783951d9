"""What the planner finds, as values: points with their capacity, and what binds there. Asks nothing.

Owns how a limit is recognised, and the thresholds of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from simkit.metrics.glossary import LIMITS
from simkit.plain import Json
from simkit.planner.capacity import Capacity, Curve, capacity, curves
from simkit.planner.jobs import Answer
from simkit.planner.points import PlanPoint
from simkit.planner.search import Effort
from simkit.planner.trial import QUEUE, SERVED, SloTerm, Trial, terms
from simkit.runs import run_length
from simkit.scenario import Scenario
from simkit.studies.offered_load import Lengths
from simkit.studies.study import Failure

# --- what binds
TAIL_QUEUED = 0.5
"""Share of the slowest requests' TTFT that must pass in the queue before waiting is the reason."""

MORE_HELPS = 1.03
"""More slots are what is missing when the next larger setting carries at least 3 % more."""

SOME_PREEMPTIONS, FULL_MEMORY = 1.0, 0.95
"""Preemptions a run, and share of memory in use at the peak, from which on gaps between tokens are laid to memory."""

MANY_LOST = 0.005
"""Share of requests turned away or given up from which on an objective between tokens is missed by those."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What binds: a key of `LIMITS`, the term of the SLO that is missed first, and the evidence, shares of time or
    counts, from the first rate that each replication fails."""

    name: str
    term: str
    evidence: dict[str, float]

    @property
    def text(self) -> str:
        """In one sentence."""
        return f"{self.name} ({self.term} is missed first): {LIMITS[self.name]}"


def recognise(found: Sequence[Curve], capacity: Capacity) -> Limit:
    """The limit that the runs just beyond the capacity show."""
    failing = [next(trial for trial in curve if min(trial.margins) < 0) for curve in found]
    count = len(failing)
    evidence = {name: sum(trial.waits[name] for trial in failing) / count for name in failing[0].waits}
    for path, name in (
        ("concurrency_mean", "concurrency"),
        ("gpu.busy", "gpu_busy"),
        ("num_preemptions", "preemptions"),
    ):
        values = [trial.numbers[path] for trial in failing]
        evidence[name] = sum(value or 0.0 for value in values) / count
    return Limit(_name_of_limit(capacity.term, evidence), capacity.term, evidence)


def _name_of_limit(term: str, evidence: dict[str, float]) -> str:
    metric = term.partition(".")[0]
    reasons = {"slots": "slots", "kv": "KV blocks", "budget": "token budget", "turn": "compute"}
    waited_for = reasons[max(reasons, key=lambda reason: evidence[reason])]
    if metric in ("tpot_ms", "itl_ms"):
        if evidence["preemptions"] >= SOME_PREEMPTIONS and evidence["peak_kv"] >= FULL_MEMORY:
            return "KV blocks"
        return waited_for if evidence["lost"] >= MANY_LOST and evidence["waiting"] else "TPOT"
    if evidence["tail_queued"] >= TAIL_QUEUED or metric in (QUEUE.metric, SERVED.metric):
        return waited_for
    return "E2E" if metric == "e2e_ms" else "TTFT"


def with_neighbour(limit: Limit, capacity: Capacity, larger: Capacity | None) -> Limit:
    """Slots that are taken are not what is missing when more of them carry no more."""
    if limit.name != "slots" or larger is None:
        return limit
    gain = larger.estimate_per_s / capacity.estimate_per_s
    evidence = {**limit.evidence, "capacity_with_more_slots": gain}
    return replace(limit, name="slots" if gain >= MORE_HELPS else "compute", evidence=evidence)


# --- points and plans
@dataclass(frozen=True, slots=True)
class Served:
    """A rate that was served again: long runs of fresh customers, and whether each of them `held`, or all of them
    `together`."""

    rate_per_s: float
    trials: tuple[Trial, ...]

    @property
    def num_held(self) -> int:
        """Runs that met every objective."""
        return sum(trial.passes for trial in self.trials)

    @property
    def held(self) -> bool:
        """Whether all of them did."""
        return self.num_held == len(self.trials)

    @property
    def together(self) -> bool:
        """Whether the runs taken together meet every objective."""
        each = zip(*(trial.margins for trial in self.trials), strict=True)
        return all(sum(margins) >= 0 for margins in each)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What came of serving the lower end of a capacity's interval again, in runs `times` as long, before anybody is
    told it. Where it did not hold, lower rates followed, in order; `before` is the capacity as it was."""

    times: float
    before: Capacity
    served: tuple[Served, ...]

    @property
    def moved(self) -> bool:
        """Whether the answer had to move."""
        return not self.served[0].held

    @property
    def held(self) -> Served | None:
        """The rate that the answer rests on: the highest that held, None where none did."""
        return max((one for one in self.served if one.held), key=lambda one: one.rate_per_s, default=None)


@dataclass(frozen=True, slots=True)
class PointResult:
    """What is known of a point: its trials, its capacity, and what binds there. Without a capacity no rate meets the
    SLO, or every one does. Runs are `factor` times as long as the point's scenario has them; `rising` is what of the
    system was still filling when they could not be made longer."""

    point: PlanPoint
    trials: tuple[Trial, ...]
    effort: Effort
    capacity: Capacity | None
    limit: Limit | None
    factor: float = 1.0
    rising: str | None = None
    confirmation: Confirmation | None = None

    @property
    def scenario(self) -> Scenario:
        """The point's scenario as it was simulated."""
        return self.longer(1.0)

    def longer(self, times: float) -> Scenario:
        """The scenario in runs `times` as long as those that were simulated; as it is where it has an end."""
        factor, scenario = self.factor * times, self.point.scenario
        return run_length.longer(scenario, factor) if factor > 1 and run_length.can_grow(scenario) else scenario

    @property
    def always_passes(self) -> bool:
        """Whether no rate was too high."""
        return self.capacity is None and self.trials[-1].passes and self.confirmation is None

    @property
    def lowest(self) -> Trial:
        """The trial of replication 0 at the lowest rate: hardly a request meets another."""
        return self.trials[0]

    @property
    def at_capacity(self) -> tuple[Trial, ...]:
        """The trial of each replication at the highest rate up to the capacity (at the lowest where all lie above)."""
        assert self.capacity is not None
        found = []
        for curve in curves(self.trials):
            below = [trial for trial in curve if trial.rate_per_s <= self.capacity.estimate_per_s]
            found.append(below[-1] if below else curve[0])
        return tuple(found)

    def mean_at_capacity(self, path: str) -> float:
        """Mean of a number there, of runs that were not given up if any was not; 0 where a trial has none."""
        trials = [trial for trial in self.at_capacity if not trial.gave_up] or self.at_capacity
        return sum(trial.numbers[path] or 0.0 for trial in trials) / len(trials)

    @property
    def is_sustained(self) -> bool:
        """Whether the rate can go on for ever: the load has no end of its own, the system had levelled off, and the
        lower end of the interval held for much longer."""
        if self.capacity is None or self.rising is not None or not run_length.can_grow(self.point.scenario):
            return False
        return self.confirmation is not None and self.confirmation.held is not None

    @property
    def per_gpu_per_s(self) -> float:
        """Capacity a GPU; 0 without one."""
        return 0.0 if self.capacity is None else self.capacity.estimate_per_s / self.point.gpus


class FleetSize(NamedTuple):
    """Replicas, of which some are lost halfway through the run and do not come back."""

    replicas: int
    lost: int


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What the planner found. `points` are in the order of the grid; `recommended` is None where no point meets the
    SLO; `other_rates` are trials of the recommended point at other rates, `variations` that point again and its
    neighbouring settings, all with the same effort, `fleets` what numbers of replicas do at the target rate.
    """

    scenario: Scenario
    base_per_s: float
    lengths: Lengths
    terms: tuple[SloTerm, ...]
    axes: dict[str, list[Any]]
    points: dict[str, PointResult]
    failed: dict[str, Failure]
    recommended: PointResult | None
    other_rates: tuple[Trial, ...] = ()
    variations: dict[str, PointResult] = field(default_factory=dict)
    fleets: dict[FleetSize, tuple[Trial, ...]] = field(default_factory=dict)
    target_per_s: float | None = None
    spare: int = 0
    doctor: Json | None = None
    notes: tuple[str, ...] = ()


def result_of_point(point: PlanPoint, answer: Answer, effort: Effort) -> PointResult:
    """What the trials of a point show."""
    each: list[Curve] = curves(answer.trials)
    value = capacity(each, terms(point.scenario), effort.resolution)
    limit = None if value is None else recognise(each, value)
    return PointResult(point, answer.trials, effort, value, limit, answer.factor, answer.rising)
