"""One fitted op of a profile: physics for the shape, grids of residuals for the rest.

A GEMM or an elementwise kernel has one grid. Attention has one for each measured (num_heads, num_kv_heads, head_dim).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from simkit.latency.physics import MEMORY_BOUND_OPS, Limits, Physics, Sizes, work_of
from simkit.latency.profile.residuals import Bools, ResidualGrid
from simkit.types import Floats

HEADS = ("num_heads", "num_kv_heads", "head_dim")

AXES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "gemm_triton": ("m", "n", "k"),
    "attention_decode": ("batch", "kv_len"),
    "attention_prefill": ("batch", "q_len", "kv_len"),
    "rms_norm": ("m", "n"),
    "rms_norm_final": ("m", "n"),
    "qk_norm": ("m", "n"),
    "silu_and_mul": ("m", "n"),
    "rotary_embedding": ("m",),
    "rotary_kv_write": ("m",),
    "embedding": ("m", "n"),
    "sampler": ("m", "n"),
    "all_reduce": ("world_size", "bytes"),
    "memcpy_h2d": ("bytes",),
    "memcpy_d2h": ("bytes",),
    "memcpy_d2d": ("bytes",),
}
"""The sizes over which the residual of an op is a grid, slowest changing first."""

KEYS: dict[str, tuple[str, ...]] = {"attention_decode": HEADS, "attention_prefill": HEADS}
"""The sizes that choose a grid."""

ALIGNED_ROWS = {"fp8": 16, "int8": 16}
"""Matrix products of 8-bit operands run slower kernels unless their rows come in such multiples: two grids."""

EXTRA: dict[str, tuple[str, ...]] = {
    "rotary_embedding": ("n", "num_heads", "num_kv_heads"),
    "rotary_kv_write": ("n", "num_heads", "num_kv_heads"),
}
"""Sizes that only the physics looks at."""

GridKey = tuple[int, ...]


def grid_keys(op: str, dtype: str) -> tuple[str, ...]:
    """What chooses a grid of an op: sizes, or whether the rows of an 8-bit product are aligned (0 or 1)."""
    return ("aligned",) if op == "gemm" and dtype in ALIGNED_ROWS else KEYS.get(op, ())


def grid_key_sizes(op: str, dtype: str, sizes: Sizes) -> dict[str, Floats]:
    """The values of `grid_keys` for calls of these sizes."""
    if grid_keys(op, dtype) == ("aligned",):
        return {"aligned": np.asarray(sizes["m"] % ALIGNED_ROWS[dtype] == 0, np.float64)}
    return {name: sizes[name] for name in grid_keys(op, dtype)}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times of calls; which rest on extrapolation; which were raised to what the hardware allows."""

    us: Floats
    extrapolated: Bools
    clamped: Bools


@dataclass(frozen=True, slots=True)
class Chosen:
    """Grids to blend, by share; what to multiply the batch by; whether the choice is an extrapolation."""

    grids: tuple[tuple[ResidualGrid, float], ...]
    batch_scale: float
    extrapolated: bool


@dataclass(frozen=True, slots=True)
class OpFit:
    """How long calls of one op take on one GPU. `grids` by the values of `grid_keys` (() for ops without)."""

    op: str
    dtype: str
    physics: Physics
    limits: Limits
    grids: Mapping[GridKey, ResidualGrid]

    def predict(self, sizes: Sizes) -> Prediction:
        """Times of calls; `sizes` has arrays (or scalars) for `AXES`, and scalars for `KEYS` and `EXTRA`.

        Outside the grid the residual of the edge goes on, so that a GEMM wider than the table is the widest measured
        one scaled by the physics. Where memory bounds the op, never faster than the limits.
        """
        residual, extrapolated = self._residual(sizes)
        work = work_of(self.op, self.dtype, sizes)
        us = self.physics.us(work, self.limits) * np.exp(residual)
        fastest = self.limits.fastest_us(work) if self.op in MEMORY_BOUND_OPS else 0.0 * us
        clamped = us < fastest
        return Prediction(np.maximum(us, fastest), extrapolated | np.zeros(us.shape, bool), clamped)

    def _residual(self, sizes: Sizes) -> tuple[Floats, Bools]:
        axes = [np.asarray(sizes[name], np.float64) for name in AXES[self.op]]
        if grid_keys(self.op, self.dtype) == ("aligned",):
            aligned = axes[0] % ALIGNED_ROWS[self.dtype] == 0
            (odd, odd_beyond), (even, even_beyond) = (self._aligned(key).at(axes) for key in (0, 1))
            return np.where(aligned, even, odd), np.where(aligned, even_beyond, odd_beyond)
        chosen = self.choose(sizes)
        if AXES[self.op][0] == "batch":
            axes[0] = axes[0] * chosen.batch_scale
        residual: Floats = np.zeros(())
        outside: Bools = np.asarray(chosen.extrapolated)
        for grid, share in chosen.grids:
            value, beyond = grid.at(axes)
            residual, outside = residual + share * value, outside | beyond
        return residual, outside

    def _aligned(self, key: int) -> ResidualGrid:
        """The grid of aligned rows (1) or of others (0); the one that was measured when the other was not."""
        return self.grids.get((key,)) or self.grids[(1 - key,)]

    def choose(self, sizes: Sizes) -> Chosen:
        """The grids for one shape of heads.

        KV heads beyond the table: as many times the batch of a table's KV heads, at equal group size. Query heads
        between two measured ones at equal KV heads: their blend in log size; beyond: the nearest. Another head_dim: the
        nearest measured. None of these was measured, so each is an extrapolation.
        """
        if not KEYS.get(self.op):
            return Chosen(((self.grids[()], 1.0),), 1.0, False)
        heads, kv_heads, head_dim = (int(sizes[name]) for name in HEADS)
        dims = sorted({key[2] for key in self.grids}, key=lambda dim: (abs(dim - head_dim), dim))
        dim, extrapolated = dims[0], dims[0] != head_dim
        kv_measured = sorted({key[1] for key in self.grids if key[2] == dim})
        kv = max([k for k in kv_measured if k <= kv_heads], default=kv_measured[0])
        scale, target = kv_heads / kv, heads * kv / kv_heads
        near = dict(self._near(target, kv, dim))
        extrapolated = extrapolated or kv != kv_heads or target not in near or len(near) > 1
        grids = tuple((self.grids[int(h), kv, dim], share) for h, share in near.items())
        return Chosen(grids, scale, extrapolated)

    def _near(self, target: float, kv: int, dim: int) -> Iterator[tuple[float, float]]:
        measured = sorted(key[0] for key in self.grids if key[1:] == (kv, dim))
        low = max([h for h in measured if h <= target], default=measured[0])
        high = min([h for h in measured if h >= target], default=measured[-1])
        if low >= high:
            yield (low if low == target or high != target else high), 1.0
            return
        share = float(np.log(target / low) / np.log(high / low))
        yield low, 1.0 - share
        yield high, share
