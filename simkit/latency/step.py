"""How a step is put together: what the GPU computes, the host before or beside it, and swaps over PCIe.

Owns what the roofline and a profile have alike. All arithmetic is elementwise, and single steps are priced by the same
operations in the same order as arrays, so that k steps at once give the same bytes as k single calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simkit.latency.deployment import Deployment
from simkit.latency.kernels import Kernels
from simkit.latency.protocol import OneStep
from simkit.types import Floats, Ints, StepShapes

SCALAR_STEPS = 32
"""Steps of a run up to which Python's own arithmetic is faster than arrays."""


class HardwareLatency:
    """A latency model of GPUs, all but what they compute (`_gpu_float_ns`, `_one_gpu_ns`) and their links to the host
    (`_with_swaps`)."""

    def __init__(self, deployment: Deployment, kernels: Kernels) -> None:
        self.kernels = kernels
        self.peak_flops_per_s: float | None = kernels.peak_flops_per_s
        self.peak_bytes_per_s: float | None = kernels.peak_bytes_per_s
        self.host, self._loop = deployment.acting_host, deployment.loop
        self._launches = deployment.launches(kernels.launches)

    def step_ns(self, shapes: StepShapes) -> Ints:
        """Duration of each step, int64[k] >= 1: GPU and host as `Loop` puts them together, and swaps.

        The GPU's part is no shorter than the launches of its kernels."""
        gpu = self._launches.steps_ns(self._gpu_float_ns(shapes), shapes.decode_seqs + shapes.prefill_tokens)
        host = self._loop.hosts_ns(shapes.decode_seqs, shapes.sampled_seqs)
        return to_ns(self._with_swaps(self._loop.steps_ns(gpu, host), shapes))

    def one_ns(self, step: OneStep) -> int:
        """`step_ns` of one step without arrays."""
        gpu = self._launches.step_ns(self._one_gpu_ns(step), step.num_decode + step.prefill_tokens)
        host = self._loop.host_ns(step.num_decode, step.num_sampled)
        total: float = self._with_swaps(self._loop.step_ns(gpu, host), step)
        return max(round(total), 1)

    def gpu_ns(self, shapes: StepShapes) -> Ints:
        """Time in which the GPU computes, int64[k] >= 1; copies over PCIe and waits for launches do not count."""
        return to_ns(self._gpu_float_ns(shapes))

    def work(self, shapes: StepShapes) -> tuple[Floats, Floats]:
        """(FLOPs, bytes) of each step, float64[k], as `Kernels.work` counts them."""
        return self.kernels.work(shapes)

    def _gpu_float_ns(self, shapes: StepShapes) -> Floats:
        raise NotImplementedError

    def _one_gpu_ns(self, step: OneStep) -> float:
        raise NotImplementedError

    def _with_swaps(self, ns: Any, step: StepShapes | OneStep) -> Any:
        raise NotImplementedError


def to_ns(value: Floats) -> Ints:
    """Whole nanoseconds, at least 1."""
    return np.maximum(np.rint(value), 1.0).astype(np.int64)
