"""All rules, in the order of the table of thresholds, and what they find in a run."""

from __future__ import annotations

from collections.abc import Callable

from simkit.diagnosis import losses, pressure, queues, tails
from simkit.diagnosis.facts import Facts
from simkit.diagnosis.findings import SEVERITIES, Finding

RULES: dict[str, Callable[[Facts], Finding | None]] = {
    "replica-failed": losses.replica_failed,
    "rejected": losses.rejected,
    "refused": losses.refused,
    "aborted": losses.aborted,
    "unfinished": losses.unfinished,
    "room-left": queues.room_left,
    "saturated": queues.saturated,
    "gpu-waits": queues.gpu_waits,
    "slots-limit": queues.slots_limit,
    "memory-limit": queues.memory_limit,
    "concurrency-misread": queues.concurrency_misread,
    "preemptions": pressure.preemptions,
    "preemption-kind": pressure.preemption_kind,
    "slots-beyond-memory": pressure.slots_beyond_memory,
    "block-waste": pressure.block_waste,
    "contiguous-waste": pressure.contiguous_waste,
    "ttft-tail": tails.ttft_tail,
    "prefill-stall": tails.prefill_stall,
    "mean-hides-tail": tails.mean_hides_tail,
    "prefix-cache": pressure.prefix_cache,
    "dead-slots": pressure.dead_slots,
}


def diagnose(facts: Facts) -> list[Finding]:
    """What the rules find, the most serious first and else in their order."""
    found = [finding for finding in (rule(facts) for rule in RULES.values()) if finding is not None]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def alarm_line(findings: list[Finding]) -> str | None:
    """``2 findings: preemptions, memory-limit``; None when nothing is alarming."""
    names = [finding.rule for finding in findings if finding.alarming]
    return f"{len(names)} finding{'s' if len(names) > 1 else ''}: {', '.join(names)}" if names else None
