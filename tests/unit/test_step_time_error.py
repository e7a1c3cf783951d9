"""The error of step times: its sizes, a draw of it, what it does to a step, and intervals that hold it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_calibrated import SHIPPED, calibrated, chunk, decodes
from test_roofline import LLAMA
from test_scalar_latency import plan_of
from typer.testing import CliRunner

from simkit import api
from simkit.cli.app import app
from simkit.engine.build import erring, set_up
from simkit.engine.pricing import coins
from simkit.latency import error
from simkit.latency.deployment import Deployment
from simkit.latency.error import CLASSES, EXACT, LAB, UNTIMED, Factors, Sizes, draw, of_profile
from simkit.latency.host import BETWEEN_VERSIONS, TERMS, host_of, shipped
from simkit.latency.link import spread
from simkit.latency.profile import load_profile
from simkit.latency.roofline import Roofline
from simkit.metrics.intervals import NORMAL_95, combine, range_95
from simkit.planner.capacity import Capacity, error_of_step_times
from simkit.scenario import Scenario, from_dict
from simkit.specs.hardware import load_gpu
from simkit.studies.compare import compare
from simkit.types import StepShapes
from simkit.validation.rows.read import read_rows
from simkit.validation.rows.study import study_rows

SLOWER = Factors(1.3, 1.3, 1.3, 1.3, 1.3, 1.3)
MIXED_STEP = StepShapes.of(
    1, decode_seqs=8, decode_context_sum=8000, decode_context_max=1200, prefill_tokens=300, prefill_pairs=45150,
    sampled_seqs=9,
)  # fmt: skip
DECODES = decodes(128, 3000)
STEPS = [
    *(decodes(n, context) for n, context in ((1, 200), (16, 1000))),
    DECODES,
    StepShapes.of(1, **chunk(700)),
    MIXED_STEP,
]


def asked(**changes: Any) -> Scenario:
    data: dict[str, Any] = {
        "name": "error",
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100-sxm5-80gb"},
        "engine": {"version": "0.12", "max_num_seqs": 32},
        "workload": {
            "num_requests": 40,
            "finite": True,
            "arrivals": {"process": "poisson", "rate_per_s": 5},
            "prompt_tokens": {"dist": "uniform", "low": 50, "high": 400},
            "output_tokens": {"dist": "fixed", "value": 30},
        },
        "replications": 4,
    }
    return from_dict(data | changes)


# --- a draw
@given(seed=st.integers(0, 2**40), pair=st.integers(0, 50))
def test_draws_come_in_pairs_of_opposite_signs(seed: int, pair: int) -> None:
    sizes = Sizes(0.1, 0.05, 0.04, 0.4, 0.1, 0.2, 0.3)
    one, other = (draw(sizes, coins(seed, 2 * pair + second)) for second in (0, 1))
    for name in ("products", "attention", "small_kernels", "all_reduce", "host", "gap"):
        assert getattr(one, name) * getattr(other, name) == pytest.approx(1.0)
        own, together = getattr(sizes, name), 0.0 if name in ("host", "gap") else sizes.kernels
        both = (own + together, abs(own - together))
        assert any(abs(math.log(getattr(one, name))) == pytest.approx(size) for size in both)


def test_draws_of_many_pairs_err_either_way_and_each_class_by_itself() -> None:
    tossed = np.array([coins(7, 2 * pair) for pair in range(400)], dtype=float) * 2 - 1
    assert np.abs(tossed.mean(axis=0)).max() < 0.2
    together = tossed.T @ tossed / 400
    assert np.abs(together - np.eye(len(CLASSES))).max() < 0.2


def test_no_size_is_no_error() -> None:
    assert draw(Sizes(*(0.0 for _ in CLASSES)), coins(1, 2)) == EXACT


# --- sizes
def test_sizes_are_what_the_fit_of_a_profile_misses_and_how_far_labs_are_apart() -> None:
    profile, gpu = load_profile("h100-sxm5-80gb"), load_gpu("h100-sxm5-80gb")
    sizes = of_profile(profile, gpu, "bfloat16", None, link=0.1, host=0.2)
    missed = profile.report["gemm", "bfloat16"]["errors"]["held_out_inside"]["mape_pct"] / 100  # type: ignore[index]
    assert sizes.products == pytest.approx(math.sqrt(math.pi / 2) * missed)
    assert sizes.kernels == LAB
    assert sizes.small_kernels == UNTIMED
    assert (sizes.host, sizes.gap) == (0.2, 0.2)


def test_a_profile_of_another_gpu_and_a_formula_err_more() -> None:
    profile = load_profile("h100-sxm5-80gb")
    own = of_profile(profile, load_gpu("h100-sxm5-80gb"), "bfloat16", None, link=0.1, host=0.0)
    elsewhere = of_profile(profile, load_gpu("b200-sxm-180gb"), "bfloat16", None, link=0.1, host=0.0)
    four_bits = of_profile(profile, load_gpu("h100-sxm5-80gb"), "bfloat16", "awq", link=0.1, host=0.0)
    others = of_profile(profile, load_gpu("h100-sxm5-80gb"), "bfloat16", None, link=0.1, host=0.0, own_kernels=False)
    assert others.kernels > error.OTHER_KERNELS > own.kernels
    assert elsewhere.kernels == error.ELSEWHERE > own.kernels
    assert four_bits.products > error.FORMULA > own.products
    assert four_bits.attention == own.attention


def test_terms_of_a_version_that_was_not_seen_err_by_what_versions_differ() -> None:
    newest = next(row for row in reversed(shipped()) if row.engine == "vllm")
    assert host_of({}, None, "0.19").error == newest.error
    assert host_of({}, None, "0.33").error == pytest.approx(math.hypot(newest.error, BETWEEN_VERSIONS))
    assert all(0.02 <= row.error <= 1.0 for row in shipped())


def test_the_spread_between_versions_is_that_of_the_file() -> None:
    works = [math.log(row.terms.fixed_us + 32 * row.terms.per_seq_us) for row in shipped() if row.engine == "vllm"]
    assert np.std(works, ddof=1) == pytest.approx(math.sqrt(2) * BETWEEN_VERSIONS, abs=0.05)


def test_stated_terms_do_not_err() -> None:
    host = host_of({"fixed_us": 500.0}, None, "0.12").times(2.0, 3.0)
    before = host_of({"fixed_us": 500.0}, None, "0.12")
    assert host.terms.fixed_us == 500.0
    assert host.terms.per_seq_us == 2.0 * before.terms.per_seq_us
    assert set(TERMS) == set(before.sources)


def test_links_over_pcie_differ_more_the_more_gpus_share_them() -> None:
    assert spread("pcie", 2) == spread("nvlink", 8) == 0.1
    assert 0.5 < spread("pcie", 4) < spread("pcie", 8) < 1.5


# --- what it does to a step
@pytest.mark.parametrize("profile", SHIPPED)
def test_times_grow_by_the_factor_of_their_class(profile: str) -> None:
    right, wrong = calibrated(profile), calibrated(profile, errors=SLOWER)
    for step in STEPS:
        ratio = wrong.step_ns(step)[0] / right.step_ns(step)[0]
        assert ratio == pytest.approx(1.3, rel=0.02)


@pytest.mark.parametrize("profile", SHIPPED)
def test_no_draw_is_faster_than_the_hardware(profile: str) -> None:
    wrong = calibrated(profile, errors=Factors(0.3, 0.3, 0.3, 0.3, 0.3, 0.3))
    for step in STEPS:
        flops, _ = wrong.work(step)
        assert wrong.peak_flops_per_s is not None
        assert wrong.step_ns(step)[0] >= 0.95e9 * flops[0] / wrong.peak_flops_per_s


def test_each_class_is_in_the_step() -> None:
    for name in ("products", "attention", "small_kernels"):
        alone = calibrated("h100-sxm5-80gb", errors=replace(EXACT, **{name: 1.2}))
        assert alone.step_ns(DECODES)[0] > calibrated("h100-sxm5-80gb").step_ns(DECODES)[0], name


def test_single_steps_err_like_arrays() -> None:
    wrong = calibrated("a100-sxm4-80gb", errors=SLOWER)
    one = plan_of(num_decode=128, decode_context_sum=128 * 3000, decode_context_max=3000, num_sampled=128)
    assert wrong.one_ns(one) == wrong.step_ns(DECODES)[0]


def test_a_data_sheet_errs_and_its_peaks_do_not() -> None:
    gpu = load_gpu("a100-sxm4-80gb")
    right = Deployment(
        LLAMA, gpu, tensor_parallel_size=1, interconnect="nvlink", dtype="bfloat16", quantization=None,
        kv_cache_dtype="auto",
    )  # fmt: skip
    exact, wrong = Roofline(right), Roofline(replace(right, errors=SLOWER))
    assert wrong.peak_flops_per_s == pytest.approx(exact.peak_flops_per_s)
    assert wrong.step_ns(DECODES)[0] > 1.2 * exact.step_ns(DECODES)[0]


# --- intervals
def test_the_range_of_a_mean_adds_both_variances() -> None:
    values, wrong = [10.0, 10.0], [11.0, 10.0 / 1.1]
    low, high = range_95(values, wrong, 0.0)
    assert high == pytest.approx(10.0 * 1.1**NORMAL_95)
    assert low * high == pytest.approx(100.0)
    assert range_95(values, wrong, 1.0)[1] > high
    assert range_95(values, values, 1.0)[1] == pytest.approx(10 * math.exp(0.1))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_what_may_be_of_any_sign_has_a_range_around_its_mean(values: list[float]) -> None:
    low, high = range_95(values, [value - 1 for value in values], None)
    assert low <= sum(values) / len(values) <= high


def test_times_rates_and_costs_have_a_range_and_nothing_else() -> None:
    found = combine([{"ttft_ms": {"mean": 1.0}, "num_preemptions": 3}] * 2, [{"ttft_ms": {"mean": 2.0}}] * 2)
    assert found["ttft_ms"]["mean_range95"][0] < 1.0 < found["ttft_ms"]["mean_range95"][1]
    assert "num_preemptions_range95" not in found
    assert "mean_range95" not in combine([{"ttft_ms": {"mean": 1.0}}] * 2)["ttft_ms"]


def test_a_run_serves_its_customers_again_with_step_times_in_error() -> None:
    with_error, without = api.run(asked()), api.run(asked(latency={"error": "none"}))
    tpot, alone = with_error.summary["tpot_ms"], without.summary["tpot_ms"]
    assert {key: tpot[key] for key in alone} == alone
    low, high = tpot["mean_range95"]
    assert low < tpot["mean"] - tpot["mean_ci95"] < tpot["mean"] + tpot["mean_ci95"] < high
    assert not any("range95" in key for key in alone)
    assert len(with_error.erring) == 4
    assert not without.erring
    assert with_error.summary["tpot_ms"] == api.run(asked()).summary["tpot_ms"]


def test_one_replication_and_steps_of_one_unit_have_no_range() -> None:
    assert not api.run(asked(replications=1)).erring
    assert not api.run(asked(latency={"profile": "unit"})).erring


def test_a_run_can_be_asked_for_with_one_draw() -> None:
    right, wrong, other = (
        api.run(asked(replications=1, latency={"error": value})).summary["tpot_ms"]["mean"] for value in ("none", 0, 1)
    )
    assert min(wrong, other) < right < max(wrong, other)


def test_an_erring_set_up_keeps_everything_but_its_times() -> None:
    setup = set_up(asked())
    wrong = erring(setup, 3)
    assert replace(wrong, latency=setup.latency, first_token_ns=setup.first_token_ns) == setup
    assert wrong.latency.peak_flops_per_s == setup.latency.peak_flops_per_s


def test_arms_that_are_compared_err_alike() -> None:
    scenario = asked(variants={"budget": {"engine.max_num_batched_tokens": 4096}})
    found = compare(scenario)
    paired = found.paired["budget"]["e2e_ms.p50"]
    one, other = (found.arms[name].summary["e2e_ms"] for name in (found.baseline, "budget"))
    alone = math.hypot(*(arm["p50_range95"][1] - arm["p50"] for arm in (one, other)))
    assert paired["range95"][0] <= paired["difference"] <= paired["range95"][1]
    assert paired["range95"][1] - paired["difference"] < alone


def test_a_run_prints_both_widths(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(asked().to_dict()))
    told = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "out"), "--no-report"])
    assert told.exit_code == 0, told.output
    lines = [line.strip() for line in told.stdout.splitlines()]
    assert "95 % intervals with the error of step times (± above: without it):" in lines
    (tpot,) = [line for line in lines if line.startswith("TPOT mean ")]
    assert "; simulation alone " in tpot


@pytest.mark.parametrize("value", ["sometimes", "-1", "1.5", "true"])
def test_a_wrong_error_is_refused_in_one_line(tmp_path: Path, value: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(asked().to_dict()))
    told = CliRunner().invoke(app, ["run", str(path), "--set", f"latency.error={value}"])
    assert told.exit_code == 2
    (line,) = told.stderr.strip().splitlines()
    assert "latency.error: expected drawn, none or the number of a draw" in line


# --- capacities
def test_the_error_of_a_capacity_is_the_spread_of_paired_crossings() -> None:
    assert error_of_step_times((10.0, 10.0), (11.0, 10 / 1.1)) == pytest.approx(math.log(1.1))
    assert error_of_step_times((10.0, 0.0), (11.0, 5.0)) == pytest.approx(math.log(1.1))
    assert error_of_step_times((10.0,), (math.inf,)) is None


def test_what_is_promised_is_the_lower_end_of_the_wider_interval() -> None:
    alone = Capacity(10.0, 9.0, 11.0, 10.0, "ttft_ms.p99", (10.0, 10.0), 10.0, 10.0, 1.0)
    wide = replace(alone, error=0.1)
    assert alone.carried_per_s == 9.0
    assert wide.range_per_s is not None
    low, high = wide.range_per_s
    assert wide.carried_per_s == low < alone.low_per_s < alone.high_per_s < high


def test_a_fleet_is_sized_by_what_holds_the_error_of_step_times(tmp_path: Path) -> None:
    scenario = asked(slo={"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 40}}, replications=1)
    data = scenario.to_dict()
    del data["workload"]["finite"]
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(data))
    words = ["plan", str(path), "--axis", "engine.max_num_seqs=16", "--target-rate", "60", "--jobs", "1"]
    told = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "plan"), "--no-report"])
    assert told.exit_code == 0, told.output
    content = json.loads((tmp_path / "plan" / "plan.json").read_text())
    (found,) = [point["capacity"] for point in content["points"]]
    low, high = found["range_per_s"]
    assert low < found["low_per_s"] < found["high_per_s"] < high
    replicas = content["fleet"]["replicas"]
    assert (replicas - 1) * low < 60 <= replicas * low
    assert "; simulation alone " in content["answer"]


@pytest.mark.parametrize("value", ["none", "2"])
def test_draws_of_rows_and_a_stated_error_are_not_both(value: str) -> None:
    rows = Path(__file__).resolve().parents[1] / "data" / "serving_rows.csv"
    words = ["validate", "--summary", str(rows), "--draws", "2", "--set", f"latency.error={value}"]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 2
    assert told.stderr.strip() == (
        f"--set latency.error={value}: expected without --draws, which draws the error of step times"
    )


def test_rows_of_a_gpu_that_may_be_a_card_are_given_its_interval_too(tmp_path: Path) -> None:
    """An H100 without a part is predicted as the SXM part, and a card over PCIe is within its interval."""
    header = "set,engine,model,gpu,tp,dtype_quant,input_len,output_len,max_concurrency,num_prompts,mean_tpot_ms"
    rows = [
        f"{number},a,vLLM 0.19,meta-llama/Llama-3.1-8B,{gpu},4,bf16,1024,64,32,64,10"
        for number, gpu in enumerate(("H100 80GB", "H100 SXM", "H100 PCIe"))
    ]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([f"row_id,{header}", *rows]) + "\n")
    study = study_rows(read_rows(path).rows, draws=4, jobs=1)
    unsaid, sxm, card = (row.metrics["mean_tpot_ms"] for row in study.rows)
    assert unsaid.predicted == sxm.predicted
    assert None not in (unsaid.low_90, unsaid.high_90, sxm.high_90, card.predicted)
    assert sxm.high_90 < card.predicted < unsaid.high_90  # type: ignore[operator]
