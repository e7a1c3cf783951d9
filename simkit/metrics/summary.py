"""The numbers of one replication, typed and computed: what ``summary.json`` holds, field by field in its order.

`Summary` lists them and `summarise` computes them from the facts of a run; what belongs together has a module of its
own, with its type. A field that is `optional` has no key where it has no value; every other missing value is null.
Knows no engine. Definitions in words: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simkit.metrics import record as rec
from simkit.metrics.inputs import PREFIX_UNKNOWN, SummaryInputs, ratio
from simkit.metrics.latencies import LatencyStats, count_from_sending, latencies_of
from simkit.metrics.record import Record
from simkit.metrics.saturation import growth
from simkit.metrics.slo import Slo, goodput, slo_results
from simkit.metrics.usage import GpuUse, KvUse, ReplicaUse, gpu_use, kv_use, replica_uses
from simkit.metrics.window import Rates, Warmup, leave_out, makespan, measured_window, rates
from simkit.plain import optional
from simkit.types import Bools, Ints
from simkit.units import ns_to_s


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests arrived, and how they ended: none is dropped from the count."""

    arrived: int
    finished: int
    rejected: int
    refused: int
    aborted: int
    unfinished: int


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
class RunMetrics:
    """Summary of one replication and the request table behind it (sorted by id, -1 = undefined)."""

    summary: Summary
    requests: dict[str, Ints]
    warmup: Warmup


def summarise(record: Record, inputs: SummaryInputs) -> RunMetrics:
    """Compute the numbers of one replication from its facts."""
    table = record.requests.sort("id")
    count_from_sending(table, inputs.path_ns)
    finished = table["status"] == rec.FINISHED
    measured, warmup = leave_out(table, finished, inputs)
    table["measured"] = measured.astype(np.int64)
    counted = finished & measured
    whole, window = makespan(table, finished), measured_window(table, finished, measured, finite=inputs.finite)
    busy_ns = _busy_span_ns(table, record, whole.length_ns)
    throughput, latencies = rates(table, finished, window), latencies_of(record, table, counted, inputs)
    num_missing = int((measured & ~finished).sum()) + record.num_arrived - len(measured)
    queue_grows = growth(table, inputs)
    hit_rate, hit_rate_reason = _hit_rate(table, counted, inputs)
    goodput_per_s, goodput_reason = goodput(table, finished, window, inputs)
    summary = Summary(
        num_requests=_counts(record, table),
        num_truncated=int((finished & (table["output_tokens"] < table["wanted_tokens"])).sum()),
        makespan_s=ns_to_s(whole.length_ns) if whole.length_ns else None,
        makespan_throughput=rates(table, finished, whole),
        window_s=ns_to_s(window.length_ns) if window.length_ns else None,
        throughput=throughput,
        concurrency_mean=window.concurrency,
        slot_utilization=ratio(record.totals.live_slot_ns, inputs.max_num_seqs * record.totals.busy_ns),
        slot_occupancy=ratio(record.totals.held_slot_ns, inputs.max_num_seqs * record.totals.busy_ns),
        ttft_ms=latencies["ttft_ms"],
        tpot_ms=latencies["tpot_ms"],
        itl_ms=latencies["itl_ms"],
        e2e_ms=latencies["e2e_ms"],
        queue_ms=latencies["queue_ms"],
        num_preemptions=int(table["num_preemptions"].sum()),
        num_requeued=record.num_requeued,
        num_steps=record.totals.num_steps,
        kv=kv_use(record, inputs, busy_ns),
        prefix_cache_hit_rate=hit_rate,
        prefix_cache_hit_rate_reason=hit_rate_reason,
        gpu=gpu_use(record, inputs, busy_ns),
        replicas=replica_uses(record, table, inputs, busy_ns) if inputs.num_replicas > 1 else None,
        goodput_per_s=goodput_per_s,
        goodput_reason=goodput_reason,
        slo=slo_results(latencies, table, counted, num_missing, inputs),
        cost_per_million_output_tokens=_cost(throughput.output_tokens_per_s, inputs),
        saturated=queue_grows is not None,
        saturation_reason=None
        if queue_grows is None
        else f"the queue grows: of every 100 requests that arrive, {100 * queue_grows:.0f} stay behind",
        latency_source=inputs.latency_source,
        not_simulated=inputs.not_simulated,
    )
    return RunMetrics(summary, table, warmup)


def _counts(record: Record, table: dict[str, Ints]) -> RequestCounts:
    ends = np.bincount(table["status"], minlength=len(rec.STATUS_NAMES)).tolist()
    ends[rec.UNFINISHED] += record.num_arrived - len(table["id"])
    return RequestCounts(record.num_arrived, *ends)


def _busy_span_ns(table: dict[str, Ints], record: Record, span_ns: int) -> int:
    """The time over which shares are taken: from the first arrival to the last delivery, or to the end of the last step
    if that is later. The two differ only where the engine goes on working for clients that have given up."""
    ends = record.spans.to_dict()["t_end_ns"]
    return max(span_ns, int(ends.max() - table["arrival_ns"].min())) if len(ends) else span_ns


def _hit_rate(table: dict[str, Ints], counted: Bools, inputs: SummaryInputs) -> tuple[float | None, str | None]:
    """The share of prompt tokens that were found in the cache, and why it is not known where nobody knows which prompts
    are alike: it is not 0 then."""
    if not inputs.prefix_caching:
        return None, None
    if not inputs.prefix_known:
        return None, PREFIX_UNKNOWN
    cached, prompts = (int(table[name][counted].sum()) for name in ("cached_tokens", "prompt_tokens"))
    return ratio(cached, prompts), None


def _cost(output_tokens_per_s: float | None, inputs: SummaryInputs) -> float | None:
    """Price of all GPUs for a million output tokens: price an hour / (tokens a second x 3600) x 10^6."""
    if inputs.price_per_hour is None or not output_tokens_per_s:
        return None
    return inputs.price_per_hour / (output_tokens_per_s * 3600) * 1e6
