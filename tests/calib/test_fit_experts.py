"""Fits of routed experts, of a table whose right answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calib import CalibrationError
from calib.fit.experts import believed, expert_limits, fit_experts, formats_of, read_experts, score_experts
from simkit.latency.profile import (
    ExpertShape,
    Limits,
    Physics,
    balanced_load,
    expert_work,
    power_law_load,
)
from simkit.specs.hardware import load_gpu

LIMITS = Limits(989.4e12, 3.35e12)
TRUE = Physics(0.5, 0.8, 1.0, 0.1, 30.0, 1.2)
TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)
LOADS = {"balanced": balanced_load, "power_law_1.01": lambda *sizes: power_law_load(1.01, *sizes)}


def us_of(shape: ExpertShape, distribution: str, *, groups: float = 1.0) -> list[float]:
    """By the formula; `groups`: the share of its experts that a router picks from."""
    tokens = np.array(TOKENS, np.float64)
    load = LOADS[distribution](shape.num_experts, shape.topk, shape.moe_ep, tokens)
    work = expert_work("bfloat16", shape, tokens, load)
    return list(TRUE.us(work, LIMITS) * (groups if distribution == "balanced" else 1.0))


def write(path: Path, shapes: list[ExpertShape], *, groups: dict[int, float] | None = None, more: str = "") -> Path:
    lines = ["op,dtype,m,num_experts,topk,hidden,inter,moe_tp,moe_ep,distribution,kernel,latency_us,source"]
    for shape in shapes:
        for name in LOADS:
            for tokens, us in zip(
                TOKENS, us_of(shape, name, groups=(groups or {}).get(shape.hidden, 1.0)), strict=True
            ):
                lines.append(f"moe,bfloat16,{tokens},{','.join(map(str, shape))},{name},triton,{us:.4f},made up")
    path.write_text("\n".join(lines) + "\n" + more, encoding="utf-8")
    return path


RANKS = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (1, 8))
SHAPES = [ExpertShape(e, 8, hidden, 1024, *ranks) for e in (64, 128) for hidden in (2048, 4096) for ranks in RANKS]


def test_a_formula_is_found_again_and_holds_for_shapes_held_out(tmp_path: Path) -> None:
    rows = believed(read_experts(write(tmp_path / "experts.csv", SHAPES), "bfloat16"), LIMITS)
    assert (len(rows.shapes), rows.dropped, np.isnan(rows.us).sum()) == (len(SHAPES), (), 0)
    fit, errors = fit_experts(rows, LIMITS), score_experts(rows, LIMITS)
    tokens = np.array(TOKENS, np.float64)
    for shape in SHAPES:
        found = fit.predict(shape, tokens, balanced_load(shape.num_experts, shape.topk, shape.moe_ep, tokens)).us
        assert found == pytest.approx(us_of(shape, "balanced"), rel=2e-3)
    assert errors is not None
    assert errors["held_out_inside"]["mape_pct"] < 3.0  # type: ignore[index]


def test_balanced_rows_that_would_beat_the_memory_are_not_believed(tmp_path: Path) -> None:
    big = [ExpertShape(128, 8, 6144, 2048, tp, ep) for tp, ep in ((1, 1), (2, 1), (1, 2))]
    path = write(tmp_path / "experts.csv", [*SHAPES, *big], groups={6144: 0.5})
    rows = believed(read_experts(path, "bfloat16"), LIMITS)
    assert rows.dropped == ("balanced rows of 8/128 experts of 6144 x 2048: faster than the memory",)
    at = [index for index, shape in enumerate(rows.shapes) if shape.hidden == 6144]
    assert len(at) == 3
    assert np.isnan(rows.us[at, 0]).all()
    assert not np.isnan(rows.us[at, 1]).any()


def test_experts_of_two_matrices_and_of_other_activations_are_left_out(tmp_path: Path) -> None:
    nemotron = "moe,bfloat16,1,128,6,2688,1856,1,1,balanced,triton,9.0,made up\n"
    situ = "moe,bfloat16,1,896,16,3584,3072,1,1,balanced,marlin_situ_as_silu,9.0,made up\n"
    rows = read_experts(write(tmp_path / "experts.csv", SHAPES, more=nemotron + situ), "bfloat16")
    assert len(rows.shapes) == len(SHAPES)


def test_formats_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "experts.csv", SHAPES)
    with pytest.raises(CalibrationError, match="no usable row of moe fp8_block"):
        read_experts(path, "fp8_block")
    with pytest.raises(CalibrationError, match="a100-sxm4-80gb has no fp8, in which fp8_block is told"):
        expert_limits("fp8_block", load_gpu("a100-sxm4-80gb"))


def test_a_kernel_that_is_slower_in_fewer_bits_is_left_out_and_told(tmp_path: Path) -> None:
    path = write(tmp_path / "experts.csv", SHAPES)
    wide = path.read_text().splitlines()[1:]
    slower = [line.replace("moe,bfloat16", "moe,fp8").rsplit(",", 2) for line in wide]
    more = "\n".join(f"{head},{2 * float(us):.4f},{source}" for head, us, source in slower)
    taken, notes = formats_of(write(tmp_path / "experts.csv", SHAPES, more=more + "\n"), load_gpu("h100-sxm5-80gb"))
    assert taken == ["bfloat16"]
    assert notes == ["experts.csv: rows of moe fp8 take 2.00 x those in bfloat16, ignored"]
