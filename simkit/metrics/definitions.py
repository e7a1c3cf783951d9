"""The metrics, each defined once: from the facts of a run to the numbers of ``summary.json``.

Imports `metrics.record` and numpy; knows no engine. Definitions in words: README, "What the numbers mean".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simkit.metrics import record as rec
from simkit.metrics.exact import total
from simkit.metrics.record import Record
from simkit.metrics.saturation import queue_growth
from simkit.metrics.slo import goodput, slo_results
from simkit.metrics.terms import NOT_STREAMED, PREFIX_UNKNOWN, Bools, Terms, gaps, measured_span_ns, ratio
from simkit.metrics.warmup import mser5
from simkit.types import Floats, Ints
from simkit.units import NS_PER_S, ns_to_ms, ns_to_s

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Summary of one replication and the request table behind it (sorted by id, -1 = undefined)."""

    summary: dict[str, Any]
    requests: dict[str, Ints]
    warmup: dict[str, Any]


def summarise(record: Record, terms: Terms) -> Outcome:
    """Numbers of one replication."""
    table = record.requests.sort("id")
    if terms.first_token_ns:
        # From here on a request counts from when its client sent it.
        table["arrival_ns"] = table["arrival_ns"] - terms.first_token_ns
    finished = table["status"] == rec.FINISHED
    measured, warmup = _measured(table, finished, terms.warmup)
    table["measured"] = measured.astype(np.int64)
    counted = finished & measured
    span_ns = _makespan_ns(table, finished)
    window_ns = _window_ns(table, record, span_ns)
    growth = _growth(table, terms)
    summary: dict[str, Any] = {
        "num_requests": _counts(record, table),
        "num_truncated": int((finished & (table["output_tokens"] < table["wanted_tokens"])).sum()),
        "makespan_s": ns_to_s(span_ns) if span_ns else None,
        "throughput": _throughput(table, counted, measured),
        "concurrency_mean": ratio(_residence_ns(table, finished), span_ns),
        "slot_utilization": ratio(record.totals.live_slot_ns, terms.max_num_seqs * record.totals.busy_ns),
        "slot_occupancy": ratio(record.totals.held_slot_ns, terms.max_num_seqs * record.totals.busy_ns),
        **_latencies(record, table, counted, terms),
        "num_preemptions": int(table["num_preemptions"].sum()),
        **({} if record.num_requeued is None else {"num_requeued": record.num_requeued}),
        "num_steps": record.totals.num_steps,
        "kv": _kv(record, terms, window_ns),
        **_hit_rate(table, counted, terms),
        "gpu": _gpu(record, terms, window_ns),
        **({} if terms.num_replicas == 1 else {"replicas": _replicas(record, table, terms, window_ns)}),
        **goodput(table, counted, measured, terms),
        "slo": slo_results(record, table, counted, measured, terms),
        "cost_per_million_output_tokens": _cost(table, finished, terms, span_ns),
        "saturated": growth is not None,
        "saturation_reason": None
        if growth is None
        else f"the queue grows: of every 100 requests that arrive, {100 * growth:.0f} stay behind",
        "latency_source": terms.latency_source,
        "not_simulated": list(terms.not_simulated),
    }
    return Outcome(summary, table, warmup)


def _counts(record: Record, table: dict[str, Ints]) -> dict[str, int]:
    counts = {"arrived": record.num_arrived}
    for status, name in enumerate(rec.STATUS_NAMES):
        counts[name] = int((table["status"] == status).sum())
    counts["unfinished"] += record.num_arrived - len(table["id"])
    return counts


def _measured(table: dict[str, Ints], finished: Bools, warmup: str | tuple[str, float]) -> tuple[Bools, dict[str, Any]]:
    """Which requests count, and what was done about warm-up (with the MSER-5 proposal, always)."""
    arrival = table["arrival_ns"]
    e2e = (table["last_token_ns"] - arrival)[finished].astype(np.float64)
    proposal = mser5(e2e)
    if warmup == "none":
        method, measured = "none", np.ones(len(arrival), dtype=bool)
    elif warmup == "mser5":
        finished_before: Ints = np.cumsum(finished) - finished
        method, measured = "mser5", np.asarray(finished_before >= (proposal or 0))
    else:
        assert not isinstance(warmup, str), warmup
        kind, value = warmup
        method = f"first {value:g} {kind}"
        measured = table["id"] >= value if kind == "requests" else arrival >= value * NS_PER_S
    note = None if proposal is not None else "MSER-5 finds no steady state: its cut lies at half of the run"
    dropped = int((~measured).sum())
    return measured, {"method": method, "dropped_requests": dropped, "mser5_proposal_requests": proposal, "note": note}


def _makespan_ns(table: dict[str, Ints], finished: Bools) -> int:
    """First arrival to last delivery."""
    if not finished.any():
        return 0
    return int(table["last_token_ns"][finished].max() - table["arrival_ns"].min())


def _window_ns(table: dict[str, Ints], record: Record, span_ns: int) -> int:
    """Time over which shares are taken: first arrival to last delivery, or to the end of the last step if later.

    They differ only where work goes on for clients that have given up.
    """
    ends = record.spans.to_dict()["t_end_ns"]
    return max(span_ns, int(ends.max() - table["arrival_ns"].min())) if len(ends) else span_ns


def _throughput(table: dict[str, Ints], counted: Bools, measured: Bools) -> dict[str, float | None]:
    """Finished measured requests over the time from the first measured arrival to their last delivery."""
    names = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
    span_ns = measured_span_ns(table, counted, measured)
    output = int(table["output_tokens"][counted].sum())
    both = output + int(table["prompt_tokens"][counted].sum())
    return {
        name: ratio(amount * NS_PER_S, span_ns)
        for name, amount in zip(names, (int(counted.sum()), output, both), strict=True)
    }


def _residence_ns(table: dict[str, Ints], finished: Bools) -> int:
    return total((table["last_token_ns"] - table["first_scheduled_ns"])[finished])


def _latencies(record: Record, table: dict[str, Ints], counted: Bools, terms: Terms) -> dict[str, Any]:
    arrival, first, last = (table[c][counted] for c in ("arrival_ns", "first_token_ns", "last_token_ns"))
    return {
        "ttft_ms": stats_ms(first - arrival),
        "tpot_ms": stats_ms(_tpot_ns(table, counted)) if terms.stream else _absent(NOT_STREAMED),
        "itl_ms": _itl(record) if terms.stream else _absent(NOT_STREAMED),
        "e2e_ms": stats_ms(last - arrival),
        "queue_ms": stats_ms(table["first_scheduled_ns"][counted] - arrival),
    }


def _tpot_ns(table: dict[str, Ints], counted: Bools) -> Floats:
    """(last - first token) / (n - 1) of requests with n > 1 tokens a sample; undefined for n = 1."""
    num_gaps = gaps(table)
    several = counted & (num_gaps > 0)
    return (table["last_token_ns"] - table["first_token_ns"])[several] / num_gaps[several]


def stats_ms(values_ns: Ints | Floats) -> dict[str, Any]:
    """Mean and percentiles in ms (numpy "linear"); None when there is nothing to describe."""
    if not len(values_ns):
        return _absent(None)
    percentiles = np.percentile(values_ns, PERCENTILES)
    whole = total(values_ns.astype(np.int64)) if values_ns.dtype == np.int64 else float(values_ns.sum())
    mean = whole / len(values_ns)
    return {"mean": ns_to_ms(mean)} | {
        f"p{p}": ns_to_ms(float(v)) for p, v in zip(PERCENTILES, percentiles, strict=True)
    }


def _absent(reason: str | None) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(("mean", *(f"p{p}" for p in PERCENTILES)))
    return empty if reason is None else empty | {"reason": reason}


def _itl(record: Record) -> dict[str, Any]:
    mean = record.itl.mean_ns()
    if mean is None:
        return _absent(None)
    values = {f"p{p}": ns_to_ms(record.itl.percentile_ns(p) or 0.0) for p in PERCENTILES}
    return {"mean": ns_to_ms(mean)} | values


def _kv(record: Record, terms: Terms, span_ns: int) -> dict[str, Any]:
    """Time-weighted shares: of the pool over all the time, of what was allocated over the same time."""
    totals = record.totals
    pool = terms.capacity_tokens * terms.num_replicas * span_ns
    reserved = totals.kv_allocated_ns - totals.kv_used_ns - totals.kv_internal_ns
    parts = {
        "used": totals.kv_used_ns,
        "reserved": reserved,
        "internal": totals.kv_internal_ns,
        "external": totals.kv_external_ns,
    }
    shares = {
        name: {"share_of_pool": ratio(part, pool), "share_of_allocated": ratio(part, totals.kv_allocated_ns)}
        for name, part in parts.items()
    }
    return {
        "capacity_tokens": terms.capacity_tokens,
        "num_gpu_blocks": terms.num_gpu_blocks,
        "utilization": shares["used"]["share_of_pool"],
        **shares,
        "peak_tokens": totals.kv_peak_tokens,
    }


def _hit_rate(table: dict[str, Ints], counted: Bools, terms: Terms) -> dict[str, Any]:
    """Share of the prompt tokens that were cached; unknown, not 0, where nobody knows which prompts are alike."""
    if not terms.prefix_caching:
        return {"prefix_cache_hit_rate": None}
    if not terms.prefix_known:
        return {"prefix_cache_hit_rate": None, "prefix_cache_hit_rate_reason": PREFIX_UNKNOWN}
    cached, prompts = (int(table[name][counted].sum()) for name in ("cached_tokens", "prompt_tokens"))
    return {"prefix_cache_hit_rate": ratio(cached, prompts)}


def _gpu(record: Record, terms: Terms, span_ns: int) -> dict[str, Any]:
    totals, n = record.totals, terms.num_replicas
    flops, rate = terms.peak_flops_per_s, terms.peak_bytes_per_s
    seconds = ns_to_s(span_ns) * n
    return {
        "busy": ratio(totals.gpu_ns, span_ns * n),
        "mfu": None if flops is None else ratio(totals.flops, flops * seconds),
        "mbu": None if rate is None else ratio(totals.moved_bytes, rate * seconds),
        "extrapolated": _extrapolated(totals.extrapolated_ns, totals.gpu_ns),
    }


def _replicas(record: Record, table: dict[str, Ints], terms: Terms, span_ns: int) -> list[dict[str, Any]]:
    """Who served how much: finished requests by the replica that finished them, with all their tokens."""
    finished = table["status"] == rec.FINISHED
    served, tokens = table["replica"][finished], table["output_tokens"][finished]
    return [
        {
            "index": index,
            "requests": int((served == index).sum()),
            "output_tokens": int(tokens[served == index].sum()),
            "busy": ratio(record.gpu_ns_of.get(index, 0), span_ns),
        }
        for index in range(terms.num_replicas)
    ]


def _extrapolated(parts_ns: Mapping[str, int], gpu_ns: int) -> dict[str, Any] | None:
    """Shares of GPU time that do not rest on measurements; None where the latency model measured nothing."""
    if not parts_ns:
        return None
    return {
        "share": ratio(sum(parts_ns.values()), gpu_ns),
        "parts": {k: ratio(ns, gpu_ns) for k, ns in parts_ns.items()},
    }


def _cost(table: dict[str, Ints], finished: Bools, terms: Terms, span_ns: int) -> float | None:
    """Price of all GPUs over the makespan per million output tokens; None without a price."""
    tokens = int(table["output_tokens"][finished].sum())
    if terms.price_per_hour is None or not tokens:
        return None
    return terms.price_per_hour * (ns_to_s(span_ns) / 3600) / (tokens / 1e6)


def _growth(table: dict[str, Ints], terms: Terms) -> float | None:
    """Judged on everybody who ever waited; a closed loop cannot outgrow its clients."""
    if not terms.open_loop:
        return None
    waited = (table["status"] != rec.REJECTED) & (table["status"] != rec.REFUSED)
    arrival, scheduled = table["arrival_ns"][waited], table["first_scheduled_ns"][waited]
    order = np.argsort(arrival, kind="stable")
    return queue_growth(arrival[order], np.where(scheduled >= 0, scheduled, table["left_ns"][waited])[order])
