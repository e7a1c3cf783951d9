"""The metrics, each defined once: from the facts of a run to the numbers of ``summary.json``.

Knows no engine. Definitions in words: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simkit.metrics import record as rec
from simkit.metrics.catalogue import STATS
from simkit.metrics.histogram import DurationHistogram
from simkit.metrics.inputs import NOT_STREAMED, PREFIX_UNKNOWN, SummaryInputs, ratio
from simkit.metrics.int_sums import total
from simkit.metrics.latencies import count_from_sending, defined, values_ns
from simkit.metrics.record import Record
from simkit.metrics.slo import goodput, slo_results
from simkit.metrics.summary import (
    Extrapolated,
    GpuUse,
    KvShare,
    KvUse,
    LatencyStats,
    ReplicaUse,
    RequestCounts,
    Summary,
    Warmup,
)
from simkit.metrics.warmup import leave_out
from simkit.metrics.window import makespan, measured_window, rates
from simkit.types import Bools, Floats, Ints
from simkit.units import ns_to_ms, ns_to_s

PERCENTILES = tuple(int(stat[1:]) for stat in STATS if stat != "mean")

MIN_GROWTH = 0.02
"""Waiting requests added per arrival: 2 % more arrivals than capacity."""

MIN_EXPLAINED = 0.5
"""Share of the variance of the queue that the trend must explain."""

MIN_REQUESTS = 100


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
    growth = _growth(table, inputs)
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
        kv=_kv(record, inputs, busy_ns),
        prefix_cache_hit_rate=hit_rate,
        prefix_cache_hit_rate_reason=hit_rate_reason,
        gpu=_gpu(record, inputs, busy_ns),
        replicas=_replicas(record, table, inputs, busy_ns) if inputs.num_replicas > 1 else None,
        goodput_per_s=goodput_per_s,
        goodput_reason=goodput_reason,
        slo=slo_results(latencies, table, counted, num_missing, inputs),
        cost_per_million_output_tokens=_cost(throughput.output_tokens_per_s, inputs),
        saturated=growth is not None,
        saturation_reason=None
        if growth is None
        else f"the queue grows: of every 100 requests that arrive, {100 * growth:.0f} stay behind",
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


def latencies_of(
    record: Record, table: dict[str, Ints], counted: Bools, inputs: SummaryInputs
) -> Mapping[str, LatencyStats]:
    """Statistics of each latency over the counted requests; gaps between tokens are pooled over the whole run."""

    def stats(metric: str) -> LatencyStats:
        return stats_ms(values_ns(table, metric)[counted & defined(table, metric)])

    return {
        "ttft_ms": stats("ttft_ms"),
        "tpot_ms": stats("tpot_ms") if inputs.stream else LatencyStats(reason=NOT_STREAMED),
        "itl_ms": pooled_stats_ms(record.itl) if inputs.stream else LatencyStats(reason=NOT_STREAMED),
        "e2e_ms": stats("e2e_ms"),
        "queue_ms": stats("queue_ms"),
    }


def stats_ms(values_ns: Ints | Floats) -> LatencyStats:
    """Mean and percentiles in ms (numpy "linear"); all are None where there is nothing to describe."""
    if not len(values_ns):
        return LatencyStats()
    percentiles = np.percentile(values_ns, PERCENTILES)
    whole = total(values_ns.astype(np.int64)) if values_ns.dtype == np.int64 else float(values_ns.sum())
    return LatencyStats(ns_to_ms(whole / len(values_ns)), *(ns_to_ms(float(value)) for value in percentiles))


def pooled_stats_ms(durations: DurationHistogram) -> LatencyStats:
    """Mean and percentiles in ms of pooled durations, exact to the width of their bins."""
    mean = durations.mean_ns()
    if mean is None:
        return LatencyStats()
    return LatencyStats(ns_to_ms(mean), *(ns_to_ms(durations.percentile_ns(p) or 0.0) for p in PERCENTILES))


def _kv(record: Record, inputs: SummaryInputs, span_ns: int) -> KvUse:
    """Shares of KV memory, weighted by time: of the pool, and of what was allocated (used + reserved + internal)."""
    totals = record.totals
    pool = inputs.capacity_tokens * inputs.num_replicas * span_ns

    def share(part_ns: int) -> KvShare:
        return KvShare(ratio(part_ns, pool), ratio(part_ns, totals.kv_allocated_ns))

    used = share(totals.kv_used_ns)
    return KvUse(
        capacity_tokens=inputs.capacity_tokens,
        num_gpu_blocks=inputs.num_gpu_blocks,
        utilization=used.share_of_pool,
        used=used,
        reserved=share(totals.kv_allocated_ns - totals.kv_used_ns - totals.kv_internal_ns),
        internal=share(totals.kv_internal_ns),
        external=share(totals.kv_external_ns),
        peak_tokens=totals.kv_peak_tokens,
    )


def _hit_rate(table: dict[str, Ints], counted: Bools, inputs: SummaryInputs) -> tuple[float | None, str | None]:
    """The share of prompt tokens that were found in the cache, and why it is not known where nobody knows which prompts
    are alike: it is not 0 then."""
    if not inputs.prefix_caching:
        return None, None
    if not inputs.prefix_known:
        return None, PREFIX_UNKNOWN
    cached, prompts = (int(table[name][counted].sum()) for name in ("cached_tokens", "prompt_tokens"))
    return ratio(cached, prompts), None


def _gpu(record: Record, inputs: SummaryInputs, span_ns: int) -> GpuUse:
    totals, n = record.totals, inputs.num_replicas
    flops, rate = inputs.peak_flops_per_s, inputs.peak_bytes_per_s
    seconds = ns_to_s(span_ns) * n
    return GpuUse(
        busy=ratio(totals.gpu_ns, span_ns * n),
        mfu=None if flops is None else ratio(totals.flops, flops * seconds),
        mbu=None if rate is None else ratio(totals.moved_bytes, rate * seconds),
        extrapolated=_extrapolated(totals.extrapolated_ns, totals.gpu_ns),
    )


def _replicas(record: Record, table: dict[str, Ints], inputs: SummaryInputs, span_ns: int) -> tuple[ReplicaUse, ...]:
    finished = table["status"] == rec.FINISHED
    served, tokens = table["replica"][finished], table["output_tokens"][finished]
    return tuple(
        ReplicaUse(
            index=index,
            requests=int((served == index).sum()),
            output_tokens=int(tokens[served == index].sum()),
            busy=ratio(record.gpu_ns_of.get(index, 0), span_ns),
        )
        for index in range(inputs.num_replicas)
    )


def _extrapolated(parts_ns: Mapping[str, int], gpu_ns: int) -> Extrapolated | None:
    if not parts_ns:
        return None
    return Extrapolated(ratio(sum(parts_ns.values()), gpu_ns), {k: ratio(ns, gpu_ns) for k, ns in parts_ns.items()})


def _cost(output_tokens_per_s: float | None, inputs: SummaryInputs) -> float | None:
    """Price of all GPUs for a million output tokens: price an hour / (tokens a second x 3600) x 10^6."""
    if inputs.price_per_hour is None or not output_tokens_per_s:
        return None
    return inputs.price_per_hour / (output_tokens_per_s * 3600) * 1e6


def _growth(table: dict[str, Ints], inputs: SummaryInputs) -> float | None:
    """Requests that stay behind for each that arrives, over all that ever waited; None where the queue does not grow. A
    closed loop cannot outgrow its clients."""
    if not inputs.open_loop:
        return None
    waited = (table["status"] != rec.REJECTED) & (table["status"] != rec.REFUSED)
    arrival, scheduled = table["arrival_ns"][waited], table["first_scheduled_ns"][waited]
    order = np.argsort(arrival, kind="stable")
    return queue_growth(arrival[order], np.where(scheduled >= 0, scheduled, table["left_ns"][waited])[order])


def queue_growth(arrival_ns: Ints, served_ns: Ints) -> float | None:
    """Requests added to the queue per arrival when an open-loop run is saturated, else None.

    The number of requests that wait is regressed on time, so the answer does not depend on who is served first. In a
    stable run it has no trend; when requests arrive faster than they are served it grows by (1 - capacity / rate) an
    arrival.

    `arrival_ns` ascending; `served_ns` is when each request stopped waiting (first scheduled, or gave up). Judged on
    the later half of the arrivals, at least `MIN_REQUESTS` of them.
    """
    count = len(arrival_ns)
    half = count // 2
    if count - half < MIN_REQUESTS or arrival_ns[-1] == arrival_ns[half]:
        return None
    waiting = np.arange(1, count + 1) - np.searchsorted(np.sort(served_ns), arrival_ns, side="right")
    time = (arrival_ns[half:] - arrival_ns[half]).astype(np.float64)
    queue = waiting[half:].astype(np.float64)
    time_off, queue_off = time - time.mean(), queue - queue.mean()
    variance = float((queue_off * queue_off).sum())
    if variance == 0.0:
        return None
    covariance, spread = float((time_off * queue_off).sum()), float((time_off * time_off).sum())
    explained = covariance * covariance / (spread * variance)
    growth = covariance / spread * float(time[-1]) / (count - half - 1)
    return growth if growth >= MIN_GROWTH and explained >= MIN_EXPLAINED else None
