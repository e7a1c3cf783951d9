"""One simulation of a scenario at one rate: whether its objectives hold, by how much, and what stood in the way.

Owns the margins of an SLO and how the time in which requests wait is told apart. Imports engine, metrics, parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simkit.engine.build import Setup
from simkit.engine.run import RunFacts, simulate
from simkit.errors import InputError
from simkit.manifest import plain
from simkit.metrics.definitions import Outcome, summarise
from simkit.parts import terms_of
from simkit.planner.offered import at_rate
from simkit.scenario import Scenario, apply_sets
from simkit.types import Ints

NUMBERS = (
    *(
        f"{metric}.{stat}"
        for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
        for stat in ("mean", "p50", "p90", "p95", "p99")
    ),
    "throughput.requests_per_s", "throughput.output_tokens_per_s", "throughput.total_tokens_per_s", "concurrency_mean",
    "slot_utilization", "num_preemptions", "kv.utilization", "gpu.busy", "gpu.mfu", "gpu.mbu", "gpu.extrapolated.share",
    "prefix_cache_hit_rate", "num_requests.arrived", "num_requests.finished", "num_requests.rejected", "saturated",
)  # fmt: skip
"""Numbers of a summary that a trial keeps, by their path."""

WAITS = ("waiting", "slots", "kv", "budget", "turn", "full", "peak_running", "peak_kv", "tail_queued")
"""What `_waits` tells."""

FULL_BUDGET = 0.95
"""Share of the token budget from which on a step counts as full."""


@dataclass(frozen=True, slots=True)
class Term:
    """One value of the SLO, or (metric "queue") that the queue does not grow without end."""

    metric: str
    stat: str
    target_ms: float | None

    @property
    def name(self) -> str:
        """As in ``ttft_ms.p99``."""
        return f"{self.metric}.{self.stat}"

    @property
    def allowed(self) -> float | None:
        """The share of requests that may miss it; None where it is not a share of requests that counts."""
        if self.stat.startswith("p") and self.metric != "itl_ms":
            return 1 - float(self.stat[1:]) / 100
        return SERVED_SHARE if self.metric == "requests" else None


SERVED_SHARE = 0.01
"""Requests that may be turned away or given up where only means are bound, which leave them out."""

QUEUE = Term("queue", "stable", None)
SERVED = Term("requests", "served", None)


@dataclass(frozen=True, slots=True)
class Trial:
    """What one replication at one rate showed. `margins` has a value a term: >= 0 where the run meets it.

    For a percentile it is the share of measured requests within the target minus the share that must be; for a mean
    or a gap between tokens 1 - value / target. `waits` are shares of the time after warm-up (see `_waits`).
    """

    rate_per_s: float
    replication: int
    num_measured: int
    margins: tuple[float, ...]
    numbers: Mapping[str, float | None]
    waits: Mapping[str, float]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """The trial of which `plain` made `data`."""
        return cls(**{**data, "margins": tuple(data["margins"])})


def terms(scenario: Scenario) -> tuple[Term, ...]:
    """The terms that a rate must meet.

    Without a bound on TTFT or E2E an endless queue would pass, so that is one. A percentile counts those who were
    turned away or gave up as misses; where none is bound, their share is.
    """
    if scenario.slo is None:
        return ()
    slo = scenario.slo.model_dump(exclude_none=True)
    found = [Term(metric, stat, target) for metric, values in slo.items() for stat, target in values.items()]
    if all(term.allowed is None for term in found):
        found.append(SERVED)
    if not {"ttft_ms", "e2e_ms"} & slo.keys():
        found.append(QUEUE)
    return tuple(found)


def run_trial(setup: Setup, rate_per_s: float, base_per_s: float, replication: int) -> Trial:
    """Simulate one replication of `setup` at `rate_per_s`.

    Raises CheckError, and InputError when nothing is measured.
    """
    setup = replace(setup, scenario=at_rate(setup.scenario, rate_per_s, base_per_s))
    facts, outcome = _simulate(setup, replication)
    summary = plain(outcome.summary)
    measured = outcome.requests["measured"] != 0
    if not measured.any():
        what = f"expected requests after it, at {rate_per_s:g} requests/s the run ends within it"
        raise InputError(setup.scenario.blame(f"warmup: {what}"))
    return Trial(
        rate_per_s=rate_per_s,
        replication=replication,
        num_measured=int(measured.sum()),
        margins=tuple(_margin(term, summary) for term in terms(setup.scenario)),
        numbers={path: _number(summary, path) for path in NUMBERS},
        waits=_waits(facts, outcome, setup) | {"lost": _lost_share(summary)},
    )


def _simulate(setup: Setup, replication: int) -> tuple[RunFacts, Outcome]:
    """Simulate, without prefix caching where it can find nothing: when no prompt shares anything with another, only a
    preempted sequence can find blocks again, so that a run without preemptions is the same, and made in half the time.
    """
    if _finds_nothing(setup):
        without = apply_sets(setup.scenario, {"engine.enable_prefix_caching": False}, label="plan")
        facts = simulate(replace(setup, scenario=without), replication)
        if not facts.record.requests.to_dict()["num_preemptions"].any():
            return facts, summarise(facts.record, terms_of(setup))
    facts = simulate(setup, replication)
    return facts, summarise(facts.record, terms_of(setup))


def _finds_nothing(setup: Setup) -> bool:
    """Whether prefix caching is on and no prompt shares anything with another."""
    workload = setup.scenario.workload
    return setup.prefix_caching and workload.prefix is None and workload.reuse is None and setup.samples == 1


def _margin(term: Term, summary: Mapping[str, Any]) -> float:
    if term == QUEUE:
        return -0.5 if summary["saturated"] else 0.5
    if term == SERVED:
        return SERVED_SHARE - _lost_share(summary)
    assert term.target_ms is not None
    found = summary["slo"][term.metric][term.stat]
    if found["share_within"] is not None:
        return float(found["share_within"]) - float(term.stat[1:]) / 100
    if found["value_ms"] is not None:
        return 1.0 - float(found["value_ms"]) / term.target_ms
    # Nothing finished, so nobody is within the target.
    return -1.0 if term.stat == "mean" else -float(term.stat[1:]) / 100


def _lost_share(summary: Mapping[str, Any]) -> float:
    """Of the requests that could be served, those that were refused, gave up or did not end."""
    counts = summary["num_requests"]
    lost = counts["refused"] + counts["aborted"] + counts["unfinished"]
    return float(lost / max(1, counts["arrived"] - counts["rejected"]))


def _number(summary: Mapping[str, Any], path: str) -> float | None:
    found: Any = summary
    for part in path.split("."):
        found = None if found is None else found.get(part)
    return None if found is None else float(found)


def _waits(facts: RunFacts, outcome: Outcome, setup: Setup) -> dict[str, float]:
    """Shares of the time from the first measured arrival on, all replicas together: what a waiting request waits for.

    `waiting`: somebody waits; of this `slots`: all slots are taken; else `kv`: free memory is less than a mean prompt;
    else `budget`: the step is full of tokens; else `turn`: for the next step. `full`: a step is full of tokens,
    whether or not somebody waits. `peak_running` and `peak_kv` are no shares of time but the most sequences of a
    replica, and the largest share of its memory. `tail_queued`: of the TTFT of the slowest 1 % of requests, the share
    that passed before they were first scheduled.
    """
    spans = facts.record.spans.to_dict()
    engine = setup.scenario.engine
    requests = outcome.requests
    measured = requests["measured"] != 0
    since = int(requests["arrival_ns"][measured].min()) if measured.any() else 0
    if not len(spans["t_end_ns"]):
        return dict.fromkeys(WAITS, 0.0)
    time = np.maximum(spans["t_end_ns"] - np.maximum(spans["t_start_ns"], since), 0)
    whole = max(1, (int(spans["t_end_ns"].max()) - since) * setup.scenario.replicas)
    prompt = float(requests["prompt_tokens"].mean())
    tokens = spans["num_decode"] + spans["prefill_tokens"] / np.maximum(spans["num_steps"], 1)
    waiting = spans["waiting"] > 0
    slots = waiting & (spans["running"] >= setup.max_num_active_seqs)
    memory = waiting & ~slots & (spans["kv_free_tokens"] < prompt + engine.block_size)
    full = tokens >= FULL_BUDGET * (engine.max_num_batched_tokens or np.inf)
    budget = waiting & ~slots & ~memory & full
    turn = waiting & ~slots & ~memory & ~budget
    kinds = {"waiting": waiting, "slots": slots, "kv": memory, "budget": budget, "turn": turn, "full": full}
    shares = {name: int(time[kind].sum()) / whole for name, kind in kinds.items()}
    peak_kv = int(spans["kv_allocated_tokens"].max()) / max(1, setup.capacity_tokens)
    peaks = {"peak_running": float(spans["running"].max()), "peak_kv": peak_kv}
    return {**shares, **peaks, "tail_queued": _tail_queued(requests)}


def _tail_queued(requests: Mapping[str, Ints]) -> float:
    counted = (requests["measured"] != 0) & (requests["first_token_ns"] >= 0)
    if not counted.any():
        return 0.0
    arrival, scheduled, first = (
        requests[name][counted] for name in ("arrival_ns", "first_scheduled_ns", "first_token_ns")
    )
    ttft = first - arrival
    slow = ttft >= np.percentile(ttft, 99)
    return int((scheduled - arrival)[slow].sum()) / max(1, int(ttft[slow].sum()))
