"""A profile used for another GPU than it was measured on: the limits of that GPU in place of its own.

Owns the scaling.
"""

from __future__ import annotations

from dataclasses import replace

from simkit.latency.physics import MEMORY_BOUND_OPS
from simkit.latency.profile.op_fit import OpFit
from simkit.latency.profile.values import Mixed, Profile
from simkit.latency.rates import SIXTEEN_BIT
from simkit.specs.hardware import GpuSpec

CPU = "cpu"
"""Name of the device in a profile that was measured without a GPU."""


def is_scaled(profile: Profile, gpu: GpuSpec) -> bool:
    """Whether `profile` is of another GPU, so that its times are scaled."""
    return profile.gpu.get("name") not in (gpu.name, CPU)


def transferred(profile: Profile, gpu: GpuSpec) -> Profile:
    """`profile` itself on its own GPU; else with the bandwidth and the peak FLOP/s of `gpu` in what they bound.

    The shares of the limits that kernels reach, their floors and their residuals stay those that were measured, as do
    ops that memory does not bound. Of a format that `gpu` does not compute in, operands are taken to be widened to the
    16 bits that it has: its peak holds for them. What a CPU takes says nothing of a GPU, and is left as it is.
    """
    if not is_scaled(profile, gpu):
        return profile
    ops = {key: _on(fit, gpu) for key, fit in profile.ops.items()}
    return replace(profile, ops=ops, mixed=_mixed_on(profile, gpu))


def _mixed_on(profile: Profile, gpu: GpuSpec) -> Mixed:
    """Mixed launches with their memory traffic at the bandwidth of `gpu`."""
    mixed, own = profile.mixed, profile.gpu.get("hbm_bytes_per_s")
    if mixed.varlen is None or not isinstance(own, int | float) or own <= 0:
        return mixed
    bytes_per_us = mixed.varlen.bytes_per_us * (gpu.hbm_bytes_per_s / own)
    return replace(mixed, varlen=replace(mixed.varlen, bytes_per_us=bytes_per_us))


def _on(fit: OpFit, gpu: GpuSpec) -> OpFit:
    if fit.op not in MEMORY_BOUND_OPS:
        return fit
    peaks = gpu.peak_flops_per_s
    flops = next(peaks[dtype] for dtype in (fit.dtype, *SIXTEEN_BIT, *peaks) if dtype in peaks)
    return replace(fit, limits=replace(fit.limits, flops_per_s=flops, bytes_per_s=gpu.hbm_bytes_per_s))
