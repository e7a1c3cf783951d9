"""What others may ask of a latency model: shapes to nanoseconds, and what some models offer beside.

A further model is a module of this package that implements `LatencyModel`, as `Unit` below does, for teaching and
tests, in which every step lasts one unit.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from simkit.types import Basis, Floats, Ints, StepShapes


class LatencyModel(Protocol):
    """Shapes to nanoseconds. Elementwise numpy only; the same shapes always give the same bytes."""

    @property
    def source(self) -> str:
        """Where the times come from, printed in every output, e.g. ``"roofline (uncalibrated)"`` or ``"unit"``."""

    @property
    def basis(self) -> Basis:
        """What they rest on, for whoever decides by it."""

    @property
    def peak_flops_per_s(self) -> float | None:
        """Dense peak of all GPUs of the replica, for MFU; None when the model has no hardware (`unit`)."""

    @property
    def peak_bytes_per_s(self) -> float | None:
        """Memory bandwidth of all GPUs of the replica, for MBU; None when the model has no hardware (`unit`)."""

    def step_ns(self, shapes: StepShapes) -> Ints:
        """Duration of each step, int64[k], every entry >= 1."""

    def gpu_ns(self, shapes: StepShapes) -> Ints:
        """The part of each step in which the GPU is busy, int64[k], never more than `step_ns`."""

    def work(self, shapes: StepShapes) -> tuple[Floats, Floats]:
        """(FLOPs, bytes moved to or from GPU memory) of each step, float64[k], all GPUs of the replica."""


class OneStep(Protocol):
    """What one step computes, or each step of a run of decodes; as the fields of `StepShapes`, but plain ints."""

    num_decode: int
    decode_context_sum: int
    decode_context_max: int
    prefill_tokens: int
    prefill_context_tokens: int
    prefill_pairs: int
    num_sampled: int
    padded_tokens: int
    dead_slots: int
    swap_in_bytes: int
    swap_out_bytes: int

    def shapes(self, num_steps: int) -> StepShapes:
        """The same as arrays, for `num_steps` equal steps, each with one more token in every decode context."""


@runtime_checkable
class ScalarLatency(Protocol):
    """What a latency model may offer beside `step_ns`: the same prices without arrays, for one step or a run."""

    def one_ns(self, step: OneStep) -> int:
        """`step_ns(step.shapes(1))`, equal to the bit."""

    def decode_ns(self, step: OneStep, num_steps: int) -> list[int] | Ints:
        """`step_ns(step.shapes(num_steps))`, equal to the bit."""


@runtime_checkable
class TaggedLatency(Protocol):
    """What a latency model may offer that rests on measurements: which part of its times does not."""

    def gpu_and_extrapolated_ns(self, shapes: StepShapes) -> tuple[Ints, dict[str, Floats]]:
        """(`gpu_ns`, the part of it that was not measured by what it is, float64[k] each, always the same names)."""


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
