"""The shipped profiles against the tables that they were fitted to, where those are at hand."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calib.fit.fit import FitResult, fit_table
from calib.fit.fit_op import fit_op
from calib.fit.score import predict
from calib.ship import BLOCK_ROWS, BLOCK_SIDE, PROVENANCE, experts_of, gathered
from calib.table import Rows, Table, merge_equal, read_table
from calib.tables import Tables
from simkit.latency.deployment import Deployment
from simkit.latency.kernels import Kernels
from simkit.latency.profile import MEMORY_BOUND_OPS, ExpertShape, Load, load_profile, work_of
from simkit.latency.step_tables import TableBuilder
from simkit.specs.hardware import load_gpu
from simkit.specs.models import load_model

TABLES = Path(__file__).resolve().parents[3] / "shared" / "data" / "kernels"
COLLECTIVES = TABLES.with_name("kernels_2")
pytestmark = pytest.mark.skipif(
    not (TABLES.is_dir() and COLLECTIVES.is_dir()), reason="the imported kernel tables are not here"
)

BARS = {("gemm", "bfloat16"): 5.0, ("gemm", "fp8"): 8.0, ("gemm", "fp8_block"): 5.0,
        ("attention_decode", "bfloat16"): 4.5, ("attention_prefill", "bfloat16"): 4.5,
        ("mla_decode_module", "fp8_block"): 2.0, ("mla_prefill_module", "fp8_block"): 2.5}  # fmt: skip


@functools.cache
def tables(name: str) -> Tables:
    return gathered(name, (TABLES, COLLECTIVES))


@functools.cache
def table(name: str) -> Table:
    return tables(name).table


@functools.cache
def fit(name: str) -> FitResult:
    experts = experts_of(name, (TABLES, COLLECTIVES))
    return fit_table(table(name), load_gpu(name), name, PROVENANCE[name], more=tables(name).launches, experts=experts)


def report(name: str, op: str, dtype: str = "bfloat16") -> Any:
    return next(found for found in fit(name).reports if (found.op, found.dtype) == (op, dtype))


def close(left: Any, right: Any) -> bool:
    """Equal up to what another machine's arithmetic may change in the last digits."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(close, left, right))
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == pytest.approx(right, rel=0.02, abs=3)
    return bool(left == right)


@pytest.mark.parametrize("name", PROVENANCE)
def test_the_shipped_profile_is_the_fit_of_its_table(name: str) -> None:
    shipped = json.loads(resources.files("calib").joinpath(f"profiles/{name}.json").read_text(encoding="utf-8"))
    fitted = json.loads(fit(name).text)
    assert close(shipped, fitted)


# Bars of 8 % between measured ranks of a model and 15 % beyond; what misses them is held to where it stands.
MISSED = {("a100-sxm4-80gb", "bfloat16"): 9.5, ("rtx-pro-6000", "w4a16_mxfp4"): 10.0}


@pytest.mark.parametrize("name", PROVENANCE)
def test_experts_of_shapes_held_out_meet_their_bars(name: str) -> None:
    for (op, dtype), found in fit(name).profile.report.items():
        if op == "moe":
            errors: Any = found["errors"]
            assert errors["held_out_inside"]["mape_pct"] <= MISSED.get((name, dtype), 8.0), dtype
            assert errors["held_out_outside"]["mape_pct"] <= 15.0, dtype


def test_experts_that_few_tokens_touch_take_less_by_the_table_of_another_lab() -> None:
    """Qwen3-30B-A3B of LLMServingSim, whose rows say how many of 128 experts were hit: those that memory bounds (at 32
    tokens the kernels of vLLM 0.24 take a fourth longer than at 16 and at 48, whatever the shape)."""
    rows = pd.read_csv(COLLECTIVES / "rtx-pro-6000.qwen3-30b-a3b.csv.gz", low_memory=False)
    rows = rows[(rows["op"] == "moe") & rows["distribution"].isin(["hit_64", "hit_128"]) & rows["m"].between(64, 512)]
    tokens, hit = rows["m"].to_numpy(), rows["distribution"].str[4:].astype(float).to_numpy()
    load = Load(8 * tokens, hit, 0 * tokens)
    us = load_profile("rtx-pro-6000").experts["bfloat16"].predict(ExpertShape(128, 8, 2048, 768, 1, 1), tokens, load).us
    assert len(rows) == 8
    assert np.abs(us / rows["latency_us"].to_numpy() - 1).mean() < 0.03


@pytest.mark.parametrize(("name", "refused"), [("a100-sxm4-80gb", 0), ("h100-sxm5-80gb", 49), ("h200-sxm-141gb", 3)])
def test_rows_that_beat_memory_are_refused(name: str, refused: int) -> None:
    """All of them GEMMs whose operands stay in the L2 cache."""
    assert {found.op: len(found.refused) for found in fit(name).reports if found.refused} == (
        {"gemm": refused} if refused else {}
    )


def test_equal_prefill_rows_of_the_a100_are_merged() -> None:
    assert report("a100-sxm4-80gb", "attention_prefill").num_merged == 408
    assert report("a100-sxm4-80gb", "attention_prefill").far_apart == ()  # the farthest are 1.24 apart


def test_known_spikes_are_listed() -> None:
    assert any("batch=32 kv_len=4: 41.579 us" in line for line in report("a100-sxm4-80gb", "attention_decode").outliers)
    assert any("m=17 n=2048 k=768: 56.614 us" in line for line in report("h100-sxm5-80gb", "gemm", "fp8").outliers)


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb"])
def test_held_out_errors_meet_their_bars(name: str) -> None:
    beyond = {}
    for found in fit(name).reports:
        bar = BARS.get((found.op, found.dtype))
        if bar is None:
            continue
        assert found.score is not None
        inside = found.score.inside
        assert inside.num > (100 if found.op.startswith("mla") else 500)
        assert inside.mape_pct is not None
        assert inside.mape_pct <= bar
        if found.dtype == "bfloat16":
            beyond |= {(found.op, axis): errors.mape_pct for axis, errors in found.score.beyond.items()}
    assert {axis for _, axis in beyond} == {"m", "n", "k", "batch", "kv_len", "q_len"}
    assert np.mean([error for error in beyond.values() if error is not None]) <= 12.0


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "rtx-pro-6000"])
def test_the_shipped_profile_prices_its_own_table(name: str) -> None:
    """At measured sizes to the per mille, and nowhere faster than memory or arithmetic."""
    profile = load_profile(name)
    for key, found in table(name).rows.items():
        if key[0] not in MEMORY_BOUND_OPS:
            continue
        # A window takes as long whatever lies before it: one shape, many rows.
        rows = merge_equal(found).rows if key[0].endswith("_window") else found
        fit_ = profile.ops[key]
        fastest = fit_.limits.fastest_us(work_of(rows.op, rows.dtype, rows.sizes))
        chosen = np.flatnonzero(rows.us >= fastest)[:: max(1, len(rows) // 3000)]
        part: Rows = rows.take(chosen)
        us = predict(fit_, part).us
        assert (us >= fastest[chosen] * (1 - 1e-12)).all()
        assert np.median(np.abs(us / part.us - 1)) < 1e-3
        assert np.quantile(np.abs(us / part.us - 1), 0.9) < 2e-3


def test_launches_of_unlike_sequences_are_fitted_where_they_were_measured() -> None:
    """The bars are what the sum of the parts misses by a wide margin: 28 % on mixed launches of this table."""
    found = json.loads(fit("rtx-pro-6000").text)
    held_out = found["mixed"]["held_out"]
    assert held_out["equal decodes"]["mape_pct"] < 8
    assert held_out["unequal decodes"]["mape_pct"] < 8
    assert abs(held_out["equal decodes"]["bias_pct"]) < 3
    assert (
        held_out["equal decodes"]["mape_pct"]
        < 0.3 * found["mixed"]["held_out_of_the_other_rule"]["equal decodes"]["mape_pct"]
    )
    assert found["skew"]["held_out"]["mape_pct"] < 0.7 * found["skew"]["held_out_at_the_mean"]["mape_pct"]


def test_all_reduces_over_pcie_are_priced_as_they_were_measured() -> None:
    """Those of RTX PRO 6000, which has no NVLink: over its bus, at sizes that were measured."""
    profile = load_profile("rtx-pro-6000")
    all_reduce = profile.ops["all_reduce", "bfloat16"]
    assert (profile.interconnect, all_reduce.limits.bytes_per_s) == ("pcie", 64e9)
    found = predict(all_reduce, table("rtx-pro-6000").rows["all_reduce", "bfloat16"])
    assert np.abs(found.us / table("rtx-pro-6000").rows["all_reduce", "bfloat16"].us - 1).max() < 2e-3
    for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb"):
        assert load_profile(name).interconnect == "nvlink"


@pytest.mark.parametrize("name", ["h100-sxm5-80gb", "h200-sxm-141gb"])
def test_products_with_scales_by_block_are_priced_at_rows_that_were_left_out(name: str) -> None:
    """15,600 calls a GPU, 8 and 7 % off in the mean; the products of one scale a tensor are 22 and 23 % off there."""
    rows = read_table(COLLECTIVES / f"{name}.dense.csv.gz").rows["gemm", "fp8_block"]
    wide = (rows.sizes["n"] >= BLOCK_SIDE) & (rows.sizes["k"] >= BLOCK_SIDE)
    rest = rows.take(wide & ~np.isin(rows.sizes["m"], BLOCK_ROWS))
    by_block, by_tensor = (load_profile(name).op("gemm", dtype) for dtype in ("fp8_block", "fp8"))
    assert by_block is not None
    assert by_tensor is not None
    off = [np.abs(predict(fit, rest).us / rest.us - 1).mean() for fit in (by_block, by_tensor)]
    assert off[0] < 0.08
    assert off[1] > 0.2


def test_chunks_over_a_context_that_was_not_measured_wait_for_the_longest_thread_block() -> None:
    """RTX PRO 6000 without its 214 chunks over a context: the formula is 29 % off there in the mean, the rule 6 %."""
    profile, key = load_profile("rtx-pro-6000"), ("attention_prefill", "bfloat16")
    rows = table("rtx-pro-6000").rows[key]
    over = rows.sizes["kv_len"] > 0
    blind = fit_op(rows.take(~over), profile.ops[key].limits).fit
    deployment = Deployment(load_model("llama-3.1-8b"), load_gpu("rtx-pro-6000"), 1, "pcie", "bfloat16", None, "auto")
    changed = replace(profile, ops={**profile.ops, key: blind})
    chunks, _ = TableBuilder(deployment, Kernels(deployment), changed).chunks()
    rest = rows.take(over)
    us = chunks.at(rest.sizes["batch"], rest.sizes["q_len"], rest.sizes["kv_len"])
    assert np.abs(us / rest.us - 1).mean() < 0.08
    assert np.abs(predict(blind, rest).us / rest.us - 1).mean() > 0.25
