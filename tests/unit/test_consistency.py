"""Numbers of one run that must agree with each other, on scenarios where they once did not."""

from __future__ import annotations

from typing import Any

import pytest
from served import as_asked

from simkit import scenario
from simkit.errors import InputError


def build(engine: dict[str, Any], workload: dict[str, Any], **more: Any) -> scenario.Scenario:
    base = {"model": "qwen2.5-0.5b", "hardware": {"gpu": "l4-24gb"}, "latency": {"profile": "unit"}}
    return scenario.from_dict(base | {"engine": engine, "workload": workload} | more)


def fixed(value: int) -> dict[str, Any]:
    return {"dist": "fixed", "value": value}


@pytest.mark.parametrize("samples", [2, 4])
@pytest.mark.parametrize("prompt", [1, 16, 20])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_paused_samples_share_a_block_that_is_not_full(
    samples: int, prompt: int, caching: bool, asynchronous: bool
) -> None:
    """Prefill first: the samples of a prompt wait with a half-filled block in common; it is counted once."""
    engine = {
        "max_num_seqs": 8,
        "max_model_len": 64,
        "prefill_first": True,
        "enable_prefix_caching": caching,
        "async_scheduling": asynchronous,
    }
    arrivals = {"process": "poisson", "rate_per_s": 100.0}
    workload = {"num_requests": 20, "arrivals": arrivals, "prompt_tokens": fixed(prompt), "output_tokens": fixed(7)}
    drawn = build(engine, workload | {"samples": samples})
    result = as_asked(drawn)
    assert result.summary["num_requests"]["finished"] == 20
    steps = result.steps
    held = steps["kv_used_tokens"] + steps["kv_reserved_tokens"] + steps["kv_internal_tokens"]
    assert (held == steps["kv_allocated_tokens"]).all()
    assert (steps[["kv_used_tokens", "kv_reserved_tokens", "kv_internal_tokens"]] >= 0).all(axis=None)
    single = as_asked(drawn, single_step=True)
    assert all(result.tables[name].equals(single.tables[name]) for name in result.tables)


def test_throughput_is_over_the_makespan_also_when_the_first_is_rejected() -> None:
    workload = {
        "num_requests": 2,
        "arrivals": {"process": "constant", "rate_per_s": 0.001},
        "prompt_tokens": {"dist": "list", "values": [2000, 100]},
        "output_tokens": fixed(100),
    }
    summary = as_asked(build({"max_model_len": 1024}, workload, slo={"e2e_ms": {"p99": 1e6}})).summary
    assert summary["num_requests"] | {"rejected": 1, "finished": 1} == summary["num_requests"]
    assert summary["throughput"]["requests_per_s"] == pytest.approx(1 / summary["makespan_s"])
    assert summary["goodput_per_s"] == summary["throughput"]["requests_per_s"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_preemption_is_in_the_table_of_steps(asynchronous: bool) -> None:
    """Some passes only preempt; what they do is told with the next step."""
    engine = {
        "max_num_seqs": 4,
        "max_model_len": 100,
        "num_gpu_blocks": 8,
        "block_size": 32,
        "prefill_first": True,
        "async_scheduling": asynchronous,
    }
    workload = {
        "num_requests": 100,
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": fixed(15),
        "output_tokens": fixed(19),
    }
    result = as_asked(build(engine, workload))
    assert result.summary["num_preemptions"] > 0
    assert result.steps["num_preemptions"].sum() == result.summary["num_preemptions"]
    assert result.requests["num_preemptions"].sum() == result.summary["num_preemptions"]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf", "fair"])
@pytest.mark.parametrize(("rate", "saturated"), [(30.0, False), (90.0, True)])
def test_overload_is_seen_whoever_is_served_first(policy: str, rate: float, saturated: bool) -> None:
    """Four slots, answers of about 50 steps of 1 ms: 80 requests a second at most."""
    workload = {
        "num_requests": 1500,
        "arrivals": {"process": "poisson", "rate_per_s": rate},
        "prompt_tokens": {"dist": "lognormal", "mean": 64, "cv": 1, "max": 512},
        "output_tokens": {"dist": "exponential", "mean": 50},
        "priority": {"values": [0, 1], "weights": [1, 1]},
        "tenants": {"count": 3},
    }
    summary = as_asked(build({"max_num_seqs": 4, "policy": policy, "max_model_len": 2048}, workload)).summary
    assert summary["saturated"] is saturated
    assert (summary["saturation_reason"] is not None) is saturated


@pytest.mark.parametrize(
    ("gpu", "engine", "workload", "said"),
    [
        ("t4-16gb", {}, {}, "engine.dtype"),
        ("l4-24gb", {"max_num_seqs": 4}, {"samples": 5}, "workload.samples: expected at most the 4 slots"),
    ],
    ids=["dtype", "samples"],
)
def test_start_up_refuses_whatever_the_step_times(
    gpu: str, engine: dict[str, Any], workload: dict[str, Any], said: str
) -> None:
    base = {"num_requests": 1, "arrivals": {"process": "all_at_once"}}
    base |= {"prompt_tokens": fixed(4), "output_tokens": fixed(4)}
    with pytest.raises(InputError, match=said):
        as_asked(build(engine, base | workload, hardware={"gpu": gpu}))


def test_a_service_objective_shows_share_and_value() -> None:
    workload = {"num_requests": 50, "arrivals": {"process": "all_at_once"}}
    workload |= {"prompt_tokens": fixed(4), "output_tokens": fixed(10)}
    slo = {"ttft_ms": {"p50": 1e6, "p99": 0.5, "mean": 1e6}, "tpot_ms": {"p90": 1.5}}
    summary = as_asked(build({"max_num_seqs": 4}, workload, slo=slo)).summary
    ttft = summary["slo"]["ttft_ms"]
    assert [ttft[key]["met"] for key in ("p50", "p99", "mean")] == [True, False, True]
    assert ttft["p99"]["value_ms"] == pytest.approx(summary["ttft_ms"]["p99"])
    assert ttft["p99"]["share_within"] == 0.0
    assert summary["slo"]["tpot_ms"]["p90"]["value_ms"] == pytest.approx(summary["tpot_ms"]["p90"])
    assert summary["goodput_per_s"] == 0.0
