"""Routed experts: how many tokens touch, what measured tables say of them, and what is said of the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from typing import Any

import numpy as np
import pytest
from test_calibrated import calibrated, decodes, ns, tags
from test_roofline import MIXTRAL

from simkit.latency.error import of_profile
from simkit.latency.profile import ExpertShape, ProfileError, load_profile, parse_profile
from simkit.latency.profile.experts import lies_between, priced_as
from simkit.latency.routing import PowerLaw, Shares, balanced_load, load_of, power_law_load
from simkit.specs.hardware import load_gpu
from simkit.specs.models import load_model

TOKENS = np.array([1.0, 16.0, 1024.0])
SHAPE = ExpertShape(8, 2, 4096, 14336, 1, 1)


def test_tokens_that_choose_by_themselves_touch_as_many_experts_as_chance_says() -> None:
    load = load_of(None, 128, 8, 1, TOKENS)
    assert load.touched == pytest.approx(128 * (1 - (1 - 8 / 128) ** TOKENS))
    assert load.rows.tolist() == (8 * TOKENS).tolist()
    assert load.spread.tolist() == [0, 0, 0]
    even = load_of(Shares((1 / 128,) * 128), 128, 8, 1, TOKENS)
    assert even.touched == pytest.approx(load.touched)
    assert even.spread == pytest.approx(0.0)


def test_shares_that_are_unequal_touch_fewer_experts_and_load_one_rank_more() -> None:
    shares = Shares((0.4, 0.2, *[0.4 / 14] * 14))
    one, two = (load_of(shares, 16, 2, ranks, TOKENS) for ranks in (1, 2))
    even = load_of(None, 16, 2, 1, TOKENS)
    assert one.touched[1] < even.touched[1]
    assert (one.spread[1:] > 0).all()
    # The first eight experts get 0.6 + 6 x 0.4 / 14 of the rows.
    assert two.rows[2] == pytest.approx(2048 * (0.6 + 6 * 0.4 / 14))
    chances = np.minimum(2 * np.array(shares.of), 1.0)
    assert one.touched[1] == pytest.approx((1 - (1 - chances) ** 16).sum())


def test_the_busiest_rank_computes_at_least_its_part() -> None:
    for routing in (None, PowerLaw(1.01), Shares((1 / 64,) * 64)):
        alone, shared = (load_of(routing, 64, 4, ranks, TOKENS) for ranks in (1, 8))
        assert (shared.rows >= alone.rows / 8).all()
        assert (shared.touched >= alone.touched / 8 - 1e-9).all()
        assert (shared.rows <= TOKENS * 4).all()
        assert (shared.touched <= 8).all()


def test_balanced_rows_touch_every_expert_at_once_and_skewed_rows_do_not() -> None:
    assert balanced_load(128, 8, 1, np.array([8.0, 16.0])).touched.tolist() == [64, 128]
    assert power_law_load(1.01, 128, 8, 1, np.array([16.0])).touched[0] < 90


def test_a_measured_shape_is_priced_as_it_was_measured() -> None:
    fit = load_profile("h100-sxm5-80gb").experts["bfloat16"]
    shape = ExpertShape(128, 8, 2048, 768, 1, 1)
    # NVIDIA, aisimulate 0.13.0.dev202610270000000085, vLLM 0.25.0 kernels: us of balanced and of skewed rows.
    for tokens, balanced, skewed in ((16.0, 418.4, 230.8), (256.0, 462.3, 444.2), (8192.0, 1485.0, 1679.1)):
        at = np.array([tokens])
        assert fit.predict(shape, at, balanced_load(128, 8, 1, at)).us[0] == pytest.approx(balanced, rel=2e-3)
        assert fit.predict(shape, at, power_law_load(1.01, 128, 8, 1, at)).us[0] == pytest.approx(skewed, rel=2e-3)


def test_a_shape_that_was_not_measured_lies_among_those_that_are_near() -> None:
    fit = load_profile("h100-sxm5-80gb").experts["bfloat16"]
    tokens = np.array([4.0, 64.0, 2048.0])
    load = balanced_load(128, 8, 1, tokens)
    narrow, mine, wide = (
        fit.predict(ExpertShape(128, 8, 2048, inter, 1, 1), tokens, load).us for inter in (384, 576, 768)
    )
    assert ((narrow < mine) & (mine < wide)).all()
    assert not fit.measured(ExpertShape(128, 8, 2048, 576, 1, 1))
    assert fit.measured(ExpertShape(128, 8, 2048, 768, 1, 1))
    # The same rank of another model: half of experts of twice the width.
    halved = fit.predict(ExpertShape(128, 8, 2048, 1536, 2, 1), tokens, load).us
    assert halved == pytest.approx(wide, rel=0.03)


def test_a_shape_between_more_and_fewer_ranks_of_its_model_lies_inside() -> None:
    known = [SHAPE._replace(moe_tp=1), SHAPE._replace(moe_tp=4)]
    assert lies_between(SHAPE._replace(moe_tp=2), known)
    assert not lies_between(SHAPE._replace(moe_tp=8), known)
    assert not lies_between(SHAPE._replace(moe_ep=2), known)
    assert not lies_between(SHAPE._replace(hidden=2048, moe_tp=2), known)


@pytest.mark.parametrize(
    ("quantization", "measured", "name"),
    [
        (None, {"bfloat16", "fp8_block"}, "bfloat16"),
        ("fp8", {"fp8_block"}, "fp8_block"),
        ("fp8", {"fp8", "fp8_block"}, "fp8"),
        ("fp8_block", {"fp8"}, None),  # one scale is never the price of scales by block
        ("mxfp4", {"w4a16_mxfp4"}, "w4a16_mxfp4"),
        ("awq", {"int4_wo"}, "int4_wo"),
        ("int8", {"int4_wo", "fp8"}, None),
    ],
)
def test_formats_of_checkpoints_are_priced_by_tables(quantization: str | None, measured: set[str], name: Any) -> None:
    assert priced_as(measured, "bfloat16", quantization) == name


def test_experts_are_priced_once_and_by_their_table() -> None:
    profile = load_profile("h100-sxm5-80gb")
    with_table, without = calibrated(model=MIXTRAL), calibrated(replace(profile, experts={}), model=MIXTRAL)
    assert "experts: roofline" in tags(without, decodes(64, 100))
    assert not [name for name in tags(with_table, decodes(64, 100)) if "expert" in name]
    tokens = np.array([64.0])
    load = load_of(None, MIXTRAL.num_experts, MIXTRAL.experts_per_token, 1, tokens)
    moe = profile.experts["bfloat16"].predict(SHAPE, tokens, load).us[0] * MIXTRAL.num_layers * 1e3
    # All else of the step, with the table and without it, is the same, but for activations and the weighted sum.
    kernels = without.kernels
    rows, some = np.array([64.0]), np.array([1.0])
    routed = sum(g.layers * kernels.gemm_ns(g, rows, some)[0] for g in kernels.gemms if g.routed)
    assert ns(with_table, decodes(64, 100)) - moe < ns(without, decodes(64, 100)) - routed


def test_what_of_experts_was_not_measured_is_tagged() -> None:
    other = replace(MIXTRAL, moe_intermediate_size=12_000)
    assert "experts: by those of other shapes" in tags(calibrated(model=other), decodes(8, 100))
    assert "experts: routing not measured" in tags(calibrated("a100-sxm4-80gb", MIXTRAL), decodes(8, 100))
    fp8 = tags(calibrated(model=MIXTRAL, quantization="fp8"), decodes(8, 100))
    assert "experts of one scale: priced as scales by block" in fp8
    oss = load_model("gpt-oss-20b")
    assert "experts: roofline" in tags(calibrated("a100-sxm4-80gb", oss, quantization="mxfp4"), decodes(8, 100))


def test_intervals_hold_what_the_table_of_experts_misses() -> None:
    profile, gpu = load_profile("a100-sxm4-80gb"), load_gpu("a100-sxm4-80gb")
    dense, routed = (
        of_profile(profile, gpu, "bfloat16", None, link=0.1, host=0.1, routed=routed) for routed in (False, True)
    )
    assert routed.products > dense.products
    assert routed.attention == dense.attention


def shipped() -> Any:
    text = resources.files("calib").joinpath("profiles/a100-sxm4-80gb.json").read_text(encoding="utf-8")
    return json.loads(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "int3"}, "experts[0].dtype: unknown 'int3'"),
        ({"m": [4, 2]}, "experts[0].m: expected increasing numbers"),
        ({"m": [0, 2]}, "experts[0].m: expected numbers of tokens from 1 on"),
        ({"shapes": [[8, 2, 4096, 14336, 1]]}, "experts[0].shapes[0]: expected num_experts, topk, hidden, inter,"),
        ({"log_residual_per_mille": [[[1, 2]]]}, "experts[0].log_residual_per_mille: expected"),
        ({"spreads": [0, 1.01]}, "experts[0].log_residual_per_mille: expected a number for every"),
    ],
)
def test_a_table_of_experts_that_cannot_be_used_says_where(change: dict[str, Any], said: str) -> None:
    data = shipped()
    data["experts"][0] |= change
    with pytest.raises(ProfileError) as refused:
        parse_profile(json.dumps(data), "mine.json")
    assert f"mine.json: {said}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "rtx-pro-6000"])
def test_a_profile_without_experts_is_one(name: str) -> None:
    profile = load_profile(name)
    assert set(profile.experts) >= {"bfloat16"}
    data = json.loads(resources.files("calib").joinpath(f"profiles/{name}.json").read_text(encoding="utf-8"))
    del data["experts"]
    assert parse_profile(json.dumps(data), "mine.json").experts == {}
