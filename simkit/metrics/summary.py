"""The numbers of one replication, typed: what ``summary.json`` holds, field by field in its order.

A field that is `optional` has no key where it has no value; every other missing value is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from simkit.metrics.catalogue import STATS
from simkit.plain import optional


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests arrived, and how they ended: none is dropped from the count."""

    arrived: int
    finished: int
    rejected: int
    refused: int
    aborted: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Finished requests and their tokens a second."""

    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class LatencyStats:
    """Mean and percentiles of a latency in ms. `reason` says why a run cannot have it at all."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    _: KW_ONLY
    reason: str | None = optional()

    def stat(self, name: str) -> float | None:
        """The statistic of a name, as in STATS."""
        return self.by_stat[name]

    @property
    def by_stat(self) -> Mapping[str, float | None]:
        """All statistics by name."""
        return {name: getattr(self, name) for name in STATS}


@dataclass(frozen=True, slots=True)
class KvShare:
    """KV memory put to one use, averaged over time."""

    share_of_pool: float | None
    share_of_allocated: float | None


@dataclass(frozen=True, slots=True)
class KvUse:
    """KV memory: allocated = used + reserved + internal. `num_gpu_blocks` and capacity are of each replica."""

    capacity_tokens: int
    num_gpu_blocks: int | None
    utilization: float | None
    used: KvShare
    reserved: KvShare
    internal: KvShare
    external: KvShare
    peak_tokens: int


@dataclass(frozen=True, slots=True)
class Extrapolated:
    """The share of GPU time that does not rest on measurements, and its parts by what is extrapolated."""

    share: float | None
    parts: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Time, FLOPs and bytes of the GPUs, as shares of what they could have done; `extrapolated` is None where the
    latency model measured nothing."""

    busy: float | None
    mfu: float | None
    mbu: float | None
    extrapolated: Extrapolated | None


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """What one replica served: the requests that finished there, with all their tokens."""

    index: int
    requests: int
    output_tokens: int
    busy: float | None


@dataclass(frozen=True, slots=True)
class SloResult:
    """One value of the SLO and what the run gave. `met` is None where no counted request has the metric."""

    target_ms: float
    share_within: float | None
    value_ms: float | None
    met: bool | None


Slo = Mapping[str, Mapping[str, SloResult]]
"""Results by metric and statistic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All numbers of a replication; the catalogue says what those that are shown mean."""

    num_requests: RequestCounts
    num_truncated: int
    makespan_s: float | None
    makespan_throughput: Rates
    window_s: float | None
    throughput: Rates
    concurrency_mean: float | None
    slot_utilization: float | None
    slot_occupancy: float | None
    ttft_ms: LatencyStats
    tpot_ms: LatencyStats
    itl_ms: LatencyStats
    e2e_ms: LatencyStats
    queue_ms: LatencyStats
    num_preemptions: int
    num_requeued: int | None = optional()
    """Requests that failed replicas gave back; None where no replica can fail."""
    num_steps: int
    kv: KvUse
    prefix_cache_hit_rate: float | None
    prefix_cache_hit_rate_reason: str | None = optional()
    gpu: GpuUse
    replicas: tuple[ReplicaUse, ...] | None = optional()
    """None where there is one."""
    goodput_per_s: float | None
    goodput_reason: str | None
    slo: Slo | None
    cost_per_million_output_tokens: float | None
    saturated: bool
    saturation_reason: str | None
    latency_source: str
    not_simulated: tuple[str, ...]

    def latency(self, key: str) -> LatencyStats:
        """The latency of a key, as in LATENCIES."""
        found: LatencyStats = getattr(self, key)
        return found

    def of_others(self, latencies: Mapping[str, LatencyStats], slo: Slo | None) -> Summary:
        """The summary of the same run with the latencies and the SLO of another choice of its requests."""
        changes: dict[str, Any] = {**latencies, "slo": slo}
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Warmup:
    """Which requests at the start do not count, why (where the rule left it to simkit), and what MSER-5 proposes."""

    method: str
    why: str | None
    dropped_requests: int
    mser5_proposal_requests: int | None
    note: str | None
