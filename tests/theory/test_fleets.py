"""Routers and replicas against what theory says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from served import as_asked

from simkit import api, scenario

STAMPS = ("arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns", "output_tokens", "num_preemptions")


def build(engine: dict[str, Any], workload: dict[str, Any], **top: Any) -> scenario.Scenario:
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"max_model_len": 4096} | engine,
        "workload": workload,
        "latency": {"profile": "roofline"},
    }
    return scenario.from_dict(data | top)


def columns(result: api.Result, replica: int) -> list[list[int]]:
    """Stamps of the requests of one replica, in order of arrival."""
    table = result.tables["requests"]
    mine = table.filter(pc.equal(table["replica"], replica))
    return [mine[name].to_pylist() for name in STAMPS]


def test_with_round_robin_a_replica_is_one_engine_with_every_second_request() -> None:
    """Lengths repeat every six requests, so every second one of them can be written as a workload of its own."""
    engine = {"max_num_seqs": 8, "num_gpu_blocks": 60, "max_model_len": 512}
    prompts, outputs = [100, 31, 60, 250, 7, 128], [50, 90, 13, 70, 200, 21]

    def workload(num_requests: int, rate_per_s: float, first: int, step: int) -> dict[str, Any]:
        return {
            "num_requests": num_requests,
            "arrivals": {"process": "constant", "rate_per_s": rate_per_s},
            "prompt_tokens": {"dist": "list", "values": prompts[first::step]},
            "output_tokens": {"dist": "list", "values": outputs[first::step]},
        }

    both = as_asked(build(engine, workload(240, 20.0, 0, 1), replicas=2))
    assert both.summary["num_preemptions"] > 0
    shift_ns = 50_000_000
    first_arrival = both.requests["arrival_ns"].min()
    for replica in (0, 1):
        alone = as_asked(build(engine, workload(120, 10.0, replica, 2)))
        moved = first_arrival + replica * shift_ns - alone.requests["arrival_ns"].min()
        found, expected = columns(both, replica), columns(alone, 0)
        for name, mine, theirs in zip(STAMPS, found, expected, strict=True):
            delay = int(moved) if name.endswith("_ns") else 0
            assert mine == [value + delay for value in theirs], name


def test_least_outstanding_looks_at_every_replica() -> None:
    """The rule itself: a request goes to a replica with the fewest in the system, the lowest index among equals."""
    workload = {
        "num_requests": 600,
        "arrivals": {"process": "poisson", "rate_per_s": 3.0},
        "prompt_tokens": {"dist": "fixed", "value": 10},
        "output_tokens": {"dist": "exponential", "mean": 80},
    }
    requests = as_asked(build({"max_num_seqs": 1}, workload, replicas=3, router="least_outstanding")).requests
    arrival, left = requests["arrival_ns"].to_numpy(np.int64), requests["last_token_ns"].to_numpy(np.int64)
    replica = requests["replica"].to_numpy(np.int64)
    for i in range(len(arrival)):
        inside = [int(((replica[:i] == r) & (left[:i] >= arrival[i])).sum()) for r in range(3)]
        assert replica[i] == inside.index(min(inside))
    assert len(set(replica)) == 3


def test_prefix_affinity_raises_the_hit_rate() -> None:
    """24 prompts of 1,600 tokens: a quarter of them fits each pool, all of them do not."""
    engine = {"num_gpu_blocks": 1400, "max_num_seqs": 16}
    workload = {
        "num_requests": 600,
        "arrivals": {"process": "poisson", "rate_per_s": 12.0},
        "prompt_tokens": {"dist": "uniform", "low": 1700, "high": 1800},
        "output_tokens": {"dist": "fixed", "value": 20},
        "prefix": {"groups": 24, "tokens": 1600},
    }
    hits = {
        router: as_asked(build(engine, workload, replicas=4, router=router, warmup="none")).summary[
            "prefix_cache_hit_rate"
        ]
        for router in ("round_robin", "least_outstanding", "prefix_affinity")
    }
    # Every group is computed once, all else is found.
    assert hits["prefix_affinity"] == pytest.approx((600 - 24) / 600 * 1600 / 1750, rel=0.02)
    assert hits["round_robin"] < 0.6 * hits["prefix_affinity"]
    assert hits["least_outstanding"] < 0.6 * hits["prefix_affinity"]


def test_replicas_add_up_and_their_imbalance_shows() -> None:
    workload = {
        "num_requests": 300,
        "arrivals": {"process": "poisson", "rate_per_s": 10.0},
        "prompt_tokens": {"dist": "fixed", "value": 100},
        "output_tokens": {"dist": "list", "values": [400, 20]},
    }
    for router, least_ratio, most_ratio in (("round_robin", 19.9, 20.1), ("least_outstanding", 0.6, 1.6)):
        summary = as_asked(build({}, workload, replicas=2, router=router, replications=2)).summary
        replicas = summary["replicas"]
        assert [part["index"] for part in replicas] == [0, 1]
        assert sum(part["requests"] for part in replicas) == summary["num_requests"]["finished"]
        assert least_ratio < replicas[0]["output_tokens"] / replicas[1]["output_tokens"] < most_ratio
        assert sum(part["busy"] for part in replicas) / 2 == pytest.approx(summary["gpu"]["busy"], rel=1e-12)
        assert replicas[1]["busy_ci95"] > 0
    assert "replicas" not in as_asked(build({}, workload)).summary
