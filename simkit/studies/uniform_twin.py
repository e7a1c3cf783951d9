"""The even twin of a log: requests at the same mean rate with the same mean lengths, and nothing uneven.

Owns what is even about it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from simkit.engine.build import Setup
from simkit.engine.run import simulate
from simkit.errors import InputError
from simkit.plain import plain
from simkit.runs.replication import metrics_of
from simkit.scenario import Scenario, apply_sets
from simkit.studies.offered_load import played
from simkit.units import NS_PER_S

EVEN_KEYS = ("stop", "max_tokens", "priority", "tenants", "samples", "timeout_s", "queue_limit")
"""Keys of a workload that its twin has as well."""


MAX_REQUESTS = 5000
"""Of the twin: it is the same all the time, so that more of it would not change its percentiles."""


@dataclass(frozen=True, slots=True)
class Evened:
    """Poisson arrivals and fixed lengths: the means, lengths rounded to whole tokens."""

    num_requests: int
    rate_per_s: float
    prompt_tokens: int
    output_tokens: int


def evened(setup: Setup) -> Evened:
    """The means of the requests that the engine of `setup` takes and that count for the statistics.

    Times are those of the log, even where turns wait for the last one. Raises InputError without two times.
    """
    limit = setup.max_model_len
    requests, num_warm = played(setup.scenario, limit)
    taken = [request for request in requests if request.id >= num_warm and request.prompt_tokens < limit]
    span_ns = taken[-1].arrival_ns - taken[0].arrival_ns if taken else 0
    if not span_ns:
        raise InputError("requests at one instant have no rate")
    outputs = sum(min(request.output_tokens, limit - request.prompt_tokens) for request in taken)
    return Evened(
        num_requests=min(len(taken), MAX_REQUESTS),
        rate_per_s=(len(taken) - 1) * NS_PER_S / span_ns,
        prompt_tokens=max(1, round(sum(request.prompt_tokens for request in taken) / len(taken))),
        output_tokens=max(1, round(outputs / len(taken))),
    )


def twin(scenario: Scenario, even: Evened) -> Scenario:
    """The scenario with the even workload in place of its own."""
    kept = scenario.workload.model_dump(mode="json", exclude_unset=True)
    workload = {key: value for key, value in kept.items() if key in EVEN_KEYS} | {
        "num_requests": even.num_requests,
        "arrivals": {"process": "poisson", "rate_per_s": even.rate_per_s},
        "prompt_tokens": {"dist": "fixed", "value": even.prompt_tokens},
        "output_tokens": {"dist": "fixed", "value": even.output_tokens},
    }
    changes = {"workload": workload, "warmup": "none", "replications": 1, "variants": {}}
    return apply_sets(scenario, changes, label="even workload")


def serve_evenly(setup: Setup) -> dict[str, Any]:
    """Simulate the twin: {workload, ttft_ms, tpot_ms}, latencies as in a summary.

    Raises InputError where there is no twin, and CheckError for a livelock.
    """
    even = evened(setup)
    setup = replace(setup, scenario=twin(setup.scenario, even))
    facts = simulate(setup)
    summary = metrics_of(setup, facts).summary
    return {"workload": plain(even), "ttft_ms": plain(summary.ttft_ms), "tpot_ms": plain(summary.tpot_ms)}
