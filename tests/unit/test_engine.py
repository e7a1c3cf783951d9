"""The engine: order of things at one instant, what cannot be served, and that nothing hangs or is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pytest
from served import as_asked

from simkit import scenario
from simkit.errors import CheckError, InputError

MS = 1_000_000


def build(engine: dict[str, Any], workload: dict[str, Any], **top: Any) -> scenario.Scenario:
    """A synchronous scenario without caching and with steps of 1 ms, unless `engine` or `top` says otherwise."""
    data: dict[str, Any] = {
        "model": "llama-3-8b",
        "hardware": {"gpu": "a100-sxm4-80gb"},
        "engine": {"async_scheduling": False, "enable_prefix_caching": False, "max_model_len": 256} | engine,
        "workload": {"prompt_tokens": fixed(1), "arrivals": {"process": "all_at_once"}} | workload,
        "latency": {"profile": "unit"},
    }
    return scenario.from_dict(data | top)


def fixed(value: int) -> dict[str, Any]:
    return {"dist": "fixed", "value": value}


def listed(*values: int) -> dict[str, Any]:
    return {"dist": "list", "values": list(values)}


def closed(clients: int, think_time_s: float = 0.0) -> dict[str, Any]:
    return {"process": "closed_loop", "concurrency": clients, "think_time_s": think_time_s}


def column(frame: pd.DataFrame, name: str) -> list[int]:
    return [int(value) for value in frame[name]]


@pytest.fixture(params=[False, True], ids=["macro", "single"])
def single_step(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Turn an endless loop into a failure."""

    def give_up(signum: int, frame: object) -> None:
        raise TimeoutError("the run does not end")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- ties -------------------------------------------------------------------------------------------------------------


def test_an_arrival_at_a_step_end_joins_the_next_pass(single_step: bool) -> None:
    """Arrivals every 3 ms, the first at 0; 3 ms is also the end of the third step of ten."""
    arrivals = {"process": "constant", "rate_per_s": 1000 / 3}
    drawn = build({"max_num_seqs": 4}, {"num_requests": 2, "arrivals": arrivals, "output_tokens": fixed(10)})
    frame = as_asked(drawn, single_step=single_step).requests
    assert column(frame, "arrival_ns") == [0, 3 * MS]
    assert column(frame, "first_scheduled_ns") == [0, 3 * MS]
    assert column(frame, "last_token_ns") == [10 * MS, 13 * MS]


def test_an_arrival_inside_a_step_waits_for_its_end(single_step: bool) -> None:
    arrivals = {"process": "constant", "rate_per_s": 400.0}
    drawn = build({"max_num_seqs": 4}, {"num_requests": 2, "arrivals": arrivals, "output_tokens": fixed(10)})
    frame = as_asked(drawn, single_step=single_step).requests
    assert column(frame, "arrival_ns") == [0, 2_500_000]
    assert column(frame, "first_scheduled_ns") == [0, 3 * MS]


def test_asynchronously_an_arrival_joins_the_pass_after_the_one_already_made(single_step: bool) -> None:
    """At 2.5 ms step 3 runs and step 4 is scheduled; the pass at 3 ms is for the step that starts at 4 ms."""
    arrivals = {"process": "constant", "rate_per_s": 400.0}
    engine = {"max_num_seqs": 4, "async_scheduling": True}
    drawn = build(engine, {"num_requests": 2, "arrivals": arrivals, "output_tokens": fixed(10)})
    frame = as_asked(drawn, single_step=single_step).requests
    assert column(frame, "first_scheduled_ns") == [0, 4 * MS]
    assert column(frame, "last_token_ns") == [10 * MS, 14 * MS]


def test_a_successor_without_think_time_joins_the_pass_at_its_predecessors_finish(single_step: bool) -> None:
    workload = {"num_requests": 4, "arrivals": closed(1), "output_tokens": fixed(3)}
    frame = as_asked(build({"max_num_seqs": 2}, workload), single_step=single_step).requests
    assert column(frame, "arrival_ns") == column(frame, "first_scheduled_ns") == [0, 3 * MS, 6 * MS, 9 * MS]


def test_think_time_delays_the_successor(single_step: bool) -> None:
    workload = {"num_requests": 3, "arrivals": closed(1, 0.0025), "output_tokens": fixed(3)}
    frame = as_asked(build({"max_num_seqs": 2}, workload), single_step=single_step).requests
    assert column(frame, "arrival_ns") == column(frame, "first_scheduled_ns") == [0, 5_500_000, 11_000_000]


def test_two_clients_share_one_slot_in_turn(single_step: bool) -> None:
    workload = {"num_requests": 4, "arrivals": closed(2), "output_tokens": fixed(3)}
    frame = as_asked(build({"max_num_seqs": 1}, workload), single_step=single_step).requests
    assert column(frame, "arrival_ns") == [0, 0, 3 * MS, 6 * MS]
    assert column(frame, "first_scheduled_ns") == [0, 3 * MS, 6 * MS, 9 * MS]


def test_replicas_take_turns_and_act_in_index_order(single_step: bool) -> None:
    workload = {"num_requests": 7, "output_tokens": fixed(3)}
    drawn = build({"max_num_seqs": 1}, workload, replicas=3)
    result = as_asked(drawn, single_step=single_step)
    assert column(result.requests, "replica") == [0, 1, 2, 0, 1, 2, 0]
    steps = result.steps
    assert column(steps[steps["t_start_ns"] == 0], "replica") == [0, 1, 2]


def test_least_outstanding_prefers_the_lowest_index_on_ties(single_step: bool) -> None:
    workload = {
        "num_requests": 4,
        "arrivals": {"process": "constant", "rate_per_s": 500.0},
        "output_tokens": listed(9, 1),
    }
    drawn = build({"max_num_seqs": 4}, workload, replicas=2, router="least_outstanding")
    assert column(as_asked(drawn, single_step=single_step).requests, "replica") == [0, 1, 1, 0]


def test_a_held_batch_launches_at_its_deadline_with_who_arrives_just_then(single_step: bool) -> None:
    arrivals = {"process": "constant", "rate_per_s": 200.0}  # 0, 5, 10, 15 ms
    workload = {"num_requests": 4, "arrivals": arrivals, "output_tokens": fixed(2)}
    for engine in (
        {"batching": "static", "max_wait_s": 0.010},
        {"batching": "dynamic", "max_queue_delay_s": 0.010},
    ):
        frame = as_asked(build({"max_num_seqs": 8} | engine, workload), single_step=single_step).requests
        scheduled = column(frame, "first_scheduled_ns")
        assert scheduled[:3] == [10 * MS] * 3
        # Static: nobody else is coming, so the last one need not wait; dynamic does not look at that.
        assert scheduled[3] == (15 * MS if engine["batching"] == "static" else 25 * MS)


def test_a_free_dynamic_engine_launches_at_once_by_default(single_step: bool) -> None:
    arrivals = {"process": "constant", "rate_per_s": 400.0}  # 0, 2.5, 5, 7.5 ms
    workload = {"num_requests": 4, "arrivals": arrivals, "output_tokens": fixed(4)}
    frame = as_asked(build({"max_num_seqs": 8, "batching": "dynamic"}, workload), single_step=single_step).requests
    assert column(frame, "first_scheduled_ns") == [0, 4 * MS, 8 * MS, 8 * MS]


def test_static_waits_for_a_full_batch_while_arrivals_are_pending(single_step: bool) -> None:
    arrivals = {"process": "constant", "rate_per_s": 100.0}  # 0, 10, 20 ms
    workload = {"num_requests": 3, "arrivals": arrivals, "output_tokens": fixed(2)}
    frame = as_asked(build({"max_num_seqs": 2, "batching": "static"}, workload), single_step=single_step).requests
    assert column(frame, "first_scheduled_ns") == [10 * MS, 10 * MS, 20 * MS]


# --- first tokens and memory ------------------------------------------------------------------------------------------


def test_the_first_token_comes_with_the_step_that_completes_the_prompt(single_step: bool) -> None:
    """Also when the last chunk of the prompt is a single token."""
    for prompt, steps in [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)]:
        workload = {"num_requests": 1, "prompt_tokens": fixed(prompt), "output_tokens": fixed(10)}
        drawn = build({"max_num_seqs": 4, "max_num_batched_tokens": 8}, workload)
        frame = as_asked(drawn, single_step=single_step).requests
        assert column(frame, "first_token_ns") == [steps * MS]
        assert column(frame, "last_token_ns") == [(steps + 9) * MS]


@pytest.mark.parametrize("placement", ["first_fit", "best_fit", "buddy"])
@pytest.mark.parametrize("reservation", ["max", "pow2", "oracle"])
def test_contiguous_memory_never_preempts(placement: str, reservation: str) -> None:
    engine = {
        "kv_allocator": "contiguous",
        "placement": placement,
        "reservation": reservation,
        "max_num_seqs": 16,
        "max_model_len": 128,
        "block_size": 16,
        "num_gpu_blocks": 20,
    }
    workload = {"num_requests": 60, "prompt_tokens": listed(5, 17, 40), "output_tokens": listed(3, 30, 60, 11)}
    summary = as_asked(build(engine, workload)).summary
    assert (summary["num_preemptions"], summary["num_requests"]["finished"]) == (0, 60)
    assert summary["kv"]["external"]["share_of_pool"] >= 0


def test_a_reservation_knows_that_the_model_length_cuts_the_answer() -> None:
    """4 + 60 tokens are cut to the model's 32, so that is all an oracle sets aside."""
    for reservation in ("max", "oracle"):
        engine = {"kv_allocator": "contiguous", "reservation": reservation, "max_model_len": 32, "num_gpu_blocks": 3}
        workload = {"num_requests": 2, "prompt_tokens": fixed(4), "output_tokens": fixed(60)}
        summary = as_asked(build(engine | {"max_num_seqs": 4}, workload)).summary
        assert summary["num_requests"]["finished"] == 2, reservation


def test_paged_memory_that_runs_short_preempts_and_loses_no_token() -> None:
    engine = {"max_num_seqs": 8, "max_model_len": 64, "block_size": 4, "num_gpu_blocks": 21}
    workload = {"num_requests": 12, "prompt_tokens": fixed(8), "output_tokens": listed(40, 20)}
    result = as_asked(build(engine, workload))
    assert result.summary["num_preemptions"] > 0
    assert column(result.requests, "output_tokens") == [40, 20] * 6
    assert (result.slots["end"] == "preempted").sum() == result.summary["num_preemptions"]


def test_a_pass_that_can_only_preempt_is_followed_by_another() -> None:
    """The interval holds back the long prompt, the only decode is its own victim: nothing is left to schedule."""
    engine = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 32,
        "block_size": 1,
        "num_gpu_blocks": 33,
        "long_prefill_token_threshold": 4,
        "prefill_schedule_interval": 8,
        "scheduler_reserve_full_isl": False,
    }
    workload = {"num_requests": 2, "prompt_tokens": listed(24, 4), "output_tokens": listed(2, 26)}
    summary = as_asked(build(engine, workload)).summary
    assert summary["num_requests"]["finished"] == 2
    assert summary["num_preemptions"] >= 1


def test_a_livelock_ends_with_a_clear_error() -> None:
    """Three equal prompts in two thirds of the memory they need evict each other in a circle (specification, 11.6)."""
    engine = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "max_model_len": 2900,
        "block_size": 16,
        "num_gpu_blocks": 190,
        "long_prefill_token_threshold": 48,
        "scheduler_reserve_full_isl": False,
        "policy": "priority",
    }
    workload = {"num_requests": 3, "prompt_tokens": fixed(2300), "output_tokens": fixed(4)}
    with pytest.raises(CheckError, match=r"no progress: replica 0.* running \(requests"):
        as_asked(build(engine, workload))
    for cure in ({"policy": "fcfs"}, {"scheduler_reserve_full_isl": True}, {"enable_prefix_caching": True}):
        assert as_asked(build(engine | cure, workload)).summary["num_requests"]["finished"] == 3


# --- turned away, given up, refused -----------------------------------------------------------------------------------


def test_who_is_turned_away_is_counted_and_the_run_goes_on(single_step: bool) -> None:
    engine = {"max_num_seqs": 1, "max_model_len": 32}
    workload = {
        "num_requests": 6,
        "prompt_tokens": listed(4, 32, 4, 40, 4, 4),
        "output_tokens": fixed(5),
        "queue_limit": 2,
    }
    result = as_asked(build(engine, workload), single_step=single_step)
    counts = {k: v for k, v in result.summary["num_requests"].items() if not k.endswith("_ci95")}
    assert counts == {"arrived": 6, "finished": 2, "rejected": 2, "refused": 2, "aborted": 0, "unfinished": 0}
    assert list(result.requests["status"]) == ["finished", "rejected", "finished", "rejected", "refused", "refused"]
    assert all(reason for reason in result.requests["reject_reason"][[1, 3, 4, 5]])


def test_clients_that_give_up_are_aborted(single_step: bool) -> None:
    engine = {"max_num_seqs": 1}
    workload = {"num_requests": 3, "output_tokens": fixed(8), "timeout_s": 0.010}
    result = as_asked(build(engine, workload), single_step=single_step)
    # 0 to 8 ms; 8 to 10 ms (2 tokens, then its client gives up); the third never starts.
    assert list(result.requests["status"]) == ["finished", "aborted", "aborted"]
    assert column(result.requests, "output_tokens") == [8, 2, 0]
    assert result.requests["first_scheduled_ns"].isna().tolist() == [False, False, True]


def test_shares_of_time_never_exceed_one() -> None:
    """Work for a client that gives up after the last delivery is still work inside the time that is looked at."""
    workload = {"num_requests": 2, "output_tokens": listed(3, 30), "timeout_s": 0.005}
    summary = as_asked(build({"max_num_seqs": 1}, workload)).summary
    assert summary["num_requests"]["aborted"] == 1
    assert 0 < summary["gpu"]["busy"] <= 1


@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_nobody_is_served_after_having_given_up(batching: str) -> None:
    """A member that is done at 3 ms is delivered at the end of the batch; by then its client may have left."""
    arrivals = {"process": "constant", "rate_per_s": 1000.0}
    workload = {"num_requests": 2, "arrivals": arrivals, "output_tokens": listed(2, 20), "timeout_s": 0.005}
    engine = {"max_num_seqs": 2, "batching": batching, "max_wait_s": 0.01, "max_queue_delay_s": 0.01}
    frame = as_asked(build(engine, workload)).requests
    finished = frame[frame["status"] == "finished"]
    assert ((finished["last_token_ns"] - finished["arrival_ns"]) <= 5 * MS).all()


@pytest.mark.parametrize(("prompt", "limit"), [(300, None), (4, 1)], ids=["rejected", "refused"])
def test_a_closed_loop_of_clients_that_are_turned_away_at_once_ends(prompt: int, limit: int | None) -> None:
    """Without think time no time passes between a refusal and the next try."""
    workload = {
        "duration_s": 0.1,
        "arrivals": closed(3),
        "prompt_tokens": fixed(prompt),
        "output_tokens": fixed(10),
        "queue_limit": limit,
    }
    with within(5):
        try:
            summary = as_asked(build({"max_num_seqs": 1}, workload)).summary
        except (CheckError, InputError):
            return  # to say that it cannot end is an answer too
    assert summary["num_requests"]["arrived"] < 10_000


def test_stop_eos_hides_the_end_and_pays_a_surplus_step(single_step: bool) -> None:
    workload = {"num_requests": 1, "output_tokens": fixed(10), "stop": "eos", "max_tokens": 50}
    steps = {}
    for asynchronous in (False, True):
        drawn = build({"max_num_seqs": 1, "async_scheduling": asynchronous}, workload)
        result = as_asked(drawn, single_step=single_step)
        assert column(result.requests, "output_tokens") == [10]
        steps[asynchronous] = result.summary["num_steps"]
    assert steps == {False: 10, True: 11}


def test_a_duration_bounds_arrivals_and_everybody_is_served(single_step: bool) -> None:
    arrivals = {"process": "constant", "rate_per_s": 100.0}
    workload = {"duration_s": 0.05, "arrivals": arrivals, "output_tokens": fixed(30)}
    result = as_asked(build({"max_num_seqs": 1}, workload), single_step=single_step)
    assert result.summary["num_requests"]["finished"] == 5
    assert np.all(result.requests["arrival_ns"] < 50 * MS)
