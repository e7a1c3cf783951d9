"""validation.json: what its keys are called and how its numbers read. Reads values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simkit.metrics.catalogue import MEASURED_LATENCIES, WHOLE_RUN
from simkit.plain import Json
from simkit.report.words import count, known

Content = Json

HEADLINE = ("e2e_ms.mean", "tpot_ms.mean", "ttft_ms.mean", "makespan_s.value")
"""What the first sentence says, and what an effect is judged by."""

SERIES = {"running": "running [requests]", "waiting": "waiting [requests]", "kv_pct": "KV in use [%]"}
"""What is shown over time."""

EFFECTS = {
    "host": "host work of a step",
    "overlap": "host work beside the GPU",
    "gap": "idle between steps",
    "graph_padding": "CUDA-graph padding",
    "launches": "launching of kernels",
    "sampled_rows": "LM head on sampled rows",
    "unequal_decodes": "decodes of unequal length",
    "mixed_launches": "prefill and decodes in one launch",
    "chunk_context": "context of a prefill chunk",
    "all_reduce": "all-reduce between GPUs",
    "first_token": "first-token path",
    "prefix_rehits": "prefix hits after preemption",
}
"""Effects as a reader meets them; those that are not here keep their name."""


def key_name(key: str) -> str:
    """``tpot_ms.mean`` as TPOT mean, and so on; an unknown key as it is."""
    metric, _, stat = key.partition(".")
    if metric in MEASURED_LATENCIES:
        return f"{MEASURED_LATENCIES[metric]} {stat}"
    return WHOLE_RUN.get(key, key).partition(" [")[0]


def effect_name(effect: str) -> str:
    """What an effect is called."""
    return EFFECTS.get(effect, effect)


def latencies(content: Content) -> dict[str, Json]:
    """Latency metrics that were compared, to their statistics."""
    return {metric: content["errors"][metric] for metric in MEASURED_LATENCIES if metric in content["errors"]}


def whole_run(content: Content) -> Iterator[tuple[str, Json]]:
    """(key, numbers) of everything that is no latency: the known ones in order, then any others."""
    given = {
        f"{metric}.{stat}": values
        for metric, stats in content["errors"].items()
        if metric not in MEASURED_LATENCIES
        for stat, values in stats.items()
    }
    for key in (*(key for key in WHOLE_RUN if key in given), *(key for key in given if key not in WHOLE_RUN)):
        yield key, given[key]


def error_of(content: Content, key: str) -> float | None:
    """The error with all effects on, None where it is not known."""
    metric, _, stat = key.partition(".")
    return known(((content["errors"].get(metric) or {}).get(stat) or {}).get("error_pct"))


def left_out(content: Content) -> str:
    """How many requests the simulation did not serve whole, with reasons; empty where it served all."""
    found = content["num_requests"]
    reasons: Mapping[str, int] = found.get("left_out") or {}
    if not reasons:
        return ""
    measured = found["played"] - found["warm_up"]
    named = ", ".join(f"{count(number)} {reason}" for reason, number in reasons.items())
    return f"{count(sum(reasons.values()))} of {things(measured, 'request')} left out: {named}."


def has_enough(content: Content) -> bool:
    """Whether so few requests are left out that bands can hold."""
    return bool(content["num_requests"].get("enough_for_bands", True))


def things(number: Any, noun: str) -> str:
    """A number of things with their name."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def missed(content: Content) -> set[str]:
    """Keys whose error lies outside their band."""
    return {band["key"] for band in content.get("bands") or () if not band["ok"]}


def counts(content: Content) -> tuple[int, dict[str, int]]:
    """(requests compared, those of them that each latency is over)."""
    found = content["num_requests"]
    return found["compared"], {metric: found[metric] for metric in MEASURED_LATENCIES if metric in found}
