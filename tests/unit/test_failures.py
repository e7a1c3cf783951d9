"""Replicas that fail: what is lost, what is not, and where requests go. Steps last 1 ms, unless `top` says else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from served import as_asked

from simkit import api, scenario
from simkit.engine.build import set_up
from simkit.engine.run import simulate
from simkit.errors import InputError
from simkit.report.figures import timeline
from simkit.report.read.run import load_run

MS = 1_000_000


def fixed(value: int) -> dict[str, Any]:
    return {"dist": "fixed", "value": value}


def outage(replica: int, at_ms: float, for_ms: float | None = None) -> dict[str, Any]:
    return {"replica": replica, "at_s": at_ms / 1000, "for_s": None if for_ms is None else for_ms / 1000}


def build(
    failures: list[dict[str, Any]], workload: dict[str, Any], engine: dict[str, Any] | None = None, **top: Any
) -> scenario.Scenario:
    """A synchronous scenario without caching; all requests come at once unless `workload` says otherwise."""
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "failures": failures,
        "engine": {"async_scheduling": False, "enable_prefix_caching": False, "max_model_len": 256} | (engine or {}),
        "workload": {"prompt_tokens": fixed(4), "arrivals": {"process": "all_at_once"}} | workload,
        "latency": {"profile": "unit"},
        "warmup": "none",
    }
    return scenario.from_dict(data | top)


def column(frame: pd.DataFrame, name: str) -> list[int]:
    return [int(value) for value in frame[name]]


TEN_TOKENS = {"num_requests": 1, "output_tokens": fixed(10)}


# --- one request ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_delivered_token_is_never_taken_back(asynchronous: bool) -> None:
    """Tokens at 1, 2, 3, 4 ms; the fifth step is broken off at 4.5. From 14.5 on 8 tokens are computed anew."""
    drawn = build([outage(0, 4.5, 10)], TEN_TOKENS, {"async_scheduling": asynchronous})
    result = api.run(drawn)
    summary, requests = result.summary, result.requests
    assert column(requests, "first_token_ns") == [1 * MS]
    assert column(requests, "last_token_ns") == [int(20.5 * MS)]
    assert column(requests, "first_scheduled_ns") == [0]
    assert column(requests, "output_tokens") == [10]
    assert (summary["num_requeued"], summary["num_preemptions"]) == (1, 0)
    assert summary["num_steps"] == 4 + 1 + 6
    assert summary["gpu"]["busy"] == pytest.approx((4.5 + 6) / 20.5)
    # 4 tokens of the prompt, then 4 of the prompt and 4 delivered ones.
    assert result.steps["prefill_tokens"].sum() == 12
    assert summary["itl_ms"]["mean"] == pytest.approx(19.5 / 9, rel=1e-3)
    assert list(result.slots["end"]) == ["failed", "finished"]
    assert column(result.slots, "released_ns") == [int(4.5 * MS), int(20.5 * MS)]


def test_a_step_that_ends_when_the_replica_fails_is_over() -> None:
    """The fourth token at 4 ms is delivered; no step is broken off."""
    result = api.run(build([outage(0, 4, 10)], TEN_TOKENS))
    assert column(result.requests, "last_token_ns") == [20 * MS]
    assert result.summary["num_steps"] == 10
    assert result.summary["gpu"]["busy"] == pytest.approx(10 / 20)


def test_what_does_not_stream_starts_over() -> None:
    result = api.run(build([outage(0, 4.5, 10)], TEN_TOKENS, {"stream": False}))
    assert column(result.requests, "first_token_ns") == [int(24.5 * MS)]
    assert column(result.requests, "generated_first_ns") == [int(15.5 * MS)]
    assert result.steps["prefill_tokens"].sum() == 8


@pytest.mark.parametrize(("stream", "end_ms"), [(True, 20.5), (False, 24.5)])
def test_a_static_batch_goes_on_where_its_clients_are(stream: bool, end_ms: float) -> None:
    engine = {"batching": "static", "max_num_seqs": 2, "stream": stream}
    result = api.run(build([outage(0, 4.5, 10)], TEN_TOKENS | {"num_requests": 2}, engine))
    assert column(result.requests, "last_token_ns") == [int(end_ms * MS)] * 2


def test_a_member_of_a_batch_that_has_everything_leaves_when_its_replica_fails() -> None:
    workload = {"num_requests": 2, "output_tokens": {"dist": "list", "values": [2, 10]}}
    engine = {"batching": "static", "max_num_seqs": 2, "stream": True}
    result = api.run(build([outage(0, 4.5, 10)], workload, engine))
    assert column(result.requests, "last_token_ns") == [2 * MS, int(20.5 * MS)]
    assert result.summary["num_requeued"] == 1


def test_a_cache_is_lost_with_its_replica() -> None:
    """The second request finds the prompt of the first one, unless the replica failed between them."""
    workload = {
        "num_requests": 2,
        "arrivals": {"process": "constant", "rate_per_s": 50.0},
        "prompt_tokens": fixed(64),
        "output_tokens": fixed(2),
        "prefix": {"groups": 1, "tokens": 64},
    }
    engine = {"enable_prefix_caching": True}
    found = api.run(build([outage(0, 100)], workload, engine)).requests["cached_tokens"]
    lost = api.run(build([outage(0, 10, 1)], workload, engine)).requests["cached_tokens"]
    assert (column(pd.DataFrame(found), "cached_tokens")[1] > 0, int(lost.iloc[1])) == (True, 0)


# --- several replicas -------------------------------------------------------------------------------------------------
def test_requests_go_to_those_who_are_up_in_order_of_arrival() -> None:
    """Four requests take turns; those of replica 0 join replica 1 behind its own, which have its two slots."""
    workload = {"num_requests": 4, "output_tokens": fixed(10)}
    result = api.run(build([outage(0, 4.5)], workload, {"max_num_seqs": 2}, replicas=2))
    assert column(result.requests, "replica") == [1, 1, 1, 1]
    assert column(result.requests, "last_token_ns") == [16 * MS, 10 * MS, 16 * MS, 10 * MS]
    assert result.summary["num_requeued"] == 2
    assert [part["requests"] for part in result.summary["replicas"]] == [0, 4]
    assert result.manifest["notes"] == ["replica 0 failed at 0.0045 s for good: 2 requests returned to the queue"]


def test_replicas_that_fail_together_send_nothing_to_each_other() -> None:
    result = api.run(build([outage(0, 4.5), outage(1, 4.5, 10)], TEN_TOKENS | {"num_requests": 2}, replicas=3))
    assert column(result.requests, "replica") == [2, 2]
    assert result.summary["num_requeued"] == 2


def test_requests_wait_at_the_router_while_no_replica_is_up() -> None:
    """Arrivals at 0, 10, 20 ms; replica 0 is down from 5 to 25 ms. The first request has 5 tokens by then."""
    workload = {
        "num_requests": 3,
        "arrivals": {"process": "constant", "rate_per_s": 100.0},
        "output_tokens": fixed(8),
        "queue_limit": 5,
    }
    result = api.run(build([outage(0, 5, 20)], workload))
    start = int(result.requests["arrival_ns"].min())
    assert start == 0
    assert column(result.requests, "first_scheduled_ns") == [0, 25 * MS, 25 * MS]
    assert column(result.requests, "last_token_ns") == [28 * MS, 33 * MS, 33 * MS]


def test_who_arrives_at_a_full_router_is_refused_and_who_was_accepted_is_not() -> None:
    workload = {
        "num_requests": 4,
        "arrivals": {"process": "constant", "rate_per_s": 200.0},
        "output_tokens": fixed(20),
        "queue_limit": 2,
    }
    result = api.run(build([outage(0, 7, 50)], workload))
    assert list(result.requests["status"]) == ["finished", "finished", "refused", "refused"]
    assert result.requests["replica"].isna().tolist() == [False, False, True, True]


def test_a_client_gives_up_at_the_router_with_the_tokens_it_has() -> None:
    result = api.run(build([outage(0, 4.5, 100)], TEN_TOKENS | {"timeout_s": 0.02}))
    (row,) = result.requests.to_dict("records")
    assert (row["status"], row["output_tokens"], row["last_token_ns"]) == ("aborted", 4, 4 * MS)
    assert pd.isna(row["replica"])


def test_nobody_comes_back_and_the_run_ends() -> None:
    result = api.run(build([outage(0, 4.5), outage(1, 6.5)], TEN_TOKENS | {"num_requests": 3}, replicas=2))
    assert result.summary["num_requests"]["unfinished"] == 3
    assert list(result.requests["status"]) == ["unfinished"] * 3
    assert column(result.requests, "output_tokens") == [5, 6, 5]
    assert result.manifest["notes"] == [
        "replica 0 failed at 0.0045 s for good: 2 requests returned to the queue",
        "replica 1 failed at 0.0065 s for good: 3 requests returned to the queue",
        "3 requests unfinished: no replica was up any more",
    ]


def test_a_closed_loop_stops_with_its_replica() -> None:
    workload = {
        "num_requests": 100,
        "arrivals": {"process": "closed_loop", "concurrency": 2},
        "output_tokens": fixed(10),
    }
    counts = api.run(build([outage(0, 35)], workload)).summary["num_requests"]
    assert (counts["arrived"], counts["finished"], counts["unfinished"]) == (8, 6, 2)


def test_only_groups_of_the_replica_that_fails_move() -> None:
    """Six groups on three replicas; those of replica 0 (groups 0 and 3) go one to each of the others."""
    workload = {
        "num_requests": 120,
        "arrivals": {"process": "constant", "rate_per_s": 1000.0},
        "prompt_tokens": fixed(16),
        "output_tokens": fixed(1),
        "prefix": {"groups": 6, "tokens": 16},
    }
    calm, broken = (
        api.run(build(failures, workload, replicas=3, router="prefix_affinity")).requests
        for failures in ([], [outage(0, 0)])
    )
    moved = calm["replica"] == 0
    assert (broken["replica"][~moved] == calm["replica"][~moved]).all()
    assert set(broken["replica"][moved]) == {1, 2}


# --- books ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_every_gap_between_two_tokens_is_counted_once(batching: str, asynchronous: bool) -> None:
    failures = [{"replica": i % 2, "at_s": 0.31 + 0.7 * i, "for_s": 0.8} for i in range(8)]
    workload = {
        "num_requests": 200,
        "arrivals": {"process": "poisson", "rate_per_s": 30.0},
        "prompt_tokens": {"dist": "uniform", "low": 10, "high": 100},
        "output_tokens": {"dist": "uniform", "low": 1, "high": 120},
        "timeout_s": 2.0,
    }
    engine = {"batching": batching, "max_num_seqs": 8, "async_scheduling": asynchronous, "stream": True}
    drawn = build(failures, workload, engine, replicas=2, latency={"profile": "roofline"})
    record = simulate(set_up(drawn)).record
    tokens = record.requests.to_dict()["output_tokens"]
    assert record.num_requeued is not None
    assert record.num_requeued > 20
    assert record.itl.count == int(np.maximum(tokens - 1, 0).sum())
    table = record.requests.to_dict()
    several = tokens > 1
    assert record.itl.total_ns == int((table["last_token_ns"] - table["first_token_ns"])[several].sum())


def test_slots_that_are_held_are_stays_up_to_the_failure() -> None:
    """Little's law between steps and stays, an identity of integers: the step broken off counts up to there."""
    failures = [{"replica": 0, "at_s": 1.2345, "for_s": 2.0}, {"replica": 1, "at_s": 4.0, "for_s": 0.1}]
    workload = {
        "num_requests": 100,
        "arrivals": {"process": "poisson", "rate_per_s": 20.0},
        "prompt_tokens": {"dist": "uniform", "low": 10, "high": 100},
        "output_tokens": {"dist": "uniform", "low": 20, "high": 120},
    }
    result = api.run(build(failures, workload, {"max_num_seqs": 8}, replicas=2, latency={"profile": "roofline"}))
    steps, slots = result.steps, result.slots
    assert (slots["end"] == "failed").sum() > 5
    held = int((steps["running"] * (steps["t_end_ns"] - steps["t_start_ns"])).sum())
    assert held == int((slots["released_ns"] - slots["admitted_ns"]).sum())


def test_an_outage_of_an_idle_replica_changes_nobody(tmp_path: Path) -> None:
    """Neither before the first request nor after the last one left."""
    workload = {"num_requests": 5, "output_tokens": fixed(10)}
    calm = api.run(build([], workload))
    late = api.run(build([outage(0, 500, 10), outage(0, 600)], workload))
    assert late.tables["requests"].equals(calm.tables["requests"])
    assert late.tables["steps"].equals(calm.tables["steps"])
    assert {key: value for key, value in late.summary.items() if not key.startswith("num_requeued")} == calm.summary
    assert late.manifest["notes"][0] == "replica 0 failed at 0.5 s for 0.01 s: all requests had left by then"
    assert "failures" not in calm.manifest["scenario"]


def test_notes_add_up_over_replications() -> None:
    result = as_asked(build([outage(0, 4.5, 10)], TEN_TOKENS, replications=3))
    assert result.manifest["notes"] == [
        "replica 0 failed at 0.0045 s for 0.01 s: 3 requests returned to the queue in 3 replications"
    ]
    assert result.summary["num_requeued"] == 1


def test_the_report_marks_the_outage(tmp_path: Path) -> None:
    workload = {"num_requests": 40, "output_tokens": fixed(50)}
    drawn = build([outage(1, 20, 30)], workload, {"max_num_seqs": 4}, replicas=2, name="marked")
    api.write(api.run(drawn), tmp_path / "marked")
    run = load_run("marked", tmp_path / "marked")
    found = timeline.draw(run, "timeline0", timeline.limits([run]))
    assert found is not None
    assert "grey: replica 1 is down (20 to 50 ms)" in found.caption
    assert "at the router" not in found.caption
    html = (tmp_path / "marked" / "report.html").read_text(encoding="utf-8")
    assert "Requeued" in html
    assert "replica 1 failed at 0.02 s for 0.03 s: 20 requests returned to the queue" in html
    assert json.loads((tmp_path / "marked" / "summary.json").read_text())["num_requeued"] == 20


# --- the schema -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ([outage(2, 0)], "failures[0].replica: expected a replica from 0 to 1 (replicas is 2), got 2"),
        ([outage(0, 0), outage(-1, 0)], "failures[1].replica: expected an integer >= 0, got -1"),
        ([outage(0, -1)], "failures[0].at_s: expected seconds >= 0 (and <= 1e9), got -0.001"),
        ([outage(0, 1, 0)], "failures[0].for_s: expected seconds > 0 (and <= 1e9), got 0.0"),
        (
            [outage(0, 2000), outage(1, 1500), outage(0, 1000, 1500)],
            "failures[0].at_s: expected outages of replica 0 that do not overlap (failures[2] lasts until 2.5 s), got",
        ),
        (
            [outage(0, 1000), outage(0, 5000, 10)],
            "failures[1].at_s: expected outages of replica 0 that do not overlap (failures[0] lasts for good), got 5",
        ),
        ([{"replica": 0, "at": 3}], "failures[0].at: unknown key; did you mean 'at_s'?"),
        ({"replica": 0, "at_s": 3}, "failures: expected a list, got {'at_s': 3, 'replica': 0}"),
    ],
)
def test_what_cannot_be_is_refused(failures: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(failures, TEN_TOKENS, replicas=2)
    assert str(caught.value).removeprefix("scenario: ").startswith(message)


def test_a_line_of_the_file_and_the_setting_are_blamed(tmp_path: Path) -> None:
    text = (
        "model: llama-3-8b\nhardware: {gpu: a100-sxm4-80gb}\nreplicas: 2\nfailures:\n- {replica: 1, at_s: 1}\n"
        "- {replica: 2, at_s: 1}\nworkload: {arrivals: {process: all_at_once}, prompt_tokens: {dist: fixed, value: 4}, "
        "output_tokens: {dist: fixed, value: 4}}\n"
    )
    with pytest.raises(InputError, match=r"^s.yaml:6: failures\[1\].replica: expected a replica from 0 to 1"):
        scenario.loads(text, file="s.yaml")
    fine = text.replace("replica: 2", "replica: 0")
    with pytest.raises(InputError, match=r"^--set replicas: failures\[0\].replica: expected a replica from 0 to 0"):
        scenario.loads(fine, ["replicas=1"], file="s.yaml")


def test_outages_may_follow_each_other() -> None:
    """Down from 2 to 4 ms and from 4 to 6 ms: the replica has nothing at 4 ms."""
    result = api.run(build([outage(0, 2, 2), outage(0, 4, 2)], TEN_TOKENS))
    assert column(result.requests, "last_token_ns") == [14 * MS]
    assert result.summary["num_requeued"] == 1
