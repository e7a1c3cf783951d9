"""One simulation of a scenario at one rate: whether its objectives hold, by how much, and what stood in the way.

Owns the margins of an SLO, how the time in which requests wait is told apart by what is taken, and how many may wait
before a run is hopeless and given up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from simkit.engine.build import Setup
from simkit.engine.run import Overload, RunFacts, simulate
from simkit.metrics import record as rec
from simkit.metrics.catalogue import PLAN, number, shown
from simkit.metrics.inputs import SummaryInputs
from simkit.metrics.latencies import latencies_of, values_ns
from simkit.metrics.slo import slo_results
from simkit.metrics.summary import RequestCounts, RunMetrics, Summary, summarise
from simkit.plain import plain
from simkit.runs import run_length
from simkit.runs.replication import inputs_of
from simkit.scenario import Scenario, WarmupRequests, WarmupSeconds
from simkit.studies.offered_load import at_rate
from simkit.types import Bools, Ints
from simkit.units import ns_to_s


@dataclass(frozen=True, slots=True)
class SloTerm:
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

QUEUE = SloTerm("queue", "stable", None)
SERVED = SloTerm("requests", "served", None)


@dataclass(frozen=True, slots=True)
class Trial:
    """What one replication at one rate showed. `margins` has a value a term: >= 0 where the run meets it.

    For a percentile it is the share of measured requests within the target minus the share that must be; for a mean
    or a gap between tokens 1 - value / target. `waits` are shares of the time after warm-up (see `waits`). Requests
    arrived for `span_s`; `levels` are those of `run_length.levels`. `without` has the margins with one of BLOCKS
    consecutive parts of the measured requests left out, each in turn, where replications are all the same. A run that
    `gave_up` was stopped with a queue that no time limit of the SLO allows; those that were to come count as missed.
    """

    rate_per_s: float
    replication: int
    num_measured: int
    margins: tuple[float, ...]
    numbers: Mapping[str, float | None]
    waits: Mapping[str, float]
    span_s: float = 0.0
    levels: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    without: tuple[tuple[float, ...], ...] = ()
    gave_up: bool = False

    @property
    def passes(self) -> bool:
        """Whether every term is met."""
        return min(self.margins) >= 0


def terms(scenario: Scenario) -> tuple[SloTerm, ...]:
    """The terms that a rate must meet, the last of them that the queue does not grow: that is overload, whatever the
    percentiles of a run of this length say.

    A percentile counts those who were turned away or gave up as misses; where none is bound, their share is.
    """
    if scenario.slo is None:
        return ()
    slo = scenario.slo.model_dump(exclude_none=True)
    found = [SloTerm(metric, stat, target) for metric, values in slo.items() for stat, target in values.items()]
    if all(term.allowed is None for term in found):
        found.append(SERVED)
    found.append(QUEUE)
    return tuple(found)


BLOCKS, LEAST_IN_BLOCK = 10, 20
"""Parts of a run that is the same every time, and measured requests that each must have to tell anything."""


def run_trial(setup: Setup, rate_per_s: float, base_per_s: float, replication: int) -> Trial:
    """Simulate one replication of `setup` at `rate_per_s`.

    Raises CheckError, and InputError when nothing is measured.
    """
    setup = replace(setup, scenario=at_rate(setup.scenario, rate_per_s, base_per_s))
    gave_up = False
    try:
        facts = simulate(setup, replication, max_in_system=most_in_system(setup, rate_per_s))
    except Overload as overload:
        facts, gave_up = overload.facts, True
    inputs = inputs_of(setup, facts)
    metrics = summarise(facts.record, inputs)
    summary, numbers = metrics.summary, plain(metrics.summary)
    measured = metrics.requests["measured"] != 0
    if not measured.any() and not gave_up:
        what = f"expected requests after it, at {rate_per_s:g} requests/s the run ends within it"
        raise setup.scenario.refuse("warmup", what)
    asked = terms(setup.scenario)
    margins = tuple(_margin(term, summary) for term in asked)
    if gave_up:
        margins = _given_up(asked, margins, metrics, setup, rate_per_s, facts.record.num_arrived)
    since_ns, until_ns = _window(metrics.requests, measured)
    return Trial(
        rate_per_s=rate_per_s,
        replication=replication,
        num_measured=most_measured(setup, rate_per_s) if gave_up else int(measured.sum()),
        margins=margins,
        numbers={metric.key: number(numbers, metric.key) for metric in shown(PLAN)},
        waits=waits(facts, metrics, setup) | {"lost": _lost_share(summary.num_requests)},
        span_s=ns_to_s(until_ns - int(metrics.requests["arrival_ns"].min())) if measured.any() else 0.0,
        levels=run_length.levels(facts.record.spans.to_dict(), since_ns, until_ns),
        without=() if gave_up else _without(asked, metrics, facts, inputs, setup),
        gave_up=gave_up,
    )


# --- runs that are given up -------------------------------------------------------------------------------------------
def _given_up(
    asked: tuple[SloTerm, ...],
    margins: tuple[float, ...],
    metrics: RunMetrics,
    setup: Setup,
    rate_per_s: float,
    num_arrived: int,
) -> tuple[float, ...]:
    """Margins of a run that was stopped: whoever waits or was still to come is late, gaps between tokens are those of
    the requests that finished (of none, where it was stopped within its warm-up: then nobody missed them), and the
    queue grows."""
    table = metrics.requests
    done = (table["status"] == rec.FINISHED) & (table["measured"] != 0)
    share_of = int(done.sum()) / most_measured(setup, rate_per_s)
    found = []
    for term, margin in zip(asked, margins, strict=True):
        if term == QUEUE:
            margin = -0.5
        elif term.metric in ("ttft_ms", "e2e_ms"):
            margin = min(margin, -0.5 if term.allowed is None else share_of - 1 + term.allowed)
        elif not done.any():
            margin = 1.0 if term.allowed is None else term.allowed
        elif term.allowed is not None:
            lost = max(0, num_arrived - len(table["id"])) + int((table["status"] != rec.FINISHED).sum())
            margin = min(
                term.allowed, (margin + 1 - term.allowed) * (done.sum() + lost) / done.sum() - 1 + term.allowed
            )
        found.append(float(margin))
    return tuple(found)


# --- what a run shows of its own certainty ----------------------------------------------------------------------------
def _window(table: Mapping[str, Ints], measured: Bools) -> tuple[int, int]:
    """The first measured arrival, and the last arrival of all."""
    if not measured.any():
        return 0, 0
    arrival = table["arrival_ns"]
    return int(arrival[measured].min()), int(arrival.max())


def _without(
    asked: tuple[SloTerm, ...],
    metrics: RunMetrics,
    facts: RunFacts,
    inputs: SummaryInputs,
    setup: Setup,
) -> tuple[tuple[float, ...], ...]:
    """Margins without each of BLOCKS consecutive parts of the run, or of the log that it plays; none where replications
    differ and tell more, and none of a run too short to be parted."""
    table = metrics.requests
    measured = table["measured"] != 0
    if not run_length.is_same_every_time(setup.scenario):
        return ()
    # A log that is played several times has its parts in each of them.
    trace = setup.scenario.workload.trace
    once = len(measured) // (1 if trace is None else trace.repeat)
    if min(once, int(measured.sum())) < BLOCKS * LEAST_IN_BLOCK:
        return ()
    place = np.empty(len(measured), dtype=np.int64)
    place[np.argsort(table["arrival_ns"], kind="stable")] = np.arange(len(measured))
    part_of = (place % once) * BLOCKS // once
    found = []
    for part in range(BLOCKS):
        rest = measured & (part_of != part)
        counted = (table["status"] == rec.FINISHED) & rest
        latencies = latencies_of(facts.record, table, counted, inputs)
        slo = slo_results(latencies, table, counted, int((rest & ~counted).sum()), inputs)
        summary = metrics.summary.of_others(latencies, slo)
        found.append(tuple(_margin(term, summary) for term in asked))
    return tuple(found)


def _margin(term: SloTerm, summary: Summary) -> float:
    if term == QUEUE:
        return -0.5 if summary.saturated else 0.5
    if term == SERVED:
        return SERVED_SHARE - _lost_share(summary.num_requests)
    assert term.target_ms is not None
    assert summary.slo is not None
    found = summary.slo[term.metric][term.stat]
    if found.share_within is not None:
        return found.share_within - float(term.stat[1:]) / 100
    if found.value_ms is not None:
        return 1.0 - found.value_ms / term.target_ms
    if summary.e2e_ms.mean is not None and summary.latency(term.metric).reason is None:
        # Requests finished, and none of them has the metric (all answers are of one token), so nobody misses it.
        return 1.0 if term.allowed is None else term.allowed
    # Nothing finished, so nobody is within the target.
    return -1.0 if term.stat == "mean" else -float(term.stat[1:]) / 100


def _lost_share(counts: RequestCounts) -> float:
    """Of the requests that could be served, those that were refused, gave up or did not end."""
    return (counts.refused + counts.aborted + counts.unfinished) / max(1, counts.arrived - counts.rejected)


# --- waiting
WAITS = ("waiting", "slots", "kv", "budget", "turn", "full", "peak_running", "peak_kv", "tail_queued")
"""What `waits` tells."""

FULL_BUDGET = 0.95
"""Share of the token budget from which on a step counts as full."""


def waits(facts: RunFacts, metrics: RunMetrics, setup: Setup) -> dict[str, float]:
    """Shares of the time from the first measured arrival on, all replicas together: what a waiting request waits for.

    `waiting`: somebody waits; of this `slots`: all slots are taken; else `kv`: free memory is less than a mean prompt;
    else `budget`: the step is full of tokens; else `turn`: for the next step. `full`: a step is full of tokens,
    whether or not somebody waits. `peak_running` and `peak_kv` are no shares of time but the most sequences of a
    replica, and the largest share of its memory. `tail_queued`: of the TTFT of the slowest 1 % of requests, the share
    that passed before they were first scheduled.
    """
    spans = facts.record.spans.to_dict()
    engine = setup.scenario.engine
    requests = metrics.requests
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
    ttft, queue = (values_ns(requests, latency)[counted] for latency in ("ttft_ms", "queue_ms"))
    slow = ttft >= np.percentile(ttft, 99)
    return int(queue[slow].sum()) / max(1, int(ttft[slow].sum()))


# --- hopeless runs
WAIT_FACTOR = 4.0
"""A queue that takes so many times the largest time limit to serve holds more requests than may be late."""

QUEUE_SHARE, FREE_QUEUE_SHARE, LEAST_QUEUE = 0.02, 0.1, 64
"""Of the run's requests, those that may wait at once: with a limit on TTFT or E2E, without one, and at least."""


def most_in_system(setup: Setup, rate_per_s: float) -> int | None:
    """Requests in the system from which on the run is overload: all slots taken (twice over where a batch forms while
    another is served), and a queue behind them."""
    scenario = setup.scenario
    if scenario.slo is None or not run_length.can_grow(scenario) or scenario.workload.trace is not None:
        return None
    slo = scenario.slo.model_dump(exclude_none=True)
    limits_ms = [value for metric in ("ttft_ms", "e2e_ms") for value in slo.get(metric, {}).values()]
    share = QUEUE_SHARE if limits_ms else FREE_QUEUE_SHARE
    queue = max(share * _num_requests(setup, rate_per_s), WAIT_FACTOR * rate_per_s * max(limits_ms, default=0) / 1000)
    slots = setup.max_num_active_seqs * scenario.replicas * (1 if scenario.engine.batching == "continuous" else 2)
    return slots + max(LEAST_QUEUE, math.ceil(queue))


def _num_requests(setup: Setup, rate_per_s: float) -> float:
    workload = setup.scenario.workload
    return workload.num_requests or rate_per_s * (workload.duration_s or 0.0)


def most_measured(setup: Setup, rate_per_s: float) -> int:
    """Requests that the whole run would have measured."""
    warmup = setup.scenario.warmup
    left_out = 0.0
    if isinstance(warmup, WarmupRequests):
        left_out = warmup.requests
    elif isinstance(warmup, WarmupSeconds):
        left_out = rate_per_s * warmup.seconds
    return max(1, round(_num_requests(setup, rate_per_s) - left_out))
