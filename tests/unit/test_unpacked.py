"""Products whose weights are widened before each of them (bitsandbytes)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_calibrated import LLAMA, calibrated, chunk, decodes, tags
from test_roofline import MIXTRAL

from simkit.latency.deployment import Deployment
from simkit.latency.kernels import GEMM_BANDWIDTH_FRACTION
from simkit.latency.roofline import Roofline
from simkit.specs.hardware import load_gpu

FORMULA = "weights widened before each product: formula"
PROFILES = ("a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "rtx-pro-6000")


def widening_ns(name: str) -> float:
    """Packed weights read, wide ones written: 4.127 bits and 16 of each weight of the layers."""
    return LLAMA.linear_params * (4.127 / 8 + 2) / (load_gpu(name).hbm_bytes_per_s * GEMM_BANDWIDTH_FRACTION) * 1e9


@pytest.mark.parametrize("name", PROFILES)
def test_a_pass_takes_what_16_bits_take_and_the_widening(name: str) -> None:
    plain, packed = calibrated(name), calibrated(name, quantization="bitsandbytes")
    for shapes in (decodes(2, 32), decodes(64, 512), decodes(0, 0, **chunk(2048))):
        added = packed.gpu_ns(shapes)[0] - plain.gpu_ns(shapes)[0]
        assert added == pytest.approx(widening_ns(name), rel=0.01)


@pytest.mark.parametrize("name", PROFILES)
def test_a_single_row_reads_packed_weights_alone(name: str) -> None:
    plain, packed = calibrated(name), calibrated(name, quantization="bitsandbytes")
    assert 1.5 < plain.gpu_ns(decodes(1, 32))[0] / packed.gpu_ns(decodes(1, 32))[0] < 4.0


def test_it_is_said_not_to_be_measured() -> None:
    found = tags(calibrated(quantization="bitsandbytes"), decodes(16, 100))
    assert 0.5 < found[FORMULA] < 1.0
    assert FORMULA not in tags(calibrated(quantization="awq"), decodes(16, 100))


def test_the_roofline_adds_the_same() -> None:
    gpu = load_gpu("l4-24gb")
    plain = Deployment(LLAMA, gpu, 1, "pcie", "bfloat16", None, "auto")
    shapes = decodes(32, 128)
    added = Roofline(replace(plain, quantization="bitsandbytes")).gpu_ns(shapes) - Roofline(plain).gpu_ns(shapes)
    assert added[0] == pytest.approx(widening_ns("l4-24gb"), rel=0.01)


def test_experts_are_all_widened() -> None:
    gpu = load_gpu("h200-sxm-141gb")
    packed = Roofline(Deployment(MIXTRAL, gpu, 1, "nvlink", "bfloat16", "bitsandbytes", "auto"))
    weights = MIXTRAL.linear_params - MIXTRAL.num_moe_layers * MIXTRAL.router_params_per_layer
    least = weights * (4.127 / 8 + 2) / gpu.hbm_bytes_per_s * 1e9
    assert (packed.gpu_ns(decodes(2, 32)) > least).all()
    assert np.isfinite(packed.gpu_ns(decodes(0, 0))).all()
