"""Advice that several rules give: more slots, more memory, smaller or larger steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simkit.diagnosis.facts import Facts
from simkit.diagnosis.findings import Advice

MOST_UTILIZATION = 0.95
"""Of GPU memory; beyond it start-up peaks of the engine fail."""

SMALLEST_CHUNK = 128


def more_slots(facts: Facts) -> Advice:
    """Twice and four times the slots, but no more than the memory holds."""
    budget = facts.setting("engine.max_num_batched_tokens") or facts.slots * 4
    most = max(facts.slots + 1, min(budget, int(facts.fits or facts.slots * 4)))
    values = _distinct(min(facts.slots * factor, most) for factor in (2, 4))
    return Advice("Raise max_num_seqs, up to what the KV memory holds.", _each("engine.max_num_seqs", values))


def slots_that_fit(facts: Facts) -> Advice | None:
    """As many slots as sequences of the mean length fit, and a fifth fewer; None when there are no more slots already.

    KV tokens / mean length of a running sequence (prompt and half of its answer, longer answers counting longer).
    """
    if facts.fits is None or facts.slots <= 0.8 * facts.fits:
        return None
    values = _distinct(max(1, int(share * facts.fits)) for share in (1.0, 0.8) if share * facts.fits < facts.slots)
    text = (
        f"Lower max_num_seqs to what the memory holds: {facts.value('kv.capacity_tokens'):,.0f} tokens / "
        f"{facts.lengths.held:,.0f} held by a sequence on average = {int(facts.fits):,}."
    )
    return Advice(text, _each("engine.max_num_seqs", values))


def more_memory(facts: Facts) -> list[Advice]:
    """More KV memory on the same GPU, as far as the rest of it holds what the engine keeps beside its budget."""
    found = []
    override = facts.setting("engine.num_gpu_blocks")
    memory = facts.manifest.get("memory") or {}
    budget = memory.get("num_gpu_blocks")
    if override is not None:
        if budget is not None and budget > override:
            text = f"Do not override num_gpu_blocks ({override:,}): the memory budget has room for {budget:,} blocks."
            found.append(Advice(text, ({"engine.num_gpu_blocks": None},)))
        return found
    if facts.setting("engine.kv_cache_dtype") not in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        text = "Store the KV cache in fp8: half the bytes a token (check the quality of the answers)."
        found.append(Advice(text, ({"engine.kv_cache_dtype": "fp8"},)))
    # A run of an earlier version does not say how far it can be raised.
    most = min(MOST_UTILIZATION, memory.get("highest_gpu_memory_utilization") or 0.0)
    if (facts.setting("engine.gpu_memory_utilization") or 1.0) < most:
        text = f"Raise gpu_memory_utilization to {most:g}."
        found.append(Advice(text, ({"engine.gpu_memory_utilization": most},)))
    return found


def smaller_steps(facts: Facts) -> list[Advice]:
    """Less prompt work in the steps that running sequences wait for."""
    budget, slots = facts.setting("engine.max_num_batched_tokens"), facts.setting("engine.max_num_seqs")
    if budget is None or slots is None:
        return []
    if not facts.setting("engine.enable_chunked_prefill"):
        chunked: dict[str, Any] = {"engine.enable_chunked_prefill": True}
        if facts.setting("engine.prefill_first"):
            chunked["engine.prefill_first"] = False
        budgets = _distinct(max(slots, value) for value in (2048, 512) if max(slots, value) <= budget) or (budget,)
        text = "Cut prompts into chunks, so that running sequences wait for a slice and not for a whole prompt."
        return [Advice(text, tuple({**chunked, "engine.max_num_batched_tokens": value} for value in budgets))]
    found = []
    if facts.setting("engine.prefill_first"):
        found.append(Advice("Schedule running sequences first.", ({"engine.prefill_first": False},)))
    budgets = _distinct(
        max(slots, value) for value in (budget // 2, budget // 4) if SMALLEST_CHUNK <= max(slots, value) < budget
    )
    if budgets:
        text = "Lower max_num_batched_tokens: shorter steps while prompts are computed, which then take more of them."
        found.append(Advice(text, _each("engine.max_num_batched_tokens", budgets)))
    return found


def prompts_stand_in_line(facts: Facts, long_prompts: bool) -> list[Advice]:
    """When prompts wait for the token budget: let no long prompt take all of it, or raise it."""
    budget = facts.setting("engine.max_num_batched_tokens")
    if budget is None:
        return []
    if not facts.setting("engine.enable_chunked_prefill"):
        return smaller_steps(facts)
    found = []
    threshold = facts.setting("engine.long_prefill_token_threshold") or budget
    shares = [budget // part for part in (4, 8) if SMALLEST_CHUNK <= budget // part < threshold]
    if long_prompts and shares:
        text = "Set long_prefill_token_threshold, so that short prompts slip in beside a long one."
        found.append(Advice(text, _each("engine.long_prefill_token_threshold", tuple(shares))))
    text = "Raise max_num_batched_tokens: more prompts in a step, and longer gaps between tokens."
    found.append(Advice(text, _each("engine.max_num_batched_tokens", (budget * 2, budget * 4))))
    return found


def more_replicas(facts: Facts) -> list[Advice]:
    """Enough replicas for the rate at which requests arrive; nothing when that is not known."""
    replicas, served = facts.setting("replicas") or 1, facts.value("throughput.requests_per_s")
    rate = facts.setting("workload.arrivals.rate_per_s")
    if rate is None or not served:
        return []
    needed = max(replicas + 1, math.ceil(1.05 * rate * replicas / served))
    text = f"{needed} replicas for {rate:g} requests/s; or fewer requests, about {0.9 * served:.2g}/s."
    return [Advice(text, ({"replicas": needed},))]


def one_more_replica(facts: Facts) -> Advice:
    """A replica beside those there are, for a load whose rate is not known or is nearly carried."""
    replicas = facts.setting("replicas") or 1
    return Advice("One replica more shares the load.", ({"replicas": replicas + 1},))


def _each(key: str, values: tuple[Any, ...]) -> tuple[Mapping[str, Any], ...]:
    return tuple({key: value} for value in values)


def _distinct(values: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
