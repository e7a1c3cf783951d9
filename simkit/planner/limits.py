"""What binds at the capacity of a setting, and how that was recognised.

Owns the rules and their thresholds. Simulates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simkit.planner.capacity import Capacity, Curve
from simkit.planner.trial import QUEUE, SERVED

TAIL_QUEUED = 0.5
"""Share of the slowest requests' TTFT that must pass in the queue before waiting is the reason."""

MORE_HELPS = 1.03
"""More slots are what is missing when the next larger setting carries at least 3 % more."""

SOME_PREEMPTIONS, FULL_MEMORY = 1.0, 0.95
"""Preemptions a run, and share of memory in use at the peak, from which on gaps between tokens are laid to memory."""

MANY_LOST = 0.005
"""Share of requests turned away or given up from which on an objective between tokens is missed by those."""

NAMES = {
    "slots": "all slots are taken while requests wait",
    "KV blocks": "slots are free, and memory for the next prompt is not",
    "token budget": "slots and memory are free, and steps are full of tokens",
    "compute": "requests wait for their turn, or in slots that more slots would not empty faster",
    "TTFT": "the slowest requests hardly wait: the steps that compute their prompts take too long by themselves",
    "TPOT": "a step with this many sequences takes longer than a token may",
    "E2E": "steps take too long by themselves",
}
"""Every limit, and what it looks like."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What binds: a key of `NAMES`, the term of the SLO that is missed first, and the evidence, shares of time or
    counts, from the first rate that each replication fails."""

    name: str
    term: str
    evidence: dict[str, float]

    @property
    def text(self) -> str:
        """In one sentence."""
        return f"{self.name} ({self.term} is missed first): {NAMES[self.name]}"


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
    return Limit(_name(capacity.term, evidence), capacity.term, evidence)


def _name(term: str, evidence: dict[str, float]) -> str:
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
