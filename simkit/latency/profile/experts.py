"""Routed experts of a profile: what a layer's experts take on one rank, over tokens and shapes. numpy only.

Owns the op `moe`: router top-k, both expert products, activation and weighted sum. Its time is the formula of
`physics`, whose work follows from how tokens are routed, times a residual: a curve over tokens for each measured shape,
for equal loads and for skewed ones. A shape that was not measured takes the weighted mean of those that were, by how
near they are in the logarithms of what a rank holds (kriging with an exponential covariance).
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simkit.latency.physics import SIXTEEN_BIT, Limits, Physics, Work
from simkit.latency.routing import Load
from simkit.types import Bools, Floats


class ExpertFormat(NamedTuple):
    """Bytes of a weight with its share of the scales, and the format by whose peak the shares of a fit are told."""

    weight_bytes: float
    computed_in: str


EXPERT_FORMATS = {
    "bfloat16": ExpertFormat(2.0, "bfloat16"),
    "fp8": ExpertFormat(1.0, "fp8"),
    "fp8_block": ExpertFormat(1.0, "fp8"),
    "int4_wo": ExpertFormat((4 + 16 / 128) / 8, "bfloat16"),
    "w4a16_mxfp4": ExpertFormat((4 + 8 / 32) / 8, "bfloat16"),
    # No data sheet here holds a peak of its own.
    "nvfp4": ExpertFormat((4 + 8 / 16) / 8, "fp8"),
}
"""Formats in which experts were measured, under the names of the kernel tables."""

_ACTIVATION_BYTES_PER_MB = 1e-6


_MEASURED_AS = {
    "fp8": ("fp8", "fp8_block"),
    "fp8_block": ("fp8_block",),
    "awq": ("int4_wo",),
    "gptq": ("int4_wo",),
    "mxfp4": ("w4a16_mxfp4",),
    "nvfp4": ("nvfp4",),
}
"""Formats of checkpoints to those of tables, the first that a profile has. Experts of fp8 with one scale are priced as
those with scales by block where there is no table of theirs: they read the same bytes, and vLLM runs the same Triton
kernel for both unless ModelOpt made the checkpoint."""


def priced_as(measured: Collection[str], dtype: str, quantization: str | None) -> str | None:
    """The format, of those `measured`, that prices experts; None where none does."""
    if quantization is None:
        wanted: tuple[str, ...] = ("bfloat16",) if dtype in SIXTEEN_BIT else ()
    else:
        wanted = _MEASURED_AS.get(quantization, ())
    return next((name for name in wanted if name in measured), None)


class ExpertShape(NamedTuple):
    """The experts of a layer: `inter` is the full width of one, before it is split over `moe_tp` ranks; `moe_ep` ranks
    share the experts. Never both above 1."""

    num_experts: int
    topk: int
    hidden: int
    inter: int
    moe_tp: int
    moe_ep: int

    @property
    def model(self) -> tuple[int, ...]:
        """The shape before it is divided over GPUs."""
        return self[:4]

    @property
    def width(self) -> float:
        """Of an expert on one rank."""
        return self.inter / self.moe_tp


REACH = np.array([8.0, 4.0, 8.0, 8.0, 16.0, 8.0])
"""Octaves over which residuals grow unlike: experts of a rank, experts a token, model width, expert width, ranks that
share the experts, and whether any do (in which case engines run another kernel). Round numbers of the order of the
tables' extent; halving or doubling any of them moves errors of shapes held out by less than a point."""

NUGGET = 1e-2
"""Share of the variance that is noise of a measurement."""

SHARED_DISTANCE = 4.0
"""Octaves that count between experts that are shared over ranks and experts that are not."""


def expert_work(dtype: str, shape: ExpertShape, tokens: Floats, load: Load, *, matrices: int = 3) -> Work:
    """What one rank does: products of its rows, weights of the experts it touches, the activations of all rows of the
    pass between the kernels (in MB; every rank keeps buffers for all of them), and a piece for each touched expert."""
    hidden, width = float(shape.hidden), shape.width
    elements = matrices * hidden * width
    vectors = 2.0 * hidden + matrices * width
    moved = load.touched * (elements * EXPERT_FORMATS[dtype].weight_bytes)
    passed = tokens * (shape.topk * vectors * _ACTIVATION_BYTES_PER_MB)
    return Work(load.rows * (2.0 * elements), moved, passed, load.touched + 0.0)


@dataclass(frozen=True, slots=True)
class ExpertTimes:
    """us of passes; which of them hold more tokens than were measured."""

    us: Floats
    beyond: Bools


@dataclass(frozen=True, slots=True, eq=False)
class ExpertFit:
    """The op `moe` in one format on one GPU. `residuals` are log(measured / formula) by (shape, spread, tokens)."""

    dtype: str
    physics: Physics
    limits: Limits
    shapes: tuple[ExpertShape, ...]
    spreads: Floats
    tokens: Floats
    residuals: Floats

    def predict(self, shape: ExpertShape, tokens: Floats, load: Load, *, matrices: int = 3) -> ExpertTimes:
        """Times of passes of so many tokens (1 and more) under `load`."""
        work = expert_work(self.dtype, shape, tokens, load, matrices=matrices)
        us = self.physics.us(work, self.limits) * np.exp(self._residual(self.curves(shape), tokens, load.spread))
        return ExpertTimes(us, tokens > self.tokens[-1])

    def curves(self, shape: ExpertShape) -> Floats:
        """Residuals of a shape by (spread, tokens)."""
        if shape in self.shapes:
            own: Floats = self.residuals[self.shapes.index(shape)]
            return own
        known, mean = _places(self.shapes), self.residuals.mean(axis=0)
        covariance = _near(known, known) + NUGGET * np.eye(len(known))
        weights = np.linalg.solve(covariance, _near(known, _places([shape]))[:, 0])
        found: Floats = mean + np.tensordot(weights, self.residuals - mean, axes=1)
        return found

    def measured(self, shape: ExpertShape) -> bool:
        """Whether a shape was measured, or lies between measured ones of the same model on more and on fewer ranks."""
        return shape in self.shapes or lies_between(shape, self.shapes)

    def has_spread(self, spread: Floats) -> bool:
        """Whether loads as unequal as these were measured, or both more and less unequal ones."""
        return bool(((spread >= self.spreads[0]) & (spread <= self.spreads[-1])).all())

    def _residual(self, curves: Floats, tokens: Floats, spread: Floats) -> Floats:
        at, axis = np.log(tokens), np.log(self.tokens)
        low: Floats = np.interp(at, axis, curves[0])
        if len(self.spreads) == 1:
            return low
        high = np.interp(at, axis, curves[-1])
        share = np.clip((spread - self.spreads[0]) / (self.spreads[-1] - self.spreads[0]), 0.0, 1.0)
        found: Floats = low + (high - low) * share
        return found


def lies_between(shape: ExpertShape, known: Seq[ExpertShape]) -> bool:
    """Whether the same model is among `known` on more and on fewer ranks, divided in the same way."""
    for axis, other in ((4, 5), (5, 4)):
        sizes = [near[axis] for near in known if near.model == shape.model and near[other] == shape[other]]
        if sizes and min(sizes) < shape[axis] < max(sizes):
            return True
    return False


def _places(shapes: Seq[ExpertShape]) -> Floats:
    """Logarithms in which shapes are near or far."""
    sizes = np.array([[s.num_experts / s.moe_ep, s.topk, s.hidden, s.width, s.moe_ep] for s in shapes], np.float64)
    shared = SHARED_DISTANCE * (sizes[:, 4:] > 1)
    places: Floats = np.concatenate([np.log2(sizes), shared], axis=1) / REACH
    return places


def _near(one: Floats, other: Floats) -> Floats:
    distance = np.sqrt(((one[:, None] - other[None]) ** 2).sum(axis=2))
    near: Floats = np.exp(-distance)
    return near
