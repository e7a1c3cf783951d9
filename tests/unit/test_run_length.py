"""How long a run must last: what makes a scenario longer, and when what fills the system has levelled off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simkit import scenario
from simkit.runs import run_length
from simkit.runs.run_length import can_grow, levels, longer, missing_factor, rising, same_length
from simkit.scenario import Scenario

BASE: dict[str, Any] = {
    "model": "llama-3-8b",
    "hardware": {"gpu": "a100-sxm4-80gb"},
    "workload": {
        "num_requests": 60,
        "arrivals": {"process": "poisson", "rate_per_s": 100.0},
        "prompt_tokens": {"dist": "fixed", "value": 16},
        "output_tokens": {"dist": "fixed", "value": 8},
    },
    "latency": {"profile": "unit"},
}
LASTING = {"num_requests": None, "duration_s": 20.0}
LOG = {"trace": {"path": "log.csv", "repeat": 2}}
PIECEWISE = {"arrivals": {"process": "piecewise", "segments": [{"until_s": 9, "rate_per_s": 9}]}}
RANKS = [[0, 0], [1, 0.5]]
DRIFT = {"drift": [{"until_s": 9, "prompt_ranks": RANKS, "output_ranks": RANKS}]}


def load(workload: dict[str, Any] | None = None, **more: Any) -> Scenario:
    return scenario.from_dict(BASE | {"workload": BASE["workload"] | (workload or {})} | more)


def log(**more: Any) -> Scenario:
    return scenario.from_dict(BASE | {"workload": LOG} | more)


# --- longer scenarios -------------------------------------------------------------------------------------------------
def test_a_number_of_requests_and_a_time_grow_by_a_factor() -> None:
    assert longer(load(), 2.51).workload.num_requests == 151  # rounded up
    assert longer(load(), 1.0).to_dict() == load().to_dict()
    lasting = longer(load(LASTING), 2.5).workload
    assert (lasting.duration_s, lasting.num_requests) == (50.0, None)


def test_a_log_is_played_as_often_as_it_takes() -> None:
    assert longer(log(), 2.1).workload.trace.repeat == 2 * 3  # type: ignore[union-attr]
    assert longer(log(), 3.0).workload.trace.repeat == 2 * 3  # type: ignore[union-attr]


def test_a_warm_up_grows_in_proportion() -> None:
    assert longer(load(warmup={"requests": 12}), 2.5).to_dict()["warmup"] == {"requests": 30}
    assert longer(load(LASTING, warmup={"seconds": 4}), 2.5).to_dict()["warmup"] == {"seconds": 10.0}
    # Of a log three times as much, for it is played whole times.
    assert longer(log(warmup={"requests": 12}), 2.1).to_dict()["warmup"] == {"requests": 36}
    for rule in ("auto", "none", "mser5"):
        assert longer(load(warmup=rule), 2.5).warmup == rule


def test_another_setting_becomes_as_long_as_one_that_was_made_longer() -> None:
    for base, warmup in ((load(warmup={"requests": 12}), {"requests": 30}), (load(), "auto")):
        long = longer(base, 2.5)
        other = scenario.apply_sets(base, {"engine.max_num_seqs": 4}, label="test")
        found = same_length(other, long)
        assert found.workload == long.workload
        assert found.to_dict()["warmup"] == warmup
        assert found.engine.max_num_seqs == 4
        assert same_length(other, base).workload == other.workload
    assert same_length(load(LASTING), longer(load(LASTING), 3)).workload.duration_s == 60.0
    assert same_length(log(), longer(log(), 3)).workload.trace.repeat == 6  # type: ignore[union-attr]


def test_what_has_an_end_of_its_own_does_not_grow() -> None:
    assert can_grow(load())
    assert can_grow(load(LASTING))
    assert can_grow(log())
    assert can_grow(load({"arrivals": {"process": "closed_loop", "concurrency": 4}}))
    assert not can_grow(load({"finite": True}))
    assert not can_grow(load({"arrivals": {"process": "all_at_once"}}))
    assert not can_grow(load(PIECEWISE))
    assert not can_grow(load(DRIFT))
    assert not can_grow(scenario.from_dict(BASE | {"workload": {"servegen": {"path": "clients"}}}))
    with pytest.raises(AssertionError, match="without an end of its own"):
        longer(load(PIECEWISE), 2.0)


def test_by_how_much_arrivals_are_too_short_for_the_time_that_requests_stay() -> None:
    assert missing_factor(100.0, 20.0) == 1.0
    assert missing_factor(50.0, 20.0) == pytest.approx(2 * run_length.ROOM)
    assert missing_factor(99.0, 20.0) > run_length.ROOM  # with room, once it is too short at all
    assert missing_factor(0.0, 20.0) == 1.0  # all at once: nothing to measure it by


# --- levels -----------------------------------------------------------------------------------------------------------
def test_levels_are_time_averages_of_equal_parts() -> None:
    """From 0 to 80 ns in parts of 10 ns, of two replicas."""
    columns = {
        "t_start_ns": [0, 15, 40, 78],
        "t_end_ns": [15, 40, 60, 100],
        "running": [2, 4, 1, 9],
        "waiting": [0, 1, 0, 1],
        "kv_allocated_tokens": [160, 320, 16, 100],
    }
    spans = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    found = levels(spans, 0, 80)
    # From 10 to 20 five ns of the first and of the second; from 60 to 78 nothing; then two ns of the last.
    assert found["running"] == pytest.approx((2, 3, 4, 4, 1, 1, 0, 1.8))
    assert found["in_system"] == pytest.approx((2, 3.5, 5, 5, 1, 1, 0, 2.0))
    assert found["kv_tokens"] == pytest.approx((160, 240, 320, 320, 16, 16, 0, 20))
    again = {name: np.concatenate([values, values]) for name, values in spans.items()}
    assert levels(again, 0, 80)["running"] == pytest.approx([2 * value for value in found["running"]])
    # Measured from 40 on, parts are half as long, and what came before does not count.
    assert levels(spans, 40, 80)["running"] == pytest.approx((1, 1, 1, 1, 0, 0, 0, 3.6))


def one(parts: Any, *, flat: tuple[str, ...] = ()) -> dict[str, tuple[float, ...]]:
    """Levels of a replication, all series the same but those that are `flat`."""
    return {name: (10.0,) * run_length.BATCHES if name in flat else tuple(parts) for name in run_length.SERIES}


RAMP = np.linspace(8.0, 12.0, run_length.BATCHES)


def test_a_ramp_is_seen_over_replications_and_in_a_single_run() -> None:
    rng = np.random.default_rng(3)
    assert rising([one(RAMP)]) == "in_system"
    assert rising([one(RAMP, flat=("in_system", "running"))]) == "kv_tokens"
    noisy = [one(RAMP + rng.normal(0, 1.0, run_length.BATCHES)) for _ in range(10)]
    assert rising(noisy) == "in_system"
    assert rising([one(-RAMP + 20)]) is None  # falling
    assert rising([]) is None
    assert rising([one([0.0] * run_length.BATCHES)]) is None


@pytest.mark.parametrize("replications", [1, 5, 10])
def test_a_flat_series_is_not_said_to_rise_but_by_chance(replications: int) -> None:
    """Of 400 flat and noisy ones about 5 % would be, each by one series of the three; 40 by chance once in 10,000."""
    rng = np.random.default_rng(5)
    seen = sum(
        rising(
            [
                one(10 + rng.normal(0, 2.0, run_length.BATCHES), flat=("running", "kv_tokens"))
                for _ in range(replications)
            ]
        )
        is not None
        for _ in range(400)
    )
    assert seen < 40


def test_a_small_rise_is_none_however_sure() -> None:
    small = np.array([10.0] * 4 + [10.4] * 4)
    assert rising([one(small)] * 10) is None
    assert rising([one(np.array([10.0] * 4 + [10.6] * 4))] * 10) == "in_system"
