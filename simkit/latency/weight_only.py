"""GEMMs of 16-bit activations with weights of 4 or 8 bits, which the kernel widens as it reads them: awq, gptq, and
nvfp4 where the GPU has no cores for it (vLLM runs all of them by Marlin).

Owns their time: a smooth maximum of compute and traffic, and a floor, as `physics` has it, from the fit of the GPU's
own 16-bit GEMM. Weights are read in the bytes that they are held in, and the widening takes compute, so that such a
product gains most at small batches and loses at large ones.

The constants are fitted on seven numbers: speed-up over float16 of one product at batches 1, 16, 32, 64, 128, 256 and
2048 = 3.12, 3.19, 2.28, 1.47, 1.01, 0.74, 0.60 (Marlin kernel, groups of 128, vLLM pull request 2497; the GPU taken to
be an A100-SXM4-80GB, the shapes those of qwen2.5-32b). With them the products of a pass come to 3.65, 3.26, 2.47, 1.64,
1.00, 0.70 and 0.60. As they are shares of what a 16-bit GEMM reaches, they are taken to hold on other GPUs, where none
of this was measured.
"""

from __future__ import annotations

import numpy as np

from simkit.latency.physics import Physics, Work
from simkit.latency.profile.residuals import OpFit
from simkit.specs.dtypes import quantization as quantization_of
from simkit.specs.hardware import GpuSpec
from simkit.types import Bools, Floats

FORMATS = ("awq", "gptq", "gptq_int8")
NATIVE = ("nvfp4",)
"""The same on a GPU whose data sheet has no peak of the format."""

COMPUTE_SHARE = 0.64
"""Of the peak that a 16-bit GEMM reaches."""

BANDWIDTH_SHARE = 1.0
"""Of the bandwidth that a 16-bit GEMM reaches: the products alone ask for 0.85, the same ratios as those of TPOT, which
other kernels dilute, for 1.05."""

SHARPNESS = 2.0

_ACTIVATION_BYTES = 2.0


def widens(quantization: str | None, gpu: GpuSpec) -> bool:
    """Whether products with such weights run by these kernels."""
    return quantization in FORMATS or (quantization in NATIVE and quantization not in gpu.peak_flops_per_s)


def predict(fit: OpFit, quantization: str, m: Floats, n: float, k: float) -> tuple[Floats, Bools]:
    """(us of m x k times k x n with weights that the kernel `widens`, whether it was raised to a limit)."""
    sixteen_bit = fit.physics
    physics = Physics(
        compute_fraction=sixteen_bit.compute_fraction * COMPUTE_SHARE,
        bandwidth_fraction=sixteen_bit.bandwidth_fraction * BANDWIDTH_SHARE,
        chain_us=0.0,
        piece_us=0.0,
        floor_us=sixteen_bit.floor_us,
        sharpness=SHARPNESS,
    )
    moved = n * k * quantization_of(quantization).held_bytes + _ACTIVATION_BYTES * m * (n + k)
    work = Work(2.0 * m * n * k, moved, 0.0 * m, 0.0 * m)
    us, fastest = physics.us(work, fit.limits), fit.limits.fastest_us(work)
    return np.maximum(us, fastest), us < fastest
