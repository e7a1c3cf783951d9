"""The doctor's rules on numbers made up for them: each fires beyond its thresholds, and not a little before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simkit.diagnosis import thresholds as at
from simkit.diagnosis.facts import Ends, Facts, Lengths, Waits, gather
from simkit.diagnosis.findings import Finding, Threshold
from simkit.diagnosis.rules import RULES, alarm_line, diagnose

CALM = Waits(anyone=0.1, slots=0.0, memory=0.0, budget=0.1, crowded=0.1, budget_used_up=0.1)
LENGTHS = Lengths(prompt_mean=500.0, prompt_p50=500.0, prompt_p99=900.0, longest=2000, held=1000.0)
ENGINE: dict[str, Any] = {
    "batching": "continuous", "kv_allocator": "paged", "max_num_seqs": 64, "max_num_active_seqs": 64,
    "max_num_batched_tokens": 2048, "max_model_len": 8192, "enable_chunked_prefill": True, "prefill_first": False,
    "preemption": "recompute", "block_size": 16, "enable_prefix_caching": True, "kv_cache_dtype": "auto",
    "gpu_memory_utilization": 0.9, "num_gpu_blocks": None, "watermark": 0.0, "async_scheduling": True,
    "long_prefill_token_threshold": 0, "reservation": "max", "dtype": "bfloat16",
}  # fmt: skip


MEMORY = {"num_gpu_blocks": 20_000, "highest_gpu_memory_utilization": 0.98}


def spread(p50: float, p99: float, mean: float | None = None) -> dict[str, float]:
    return {"mean": p50 if mean is None else mean, "p50": p50, "p90": p50, "p95": p50, "p99": p99}


def facts(
    engine: dict[str, Any] | None = None,
    scenario: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    **more: Any,
) -> Facts:
    """A run with nothing wrong, but for what is given."""
    resolved = {
        "engine": ENGINE | (engine or {}),
        "workload": {"arrivals": {"process": "poisson", "rate_per_s": 5}},
        "hardware": {"tensor_parallel_size": 1},
        "replicas": 1,
        "router": "round_robin",
        "slo": None,
    }
    manifest = {"name": "made-up", "memory": MEMORY, "scenario": resolved | (scenario or {})}
    numbers: dict[str, Any] = {
        "ttft_ms": spread(100, 200), "tpot_ms": spread(20, 25), "itl_ms": spread(15, 40), "e2e_ms": spread(3000, 5000),
        "queue_ms": spread(20, 80), "slot_utilization": 0.5, "slot_occupancy": 0.5, "concurrency_mean": 32.0,
        "throughput": {"requests_per_s": 5.0, "output_tokens_per_s": 900.0}, "num_preemptions": 0, "saturated": False,
        "kv": {"capacity_tokens": 160_000, "utilization": 0.3, "used": {"share_of_allocated": 0.95}},
        "gpu": {"busy": 1.0, "mfu": 0.2, "mbu": 0.6}, "prefix_cache_hit_rate": 0.0, "makespan_s": 100.0, "slo": None,
    }  # fmt: skip
    return Facts(
        **{
            "manifest": manifest,
            "summary": numbers | (summary or {}),
            "num_requests": 1000,
            "ends": Ends(finished=1000),
            "last_ns": 100_000_000_000,
            "waits": CALM,
            "lengths": LENGTHS,
            "running_mean": 32.0,
            "busy_share": 1.0,
            "mixed_step_ms": 40.0,
            "decode_step_ms": 13.0,
            "preempted_share": 0.0,
            "preemptions_a_request": 0.0,
            "most_preemptions": 0,
            "again": 0.0,
        }
        | more
    )


def found(run: Facts) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnose(run)}


def candidates(finding: Finding) -> list[dict[str, Any]]:
    return [dict(candidate) for advice in finding.advice for candidate in advice.candidates]


def missed(metric: str, target: float, value: float) -> dict[str, Any]:
    return {metric: {"p99": {"target_ms": target, "share_within": 0.9, "value_ms": value, "met": False}}}


def test_a_healthy_run_has_no_finding() -> None:
    assert diagnose(facts()) == []
    assert alarm_line(diagnose(facts())) is None


def waits(**shares: float) -> Waits:
    return replace(CALM, **shares)


PRESSED = {"preempted_share": 0.3, "preemptions_a_request": 0.5, "most_preemptions": 4, "again": 2.0}
FAILED: dict[str, Any] = {"failures": [{"replica": 0, "at_s": 40.0, "for_s": None}]}
EDGES: list[tuple[str, Callable[[float], Facts], float, float]] = [
    ("replica-failed", lambda v: facts(scenario=FAILED | {"replicas": 2}, last_ns=int(v * 1e9)), 41, 40),
    ("rejected", lambda v: facts(ends=Ends(finished=999, rejected=int(v), too_long=int(v), longest_rejected=9000)),
     1, 0),
    ("refused", lambda v: facts(ends=Ends(finished=999, refused=int(v))), 1, 0),
    ("aborted", lambda v: facts(ends=Ends(finished=999, aborted=int(v))), 1, 0),
    ("unfinished", lambda v: facts(ends=Ends(finished=999, unfinished=int(v))), 1, 0),
    ("room-left", lambda v: facts(summary={"slot_utilization": 0.1}, waits=waits(anyone=0.0),
                                  ends=Ends(finished=1000 - int(v), aborted=int(v))), 9, 10),
    ("room-left", lambda v: facts(summary={"slot_utilization": v}, waits=waits(anyone=0.0)), 0.29, 0.31),
    ("room-left", lambda v: facts(summary={"slot_utilization": 0.1}, waits=waits(anyone=v)), 0.04, 0.06),
    ("gpu-waits", lambda v: facts(busy_share=v), 0.89, 0.91),
    ("slots-limit", lambda v: facts(waits=waits(slots=v)), 0.21, 0.19),
    ("memory-limit", lambda v: facts(waits=waits(memory=v)), 0.21, 0.19),
    ("concurrency-misread", lambda v: facts(waits=waits(budget_used_up=v, crowded=0.9)), 0.76, 0.74),
    ("concurrency-misread", lambda v: facts(waits=waits(budget_used_up=0.9, crowded=v)), 0.51, 0.49),
    ("preemptions", lambda v: facts(preempted_share=v, preemptions_a_request=v), 0.11, 0.09),
    ("slots-beyond-memory", lambda v: facts(engine={"max_num_seqs": int(160 * v), "max_num_active_seqs": None},
                                            waits=waits(memory=0.5), **PRESSED), 1.55, 1.45),
    ("block-waste", lambda v: facts(engine={"block_size": 128}, summary=wasted(v)), 0.16, 0.14),
    ("contiguous-waste", lambda v: facts(engine={"kv_allocator": "contiguous"}, summary=wasted(v)), 0.41, 0.39),
    ("ttft-tail", lambda v: facts(summary={"ttft_ms": spread(100, v)}), 1001, 999),
    ("ttft-tail", lambda v: facts(summary={"ttft_ms": spread(2000 / v, 2000)}), 5.1, 4.9),
    ("prefill-stall", lambda v: facts(summary={"itl_ms": spread(5, v)}), 101, 99),
    ("prefill-stall", lambda v: facts(summary={"itl_ms": spread(200 / v, 200)}), 8.1, 7.9),
    ("mean-hides-tail", lambda v: facts(summary={"ttft_ms": spread(50, 900, v), "slo": missed("ttft_ms", 500, 900)}),
     499, 501),
    ("dead-slots", lambda v: facts(engine={"batching": "static"},
                                   summary={"slot_occupancy": 1.0, "slot_utilization": 1 - v}), 0.21, 0.19),
]  # fmt: skip


def wasted(share: float) -> dict[str, Any]:
    return {"kv": {"capacity_tokens": 160_000, "utilization": 0.3, "used": {"share_of_allocated": 1 - share}}}


@pytest.mark.parametrize(("rule", "run", "beyond", "before"), EDGES, ids=[edge[0] for edge in EDGES])
def test_a_rule_fires_beyond_its_threshold_and_not_before(
    rule: str, run: Callable[[float], Facts], beyond: float, before: float
) -> None:
    assert rule in found(run(beyond))
    assert rule not in found(run(before))


def test_saturation_is_the_summarys_own_word_and_asks_for_replicas() -> None:
    served = {"throughput": {"requests_per_s": 2.0}, "saturated": True, "saturation_reason": "the queue grows: x"}
    finding = found(facts(summary=served))["saturated"]
    assert "the queue grows: x" in finding.diagnosis
    assert candidates(finding) == [{"replicas": 3}], "5 requests/s, 2 served by one"


def test_every_rule_is_in_the_table_and_can_fire() -> None:
    assert list(RULES) == [rule for rule, _ in at.TABLE]
    fired = {rule for rule, run, beyond, _ in EDGES if rule in found(run(beyond))}
    assert fired | {"saturated", "preemption-kind", "prefix-cache"} == set(RULES), "the others have tests of their own"


@pytest.mark.parametrize(("rule", "run", "beyond", "before"), EDGES, ids=[edge[0] for edge in EDGES])
def test_evidence_quotes_the_run_beside_the_threshold(
    rule: str, run: Callable[[float], Facts], beyond: float, before: float
) -> None:
    finding = found(run(beyond))[rule]
    bound = [item for item in finding.evidence if item.threshold is not None]
    assert bound, "at least one number decides"
    deciding = [item for item in bound if item.name not in (at.LONG_PROMPTS.name, at.PREEMPTED_BADLY.name)]
    assert all(item.threshold.crossed(item.value) for item in deciding if item.threshold)
    assert json.loads(json.dumps(finding.to_json()))["rule"] == rule
    assert all(item.unit for item in finding.evidence)
    assert finding.diagnosis.endswith(".")


# --- advice -----------------------------------------------------------------------------------------------------------
def test_slots_are_lowered_to_what_memory_holds() -> None:
    """160,000 tokens and 1,000 a sequence: 160 slots, and a fifth fewer."""
    run = facts(engine={"max_num_seqs": 512, "max_num_active_seqs": 512}, waits=waits(memory=0.5), **PRESSED)
    assert candidates(found(run)["slots-beyond-memory"]) == [{"engine.max_num_seqs": 160}, {"engine.max_num_seqs": 128}]


def test_slots_are_raised_no_further_than_memory_and_budget() -> None:
    run = facts(engine={"max_num_seqs": 100, "max_num_active_seqs": None}, waits=waits(slots=0.5))
    assert candidates(found(run)["slots-limit"]) == [{"engine.max_num_seqs": 160}]
    run = facts(engine={"max_num_seqs": 100, "max_num_batched_tokens": 120}, waits=waits(slots=0.5))
    assert candidates(found(run)["slots-limit"]) == [{"engine.max_num_seqs": 120}]


def test_an_override_of_the_blocks_is_lifted_before_anything_else() -> None:
    run = facts(engine={"num_gpu_blocks": 65}, waits=waits(memory=0.5))
    assert candidates(found(run)["memory-limit"]) == [{"engine.num_gpu_blocks": None}]
    run = facts(engine={"num_gpu_blocks": 20_000}, waits=waits(memory=0.5))
    assert candidates(found(run)["memory-limit"]) == [], "as many as fit"


def test_memory_is_found_where_there_is_some() -> None:
    run = facts(waits=waits(memory=0.5))
    assert candidates(found(run)["memory-limit"]) == [
        {"engine.kv_cache_dtype": "fp8"}, {"engine.gpu_memory_utilization": 0.95},
    ]  # fmt: skip
    run = facts(engine={"kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.95}, waits=waits(memory=0.5))
    assert candidates(found(run)["memory-limit"]) == []


@pytest.mark.parametrize(
    ("highest", "advised"),
    [
        (0.98, [{"engine.gpu_memory_utilization": 0.95}]),
        (0.93, [{"engine.gpu_memory_utilization": 0.93}]),
        (0.9, []),
        (None, []),
    ],
)
def test_no_more_of_the_gpu_is_advised_than_leaves_room_beside_the_budget(
    highest: float | None, advised: list[dict[str, Any]]
) -> None:
    run = facts(engine={"kv_cache_dtype": "fp8"}, waits=waits(memory=0.5))
    run.manifest["memory"] = {"num_gpu_blocks": 20_000, "highest_gpu_memory_utilization": highest}  # type: ignore[index]
    assert candidates(found(run)["memory-limit"]) == advised


def test_whole_prompts_are_chunked_and_chunks_are_made_smaller() -> None:
    stall = {"itl_ms": spread(10, 900)}
    whole = found(facts(engine={"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}, summary=stall))
    assert whole["prefill-stall"].severity == "serious"
    assert [found["engine.max_num_batched_tokens"] for found in candidates(whole["prefill-stall"])] == [2048, 512]
    chunked = found(facts(summary=stall))["prefill-stall"]
    assert chunked.severity == "warning"
    assert candidates(chunked) == [{"engine.max_num_batched_tokens": 1024}, {"engine.max_num_batched_tokens": 512}]


@pytest.mark.parametrize(
    ("shares", "key"),
    [
        ({"slots": 0.15, "budget": 0.0}, "engine.max_num_seqs"),
        ({"memory": 0.15, "budget": 0.0}, "engine.kv_cache_dtype"),
        ({"budget": 0.15}, "engine.max_num_batched_tokens"),
    ],
)
def test_a_late_first_token_is_put_down_to_what_the_queue_waits_for(shares: dict[str, float], key: str) -> None:
    finding = found(facts(summary={"ttft_ms": spread(100, 3000)}, waits=waits(**shares)))["ttft-tail"]
    assert key in candidates(finding)[0]


def test_long_prompts_are_held_back_only_where_there_are_some() -> None:
    late: dict[str, Any] = {"summary": {"ttft_ms": spread(100, 3000)}}
    long = found(facts(lengths=replace(LENGTHS, prompt_p99=16_000.0), **late))["ttft-tail"]
    assert "engine.long_prefill_token_threshold" in candidates(long)[0]
    alike = found(facts(**late))["ttft-tail"]
    assert all("engine.long_prefill_token_threshold" not in candidate for candidate in candidates(alike))


def test_an_objective_that_is_met_silences_the_tail() -> None:
    slow = {"ttft_ms": spread(100, 3000)}
    assert "ttft-tail" not in found(facts(summary=slow, scenario={"slo": {"ttft_ms": {"p99": 4000.0}}}))
    assert "ttft-tail" in found(facts(summary=slow, scenario={"slo": {"ttft_ms": {"p99": 90.0}}}))


# --- requests without an answer ---------------------------------------------------------------------------------------
def test_what_can_never_fit_the_memory_asks_for_memory() -> None:
    finding = found(facts(engine={"num_gpu_blocks": 65}, ends=Ends(finished=980, rejected=20)))["rejected"]
    assert "20 sequences can never fit the KV memory" in finding.diagnosis
    assert "max_model_len" not in finding.diagnosis
    assert candidates(finding) == [{"engine.num_gpu_blocks": None}]


def test_a_few_lost_requests_are_a_note_and_many_are_serious() -> None:
    graves = [found(facts(ends=Ends(finished=1000 - n, refused=n)))["refused"].severity for n in (9, 10, 99, 100)]
    assert graves == ["note", "warning", "warning", "serious"]


def test_a_share_of_all_requests_is_no_long_tail() -> None:
    """86 % never finished, so the objective is missed; the p99 of the others is 2 ms."""
    run = facts(
        summary={"ttft_ms": spread(1.5, 1.97), "slo": missed("ttft_ms", 200, 1.97)},
        ends=Ends(finished=140, unfinished=860),
    )
    assert list(found(run)) == ["unfinished"]


def test_longer_contexts_go_up_to_that_of_the_model() -> None:
    lost = Ends(finished=990, rejected=10, too_long=10, longest_rejected=9000)
    run = facts(engine={"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}, ends=lost)
    run = replace(run, manifest={**run.manifest, "model": {"name": "m", "max_position": 32_768}})
    assert candidates(found(run)["rejected"]) == [
        {"engine.max_model_len": 16_384, "engine.max_num_batched_tokens": 16_384},
        {"engine.max_model_len": 32_768, "engine.max_num_batched_tokens": 32_768},
    ]


# --- preemption kind --------------------------------------------------------------------------------------------------
A100 = {
    "model": {"num_params": 7e9, "num_experts": 0},
    "gpu": {"pcie_bytes_per_s": 32e9, "hbm_bytes_per_s": 2e12, "peak_flops_per_s": {"bfloat16": 300e12}},
    "memory": {"kv_bytes_per_token": 524_288, "num_gpu_blocks": 20_000},
}


def preempting(kind: str, held: float, **manifest: Any) -> Facts:
    run = facts(engine={"preemption": kind}, lengths=replace(LENGTHS, held=held), **PRESSED)
    return replace(run, manifest={**run.manifest, **A100, **manifest})


@pytest.mark.parametrize(("kind", "held", "wrong"), [
    ("recompute", 2000.0, True),
    ("swap", 2000.0, False),
    ("recompute", 60.0, False),
    ("swap", 60.0, True),
    ("auto", 60.0, False),
])  # fmt: skip
def test_short_sequences_are_recomputed_and_long_ones_swapped(kind: str, held: float, wrong: bool) -> None:
    """Llama 2 7B: 33 us a token over PCIe, 47 us of FLOPs, and a decode step of 32 has room for 118 tokens more."""
    assert ("preemption-kind" in found(preempting(kind, held))) is wrong


def test_the_estimate_is_that_of_its_formula() -> None:
    finding = found(preempting("recompute", 2000.0))["preemption-kind"]
    shown = {item.name: item.value for item in finding.evidence}
    assert shown["swap adds, estimated"] == pytest.approx(2000 * 2 * 524_288 / 32e9 * 1e3)
    assert shown["recompute adds, estimated"] == pytest.approx((2000 - (150 - 32)) * 2 * 7e9 / 300e12 * 1e3)


def test_without_the_figures_there_is_no_estimate() -> None:
    assert "preemption-kind" not in found(preempting("recompute", 2000.0, gpu={}))
    assert "preemption-kind" not in found(preempting("recompute", 2000.0, model={"num_params": 7e9, "num_experts": 8}))


# --- prefix cache -----------------------------------------------------------------------------------------------------
def sharing(engine: dict[str, Any] | None = None, hits: float | None = 0.0, groups: int = 1, **scenario: Any) -> Facts:
    workload = {"arrivals": {"process": "poisson", "rate_per_s": 5}, "prefix": {"groups": groups, "tokens": 400}}
    return facts(engine, {"workload": workload, **scenario}, {"prefix_cache_hit_rate": hits})


@pytest.mark.parametrize(
    ("run", "change"),
    [
        (sharing({"enable_prefix_caching": False}, None), {"engine.enable_prefix_caching": True}),
        (sharing({"block_size": 256}, 0.3), {"engine.block_size": 16}),
        (sharing(groups=20, replicas=4), {"router": "prefix_affinity"}),
        (sharing(groups=20), {"engine.kv_cache_dtype": "fp8"}),
        (sharing({"batching": "static"}), {"engine.batching": "continuous", "engine.kv_allocator": "paged"}),
    ],
    ids=["off", "blocks", "router", "evicted", "static"],
)
def test_why_a_shared_prefix_is_not_shared(run: Facts, change: dict[str, Any]) -> None:
    assert candidates(found(run)["prefix-cache"])[0] == change


def test_what_cannot_be_shared_is_not_asked_for() -> None:
    """400 of 500 tokens are shared; the first of each group must compute them."""
    assert "prefix-cache" not in found(sharing(hits=0.65)), "0.8 possible, four fifths of it reached"
    assert "prefix-cache" in found(sharing(hits=0.63))
    assert "prefix-cache" not in found(sharing(groups=900)), "nearly everybody is the first"


# --- facts from tables ------------------------------------------------------------------------------------------------
def steps(*rows: tuple[int, ...]) -> dict[str, Any]:
    names = ("t_start_ns", "t_end_ns", "num_steps", "num_decode", "prefill_tokens", "running", "waiting",
             "kv_free_tokens", "kv_external_tokens")  # fmt: skip
    return dict(zip(names, np.array(rows, dtype=np.int64).T, strict=True)) | {"replication": np.zeros(len(rows))}


def test_waits_are_shares_of_time_by_what_is_missing() -> None:
    manifest = {"scenario": {"engine": {"max_num_seqs": 4, "max_num_batched_tokens": 100, "watermark": 0.0}}}
    table = steps(
        (0, 40, 1, 4, 0, 4, 1, 500, 0),  # all slots taken, one waits
        (40, 60, 1, 2, 98, 3, 1, 20, 0),  # memory is full, and so is the budget
        (60, 70, 1, 2, 50, 3, 2, 500, 0),  # neither: the token budget
        (70, 80, 1, 2, 0, 3, 1, 500, 490),  # free memory in holes too small is no memory
        (80, 100, 2, 2, 0, 2, 0, 900, 0),
    )
    requests = {
        "arrival_ns": np.array([0, 0]), "prompt_tokens": np.array([100, 300]), "output_tokens": np.array([10, 30]),
        "num_preemptions": np.array([0, 3]), "status": np.array(["finished", "finished"]), "replication": np.zeros(2),
    }  # fmt: skip
    run = gather(manifest, {"kv": {"capacity_tokens": 1000}, "prefix_cache_hit_rate": None}, requests, table)
    assert run.waits == Waits(anyone=0.8, slots=0.4, memory=0.3, budget=0.1, crowded=0.8, budget_used_up=0.2)
    assert run.running_mean == pytest.approx(0.4 * 4 + 0.4 * 3 + 0.2 * 2)
    assert run.lengths.held == pytest.approx((10 * 105 + 30 * 315) / 40)
    assert run.lengths.longest == 330
    assert (run.preempted_share, run.preemptions_a_request, run.most_preemptions) == (0.5, 1.5, 3)
    assert run.mixed_step_ms == pytest.approx(15e-6)
    assert run.decode_step_ms == pytest.approx(70 / 4 * 1e-6)


def test_an_empty_run_is_no_patient() -> None:
    empty = {name: np.array([], dtype=np.int64) for name in steps((0,) * 9)}
    none: dict[str, Any] = {name: np.array([]) for name in
                            ("arrival_ns", "prompt_tokens", "output_tokens", "num_preemptions", "status",
                             "replication")}  # fmt: skip
    assert diagnose(gather({}, {}, none, empty)) == []


@pytest.mark.parametrize(("relation", "below", "equal", "above"), [
    (">=", False, True, True),
    (">", False, False, True),
    ("<", True, False, False),
    ("<=", True, True, False),
])  # fmt: skip
def test_thresholds_have_a_side(relation: Any, below: bool, equal: bool, above: bool) -> None:
    bound = Threshold("x", relation, 2.0, "x")
    assert [bound.crossed(value) for value in (1.0, 2.0, 3.0, None)] == [below, equal, above, False]
