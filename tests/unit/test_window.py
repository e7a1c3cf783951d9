"""Rates over the measured window, what `warmup: auto` leaves out, and objectives from the numbers of the summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from served import as_asked
from typer.testing import CliRunner

from simkit import api, scenario
from simkit.cli import app
from simkit.engine.build import set_up
from simkit.metrics.intervals import combine
from simkit.planner.trial import run_trial, terms
from simkit.studies.offered_load import for_trials
from simkit.units import NS_PER_MS, NS_PER_S

SLOTS, TOKENS = 8, 20
CAPACITY = SLOTS / (TOKENS / 1000)
"""Requests per second: each takes so many steps of 1 ms, and so many share a step."""


def build(num_requests: int, arrivals: dict[str, Any], /, *, engine: Any = (), workload: Any = (), **more: Any) -> Any:
    data: dict[str, Any] = {
        "model": "qwen2.5-0.5b",
        "hardware": {"gpu": "l4-24gb", "price_per_gpu_hour": 1.5},
        "latency": {"profile": "unit"},
        "engine": {"max_num_seqs": SLOTS, "max_model_len": 2048, "async_scheduling": False} | dict(engine),
        "workload": {
            "num_requests": num_requests,
            "arrivals": arrivals,
            "prompt_tokens": {"dist": "fixed", "value": 30},
            "output_tokens": {"dist": "fixed", "value": TOKENS},
        }
        | dict(workload),
    }
    return scenario.from_dict(data | more)


def poisson(load: float) -> dict[str, Any]:
    return {"process": "poisson", "rate_per_s": load * CAPACITY}


def requests_per_s(summary: dict[str, Any]) -> float:
    return float(summary["throughput"]["requests_per_s"])


# --- rates ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("batching", ["continuous", "dynamic"])
@pytest.mark.parametrize("num_requests", [1000, 20_000])
def test_below_saturation_throughput_is_the_rate_of_arrival(num_requests: int, batching: str) -> None:
    result = as_asked(
        build(num_requests, poisson(0.6 if batching == "continuous" else 0.4), engine={"batching": batching})
    )
    assert not result.summary["saturated"]
    frame = result.requests
    counted = frame["arrival_ns"][frame["measured"]]
    arriving = (len(counted) - 1) * NS_PER_S / (counted.max() - counted.min())
    assert requests_per_s(result.summary) == pytest.approx(arriving, rel=0.02)


def test_a_saturated_run_shows_what_is_served_however_long_it_is() -> None:
    short, long = (as_asked(build(count, poisson(1.5))).summary for count in (2000, 6000))
    assert short["saturated"]
    assert requests_per_s(short) == pytest.approx(requests_per_s(long), rel=0.02)
    for summary in (short, long):
        assert requests_per_s(summary) == pytest.approx(CAPACITY, rel=0.02)
        assert summary["concurrency_mean"] == pytest.approx(SLOTS, rel=0.02)


def test_batches_that_are_delivered_at_once_make_no_steps() -> None:
    """Twelve and a half batches of a second each in the window, of which the makespan sees whole ones alone."""
    engine = {"batching": "static", "max_num_seqs": 64}
    lengths = {"output_tokens": {"dist": "fixed", "value": 1000}}
    found = [
        requests_per_s(
            as_asked(build(count, {"process": "constant", "rate_per_s": 120}, engine=engine, workload=lengths)).summary
        )
        for count in (1900, 1950, 2000)
    ]
    assert found == pytest.approx([64.0] * 3, rel=0.005)


SCENES: dict[str, Any] = {
    "unsaturated": build(600, poisson(0.7), slo={"ttft_ms": {"p99": 1.8}, "tpot_ms": {"p99": 3}}),
    "saturated": build(600, poisson(1.4), slo={"e2e_ms": {"p90": 300}}),
    "static": build(300, poisson(0.6), engine={"batching": "static"}, slo={"e2e_ms": {"p90": 45}}),
    "closed": build(300, {"process": "closed_loop", "concurrency": 20}, slo={"e2e_ms": {"p90": 50}}),
    "gives-up": build(600, poisson(1.4), workload={"timeout_s": 0.2}, slo={"ttft_ms": {"p90": 100}}),
    "explicit": build(400, poisson(0.7), warmup={"requests": 100}, slo={"ttft_ms": {"mean": 5, "p50": 4}}),
    "finite": build(400, poisson(0.7), workload={"finite": True}, slo={"ttft_ms": {"p50": 4}}),
    "one-instant": build(64, {"process": "all_at_once"}, slo={"ttft_ms": {"p50": 60}}),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_rates_can_be_computed_from_the_table_of_requests(name: str, tmp_path: Path) -> None:
    """The formulas of the README, in floating point and without simkit."""
    asked = SCENES[name]
    api.write(as_asked(asked), tmp_path / "run", report=False)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    table = pq.read_table(tmp_path / "run" / "requests.parquet").to_pandas()
    done = table[table["status"] == "finished"]
    begin, end = table["arrival_ns"][table["measured"]].min(), table["arrival_ns"].max()
    if name in ("finite", "one-instant"):
        begin, end = table["arrival_ns"].min(), done["last_token_ns"].max()
    window_s = (end - begin) / 1e9
    inside = (done["last_token_ns"].clip(upper=end) - done["first_scheduled_ns"].clip(lower=begin)).clip(lower=0)
    share = inside / (done["last_token_ns"] - done["first_scheduled_ns"])
    tokens = done["output_tokens"]
    assert summary["window_s"] == pytest.approx(window_s)
    assert requests_per_s(summary) == pytest.approx(share.sum() / window_s, rel=1e-12)
    output = (share * tokens).sum() / window_s
    assert summary["throughput"]["output_tokens_per_s"] == pytest.approx(output, rel=1e-12)
    total = (share * (tokens + done["prompt_tokens"])).sum() / window_s
    assert summary["throughput"]["total_tokens_per_s"] == pytest.approx(total, rel=1e-12)
    assert summary["concurrency_mean"] == pytest.approx(inside.sum() / (end - begin), rel=1e-12)
    assert summary["cost_per_million_output_tokens"] == pytest.approx(1.5 / (output * 3600) * 1e6, rel=1e-12)
    good = np.ones(len(done), dtype=bool)
    for metric, values in asked.slo.model_dump(exclude_none=True).items():
        ends = done["first_token_ns"] if metric == "ttft_ms" else done["last_token_ns"]
        value = ends - done["arrival_ns"]
        if metric == "tpot_ms":
            value = (done["last_token_ns"] - done["first_token_ns"]) / (tokens - 1)
        good &= (value / NS_PER_MS <= min(v for k, v in values.items() if k != "mean")).to_numpy()
    assert 0 < good.sum() < len(done)
    assert summary["goodput_per_s"] == pytest.approx((share * good).sum() / window_s, rel=1e-12)
    assert summary["goodput_per_s"] < requests_per_s(summary)
    span_s = (done["last_token_ns"].max() - table["arrival_ns"].min()) / 1e9
    assert summary["makespan_s"] == pytest.approx(span_s)
    assert summary["makespan_throughput"]["requests_per_s"] == pytest.approx(len(done) / span_s, rel=1e-12)
    assert summary["makespan_throughput"]["output_tokens_per_s"] == pytest.approx(tokens.sum() / span_s, rel=1e-12)
    same = summary["makespan_throughput"] == summary["throughput"]
    assert same == (name in ("finite", "one-instant"))


# --- warm-up ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arrivals",
    [
        poisson(0.7),
        {"process": "piecewise", "segments": [{"until_s": 1, "rate_per_s": 50}, {"until_s": 3, "rate_per_s": 200}]},
    ],
    ids=["poisson", "piecewise"],
)
@pytest.mark.parametrize("bound", [{}, {"num_requests": None, "duration_s": 2.5}], ids=["number", "duration"])
@pytest.mark.parametrize("first_token_us", [0, 7000])
def test_auto_leaves_out_the_first_fifth_of_the_time_of_arrivals(
    arrivals: Any, bound: Any, first_token_us: int
) -> None:
    latency = {"profile": "a100-sxm4-80gb", "host": {"first_token_us": first_token_us}}
    asked = build(400, arrivals, workload=bound, latency=latency, hardware={"gpu": "a100-sxm4-80gb"})
    result = as_asked(asked)
    arrival = result.requests["arrival_ns"]
    cut = arrival.min() + (arrival.max() - arrival.min()) / 5
    assert (result.requests["measured"] == (arrival >= cut)).all()
    dropped = int((~result.requests["measured"]).sum())
    assert dropped > 0
    warmup = result.manifest["warmup"]
    assert (warmup["method"], warmup["dropped_requests"]) == ("auto", dropped)
    # Gaps between tokens are those of the same requests.
    frame = result.requests[result.requests["measured"]]
    gaps = (frame["output_tokens"] - 1).sum()
    pooled_ms = float((frame["last_token_ns"] - frame["first_token_ns"]).sum()) / NS_PER_MS
    assert result.summary["itl_ms"]["mean"] == pytest.approx(pooled_ms / gaps, rel=1e-12)


def test_auto_in_a_closed_loop_leaves_out_how_it_fills() -> None:
    loop = {"process": "closed_loop", "concurrency": 20}
    measured = as_asked(build(120, loop)).requests["measured"]
    assert (~measured).sum() == 20 + (120 - 20) // 5
    lasting = as_asked(build(120, loop, workload={"num_requests": None, "duration_s": 1.0})).requests
    assert (lasting["measured"] == (lasting["arrival_ns"] >= NS_PER_S // 5)).all()
    assert as_asked(build(20, loop)).requests["measured"].all()


def test_auto_leaves_nothing_out_of_a_finite_load_or_a_log(tmp_path: Path) -> None:
    def why(asked: Any) -> tuple[int, str]:
        warmup = as_asked(asked).manifest["warmup"]
        assert warmup["method"] == "auto"
        return warmup["dropped_requests"], warmup["why"]

    assert why(build(50, poisson(0.5), workload={"finite": True})) == (0, "for the load is finite")
    assert why(build(50, {"process": "all_at_once"})) == (0, "for the load is finite")
    lines = [json.dumps({"timestamp": 10 * n, "input_length": 30, "output_length": 5}) for n in range(50)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    none = dict.fromkeys(("num_requests", "arrivals", "prompt_tokens", "output_tokens"))
    log = none | {"trace": {"path": str(tmp_path / "log.jsonl")}}
    assert why(build(50, {}, workload=log)) == (0, "for the load is a log")


def test_what_was_left_out_and_why_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def told(*sets: str) -> list[str]:
        options = [word for text in sets for word in ("--set", text)]
        flags = ["--model", "qwen2.5-0.5b", "--gpu", "l4-24gb", "--rate", "5", "--prompt", "30", "--output", "10"]
        flags += ["--set", "workload.arrivals.process=constant"]  # of which 200 are enough
        done = CliRunner().invoke(app.app, ["run", *flags, "--no-report", "--out", "-".join(sets), *options])
        assert done.exit_code == 0, done.stderr
        return [line.rstrip() for line in done.stdout.splitlines() if line.startswith("warm-up (")]

    (line,) = told("workload.num_requests=200")
    assert line.startswith(
        "warm-up (auto): first 40 requests left out, a fifth of 39.8 s of arrivals; MSER-5 proposes "
    )
    (line,) = told("workload.num_requests=200", "workload.finite=true")
    assert line.startswith("warm-up (auto): nothing left out, for the load is finite; MSER-5 proposes ")
    (line,) = told("workload.num_requests=200", "warmup=none")
    assert line.startswith("warm-up (none): nothing left out; MSER-5 proposes ")


def test_a_plan_decides_by_itself_unless_told() -> None:
    def warmup(**more: Any) -> Any:
        return for_trials(build(100, poisson(0.5), **more), 1).to_dict()["warmup"]

    assert warmup() == {"requests": 20}
    assert warmup(warmup="none") == "none"
    assert warmup(warmup="mser5") == "mser5"
    assert warmup(workload={"finite": True}) == "auto"


# --- objectives -------------------------------------------------------------------------------------------------------
def with_answers(*lengths: int, **more: Any) -> Any:
    outputs = {"output_tokens": {"dist": "list", "values": list(lengths)}}
    slo = {"tpot_ms": {"mean": 0.9, "p90": 0.9, "p99": 1.0}}
    return build(40, poisson(0.5), workload=outputs | more, slo=slo)


def test_an_objective_is_judged_by_the_numbers_of_the_summary() -> None:
    """Three of four answers have one token and no TPOT; the others have 1 ms a token."""
    summary = as_asked(with_answers(1, 1, 1, 20)).summary
    assert summary["tpot_ms"]["mean"] == 1.0
    found = summary["slo"]["tpot_ms"]
    assert {key: (value["value_ms"], value["share_within"], value["met"]) for key, value in found.items()} == {
        "mean": (1.0, None, False),
        "p90": (1.0, 0.0, False),
        "p99": (1.0, 1.0, True),
    }
    assert summary["goodput_per_s"] == pytest.approx(0.75 * requests_per_s(summary), rel=0.3)


def test_who_is_turned_away_misses_and_who_has_no_tpot_does_not_count() -> None:
    """Of 16 at one instant, 8 are refused; of the 8 that are served 4 have a TPOT, and all of those are within."""
    outputs = {"output_tokens": {"dist": "list", "values": [1, 20]}, "queue_limit": 8}
    slo = {"tpot_ms": {"p50": 1.0}, "ttft_ms": {"p50": 1000.0}}
    summary = as_asked(build(16, {"process": "all_at_once"}, workload=outputs, slo=slo)).summary
    assert (summary["num_requests"]["finished"], summary["num_requests"]["refused"]) == (8, 8)
    assert summary["slo"]["tpot_ms"]["p50"]["share_within"] == 4 / (4 + 8)
    assert summary["slo"]["ttft_ms"]["p50"]["share_within"] == 8 / 16


def test_an_objective_that_nobody_has_is_neither_met_nor_missed_and_passes_in_a_plan() -> None:
    asked = with_answers(1)
    summary = as_asked(asked).summary
    for found in summary["slo"]["tpot_ms"].values():
        assert (found["share_within"], found["value_ms"], found["met"]) == (None, None, None)
    assert summary["goodput_per_s"] == requests_per_s(summary)
    margins = run_trial(set_up(asked), 20.0, 0.5 * CAPACITY, 0).margins
    assert dict(zip([term.name for term in terms(asked)], margins, strict=True)) == {
        "tpot_ms.mean": 1.0,
        "tpot_ms.p90": pytest.approx(0.1),
        "tpot_ms.p99": pytest.approx(0.01),
        "queue.stable": 0.5,
    }


def test_an_objective_is_met_in_all_replications_or_it_is_not_known() -> None:
    def together(*found: bool | None) -> bool | None:
        return combine([{"met": one} for one in found])["met"]  # type: ignore[no-any-return]

    assert together(True, True) is True
    assert together(None, True, False) is together(False, None) is False
    assert together(None, True) is together(True, None) is together(None) is None


def test_where_nothing_finishes_an_objective_fails_in_a_plan() -> None:
    asked = with_answers(20, timeout_s=0.0005)
    assert as_asked(asked).summary["num_requests"]["finished"] == 0
    margins = run_trial(set_up(asked), 20.0, 0.5 * CAPACITY, 0).margins
    assert margins[:3] == (-1.0, -0.9, -0.99)
