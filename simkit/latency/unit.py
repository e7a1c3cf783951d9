"""The latency model in which every step lasts one unit, for teaching and tests."""

from __future__ import annotations

import numpy as np

from simkit.latency.protocol import OneStep
from simkit.types import Basis, Floats, Ints, StepShapes

UNIT_NS = 1_000_000


class Unit:
    """Every step takes exactly 1,000,000 ns whatever it holds; it has no hardware, so no FLOPs, bytes or peaks."""

    basis = Basis.UNIT
    source = Basis.UNIT.text()
    peak_flops_per_s: float | None = None
    peak_bytes_per_s: float | None = None

    def step_ns(self, shapes: StepShapes) -> Ints:
        """1,000,000 for each step, int64[k]."""
        return np.full(len(shapes), UNIT_NS, dtype=np.int64)

    def one_ns(self, step: OneStep) -> int:
        """1,000,000."""
        return UNIT_NS

    def decode_ns(self, step: OneStep, num_steps: int) -> list[int]:
        """1,000,000 for each step."""
        return [UNIT_NS] * num_steps

    def gpu_ns(self, shapes: StepShapes) -> Ints:
        """The same as `step_ns`: a unit step is all GPU."""
        return np.full(len(shapes), UNIT_NS, dtype=np.int64)

    def work(self, shapes: StepShapes) -> tuple[Floats, Floats]:
        """(zeros, zeros), float64[k] each."""
        return np.zeros(len(shapes)), np.zeros(len(shapes))
