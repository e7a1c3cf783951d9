"""Rules of prefixes that could be shared, and of batches that run to completion."""

from __future__ import annotations

from simkit.diagnosis import remedies
from simkit.diagnosis import thresholds as at
from simkit.diagnosis.facts import Facts, over
from simkit.diagnosis.findings import Advice, Evidence, Finding
from simkit.diagnosis.pressure import PLAIN_BLOCK_SIZE
from simkit.diagnosis.queues import THROUGHPUT


def prefix_cache(facts: Facts) -> Finding | None:
    """Prompts begin alike, and hardly anything is shared."""
    tokens, groups = facts.setting("workload.prefix.tokens"), facts.setting("workload.prefix.groups")
    if tokens is None or not facts.lengths.prompt_mean:
        return None
    # The first request of each group computes the prefix.
    first_visits = min(1.0, over(groups, facts.num_requests) or 1.0)
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
