"""The doctor where requests get no answer: what is found, what is not claimed, and runs whose files are damaged.

Steps last 1 ms, so a request of 100 tokens takes 0.1 s and 32 slots serve 320 requests/s.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from served import as_asked
from typer.testing import CliRunner

from simkit import api, scenario
from simkit.cli import app
from simkit.diagnosis.rules import diagnose
from simkit.errors import CheckError, InputError
from simkit.studies import doctor

BASE: dict[str, Any] = {
    "name": "u",
    "model": "llama-3-8b",
    "hardware": {"gpu": "a100-sxm4-80gb"},
    "engine": {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "max_model_len": 2048, "async_scheduling": False},
    "workload": {
        "num_requests": 600,
        "arrivals": {"process": "poisson", "rate_per_s": 20},
        "prompt_tokens": {"dist": "fixed", "value": 64},
        "output_tokens": {"dist": "fixed", "value": 100},
    },
    "latency": {"profile": "unit"},
    "slo": {"ttft_ms": {"p99": 200}},
}


def build(**sets: Any) -> scenario.Scenario:
    """The base with dotted keys set; a double underscore stands for the dot."""
    return scenario.apply_sets(scenario.from_dict(BASE), {key.replace("__", "."): v for key, v in sets.items()})


def examined(prove: bool = False, **sets: Any) -> dict[str, dict[str, Any]]:
    """What the doctor says, by rule and in its order."""
    drawn = build(**sets)
    found = doctor.examine(drawn if prove else None, as_asked(drawn))["findings"]
    return {finding["rule"]: finding for finding in found}


def shown(finding: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item["value"] for item in finding["evidence"]}


def proofs(finding: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The proofs of all advice that was tried, by its settings."""
    entries = [{**finding["advice"], "proof": finding["proof"]}, *finding["also_tried"]]
    return {json.dumps(entry["settings"]): entry["proof"] for entry in entries if entry["proof"]}


# --- requests without an answer ---------------------------------------------------------------------------------------
def test_requests_that_no_replica_is_left_for_are_no_long_tail() -> None:
    found = examined(True, workload__num_requests=100, failures=[{"replica": 0, "at_s": 1}])
    assert list(found) == ["replica-failed", "unfinished"], "no room-left, no mean-hides-tail"
    assert found["unfinished"]["severity"] == "serious"
    assert found["unfinished"]["diagnosis"].startswith("86 of 100 requests were unfinished: no replica was up")
    assert proofs(found["unfinished"])['{"replicas": 2}']["after"]["num_requests.finished"] == 100
    assert "Replica 0 failed at 1 s for good; meanwhile nobody is served" in found["replica-failed"]["diagnosis"]


def test_refused_requests_are_counted_and_let_in_by_replicas_or_a_longer_queue() -> None:
    found = examined(True, workload__queue_limit=1, workload__arrivals__rate_per_s=600, slo={"tpot_ms": {"p99": 50}})
    assert list(found) == ["refused"]
    evidence = shown(found["refused"])
    assert evidence["requests refused, number"] == 283
    assert evidence["requests refused"] == pytest.approx(283 / 600)
    tried = proofs(found["refused"])
    for settings_ in ('{"replicas": 3}', '{"engine.max_num_seqs": 64}', '{"workload.queue_limit": null}'):
        assert tried[settings_]["helps"], settings_


def test_clients_that_give_up_in_the_queue_ask_for_slots_or_replicas() -> None:
    found = examined(True, workload__timeout_s=0.11, workload__arrivals__rate_per_s=290)
    assert list(found) == ["aborted", "slots-limit"]
    assert "92 of 600 requests were aborted: clients gave up after 0.11 s" in found["aborted"]["diagnosis"]
    tried = proofs(found["aborted"])
    assert tried['{"engine.max_num_seqs": 64}']["after"]["num_requests.finished"] == 600
    assert tried['{"replicas": 2}']["helps"]


def test_clients_that_all_give_up_leave_no_room() -> None:
    found = examined(workload__timeout_s=0.0005, slo=None)
    assert list(found) == ["aborted"]
    assert found["aborted"]["advice"]["settings"] == {"workload.timeout_s": None}
    assert "while hardly anybody waited" in found["aborted"]["diagnosis"]
    assert found["aborted"]["diagnosis"].endswith("No request finished.")


def test_rejected_prompts_get_a_context_up_to_that_of_the_model() -> None:
    found = examined(True, workload__prompt_tokens__value=5000)
    assert list(found) == ["rejected"]
    assert "600 prompts are not shorter than max_model_len (2,048)" in found["rejected"]["diagnosis"]
    assert found["rejected"]["advice"]["settings"] == {"engine.max_model_len": 8192}
    assert found["rejected"]["proof"]["after"]["num_requests.finished"] == 600


def test_a_prompt_beyond_the_model_has_no_setting() -> None:
    found = examined(workload__prompt_tokens__value=9000, engine__max_model_len=8192, workload__num_requests=20)
    assert found["rejected"]["advice"]["settings"] == {}
    assert "take a model of longer context" in found["rejected"]["advice"]["text"]


def test_all_replications_count() -> None:
    one, three = (
        examined(replications=n, workload__timeout_s=0.0005, workload__num_requests=50)["aborted"] for n in (1, 3)
    )
    assert (shown(one)["requests aborted, number"], shown(three)["requests aborted, number"]) == (50, 150)


# --- failed replicas --------------------------------------------------------------------------------------------------
def test_a_failed_replica_is_named_before_what_follows_from_it() -> None:
    found = examined(
        True, replicas=2, router="round_robin", engine__max_num_seqs=8, workload__arrivals__rate_per_s=120,
        failures=[{"replica": 0, "at_s": 0.5}],
    )  # fmt: skip
    assert next(iter(found)) == "replica-failed"
    outage = found["replica-failed"]
    assert outage["severity"] == "serious"
    assert outage["diagnosis"].startswith("Replica 0 failed at 0.5 s for good; meanwhile 1 of 2 replicas serve")
    assert shown(outage)["requests returned to the queue"] == 7
    assert outage["advice"]["settings"] == {"replicas": 3}
    assert outage["proof"]["helps"]


def test_replicas_that_fail_together_need_a_spare_each() -> None:
    failures = [{"replica": 0, "at_s": 1}, {"replica": 1, "at_s": 2, "for_s": 3}, {"replica": 2, "at_s": 6, "for_s": 1}]
    found = examined(replicas=4, workload__num_requests=200, failures=failures)
    assert found["replica-failed"]["advice"]["settings"] == {"replicas": 6}
    assert found["replica-failed"]["severity"] == "note", "nobody noticed"


def test_a_failure_after_the_last_request_is_none() -> None:
    assert list(examined(failures=[{"replica": 0, "at_s": 500}])) == ["room-left"]


# --- evidence and diagnosis agree -------------------------------------------------------------------------------------
def test_an_objective_out_of_reach_is_not_nothing_to_fix() -> None:
    found = examined(slo={"tpot_ms": {"p99": 0.5}})
    assert "The objective of TPOT is missed" in found["room-left"]["advice"]["text"]


def test_steps_full_of_decodes_are_not_full_of_prompts() -> None:
    """A budget of one token a slot is used up by decodes; what is missing are slots."""
    sets = {"engine.max_num_batched_tokens": 32, "workload.arrivals.rate_per_s": 1000}
    found = examined(workload__prompt_tokens__value=2, **sets)
    assert "concurrency-misread" not in found
    assert "slots-limit" in found


def test_long_answers_are_not_put_down_to_the_queue() -> None:
    lengths = {"dist": "list", "values": [10] * 19 + [400]}
    found = examined(workload__output_tokens=lengths, slo={"e2e_ms": {"p99": 300}})
    assert "some answers take that long, without waiting" in found["mean-hides-tail"]["diagnosis"]
    assert found["mean-hides-tail"]["advice"] is None


def test_waiting_for_a_replica_to_come_back_is_not_waiting_for_slots() -> None:
    found = examined(failures=[{"replica": 0, "at_s": 10, "for_s": 1}])
    assert "because a replica failed" in found["mean-hides-tail"]["diagnosis"]
    assert found["mean-hides-tail"]["advice"]["settings"] == {"replicas": 2}


def test_a_gap_that_a_failure_makes_is_no_prompt_in_the_way() -> None:
    """One of 20 requests waits 0.3 s in the middle of its answer; steps with prompts last as long as others."""
    sets = {"workload.arrivals": {"process": "all_at_once"}, "workload.output_tokens.value": 50}
    found = examined(workload__num_requests=20, failures=[{"replica": 0, "at_s": 0.02, "for_s": 0.3}], **sets)
    assert "replica-failed" in found
    assert "prefill-stall" not in found


def test_work_for_clients_that_gave_up_is_work() -> None:
    """Static batches go on after the last client that finished; the GPU never waits with step times of 1 ms."""
    sets = {"engine.batching": "static", "engine.max_num_seqs": 4, "workload.arrivals.rate_per_s": 60}
    found = examined(workload__num_requests=60, failures=[{"replica": 0, "at_s": 0.2}], **sets)
    assert "gpu-waits" not in found


def test_contiguous_memory_is_set_aside_and_not_full() -> None:
    sets = {"engine.kv_allocator": "contiguous", "engine.num_gpu_blocks": 300, "workload.arrivals.rate_per_s": 100}
    found = examined(engine__enable_prefix_caching=False, **sets)
    assert "the KV memory is set aside, though not filled, for 2 running" in found["memory-limit"]["diagnosis"]


def test_a_prefix_shorter_than_a_block_is_not_evicted() -> None:
    prefix = {"groups": 1, "tokens": 15}
    found = examined(workload__prefix=prefix, workload__prompt_tokens__value=20)
    assert "blocks of 16 tokens hold only 0 of them" in found["prefix-cache"]["diagnosis"]


def test_nothing_is_evicted_where_everything_fits() -> None:
    sets = {"workload.arrivals": {"process": "all_at_once"}, "workload.prefix": {"groups": 1, "tokens": 64}}
    found = examined(workload__prompt_tokens__value=80, workload__num_requests=20, **sets)
    assert "evicted" not in str(found.get("prefix-cache"))


HOLDS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda a, b: a >= b, ">": lambda a, b: a > b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
}  # fmt: skip


@st.composite
def drawn_sets(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a small scenario in which anything may go wrong."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    replicas = pick(1, 1, 2)
    sets: dict[str, Any] = {
        "seed": draw(st.integers(0, 99)),
        "replicas": replicas,
        "engine.batching": pick("continuous", "continuous", "continuous", "static", "dynamic"),
        "engine.max_num_seqs": pick(1, 4, 32),
        "engine.max_num_batched_tokens": pick(32, 64, 2048),
        "engine.max_model_len": pick(128, 2048),
        "engine.num_gpu_blocks": pick(None, 129, 300),
        "engine.preemption": pick("recompute", "swap"),
        "workload.num_requests": 60,
        "workload.arrivals.rate_per_s": pick(5, 60, 400),
        "workload.prompt_tokens": {"dist": "uniform", "low": 20, "high": pick(40, 200, 1500)},
        "workload.output_tokens": {"dist": "uniform", "low": 1, "high": pick(2, 100, 400)},
        "workload.timeout_s": pick(None, None, 0.0005, 0.1),
        "workload.queue_limit": pick(None, None, 0, 1, 8),
        "workload.prefix": pick(None, {"groups": 2, "tokens": 16}),
        "replications": pick(1, 2),
        "failures": pick([], [], [{"replica": 0, "at_s": 0.2}], [{"replica": 0, "at_s": 0.1, "for_s": 0.3}]),
        "slo": {
            metric: {pick("p50", "p95", "p99"): pick(0.9, 2.0, 50.0, 500.0)}
            for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
        },
    }
    return sets


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(drawn_sets())
def test_every_number_is_on_the_side_of_the_threshold_beside_it(sets: dict[str, Any]) -> None:
    try:
        result = as_asked(scenario.apply_sets(scenario.from_dict(BASE), sets))
    except (CheckError, InputError):
        reject()
    findings = diagnose(doctor.facts_of(result))
    counts = result.summary["num_requests"]
    for finding in findings:
        for item in finding.evidence:
            if item.threshold is not None:
                bound = item.threshold
                assert item.value is not None, (finding.rule, item.name)
                assert HOLDS[bound.relation](item.value, bound.value), (finding.rule, item)
    rules = {finding.rule for finding in findings}
    for kind in ("rejected", "refused", "aborted", "unfinished"):
        assert (kind in rules) == (counts[kind] > 0)
    if "room-left" in rules:
        assert counts["finished"] >= 0.99 * counts["arrived"]


# --- damaged runs -----------------------------------------------------------------------------------------------------
def simkit(cwd: Path, *arguments: str) -> Any:
    with chdir(cwd):
        return CliRunner().invoke(app.app, list(arguments))


def rewritten(change: Callable[[Any], Any]) -> Callable[[Path], object]:
    """A damage to the table of requests."""

    def damage(run: Path) -> None:
        import pyarrow.parquet as pq

        pq.write_table(change(pq.read_table(run / "requests.parquet")), run / "requests.parquet")

    return damage


def other_replications(table: Any) -> Any:
    import pyarrow as pa

    index = table.schema.get_field_index("replication")
    return table.set_column(index, "replication", pa.array([7] * table.num_rows, pa.int64()))


def lacks(key: str) -> Callable[[Path], object]:
    def damage(run: Path) -> None:
        data = json.loads((run / "summary.json").read_text())
        group, _, name = key.rpartition(".")
        del (data[group] if group else data)[name]
        (run / "summary.json").write_text(json.dumps(data))

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda run: (run / "summary.json").write_text("{}"),
            "run/summary.json: key 'num_requests.arrived' is missing",
        ),
        (lacks("saturated"), "run/summary.json: key 'saturated' is missing"),
        (lacks("kv.capacity_tokens"), "run/summary.json: key 'kv.capacity_tokens' is missing"),
        (rewritten(lambda table: table.slice(0, 30)), "run/requests.parquet: expected 40 requests"),
        (rewritten(other_replications), "run/requests.parquet: expected replications 0 to 1, got 7"),
    ],
)
def test_a_run_that_is_damaged_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    api.write(as_asked(build(workload__num_requests=20, replications=2)), tmp_path / "run", report=False)
    assert simkit(tmp_path, "doctor", "run", "--no-proof").exit_code == 0
    damage(tmp_path / "run")
    done = simkit(tmp_path, "doctor", "run")
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
