"""How experts are routed to and shared over GPUs: the keys of a scenario, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_calibrated import calibrated, decodes, ns
from test_roofline import MIXTRAL, roofline

import simkit
from simkit.engine.build import set_up
from simkit.errors import InputError
from simkit.latency.deployment import Deployment
from simkit.latency.experts import shape_of
from simkit.latency.routing import PowerLaw, Shares, read_shares
from simkit.scenario import Scenario, from_dict
from simkit.specs.hardware import load_gpu
from simkit.specs.models import load_model

SKEWED = Shares((0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05))


def scenario(hardware: dict[str, Any] | None = None, model: str = "mixtral-8x7b", **engine: Any) -> Scenario:
    return from_dict(
        {
            "model": model,
            "hardware": {"gpu": "h100-sxm5-80gb", "tensor_parallel_size": 2} | (hardware or {}),
            "engine": {"max_model_len": 4096} | engine,
            "workload": {
                "num_requests": 20, "arrivals": {"process": "all_at_once"},
                "prompt_tokens": {"dist": "fixed", "value": 64}, "output_tokens": {"dist": "fixed", "value": 16},
            },
        }
    )  # fmt: skip


def step_ns(drawn: Scenario, seqs: int = 16) -> int:
    return int(set_up(drawn).latency.step_ns(decodes(seqs, 100))[0])


def test_routing_decides_what_a_decode_of_experts_costs(tmp_path: Path) -> None:
    even, file = tmp_path / "even.txt", tmp_path / "shares.txt"
    even.write_text("\n".join(["0.125"] * 8), encoding="utf-8")
    file.write_text("0.5, 0.5, 0, 0\n0 0 0 0", encoding="utf-8")
    independent = step_ns(scenario())
    assert step_ns(scenario(moe_routing="balanced")) == independent
    assert step_ns(scenario(moe_routing=str(even))) == pytest.approx(independent, rel=1e-6)
    assert step_ns(scenario(moe_routing={"power_law": 1.01})) != independent
    # Two experts of eight are read.
    assert step_ns(scenario(moe_routing=str(file))) < 0.5 * independent


def test_a_file_of_shares_lies_beside_its_scenario(tmp_path: Path) -> None:
    (tmp_path / "shares.txt").write_text("0.125 " * 8, encoding="utf-8")
    assert step_ns(scenario(moe_routing="shares.txt").based_at(tmp_path)) == pytest.approx(
        step_ns(scenario()), rel=1e-6
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.125 " * 7, "expected 8 shares, one for each expert of mixtral-8x7b, got 7"),
        ("0.1 " * 8, "expected shares that add up to 1, got 0.8"),
        ("0.5 -0.5 " * 4, "expected numbers from 0 to 1 and nothing else"),
        ("0.125 " * 7 + "none", "expected numbers from 0 to 1 and nothing else"),
        ("0.125 " * 7 + "nan", "expected numbers from 0 to 1 and nothing else"),
    ],
)
def test_a_file_that_holds_no_shares_says_what_was_expected(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "shares.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        set_up(scenario(moe_routing=str(path)))
    assert str(refused.value).startswith(("engine.moe_routing", "scenario"))
    assert f"shares.txt: {said}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_word_that_is_no_routing_is_answered_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"balancd: no such file or directory; expected balanced, .*balanced"):
        set_up(scenario(moe_routing="balancd"))
    with pytest.raises(InputError, match=r"engine.moe_routing: llama-3-8b has no experts to route to"):
        set_up(scenario(model="llama-3-8b", moe_routing={"power_law": 1.01}))
    with pytest.raises(InputError, match=r"engine.moe_routing"):
        scenario(moe_routing={"power_law": 0})


def test_what_is_not_given_is_not_printed() -> None:
    plain = scenario().to_dict()
    assert "moe_routing" not in plain["engine"]
    assert "expert_parallel" not in plain["hardware"]
    given = scenario({"expert_parallel": True}, moe_routing={"power_law": 1.2}).to_dict()
    assert given["engine"]["moe_routing"] == {"power_law": 1.2}
    assert from_dict(given).to_dict() == given


def test_ranks_that_hold_whole_experts_are_priced_as_such() -> None:
    oss = load_model("gpt-oss-120b")
    settings: dict[str, Any] = {"model": oss, "quantization": "mxfp4", "tensor_parallel_size": 4}
    split, whole = (calibrated(**settings, expert_parallel=shared) for shared in (False, True))
    assert ns(split, decodes(64, 100)) != ns(whole, decodes(64, 100))
    deployment = Deployment(oss, load_gpu("h100-sxm5-80gb"), 4, "nvlink", "bfloat16", "mxfp4", "auto")
    assert shape_of(deployment)[4:] == (4, 1)
    assert shape_of(replace(deployment, expert_parallel=True))[4:] == (1, 4)


def test_the_busiest_rank_sets_the_time_on_the_roofline_too() -> None:
    gpu = load_gpu("h100-sxm5-80gb")
    settings: dict[str, Any] = {"tensor_parallel_size": 4}
    split = roofline(MIXTRAL, gpu, **settings)
    even = roofline(MIXTRAL, gpu, expert_parallel=True, **settings)
    skewed = roofline(MIXTRAL, gpu, expert_parallel=True, routing=SKEWED, **settings)
    shapes = decodes(2000, 10)
    assert ns(split, shapes) < ns(even, shapes) < ns(skewed, shapes)


def test_experts_that_do_not_divide_over_the_ranks_are_refused_in_one_line() -> None:
    odd = replace(MIXTRAL, name="odd", num_experts=6)
    with pytest.raises(InputError) as refused:
        calibrated(model=odd, tensor_parallel_size=4, expert_parallel=True)
    assert str(refused.value) == (
        "hardware.expert_parallel: expected a hardware.tensor_parallel_size that divides the 6 experts of odd, got 4"
    )
    with pytest.raises(InputError, match=r"hardware.expert_parallel: .*llama-3-8b has no experts to share over ranks"):
        set_up(scenario({"expert_parallel": True}, model="llama-3-8b"))


def test_one_gpu_has_nobody_to_share_experts_with() -> None:
    alone = scenario({"expert_parallel": True, "tensor_parallel_size": 1, "gpu": "h200-sxm-141gb"})
    assert "hardware.expert_parallel (needs tensor_parallel_size above 1)" in set_up(alone).without_effect


@pytest.mark.parametrize("routing", ["balanced", {"power_law": 1.01}])
def test_steps_one_by_one_give_the_same_run(routing: Any) -> None:
    drawn = scenario({"expert_parallel": True}, moe_routing=routing)
    macro, single = (simkit.run(drawn, single_step=single) for single in (False, True))
    assert macro.tables["requests"].equals(single.tables["requests"])


def test_shares_are_normed_and_power_laws_steeper_than_one_touch_fewer(tmp_path: Path) -> None:
    path = tmp_path / "shares.txt"
    path.write_text("0.3334 0.3333 0.3334", encoding="utf-8")
    assert sum(read_shares(str(path), 3, "x").of) == pytest.approx(1.0, abs=1e-12)
    oss: dict[str, Any] = {"model": load_model("gpt-oss-120b"), "quantization": "mxfp4"}
    models = [calibrated(**oss, routing=PowerLaw(exponent)) for exponent in (1.0, 1.01, 2.0)]
    times = np.array([ns(model, decodes(32, 100)) for model in models])
    assert times[0] == pytest.approx(times[1], rel=0.05)
    assert times[2] < times[1] < ns(calibrated(**oss), decodes(32, 100))


def test_no_expert_gets_more_than_every_token(tmp_path: Path) -> None:
    """A token of Mixtral goes to two different experts: one gets at most half of the rows."""
    path = tmp_path / "one.txt"
    path.write_text("0.9 0.1 0 0 0 0 0 0")
    with pytest.raises(InputError, match=r"engine.moe_routing: .*expected shares of at most 1/2, .*got 0.9"):
        set_up(scenario(moe_routing=str(path)))
    path.write_text("0.5 0.1 0.1 0.1 0.1 0.1 0 0")
    set_up(scenario(moe_routing=str(path)))


def test_experts_in_blocks_are_not_cut_within_one() -> None:
    """MiniMax-M2 has 1,536 wide experts: 8 ranks would hold 192 each, one and a half blocks of 128."""
    eight = {"gpu": "h200-sxm-141gb", "tensor_parallel_size": 8}
    with pytest.raises(InputError, match=r"tensor_parallel_size: the experts of minimax-m2 are 1536 wide in blocks"):
        set_up(scenario(eight, model="minimax-m2"))
    for more in ({"expert_parallel": True}, {"tensor_parallel_size": 4}):
        set_up(scenario(eight | more, model="minimax-m2"))
