"""Rules of latency tails: TTFT, gaps between tokens, and means that hide them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simkit.diagnosis import losses, remedies
from simkit.diagnosis import thresholds as at
from simkit.diagnosis.facts import Facts, over
from simkit.diagnosis.findings import Advice, Evidence, Finding, Threshold
from simkit.metrics.catalogue import MEASURED_LATENCIES

REASONS = {
    "slots": "requests wait for a slot",
    "memory": "requests wait for KV memory",
    "budget": "prompts stand in line for the token budget",
    "preemptions": "running sequences are thrown out and come back later",
    "failed": "a replica failed, and requests waited until another could take them",
    "prompts": "some prompts take that long to compute",
    "answers": "some answers take that long, without waiting",
    "steps": "some steps take longer than others",
    "prefill": "running sequences wait for steps that compute prompts",
}


def ttft_tail(facts: Facts) -> Finding | None:
    """Some first tokens come much later than most."""
    p99, ratio, objective = facts.value("ttft_ms.p99"), facts.ratio("ttft_ms"), facts.objective("ttft_ms", "p99")
    bound = at.LONG_TTFT if objective is None else Threshold("TTFT p99", ">", objective, "ms")
    if not (facts.continuous and bound.crossed(p99) and at.TTFT_TAIL.crossed(ratio)) or facts.value("saturated"):
        return None
    if _hidden(facts, "ttft_ms"):
        return None
    reason, advice = _why_late(facts)
    return Finding(
        "ttft-tail",
        "warning",
        f"The tail of TTFT is long, because {REASONS[reason]}.",
        (
            bound.evidence(p99, "TTFT p99"),
            at.TTFT_TAIL.evidence(ratio),
            *_where_it_waits(facts),
        ),
        tuple(advice),
        ("ttft_ms.p99",),
    )


def prefill_stall(facts: Facts) -> Finding | None:
    """Running sequences wait while prompts are computed."""
    p99, ratio, objective = facts.value("itl_ms.p99"), facts.ratio("itl_ms"), facts.objective("itl_ms", "p99")
    bound = at.LONG_ITL if objective is None else Threshold("ITL p99", ">", objective, "ms")
    preempted = at.PREEMPTED.crossed(facts.preempted_share)
    if not (facts.continuous and bound.crossed(p99) and at.ITL_TAIL.crossed(ratio)) or preempted:
        return None
    if not _prompts_hold_up(facts):
        return None
    chunked = facts.setting("engine.enable_chunked_prefill")
    how = "a step takes a large slice of a prompt along" if chunked else "a prompt is computed whole in one step"
    return Finding(
        "prefill-stall",
        "warning" if chunked else "serious",
        f"Answers stop in the middle: {how}, and everybody who is running waits for it.",
        (
            bound.evidence(p99, "ITL p99"),
            at.ITL_TAIL.evidence(ratio),
            *_what_steps_take(facts),
            Evidence("prompt p99", facts.lengths.prompt_p99, "tokens"),
            Evidence("max_num_batched_tokens", facts.setting("engine.max_num_batched_tokens"), "tokens"),
        ),
        tuple(remedies.smaller_steps(facts)),
        ("itl_ms.p99",),
    )


def mean_hides_tail(facts: Facts) -> Finding | None:
    """The mean of a latency meets the objective; the percentile that was asked for does not."""
    for metric, name in MEASURED_LATENCIES.items():
        hidden = _hidden(facts, metric)
        if hidden is None:
            continue
        key, result = hidden
        target, mean, value = result["target_ms"], facts.value(f"{metric}.mean"), result["value_ms"]
        late = metric in ("ttft_ms", "e2e_ms")
        reason, advice = _why_late(facts, metric) if late else _why_slow(facts)
        share = result.get("share_within")
        return Finding(
            "mean-hides-tail",
            "serious",
            f"The mean {name} meets {target:g} ms and hides that {key} does not, because {REASONS[reason]}.",
            (
                Evidence(f"{name} mean", mean, "ms", Threshold("objective", "<=", target, "ms")),
                Evidence(f"{name} {key}", value, "ms", Threshold("objective", ">", target, "ms")),
                *([] if share is None else [Evidence("requests within the objective", share, "share")]),
                Evidence(f"{name} {key} / mean", over(value, mean), "x"),
                Evidence(f"{name} p50", facts.value(f"{metric}.p50"), "ms"),
                *(_where_it_waits(facts) if late else _what_steps_take(facts)),
            ),
            tuple(advice),
            (f"{metric}.{key}",),
        )
    return None


def _hidden(facts: Facts, metric: str) -> tuple[str, Mapping[str, Any]] | None:
    """The statistic of an objective that is missed while the mean would meet it, and its result."""
    mean = facts.value(f"{metric}.mean")
    if facts.value("saturated") or mean is None or not facts.continuous:
        return None
    for key, result in facts.missed(metric).items():
        if key != "mean" and mean <= result["target_ms"]:
            return key, result
    return None


def _why_late(facts: Facts, metric: str = "ttft_ms") -> tuple[str, list[Advice]]:
    """What first tokens, or whole answers, wait for most of the time, and what to do."""
    waits = facts.waits
    if metric == "e2e_ms" and not _queue_explains(facts):
        return "answers", []
    spare = losses.spare_replicas(facts)
    if spare is not None and at.FEW_WAIT.crossed(waits.anyone) and _mostly_queue(facts):
        return "failed", [spare]  # those who wait where no replica is up are in no step
    if not waits.anyone:
        return "prompts", []
    shares = {"slots": waits.slots, "memory": waits.memory, "budget": waits.budget}
    reason = max(shares, key=lambda key: shares[key])
    if reason == "slots":
        return reason, [remedies.more_slots(facts)]
    if reason == "memory":
        return reason, remedies.more_memory(facts)
    long_prompts = at.LONG_PROMPTS.crossed(over(facts.lengths.prompt_p99, facts.lengths.prompt_p50))
    return reason, remedies.prompts_stand_in_line(facts, long_prompts)


def _why_slow(facts: Facts) -> tuple[str, list[Advice]]:
    """What running sequences wait for, and what to do."""
    if at.PREEMPTED.crossed(facts.preempted_share):
        fitting = remedies.slots_that_fit(facts)
        return "preemptions", [*([fitting] if fitting else []), *remedies.more_memory(facts)]
    if _prompts_hold_up(facts):
        return "prefill", remedies.smaller_steps(facts)
    return "steps", []


def _queue_explains(facts: Facts) -> bool:
    """Whether the longest waits are at least half of what the slowest answers take beyond the mean."""
    queue, slowest, mean = facts.value("queue_ms.p99"), facts.value("e2e_ms.p99"), facts.value("e2e_ms.mean")
    return None in (queue, slowest, mean) or queue >= (slowest - mean) / 2


def _mostly_queue(facts: Facts) -> bool:
    """Whether the longest waits for a first token are spent in the queue."""
    queue, first = facts.value("queue_ms.p99"), facts.value("ttft_ms.p99")
    return queue is not None and first is not None and queue >= first / 2


def _prompts_hold_up(facts: Facts) -> bool:
    """Whether steps with prompts take longer than those without, as far as there are both."""
    times = over(facts.mixed_step_ms, facts.decode_step_ms)
    return times is None or at.STEP_WITH_PROMPTS.crossed(times)


def _what_steps_take(facts: Facts) -> tuple[Evidence, ...]:
    return (
        Evidence("step with prompt tokens, mean", facts.mixed_step_ms, "ms"),
        Evidence("step without, mean", facts.decode_step_ms, "ms"),
        at.STEP_WITH_PROMPTS.context(over(facts.mixed_step_ms, facts.decode_step_ms)),
    )


def _where_it_waits(facts: Facts) -> tuple[Evidence, ...]:
    lengths = facts.lengths
    return (
        Evidence("queue p99", facts.value("queue_ms.p99"), "ms"),
        Evidence("time in which requests wait for a slot", facts.waits.slots, "share"),
        Evidence("time in which requests wait for KV memory", facts.waits.memory, "share"),
        Evidence("time in which requests wait for the token budget", facts.waits.budget, "share"),
        at.LONG_PROMPTS.context(over(lengths.prompt_p99, lengths.prompt_p50)),
    )
