"""Rules of who waits and for what: too little load, slots, memory, compute."""

from __future__ import annotations

from simkit.diagnosis import remedies
from simkit.diagnosis import thresholds as at
from simkit.diagnosis.facts import Facts
from simkit.diagnosis.findings import Advice, Evidence, Finding

THROUGHPUT = "throughput.output_tokens_per_s"


def room_left(facts: Facts) -> Finding | None:
    """Most of the batch is empty, because nobody asks for more."""
    used, waiting = facts.value("slot_utilization"), facts.waits.anyone
    done = facts.ends.share(facts.ends.finished)
    idle = at.FEW_SLOTS_USED.crossed(used) and at.FEW_WAIT.crossed(waiting)
    if not (idle and at.NEARLY_ALL.crossed(done)) or facts.preempted_share:
        return None
    if facts.setting("workload.arrivals.process") == "closed_loop":
        limit = f"{facts.setting('workload.arrivals.concurrency'):,} clients, each with one request at a time"
    else:
        limit = "arrivals: concurrency is their rate times the time that a request takes"
    return Finding(
        "room-left",
        "note",
        f"The batch is far from full and hardly anybody waits. The limit is the load ({limit}), not a setting.",
        (
            at.FEW_SLOTS_USED.evidence(used),
            at.FEW_WAIT.evidence(waiting),
            at.NEARLY_ALL.evidence(done),
            Evidence("concurrency, mean", facts.value("concurrency_mean"), "requests"),
            Evidence("MBU", facts.value("gpu.mbu"), "share"),
            Evidence("MFU", facts.value("gpu.mfu"), "share"),
            Evidence("KV utilisation", facts.value("kv.utilization"), "share"),
        ),
        (Advice(_more_load(facts)),),
    )


def _more_load(facts: Facts) -> str:
    """What an idle batch leaves to do; a missed SLO is then no matter of the load."""
    missed = [metric.removesuffix("_ms").upper() for metric in facts.value("slo") or {} if facts.missed(metric)]
    if not missed:
        return "Nothing to fix: more load fits on this GPU."
    return (
        f"The objective of {', '.join(missed)} is missed though hardly anybody waits: a request takes that long by "
        "itself. A faster GPU, more GPUs a replica or a smaller model shortens it."
    )


def saturated(facts: Facts) -> Finding | None:
    """Requests arrive faster than they are served."""
    if not facts.value("saturated"):
        return None
    return Finding(
        "saturated",
        "serious",
        f"Saturated: {facts.value('saturation_reason') or 'the queue grows'}. Latencies depend on how long the run "
        "lasts; only throughput means something.",
        (
            Evidence("requests offered", facts.setting("workload.arrivals.rate_per_s"), "per s"),
            Evidence("requests served", facts.value("throughput.requests_per_s"), "per s"),
            Evidence("queue p99", facts.value("queue_ms.p99"), "ms"),
        ),
        tuple(remedies.more_replicas(facts)),
        ("ttft_ms.p99", "throughput.requests_per_s"),
    )


def gpu_waits(facts: Facts) -> Finding | None:
    """The GPU stands still between steps."""
    if not at.GPU_WAITS.crossed(facts.busy_share):
        return None
    advice: tuple[Advice, ...] = ()
    if not facts.setting("engine.async_scheduling") and facts.continuous:
        text = "Schedule the next step while the GPU computes this one."
        advice = (Advice(text, ({"engine.async_scheduling": True},)),)
    return Finding(
        "gpu-waits",
        "warning",
        "The GPU stands still between steps, for the host or for copies over PCIe, although there are requests.",
        (
            at.GPU_WAITS.evidence(facts.busy_share),
            Evidence("step without prompts, mean", facts.decode_step_ms, "ms"),
        ),
        advice,
        ("tpot_ms.mean", THROUGHPUT),
    )


def slots_limit(facts: Facts) -> Finding | None:
    """The queue waits for slots while there is memory."""
    waits = facts.waits
    crossed = facts.continuous and at.WAIT_FOR_SLOTS.crossed(waits.slots)
    if not crossed or at.BUDGET_USED_UP.crossed(waits.budget_used_up) or facts.slots >= (facts.fits or float("inf")):
        return None
    return Finding(
        "slots-limit",
        "warning",
        f"Requests wait although there is memory: all {facts.slots:,} slots are taken"
        + ("." if facts.fits is None else f", and {int(facts.fits):,} sequences would fit."),
        (
            at.WAIT_FOR_SLOTS.evidence(waits.slots),
            Evidence("KV utilisation", facts.value("kv.utilization"), "share"),
            Evidence("queue p50", facts.value("queue_ms.p50"), "ms"),
        ),
        (remedies.more_slots(facts),),
        ("ttft_ms.p99", THROUGHPUT),
    )


def memory_limit(facts: Facts) -> Finding | None:
    """The queue waits for KV memory while there are slots."""
    if not (facts.continuous and at.WAIT_FOR_MEMORY.crossed(facts.waits.memory)):
        return None
    held = "full with" if facts.paged else "set aside, though not filled, for"
    return Finding(
        "memory-limit",
        "warning",
        f"Requests wait although there are slots: the KV memory is {held} {facts.running_mean or 0:,.0f} running "
        f"sequences, of {facts.slots:,} that max_num_seqs allows.",
        (
            at.WAIT_FOR_MEMORY.evidence(facts.waits.memory),
            Evidence("KV utilisation", facts.value("kv.utilization"), "share"),
            Evidence("queue p50", facts.value("queue_ms.p50"), "ms"),
        ),
        tuple(remedies.more_memory(facts)),
        ("ttft_ms.p99", THROUGHPUT),
    )


def concurrency_misread(facts: Facts) -> Finding | None:
    """More requests at once than the GPU can make use of: they add latency and no throughput."""
    waits = facts.waits
    crossed = at.BUDGET_USED_UP.crossed(waits.budget_used_up) and at.CROWDED.crossed(waits.crowded)
    if not (facts.continuous and crossed):
        return None
    running, rate = facts.value("concurrency_mean"), facts.value("throughput.requests_per_s")
    inside_s = running / rate if running and rate else None
    clients = facts.setting("workload.arrivals.concurrency")
    offered = [] if clients is None else [Evidence("clients", clients, "requests")]
    return Finding(
        "concurrency-misread",
        "warning",
        "Concurrency is mistaken for throughput: the steps are full of prompt tokens, so more requests at once only "
        "make each of them slower. Throughput = concurrency / time inside, and here both grow alike.",
        (
            at.BUDGET_USED_UP.evidence(waits.budget_used_up),
            at.CROWDED.evidence(waits.crowded),
            *offered,
            Evidence("concurrency, mean", running, "requests"),
            Evidence("time from first scheduled to last token, mean", inside_s, "s"),
            Evidence("throughput", rate, "per s"),
            Evidence("MFU", facts.value("gpu.mfu"), "share"),
        ),
        tuple(_fewer_at_once(facts, running or facts.slots, clients)),
        ("e2e_ms.p99", "tpot_ms.p99"),
    )


def _fewer_at_once(facts: Facts, running: float, clients: int | None) -> list[Advice]:
    values = tuple(dict.fromkeys(max(1, int(share * running)) for share in (0.75, 0.5)))
    advice = []
    if clients is not None:
        text = "Let fewer clients in: nearly the same throughput, and everybody is served sooner."
        fewer = tuple({"workload.arrivals.concurrency": value} for value in values if value < clients)
        advice.append(Advice(text, fewer))
    text = "Lower max_num_seqs: those inside are served faster, and the others wait outside."
    lower = tuple({"engine.max_num_seqs": value} for value in values if value < facts.slots)
    return [*advice, Advice(text, lower)]
