"""What the comment of scenarios/lose-a-replica.yaml says, arm by arm."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from simkit.api import Result, run
from simkit.scenario import apply_sets, load

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "lose-a-replica.yaml"


@cache
def arm(variant: str) -> Result:
    loaded = load(SCENARIO)
    return run(apply_sets(loaded, loaded.variants[variant]))


def met(variant: str) -> list[bool]:
    slo = arm(variant).summary["slo"]
    return [slo["ttft_ms"]["p99"]["met"], slo["tpot_ms"]["p99"]["met"]]


def ttft_p99_ms(variant: str) -> float:
    return float(arm(variant).summary["ttft_ms"]["p99"])


def slow_for_s(variant: str) -> float:
    """How long after the repair the last request came that waits more than a second for its first token."""
    requests = arm(variant).requests
    slow = requests[requests["first_token_ns"] - requests["arrival_ns"] > 1_000_000_000]
    return float(slow["arrival_ns"].max()) / 1e9 - 300


def test_two_replicas_meet_every_target_until_one_fails() -> None:
    assert met("two") == [True, True]
    assert 400 < ttft_p99_ms("two") < 500
    assert 80 < arm("two").summary["tpot_ms"]["p99"] < 90
    assert met("two-lose-one") == [False, True]
    assert 38_000 < ttft_p99_ms("two-lose-one") < 42_000


def test_few_requests_are_sent_back_and_many_wait() -> None:
    summary = arm("two-lose-one").summary
    assert 15 < summary["num_requeued"] < 25
    assert 0.60 < summary["slo"]["ttft_ms"]["p99"]["share_within"] < 0.64
    assert (
        "replica 0 failed at 120 s for 180 s: 21 requests returned to the queue"
        in arm("two-lose-one").manifest["notes"]
    )
    assert summary["num_requests"]["finished"] == 2400


def test_one_replica_serves_less_than_what_comes() -> None:
    requests = arm("two-lose-one").requests
    ends_s = requests["last_token_ns"] / 1e9
    assert 3.2 < ((ends_s > 130) & (ends_s <= 300)).sum() / 170 < 3.5


def test_throughput_hides_the_outage() -> None:
    whole, broken = (arm(name).summary["throughput"]["requests_per_s"] for name in ("two", "two-lose-one"))
    assert broken == pytest.approx(whole, rel=0.01)


def test_turns_prolong_the_wait() -> None:
    assert slow_for_s("two-lose-one") == pytest.approx(37, abs=1)
    assert slow_for_s("turns-lose-one") == pytest.approx(77, abs=1)


def test_a_spare_saves_the_targets_and_costs_half_as_much_again() -> None:
    assert met("three-lose-one") == [True, True]
    assert ttft_p99_ms("three-lose-one") == pytest.approx(ttft_p99_ms("two"), rel=0.05)
    costs = [arm(name).summary["cost_per_million_output_tokens"] for name in ("two-lose-one", "three-lose-one")]
    assert costs[1] / costs[0] == pytest.approx(1.5, rel=0.02)
