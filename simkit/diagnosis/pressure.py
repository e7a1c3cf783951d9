"""Rules of memory and slots: preemptions and what they cost, waste, prefixes that could be shared, and dead slots."""

from __future__ import annotations

from simkit.diagnosis import remedies
from simkit.diagnosis import thresholds as at
from simkit.diagnosis.facts import Facts, over
from simkit.diagnosis.findings import Advice, Evidence, Finding
from simkit.diagnosis.queues import THROUGHPUT

PLAIN_BLOCK_SIZE = 16


def preemptions(facts: Facts) -> Finding | None:
    """Running sequences are thrown out again and again."""
    if not at.PREEMPTED.crossed(facts.preempted_share):
        return None
    swaps = facts.setting("engine.preemption") != "recompute"
    lost = [] if swaps else [Evidence("tokens computed again, over prompt tokens", facts.again, "x")]
    fitting = remedies.slots_that_fit(facts)
    advice = [fitting] if fitting else []
    advice += remedies.more_memory(facts)
    if facts.continuous and facts.paged and not facts.setting("engine.watermark"):
        text = "Keep 5 % of the blocks free at admission, so that those inside have room to grow."
        advice.append(Advice(text, ({"engine.watermark": 0.05},)))
    if facts.paged:
        text = "A lower max_model_len gains nothing here: paged memory holds only what is used."
        advice.append(Advice(text))
    return Finding(
        "preemptions",
        "serious" if at.PREEMPTED_BADLY.crossed(facts.preemptions_a_request) else "warning",
        "Memory pressure: more sequences are let in than the KV memory holds once they have grown, so running ones are "
        f"thrown out and {'swapped' if swaps else 'computed again'}. Each time somebody's answer stops.",
        (
            at.PREEMPTED.evidence(facts.preempted_share),
            at.PREEMPTED_BADLY.context(facts.preemptions_a_request),
            Evidence("most preemptions of one request", facts.most_preemptions, "times"),
            *lost,
            Evidence("TPOT p99 / p50", facts.ratio("tpot_ms"), "x"),
        ),
        tuple(advice),
        ("num_preemptions", "tpot_ms.p99"),
    )


def preemption_kind(facts: Facts) -> Finding | None:
    """Victims are recomputed where swapping is cheaper, or the other way round."""
    kind = facts.setting("engine.preemption")
    if not at.PREEMPTED.crossed(facts.preempted_share) or kind not in ("recompute", "swap"):
        return None
    costs = _costs_ms(facts)
    if costs is None or not (facts.continuous and facts.paged):
        return None
    other = "swap" if kind == "recompute" else "recompute"
    times = over(costs[kind], costs[other]) if costs[other] else float(costs[kind] > 0) * at.OTHER_IS_CHEAPER.value
    if not at.OTHER_IS_CHEAPER.crossed(times):
        return None
    room = "with room for it in host memory (host_pool_gib)" if other == "swap" else "which rides along with decodes"
    return Finding(
        "preemption-kind",
        "warning",
        f"Victims are {'recomputed' if kind == 'recompute' else 'swapped'}, and by a rough estimate {other} is cheaper "
        "for sequences of this length.",
        (
            at.PREEMPTED.evidence(facts.preempted_share),
            Evidence("tokens of a victim, mean", facts.lengths.held, "tokens"),
            Evidence("recompute adds, estimated", costs["recompute"], "ms"),
            Evidence("swap adds, estimated", costs["swap"], "ms"),
            *([at.OTHER_IS_CHEAPER.evidence(times)] if costs[other] else []),
        ),
        (
            Advice(f"Preempt by {other}, {room}.", ({"engine.preemption": other},)),
            Advice("Let the engine choose for each victim (what-if).", ({"engine.preemption": "auto"},)),
        ),
        (THROUGHPUT, "itl_ms.p99"),
    )


def _costs_ms(facts: Facts) -> dict[str, float] | None:
    """What a preemption of each kind adds to the steps, roughly; None without the figures.

    Swap moves the bytes of all tokens over PCIe twice. Recompute takes 2 FLOPs a parameter and token, but a step that
    reads all weights anyway has room for peak FLOP/s x bytes a parameter / (2 x bytes/s) tokens at no cost.
    """
    model, gpu, memory = (facts.manifest.get(key) or {} for key in ("model", "gpu", "memory"))
    peak = (gpu.get("peak_flops_per_s") or {}).get(facts.setting("engine.dtype"))
    found = (
        model.get("num_params"), gpu.get("pcie_bytes_per_s"), gpu.get("hbm_bytes_per_s"), peak,
        memory.get("kv_bytes_per_token"), facts.lengths.held,
    )  # fmt: skip
    if None in found or model.get("num_experts"):
        return None
    params, pcie, hbm, peak, token_bytes, held = (float(value or 0.0) for value in found)
    gpus = facts.setting("hardware.tensor_parallel_size") or 1
    free_tokens = max(0.0, peak / hbm - (facts.running_mean or 0.0))
    recompute_s = max(0.0, held - free_tokens) * 2 * params / gpus / peak
    return {"recompute": 1e3 * recompute_s, "swap": 1e3 * held * 2 * token_bytes / pcie}


def slots_beyond_memory(facts: Facts) -> Finding | None:
    """max_num_seqs is set where memory, not slots, decides who runs; the tail pays."""
    times = over(float(facts.slots), facts.fits)
    crossed = at.SLOTS_BEYOND_MEMORY.crossed(times) and at.WAIT_FOR_MEMORY.crossed(facts.waits.memory)
    if not (facts.continuous and facts.paged and crossed and at.PREEMPTED.crossed(facts.preempted_share)):
        return None
    fitting = remedies.slots_that_fit(facts)
    return Finding(
        "slots-beyond-memory",
        "warning",
        f"max_num_seqs is at {facts.slots:,}, and memory holds about {int(facts.fits or 0):,} sequences. More slots "
        "than that buy no throughput: they let in who will be thrown out.",
        (
            at.SLOTS_BEYOND_MEMORY.evidence(times),
            at.WAIT_FOR_MEMORY.evidence(facts.waits.memory),
            at.PREEMPTED.evidence(facts.preempted_share),
            Evidence("running sequences, mean", facts.running_mean, "requests"),
            Evidence("TPOT p99 / p50", facts.ratio("tpot_ms"), "x"),
        ),
        (fitting,) if fitting else (),
        ("tpot_ms.p99", "num_preemptions"),
    )


def block_waste(facts: Facts) -> Finding | None:
    """Large blocks are mostly empty."""
    used, size = facts.value("kv.used.share_of_allocated"), facts.setting("engine.block_size") or 0
    wasted = None if used is None else 1 - used
    if not (facts.continuous and facts.paged and size > PLAIN_BLOCK_SIZE and at.BLOCK_WASTE.crossed(wasted)):
        return None
    return Finding(
        "block-waste",
        "warning",
        f"Blocks of {size} tokens are large for sequences of {facts.lengths.held or 0:,.0f}: the last one of each is "
        "on average half empty.",
        (
            at.BLOCK_WASTE.evidence(wasted),
            Evidence("block size", size, "tokens"),
            Evidence("time in which requests wait for KV memory", facts.waits.memory, "share"),
        ),
        (Advice("Take the default block size.", ({"engine.block_size": PLAIN_BLOCK_SIZE},)),),
        (THROUGHPUT, "kv.internal.share_of_allocated", "ttft_ms.p99"),
    )


def contiguous_waste(facts: Facts) -> Finding | None:
    """Contiguous memory is set aside for tokens that never come."""
    used = facts.value("kv.used.share_of_allocated")
    wasted = None if used is None else 1 - used
    if facts.paged or not at.RESERVED_WASTE.crossed(wasted):
        return None
    advice = [Advice("Page the memory: blocks are taken as they are filled.", ({"engine.kv_allocator": "paged"},))]
    length, longest = facts.setting("engine.max_model_len") or 0, facts.lengths.longest
    if facts.setting("engine.reservation") == "max" and 0 < 2 * longest < length:
        text = f"Lower max_model_len to the longest sequence of this run, {longest:,} tokens."
        advice.append(Advice(text, ({"engine.max_model_len": longest},)))
    return Finding(
        "contiguous-waste",
        "warning",
        "Contiguous memory is set aside for the longest possible answer, and most of it is never filled.",
        (
            at.RESERVED_WASTE.evidence(wasted),
            Evidence("longest sequence", longest, "tokens"),
            Evidence("max_model_len", length, "tokens"),
        ),
        tuple(advice),
        (THROUGHPUT, "ttft_ms.p99"),
    )


# --- what could be shared, or given back earlier ----------------------------------------------------------------------
def prefix_cache(facts: Facts) -> Finding | None:
    """Prompts begin alike, and hardly anything is shared."""
    tokens, groups = facts.setting("workload.prefix.tokens"), facts.setting("workload.prefix.groups")
    share = facts.setting("workload.prefix.share")
    if (tokens is None and share is None) or not facts.lengths.prompt_mean:
        return None
    tokens = round(share * facts.lengths.prompt_mean) if tokens is None else tokens
    # The first request of each group computes the prefix, unless the cache is warm.
    is_warm = facts.setting("workload.prefix.warm")
    first_visits = 0.0 if is_warm else min(1.0, over(groups, facts.num_requests) or 1.0)
    possible = min(1.0, tokens / facts.lengths.prompt_mean) * (1 - first_visits)
    hits = facts.value("prefix_cache_hit_rate")
    if hits is None:
        if facts.setting("engine.enable_prefix_caching") and facts.continuous and facts.paged:
            return None  # nobody finished, so nobody tells
        hits = 0.0
    reached = over(hits, possible)
    if not (at.SHARED_PROMPT.crossed(possible) and at.HITS_MISSED.crossed(reached)):
        return None
    why, advice = _why_not_shared(facts, tokens, groups)
    return Finding(
        "prefix-cache",
        "warning",
        f"Prompts share their first {tokens:,} tokens, and {why}.",
        (
            at.SHARED_PROMPT.evidence(possible),
            at.HITS_MISSED.evidence(reached),
            Evidence("prefix hit rate", hits, "share"),
            Evidence("different prefixes", groups, "prefixes"),
            Evidence("block size", facts.setting("engine.block_size"), "tokens"),
        ),
        tuple(advice),
        ("ttft_ms.p99", "ttft_ms.p50", THROUGHPUT),
    )


def _why_not_shared(facts: Facts, tokens: int, groups: int) -> tuple[str, list[Advice]]:
    size = facts.setting("engine.block_size") or 1
    if not (facts.continuous and facts.paged):
        settings = {"engine.batching": "continuous", "engine.kv_allocator": "paged"}
        text = "Serve by continuous batching with paged memory."
        return "only continuous batching with paged memory can share them", [Advice(text, (settings,))]
    if not facts.setting("engine.enable_prefix_caching"):
        return "prefix caching is off", [Advice("Switch prefix caching on.", ({"engine.enable_prefix_caching": True},))]
    if tokens // size * size < at.HITS_MISSED.value * tokens:
        smaller = ({"engine.block_size": PLAIN_BLOCK_SIZE},) if size > PLAIN_BLOCK_SIZE else ()
        found = [Advice("Take smaller blocks: only full ones are shared.", smaller)] if smaller else []
        return f"blocks of {size} tokens hold only {tokens // size * size} of them in full blocks", found
    advice_list = []
    if (facts.setting("replicas") or 1) > 1 and groups > 1 and facts.setting("router") != "prefix_affinity":
        text = "Send requests with the same prefix to the same replica."
        advice_list.append(Advice(text, ({"router": "prefix_affinity"},)))
    most_tokens = facts.num_requests / (facts.manifest.get("replications") or 1) * facts.lengths.longest
    if most_tokens <= (facts.value("kv.capacity_tokens") or 0):
        # The memory holds every token of the run, so nothing was ever evicted.
        return "requests come before another one has computed them where they are served", advice_list
    why = "they are evicted before the next request that could use them"
    return why, [*advice_list, *remedies.more_memory(facts)]


def dead_slots(facts: Facts) -> Finding | None:
    """Members of a batch are done and keep their slots until the longest answer ends."""
    held, live = facts.value("slot_occupancy"), facts.value("slot_utilization")
    dead = None if not held or live is None else 1 - live / held
    if facts.continuous or not at.DEAD_SLOTS.crossed(dead):
        return None
    return Finding(
        "dead-slots",
        "serious",
        f"A {facts.setting('engine.batching')} batch lasts as long as its longest answer: members that are done keep "
        "their slots, shorter prompts are padded, and nobody joins.",
        (
            at.DEAD_SLOTS.evidence(dead),
            Evidence("slot occupancy", held, "share"),
            Evidence("slot utilisation", live, "share"),
            Evidence("queue p50", facts.value("queue_ms.p50"), "ms"),
        ),
        (Advice("Decide the batch anew in every step.", ({"engine.batching": "continuous"},)),),
        ("e2e_ms.p99", THROUGHPUT),
    )
