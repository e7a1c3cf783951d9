"""Numbers that can be checked by hand or that the three generations of serving must show."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from served import as_asked

from simkit import api, scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
ARMS = [(batching, kv) for batching in ("static", "dynamic", "continuous") for kv in ("contiguous", "paged")]


def shipped(name: str, **changes: Any) -> api.Result:
    """A shipped scenario, changed; `engine__max_num_seqs=8` stands for the dotted key."""
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return as_asked(scenario.apply_sets(scenario.load(SCENARIOS / f"{name}.yaml"), keys))


# --- eight requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batching", "allocator"), ARMS)
def test_eight_requests(batching: str, allocator: str) -> None:
    """Static: 300 + 220 steps. Continuous: slots are handed on, 300 steps. 915 useful slot-steps in both."""
    summary = shipped("eight-requests", engine__batching=batching, engine__kv_allocator=allocator).summary
    num_steps = 300 if batching == "continuous" else 520
    assert summary["num_steps"] == num_steps
    assert summary["slot_utilization"] == pytest.approx(915 / (4 * num_steps), rel=1e-12)
    assert round(summary["slot_utilization"], 4) == (0.7625 if batching == "continuous" else 0.4399)
    assert summary["slot_occupancy"] == (0.7625 if batching == "continuous" else 1.0)
    assert summary["makespan_s"] == num_steps / 1000


def test_one_long_answer_holds_a_static_batch() -> None:
    """Seven of 20 tokens and one of 400 in a batch of eight: 540 of 3,200 slot-steps are useful."""
    lengths = {"dist": "list", "values": [20] * 7 + [400]}
    changes = {"engine__max_num_seqs": 8, "workload__output_tokens": lengths}
    summary = shipped("eight-requests", engine__batching="static", **changes).summary
    assert summary["num_steps"] == 400
    assert summary["slot_utilization"] * 8 * 400 == pytest.approx(540)
    assert shipped("eight-requests", **changes).summary["num_steps"] == 400  # no hand-on can beat the longest


def test_equal_lengths_leave_nothing_to_gain() -> None:
    lengths = {"dist": "fixed", "value": 100}
    for batching in ("static", "continuous"):
        summary = shipped("eight-requests", engine__batching=batching, workload__output_tokens=lengths).summary
        assert (summary["num_steps"], summary["slot_utilization"]) == (200, 1.0)


# --- same input, same bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batching", "allocator"), [("static", "contiguous"), ("continuous", "paged")])
def test_the_same_scenario_and_seed_give_the_same_bytes(batching: str, allocator: str, tmp_path: Path) -> None:
    """All files but the report, from two runs; another seed gives other tables."""

    def digests(name: str, seed: int) -> dict[str, str]:
        changes = {"workload__num_requests": 60, "replications": 2, "seed": seed}
        result = shipped("llama3-8b-a100", engine__batching=batching, engine__kv_allocator=allocator, **changes)
        folder = api.write(result, tmp_path / name, report=False)
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}

    first, second, other = digests("first", 0), digests("second", 0), digests("other", 1)
    assert sorted(first) == ["manifest.json", "requests.parquet", "slots.parquet", "steps.parquet", "summary.json"]
    assert first == second
    assert all(first[name] != other[name] for name in first)


# --- three generations ------------------------------------------------------------------------------------------------

NUM_REQUESTS = 700


@cache
def generation(
    batching: str, allocator: str, slots: int = 256, outputs: str = "lognormal", requests: int = NUM_REQUESTS
) -> Any:
    """Summary of an arm of three-generations.yaml, for fewer customers from the first to the last."""
    base = scenario.load(SCENARIOS / "three-generations.yaml")
    changes: dict[str, Any] = {
        "engine.batching": batching,
        "engine.kv_allocator": allocator,
        "engine.max_num_seqs": slots,
        "workload.num_requests": requests,
        "workload.finite": True,
    }
    if outputs == "uniform":
        changes["workload.output_tokens"] = base.variants["uniform-static"]["workload.output_tokens"]
    return as_asked(scenario.apply_sets(base, changes)).summary


def rate(summary: Any) -> float:
    return float(summary["throughput"]["requests_per_s"])


def test_the_scenario_is_the_one_the_numbers_are_about() -> None:
    base = scenario.load(SCENARIOS / "three-generations.yaml")
    assert (base.model, base.hardware.gpu, base.latency.profile) == ("llama-3-8b", "a100-sxm4-80gb", "roofline")
    engine, workload = base.engine, base.workload
    assert (engine.max_num_seqs, engine.max_model_len, engine.gpu_memory_utilization) == (256, 8192, 0.9)
    assert workload.model_dump(exclude_none=True)["arrivals"] == {"process": "poisson", "rate_per_s": 20.0}
    assert workload.prompt_tokens == scenario.FixedLength(dist="fixed", value=512)
    assert workload.output_tokens == scenario.LognormalLength(dist="lognormal", mean=256, cv=1, max=2048)
    assert engine.reservation == "max"


def test_a_static_batch_at_least_doubles_one_at_a_time() -> None:
    alone = generation("static", "contiguous", slots=1, requests=100)
    assert alone["concurrency_mean"] == pytest.approx(1.0)
    assert rate(generation("static", "contiguous")) >= 2 * rate(alone)


def test_continuous_and_paged_is_at_least_three_times_static() -> None:
    assert rate(generation("continuous", "paged")) >= 3 * rate(generation("static", "contiguous"))


def test_the_gain_comes_from_unequal_lengths() -> None:
    """Uniform 128 to 384: the longest of a batch is 1.5 times the mean, so waiting for it costs less."""
    unequal, equal = (
        rate(generation("continuous", "paged", outputs=o)) / rate(generation("static", "contiguous", outputs=o))
        for o in ("lognormal", "uniform")
    )
    assert 1 < equal < unequal


def test_paging_wastes_little_of_what_it_takes_and_reserving_wastes_most() -> None:
    def waste(summary: Any) -> float:
        parts = (summary["kv"][kind]["share_of_allocated"] for kind in ("reserved", "internal"))
        return float(sum(parts))

    assert waste(generation("continuous", "contiguous")) > 0.50
    assert waste(generation("continuous", "paged")) < 0.04


def test_contiguous_memory_and_not_slots_limits_concurrency() -> None:
    contiguous, paged = (generation("continuous", kv)["concurrency_mean"] for kv in ("contiguous", "paged"))
    assert contiguous < 60 < 2 * contiguous < paged


def test_doubling_slots_gains_less_each_time() -> None:
    t32, t64, t128 = (rate(generation("continuous", "paged", slots=slots)) for slots in (32, 64, 128))
    assert 1 < t128 / t64 < t64 / t32 < 2
