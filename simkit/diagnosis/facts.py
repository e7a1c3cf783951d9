"""The numbers of a run that rules look at: some from its summary, the others counted once from its tables.

Times are weighted by step time over all replicas and replications.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simkit.diagnosis.thresholds import BUDGET_FULL, MEMORY_FULL
from simkit.metrics.catalogue import value
from simkit.units import NS_PER_MS

Table = Mapping[str, npt.NDArray[Any]]
Floats = npt.NDArray[np.float64]

REQUEST_COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "num_preemptions", "status", "replication")
STEP_COLUMNS = (
    "replication",
    "t_start_ns",
    "t_end_ns",
    "num_steps",
    "num_decode",
    "prefill_tokens",
    "running",
    "waiting",
    "kv_free_tokens",
    "kv_external_tokens",
)


@dataclass(frozen=True, slots=True)
class Waits:
    """Shares of step time. `slots`, `memory` and `budget` say what kept the waiting out; they add up to `anyone`.

    `crowded`: somebody waits or every slot is taken; `budget_used_up`: in steps that leave no tokens to others and
    compute at least as many prompt tokens as others.
    """

    anyone: float
    slots: float
    memory: float
    budget: float
    crowded: float
    budget_used_up: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of all requests, in tokens. `held` is the mean length of a running sequence, averaged over time."""

    prompt_mean: float
    prompt_p50: float
    prompt_p99: float
    longest: int
    held: float | None


@dataclass(frozen=True, slots=True)
class Ends:
    """How requests ended, in numbers of all replications, and what is known of those that were rejected.

    `too_long` are rejected prompts that are not shorter than max_model_len, `longest_rejected` the longest in tokens.
    """

    finished: int = 0
    rejected: int = 0
    refused: int = 0
    aborted: int = 0
    unfinished: int = 0
    too_long: int = 0
    longest_rejected: int = 0

    @property
    def arrived(self) -> int:
        """All requests."""
        return self.finished + self.rejected + self.refused + self.aborted + self.unfinished

    def share(self, count: int) -> float | None:
        """A number of requests over all; None without any."""
        return over(count, self.arrived)


@dataclass(frozen=True, slots=True)
class Facts:
    """One finished run. `manifest` and `summary` are the content of its JSON files.

    `last_ns` is when the last request came or the last step ended, in the longest replication. `mixed_step_ms` and
    `decode_step_ms` are the mean durations of steps with and without prompt tokens. `again` is the tokens of prompts
    and answers that were computed again after a preemption, over those of all prompts.
    """

    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    num_requests: int
    ends: Ends
    last_ns: int
    waits: Waits
    lengths: Lengths
    running_mean: float | None
    busy_share: float | None
    mixed_step_ms: float | None
    decode_step_ms: float | None
    preempted_share: float | None
    preemptions_a_request: float | None
    most_preemptions: int
    again: float | None

    def value(self, key: str) -> Any:
        """The value at a dotted key of the summary, None where any part of it is missing."""
        return value(self.summary, key)

    def setting(self, key: str) -> Any:
        """The value at a dotted key of the resolved scenario, None where any part of it is missing."""
        return value(self.manifest, f"scenario.{key}")

    def objective(self, metric: str, key: str) -> float | None:
        """What the SLO asks of a statistic of a latency, in ms."""
        found = self.setting(f"slo.{metric}.{key}")
        return None if found is None else float(found)

    def ratio(self, metric: str, above: str = "p99", below: str = "p50") -> float | None:
        """One statistic of a latency over another."""
        return over(self.value(f"{metric}.{above}"), self.value(f"{metric}.{below}"))

    def missed(self, metric: str) -> dict[str, Mapping[str, Any]]:
        """The values of the SLO that a statistic of those who finished is above, by its key: ``p99``, ``mean``.

        An SLO counts requests that never finished as misses; what these waited for is nothing a latency tells.
        """
        return {
            str(key): result
            for key, result in (self.value(f"slo.{metric}") or {}).items()
            if result.get("met") is False
            and result.get("value_ms") is not None
            and result["value_ms"] > result["target_ms"]
        }

    @property
    def continuous(self) -> bool:
        """Whether the batch is decided anew in every step."""
        return bool(self.setting("engine.batching") == "continuous")

    @property
    def paged(self) -> bool:
        """Whether KV memory comes in blocks."""
        return bool(self.setting("engine.kv_allocator") == "paged")

    @property
    def slots(self) -> int:
        """Slots of a replica that may be used at once."""
        return _slots(self.manifest)

    @property
    def fits(self) -> float | None:
        """Sequences of the mean length that the KV memory of a replica holds."""
        return over(self.value("kv.capacity_tokens"), self.lengths.held)


def over(part: float | None, whole: float | None) -> float | None:
    """`part` / `whole`; None where either is missing or there is no whole."""
    return None if part is None or not whole else part / whole


def gather(manifest: Mapping[str, Any], summary: Mapping[str, Any], requests: Table, steps: Table) -> Facts:
    """The facts of a run; its tables need `REQUEST_COLUMNS` and `STEP_COLUMNS`."""
    prompts, outputs = _column(requests, "prompt_tokens"), _column(requests, "output_tokens")
    lasted = _column(steps, "t_end_ns") - _column(steps, "t_start_ns")
    each, prefill = _column(steps, "num_steps"), _column(steps, "prefill_tokens")
    mixed = prefill > 0
    count, preempted = len(prompts), _column(requests, "num_preemptions")
    needed = float(prompts.sum()) * (1 - (value(summary, "prefix_cache_hit_rate") or 0.0))
    return Facts(
        manifest=manifest,
        summary=summary,
        num_requests=count,
        ends=_ends(manifest, requests, prompts),
        last_ns=int(max(_column(requests, "arrival_ns").max(initial=0), _column(steps, "t_end_ns").max(initial=0))),
        waits=_waits(manifest, summary, steps, lasted),
        lengths=_lengths(prompts, outputs),
        running_mean=over(float((_column(steps, "running") * lasted).sum()), float(lasted.sum())),
        busy_share=_busy(manifest, summary, requests, steps, lasted),
        mixed_step_ms=_mean_ms(lasted[mixed], each[mixed]),
        decode_step_ms=_mean_ms(lasted[~mixed], each[~mixed]),
        preempted_share=over(float((preempted > 0).sum()), count),
        preemptions_a_request=over(float(preempted.sum()), count),
        most_preemptions=int(preempted.max(initial=0)),
        again=over(max(0.0, float(prefill.sum()) - needed), needed) if preempted.any() else 0.0,
    )


def _waits(manifest: Mapping[str, Any], summary: Mapping[str, Any], steps: Table, lasted: Floats) -> Waits:
    waiting = _column(steps, "waiting") > 0
    taken = _column(steps, "running") >= _slots(manifest)
    capacity = float(value(summary, "kv.capacity_tokens") or 0)
    left = _column(steps, "kv_free_tokens") - _column(steps, "kv_external_tokens")
    kept_free = float(value(manifest, "scenario.engine.watermark") or 0.0)
    full = left < (MEMORY_FULL.value + kept_free) * capacity
    budget = float(value(manifest, "scenario.engine.max_num_batched_tokens") or np.inf)
    a_step = _column(steps, "prefill_tokens") / np.maximum(_column(steps, "num_steps"), 1)
    decodes = _column(steps, "num_decode")
    used_up = (a_step + decodes >= BUDGET_FULL.value * budget) & (a_step >= decodes)
    total = float(lasted.sum())

    def share(mask: npt.NDArray[Any]) -> float:
        return float(lasted[mask].sum()) / total if total else 0.0

    return Waits(
        anyone=share(waiting),
        slots=share(waiting & taken),
        memory=share(waiting & ~taken & full),
        budget=share(waiting & ~taken & ~full),
        crowded=share(waiting | taken),
        budget_used_up=share(used_up),
    )


def _ends(manifest: Mapping[str, Any], requests: Table, prompts: Floats) -> Ends:
    status = np.asarray(requests["status"])
    rejected = prompts[status == "rejected"]
    limit = value(manifest, "scenario.engine.max_model_len")
    kinds = ("finished", "rejected", "refused", "aborted", "unfinished")
    return Ends(
        **{kind: int((status == kind).sum()) for kind in kinds},
        too_long=0 if limit is None else int((rejected >= limit).sum()),
        longest_rejected=int(rejected.max(initial=0)),
    )


def _lengths(prompts: Floats, outputs: Floats) -> Lengths:
    if not len(prompts):
        return Lengths(0.0, 0.0, 0.0, 0, None)
    middle, tail = np.percentile(prompts, (50, 99))
    # A sequence runs for as many steps as it has answer tokens, and is on average half of its answer long.
    held = over(float((outputs * (prompts + outputs / 2)).sum()), float(outputs.sum()))
    return Lengths(float(prompts.mean()), float(middle), float(tail), int((prompts + outputs).max()), held)


def _busy(
    manifest: Mapping[str, Any], summary: Mapping[str, Any], requests: Table, steps: Table, lasted: Floats
) -> float | None:
    """GPU busy over the share of time in which there were steps at all, as a mean over replications.

    Time goes on as long as steps do, also for clients that have given up, as it does for GPU busy.
    """
    busy, span = value(summary, "gpu.busy"), value(summary, "makespan_s")
    replicas = value(manifest, "scenario.replicas") or 1
    if busy is None or not span:
        return None
    arrivals, ends = _column(requests, "arrival_ns"), _column(steps, "t_end_ns")
    of_request, of_step = _column(requests, "replication"), _column(steps, "replication")
    shares = []
    for replication in np.unique(of_step):
        own = of_step == replication
        inside_ns = ends[own].max() - arrivals[of_request == replication].min(initial=np.inf)
        shares.append(min(1.0, float(lasted[own].sum()) / (inside_ns * replicas)))
    return over(busy, float(np.mean(shares))) if shares else None


def _mean_ms(lasted: Floats, num_steps: Floats) -> float | None:
    mean_ns = over(float(lasted.sum()), float(num_steps.sum()))
    return None if mean_ns is None else mean_ns / NS_PER_MS


def _slots(manifest: Mapping[str, Any]) -> int:
    engine = value(manifest, "scenario.engine") or {}
    limits = [engine.get(key) for key in ("max_num_seqs", "max_num_active_seqs")]
    return min((int(limit) for limit in limits if limit is not None), default=1 << 31)


def _column(table: Table, name: str) -> Floats:
    """A column as floats, missing values 0."""
    return np.nan_to_num(np.asarray(table[name], dtype=np.float64))
