"""Replicas that fail: macro-stepping still changes nothing, and nobody and nothing is lost."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from test_macro_equals_single import SETTINGS, STEP_S, assert_equal_outcomes, long_runs, scenarios

from simkit import api, scenario


@st.composite
def failing(draw: st.DrawFn) -> scenario.Scenario:
    """A scenario of up to three replicas, some of which stop while they are served: on the step grid and off it."""
    is_long = draw(st.booleans())
    drawn = draw(long_runs() if is_long else scenarios())
    scale_s = STEP_S * (10 if is_long else 1)
    failures: list[dict[str, Any]] = []
    for replica in draw(st.lists(st.integers(0, drawn.replicas - 1), min_size=1, max_size=3, unique=True)):
        at_s = 0.0
        for _ in range(draw(st.integers(1, 3))):
            at_s += scale_s * draw(st.one_of(st.integers(0, 20), st.floats(0, 20)))
            for_s = draw(st.one_of(st.none(), st.floats(0.25, 20), st.integers(1, 20)))
            failures.append({"replica": replica, "at_s": at_s, "for_s": None if for_s is None else scale_s * for_s})
            if for_s is None:
                break
            at_s += scale_s * for_s
    return scenario.apply_sets(drawn, {"failures": failures})


def check_answers(drawn: scenario.Scenario, result: api.Result) -> None:
    """Whoever finished has the whole answer, and none of its tokens twice."""
    prompts, outputs, limit = drawn.workload.prompt_tokens, drawn.workload.output_tokens, drawn.engine.max_model_len
    assert isinstance(prompts, scenario.ListLength)
    assert isinstance(outputs, scenario.ListLength)
    assert limit is not None
    rows = result.tables["requests"].select(["id", "status", "output_tokens"]).to_pylist()
    for row in rows:
        prompt = prompts.values[row["id"] % len(prompts.values)]
        whole = min(outputs.values[row["id"] % len(outputs.values)], limit - prompt)
        assert row["output_tokens"] == whole if row["status"] == "finished" else row["output_tokens"] <= max(whole, 0)


@given(failing())
@settings(SETTINGS, max_examples=50)
def test_macro_steps_equal_single_steps_where_replicas_fail(drawn: scenario.Scenario) -> None:
    result = assert_equal_outcomes(drawn)
    if isinstance(result, str):
        assert drawn.engine.batching == "continuous"
        return
    summary = result.summary
    counts = summary["num_requests"]
    ends = ("finished", "rejected", "refused", "aborted", "unfinished")
    assert counts["arrived"] == sum(counts[end] for end in ends)
    down_for_good = {failure.replica for failure in drawn.failures if failure.for_s is None}
    if len(down_for_good) < drawn.replicas:
        assert counts["unfinished"] == 0
        assert counts["arrived"] == drawn.workload.num_requests
    assert summary["gpu"]["busy"] is None or summary["gpu"]["busy"] <= 1
    shares = [summary["kv"][kind]["share_of_allocated"] for kind in ("used", "reserved", "internal")]
    assert None in shares or abs(sum(shares) - 1) < 1e-9
    if drawn.workload.samples == 1:
        check_answers(drawn, result)
    steps = result.steps.sort_values(["replica", "t_start_ns"])
    same = steps["replica"].to_numpy()[1:] == steps["replica"].to_numpy()[:-1]
    assert (steps["t_start_ns"].to_numpy()[1:][same] >= steps["t_end_ns"].to_numpy()[:-1][same]).all()
    for failure in drawn.failures:
        end_ns = failure.end_ns or 1 << 62
        mine = steps[steps["replica"] == failure.replica]
        assert not ((mine["t_end_ns"] > failure.start_ns) & (mine["t_start_ns"] < end_ns)).any()
