"""Rules of requests without an answer: turned away, given up, left over, and replicas that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simkit.diagnosis import remedies
from simkit.diagnosis import thresholds as at
from simkit.diagnosis.facts import Facts, over
from simkit.diagnosis.findings import Advice, Evidence, Finding, Severity, Threshold
from simkit.units import ns_to_s

FINISHED = "num_requests.finished"
LOSSES: Mapping[str, Threshold] = {
    "rejected": at.REJECTED,
    "refused": at.REFUSED,
    "aborted": at.ABORTED,
    "unfinished": at.UNFINISHED,
}
"""Ways to end without an answer, by rule, which is also the word of the summary."""
Failure = Mapping[str, Any]


def replica_failed(facts: Facts) -> Finding | None:
    """A replica was down while there were requests."""
    failures = _in_time(facts)
    replicas, end_s = facts.setting("replicas") or 1, ns_to_s(facts.last_ns)
    down = over(sum(_until_s(failure, end_s) - failure["at_s"] for failure in failures), replicas * end_s)
    if not at.REPLICA_DOWN.crossed(down):
        return None
    requeued = over(facts.value("num_requeued"), facts.value("num_requests.arrived"))
    slo = (result for values in (facts.value("slo") or {}).values() for result in values.values())
    missed = any(result.get("met") is False for result in slo)
    left_over = facts.ends.unfinished
    lost = facts.ends.share(left_over + facts.ends.refused + facts.ends.aborted)
    severity: Severity = "warning" if at.REQUEUED.crossed(requeued) else "note"
    if left_over or missed or facts.value("saturated") or at.LOST.crossed(lost):
        severity = "serious"
    most = _most_at_once(failures, end_s)
    spare = spare_replicas(facts)
    served = "nobody is served" if most == replicas else f"{replicas - most} of {replicas} replicas serve all requests"
    return Finding(
        "replica-failed",
        severity,
        f"{_named(failures)}; meanwhile {served}. What else is found here may follow from it.",
        (
            at.REPLICA_DOWN.evidence(down),
            Evidence("requests returned to the queue", facts.value("num_requeued"), "requests"),
            at.REQUEUED.context(requeued),
            Evidence("requests unfinished", left_over, "requests"),
            Evidence("queue p99", facts.value("queue_ms.p99"), "ms"),
        ),
        (spare,) if spare else (),
        (FINISHED,) if left_over else ("ttft_ms.p99", FINISHED),
    )


def spare_replicas(facts: Facts) -> Advice | None:
    """As many replicas more as are down at once; None where none failed while there were requests."""
    failures = _in_time(facts)
    if not failures:
        return None
    most = _most_at_once(failures, ns_to_s(facts.last_ns))
    text = "Keep a spare replica" if most == 1 else f"Keep {most} spare replicas"
    replicas = facts.setting("replicas") or 1
    return Advice(f"{text}: the others then carry the load while one is down.", ({"replicas": replicas + most},))


def rejected(facts: Facts) -> Finding | None:
    """Requests that can never be served: their prompt or their memory is too large."""
    ends, longest, limit = facts.ends, facts.ends.longest_rejected, facts.setting("engine.max_model_len")
    too_long, too_large = ends.too_long, ends.rejected - ends.too_long
    reasons, counts, advice = [], [], []
    if too_long:
        reasons.append(f"{too_long:,} prompts are not shorter than max_model_len ({limit:,})")
        counts += [Evidence("prompts not shorter than max_model_len", too_long, "requests")]
        counts += [Evidence("longest rejected prompt", longest, "tokens"), Evidence("max_model_len", limit, "tokens")]
        advice += _longer_context(facts, longest, limit)
    if too_large:
        reasons.append(f"{too_large:,} sequences can never fit the KV memory")
        counts += [
            Evidence("sequences that can never fit the KV memory", too_large, "requests"),
            Evidence("KV memory of a replica", facts.value("kv.capacity_tokens"), "tokens"),
        ]
        advice += remedies.more_memory(facts)
    return _lost(facts, "rejected", f": {', and '.join(reasons)}", counts, advice)


def refused(facts: Facts) -> Finding | None:
    """Requests that found the queue full."""
    limit = facts.setting("workload.queue_limit")
    advice = _more_service(facts)
    if limit is not None:
        text = "Let more requests wait (queue_limit): nobody is refused for a burst, and everybody waits longer."
        advice.append(Advice(text, ({"workload.queue_limit": max(1, 4 * limit)}, {"workload.queue_limit": None})))
    counts = [
        Evidence("queue_limit", limit, "requests"),
        Evidence("time in which requests wait for a slot", facts.waits.slots, "share"),
        Evidence("time in which requests wait for KV memory", facts.waits.memory, "share"),
    ]
    why = "" if limit is None else f", because the queue of their replica was full (queue_limit {limit:,})"
    return _lost(facts, "refused", why, counts, advice)


def aborted(facts: Facts) -> Finding | None:
    """Clients that gave up."""
    timeout_s, waiting = facts.setting("workload.timeout_s"), facts.waits.anyone
    counts = [
        Evidence("clients wait for", timeout_s, "s"),
        Evidence("E2E p50 of those who finished", facts.value("e2e_ms.p50"), "ms"),
        at.FEW_WAIT.context(waiting),
        Evidence("time in which requests wait for a slot", facts.waits.slots, "share"),
        Evidence("time in which requests wait for KV memory", facts.waits.memory, "share"),
    ]
    after = "gave up" if timeout_s is None else f"gave up after {timeout_s:g} s (timeout_s)"
    text = "Clients that wait longer: without a timeout the run shows how long serving takes."
    longer = Advice(text, ({"workload.timeout_s": None},))
    if at.FEW_WAIT.crossed(waiting):
        why = f": clients {after} while hardly anybody waited, which is less than serving takes"
        advice = [longer]
    else:
        why, advice = f": clients {after}, in the queue or in the middle of their answer", _more_service(facts)
        advice.append(longer)
    return _lost(facts, "aborted", why, counts, advice)


def unfinished(facts: Facts) -> Finding | None:
    """Requests that are still there when nothing can happen any more."""
    failures = facts.setting("failures") or []
    replicas = facts.setting("replicas") or 1
    for_good = sum(failure.get("for_s") is None for failure in failures)
    counts = [Evidence("replicas", replicas, "replicas"), Evidence("failed for good", for_good, "replicas")]
    advice = [
        Advice("A spare replica takes over.", ({"replicas": replicas + 1},)),
        Advice("Or let the replica come back: give its entry of failures a for_s."),
    ]
    return _lost(facts, "unfinished", ": no replica was up any more", counts, advice)


def _lost(facts: Facts, rule: str, why: str, counts: Sequence[Evidence], advice: Sequence[Advice]) -> Finding | None:
    """The finding that requests got no answer, as grave as they are many; `why` goes on from the word for it."""
    bound, count = LOSSES[rule], int(getattr(facts.ends, rule))
    share = facts.ends.share(count)
    if not bound.crossed(share):
        return None
    severity: Severity = "warning" if at.LOST.crossed(share) else "note"
    if at.LOST_BADLY.crossed(share):
        severity = "serious"
    seen = "Latencies are of those that finished alone." if facts.ends.finished else "No request finished."
    return Finding(
        rule,
        severity,
        f"{count:,} of {facts.ends.arrived:,} requests were {rule}{why}. {seen}",
        (
            bound.evidence(share),
            Evidence(f"{bound.name}, number", count, "requests"),
            Evidence("requests finished", facts.ends.finished, "requests"),
            *counts,
        ),
        tuple(advice),
        (FINISHED,),
    )


def _longer_context(facts: Facts, longest: int, limit: int | None) -> list[Advice]:
    """max_model_len from the next power of two beyond the longest prompt up to what the model was trained for."""
    most = (facts.manifest.get("model") or {}).get("max_position")
    if most is None or limit is None:
        return []
    found = []
    if limit < most:
        lengths = dict.fromkeys((min(most, 1 << longest.bit_length()), most))
        candidates = []
        for length in lengths:
            settings: dict[str, Any] = {"engine.max_model_len": length}
            budget = facts.setting("engine.max_num_batched_tokens")
            if facts.setting("engine.enable_chunked_prefill") is False and budget is not None and budget < length:
                settings["engine.max_num_batched_tokens"] = length
            candidates.append(settings)
        text = f"Raise max_model_len: {facts.manifest['model'].get('name', 'the model')} reads up to {most:,} tokens."
        found.append(Advice(text, tuple(candidates)))
    if longest >= most:
        text = f"No setting serves prompts of {most:,} tokens or more: shorten them, or take a model of longer context."
        found.append(Advice(text))
    return found


def _more_service(facts: Facts) -> list[Advice]:
    """More slots where requests wait for these, and more replicas."""
    advice = []
    waits = facts.waits
    if waits.slots and waits.slots >= max(waits.memory, waits.budget) and facts.slots < (facts.fits or float("inf")):
        advice.append(remedies.more_slots(facts))
    return [*advice, *(remedies.more_replicas(facts) or [remedies.one_more_replica(facts)])]


def _in_time(facts: Facts) -> list[Failure]:
    """Failures that began before the last request came and the last step ended."""
    failures = facts.setting("failures") or []
    return [failure for failure in failures if failure["at_s"] < ns_to_s(facts.last_ns)]


def _until_s(failure: Failure, end_s: float) -> float:
    """When a replica is up again, at the latest at the end."""
    return end_s if failure.get("for_s") is None else min(end_s, float(failure["at_s"]) + float(failure["for_s"]))


def _most_at_once(failures: Sequence[Failure], end_s: float) -> int:
    """The most replicas that are down together."""
    starts = [float(failure["at_s"]) for failure in failures]
    return max(
        sum(start <= now < _until_s(other, end_s) for start, other in zip(starts, failures, strict=True))
        for now in starts
    )


def _named(failures: Sequence[Failure]) -> str:
    """The first failures in words."""
    told = [
        f"replica {failure['replica']} failed at {failure['at_s']:g} s "
        + ("for good" if failure.get("for_s") is None else f"for {failure['for_s']:g} s")
        for failure in failures[:3]
    ]
    more = f", and {len(failures) - 3} more times" if len(failures) > 3 else ""
    text = ", ".join(told) + more
    return text[0].upper() + text[1:]
