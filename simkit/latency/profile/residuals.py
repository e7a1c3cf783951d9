"""One fitted op of a profile: physics for the shape, and grids of residuals for the rest. numpy only.

A GEMM or an elementwise kernel has one grid, attention one for each measured (num_heads, num_kv_heads, head_dim).

The residual of a kernel is log(measured / physics). It changes slowly with the logarithm of a size, so it is
interpolated linearly there, along all axes of a rectangular grid at once. A cell that was neither measured nor lies
between measured cells takes after the nearest measured cells along each axis, and whoever asks is told.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simkit.latency.latent_work import DIMS
from simkit.latency.physics import MEMORY_BOUND_OPS, Limits, Physics, Sizes, work_of
from simkit.types import Floats

PER_MILLE = 1000.0
MAX_PER_MILLE = 1e4
"""A time e**10 times what physics says is no measurement."""

ZERO_OFFSET = 16.0
"""Added to the sizes of an axis that starts at 0 before the logarithm."""

Bools = npt.NDArray[np.bool_]


class ResidualGrid:
    """Residuals on a grid. `axes` are increasing sizes, `residuals` has a value a cell, NaN where nothing is known."""

    def __init__(self, axes: Seq[Seq[float]], residuals: Floats) -> None:
        self.axes = [np.asarray(axis, dtype=np.float64) for axis in axes]
        self.residuals = residuals
        self._known = ~np.isnan(residuals)
        self._logs = [log_sizes(axis) for axis in self.axes]

    @functools.cached_property
    def _all(self) -> Floats:
        """Filled when it is first asked for: of the grids of a profile a model needs a few."""
        return fill(self.residuals, self._logs)

    def at(self, sizes: Seq[Floats]) -> tuple[Floats, Bools]:
        """(residual, whether it is extrapolated) of calls whose sizes are given axis by axis."""
        places = [self._place(axis, np.asarray(values, np.float64)) for axis, values in enumerate(sizes)]
        shape = np.broadcast_shapes(*(place[0].shape for place in places))
        total, outside = np.zeros(shape), np.zeros(shape, dtype=bool)
        for corner in itertools.product((0, 1), repeat=len(self.axes)):
            weight: Any = 1.0
            for side, (_, share, _) in zip(corner, places, strict=True):
                weight = weight * (share if side else 1.0 - share)
            cell = tuple(
                np.minimum(low + side, len(axis) - 1)
                for side, (low, _, _), axis in zip(corner, places, self.axes, strict=True)
            )
            total += weight * self._all[cell]
            outside |= (weight > 0) & ~self._known[cell]
        for _, _, beyond in places:
            outside |= beyond
        return total, outside

    def _place(self, axis: int, values: Floats) -> tuple[npt.NDArray[np.int64], Floats, Bools]:
        """(cell below, share of the cell above, whether outside the axis) of sizes along one axis."""
        grid, logs = self.axes[axis], self._logs[axis]
        inside = np.clip(values, grid[0], grid[-1])
        beyond = (values < grid[0]) | (values > grid[-1])
        if len(grid) == 1:
            zero = np.zeros(values.shape)
            return zero.astype(np.int64), zero, beyond
        low = np.clip(np.searchsorted(grid, inside, side="right") - 1, 0, len(grid) - 2)
        offset = _offset(grid)
        share = (np.log(inside + offset) - logs[low]) / (logs[low + 1] - logs[low])
        return low, np.clip(share, 0.0, 1.0), beyond


def log_sizes(axis: Floats) -> Floats:
    """The logarithms in which sizes are interpolated."""
    logs: Floats = np.log(axis + _offset(axis))
    return logs


def _offset(axis: Floats) -> float:
    return 0.0 if axis[0] > 0 else ZERO_OFFSET


def fill(residuals: Floats, logs: Seq[Floats]) -> Floats:
    """`residuals` with every unknown cell filled: interpolated along the axes on which known cells lie on both sides,
    then at the mean of the nearest known cells along each axis, repeated until full.

    All zeros where nothing is known at all.
    """
    if np.isnan(residuals).all():
        return np.zeros(residuals.shape)
    filled = _fill_mean(residuals, [between_neighbours(residuals, logs[axis], axis) for axis in range(residuals.ndim)])
    while np.isnan(filled).any():
        filled = _fill_mean(filled, [_nearest_along(filled, axis) for axis in range(filled.ndim)])
    return filled


def _fill_mean(cells: Floats, guesses: Seq[Floats]) -> Floats:
    """Unknown cells at the mean of the guesses that say something."""
    total, count = np.zeros(cells.shape), np.zeros(cells.shape)
    for guess in guesses:
        found = ~np.isnan(guess)
        total[found] += guess[found]
        count += found
    return np.where(np.isnan(cells) & (count > 0), total / np.maximum(count, 1), cells)


def between_neighbours(cells: Floats, logs: Floats, axis: int) -> Floats:
    """Each cell interpolated, in `logs`, between the nearest known cells before and after it along `axis`; else NaN.

    A cell never counts for itself.
    """
    moved = np.moveaxis(cells, axis, -1)
    size = moved.shape[-1]
    places = np.arange(size)
    known = ~np.isnan(moved)
    before = _shifted(np.maximum.accumulate(np.where(known, places, -1), axis=-1), -1, forward=True)
    flipped = np.minimum.accumulate(np.flip(np.where(known, places, size), -1), axis=-1)
    after = _shifted(np.flip(flipped, -1), size, forward=False)
    both = (before >= 0) & (after < size)
    low, high = np.clip(before, 0, size - 1), np.clip(after, 0, size - 1)
    span = np.where(both, logs[high] - logs[low], 1.0)
    share = np.where(both, (logs[places] - logs[low]) / span, 0.0)
    value = np.take_along_axis(moved, low, -1) * (1.0 - share) + np.take_along_axis(moved, high, -1) * share
    return np.moveaxis(np.where(both, value, np.nan), -1, axis)


def _shifted(places: npt.NDArray[Any], edge: int, *, forward: bool) -> npt.NDArray[Any]:
    """`places` of the neighbour cell instead of the cell itself, so that a cell never counts for itself."""
    pad = np.full((*places.shape[:-1], 1), edge)
    return np.concatenate([pad, places[..., :-1]] if forward else [places[..., 1:], pad], axis=-1)


def _nearest_along(cells: Floats, axis: int) -> Floats:
    """For each cell the nearest known cell along `axis`, the smaller size first when both are as near; else NaN."""
    moved = np.moveaxis(cells, axis, -1)
    places = np.arange(moved.shape[-1])
    known = ~np.isnan(moved)
    before = np.maximum.accumulate(np.where(known, places, -1), axis=-1)
    after = np.flip(np.minimum.accumulate(np.flip(np.where(known, places, 2 * len(places)), -1), axis=-1), -1)
    use_before = (before >= 0) & ((after >= len(places)) | (places - before <= after - places))
    chosen = np.clip(np.where(use_before, before, after), 0, len(places) - 1)
    return np.moveaxis(np.take_along_axis(moved, chosen, axis=-1), -1, axis)


def to_nested(residuals: Floats) -> Any:
    """Nested lists of whole per mille, null where unknown, trailing nulls and empty tails left out."""
    if residuals.ndim == 1:
        values = [None if np.isnan(value) else round(value * PER_MILLE) for value in residuals.tolist()]
        return _trim(values, None)
    return _trim([to_nested(part) for part in residuals], [])


def _trim(values: list[Any], empty: Any) -> list[Any]:
    while values and values[-1] == empty:
        values.pop()
    return values


_NUMBER_OR_NULL = frozenset((int, float, type(None)))


def from_nested(nested: Any, shape: Seq[int]) -> Floats:
    """The inverse of `to_nested`. Raises ValueError for what does not fit `shape` or is no number."""
    flat: list[Any] = []
    _flatten(nested, tuple(shape), flat)
    expected = f"expected null or numbers up to {MAX_PER_MILLE:g} per mille"
    if not _NUMBER_OR_NULL.issuperset(map(type, flat)):
        raise ValueError(expected)
    try:
        cells = np.array(flat, np.float64)  # null becomes NaN
    except OverflowError:
        raise ValueError(expected) from None
    if (np.abs(cells) > MAX_PER_MILLE).any():
        raise ValueError(expected)
    return cells.reshape(tuple(shape)) / PER_MILLE


def _flatten(nested: Any, shape: tuple[int, ...], flat: list[Any]) -> None:
    """The cells of `nested` in the order of a grid of this shape, null for those left out."""
    if not isinstance(nested, list) or len(nested) > shape[0]:
        raise ValueError(f"expected a list of at most {shape[0]} entries")
    if len(shape) == 1:
        flat += nested
    else:
        for inner in nested:
            _flatten(inner, shape[1:], flat)
    flat += [None] * ((shape[0] - len(nested)) * math.prod(shape[1:]))


HEADS = ("num_heads", "num_kv_heads", "head_dim")

AXES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "gemm_triton": ("m", "n", "k"),
    "attention_decode": ("batch", "kv_len"),
    "attention_prefill": ("batch", "q_len", "kv_len"),
    "attention_decode_window": ("batch", "window"),
    "attention_prefill_window": ("batch", "q_len", "window"),
    "mla_decode_module": ("batch", "kv_len"),
    "mla_prefill_module": ("batch", "q_len", "kv_len"),
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

KEYS: dict[str, tuple[str, ...]] = {
    "attention_decode": HEADS,
    "attention_prefill": HEADS,
    "attention_decode_window": HEADS,
    "attention_prefill_window": HEADS,
    "mla_decode_module": HEADS[:1],
    "mla_prefill_module": HEADS[:1],
}
"""The sizes that choose a grid."""

ALIGNED_ROWS = {"fp8": 16, "fp8_block": 4, "int8": 16}
"""Matrix products of 8-bit operands run slower kernels unless their rows come in such multiples: two grids. Scales of
blocks are in 32 bits, and their columns have to begin at 16 bytes (DeepGEMM, get_tma_aligned_size)."""

EXTRA: dict[str, tuple[str, ...]] = {
    "rotary_embedding": ("n", "num_heads", "num_kv_heads"),
    "rotary_kv_write": ("n", "num_heads", "num_kv_heads"),
    "attention_prefill_window": ("kv_len",),
    "mla_decode_module": DIMS,
    "mla_prefill_module": DIMS,
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
        if KEYS[self.op] == HEADS[:1]:
            return self._by_heads(float(sizes["num_heads"]))
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

    def _by_heads(self, heads: float) -> Chosen:
        """The grid of so many heads, or the blend of the two between which they lie."""
        measured = sorted(key[0] for key in self.grids)
        near = dict(_between(measured, heads))
        return Chosen(tuple((self.grids[(int(h),)], share) for h, share in near.items()), 1.0, heads not in near)

    def _near(self, target: float, kv: int, dim: int) -> Iterator[tuple[float, float]]:
        return _between(sorted(key[0] for key in self.grids if key[1:] == (kv, dim)), target)


def _between(measured: Seq[int], target: float) -> Iterator[tuple[float, float]]:
    """The measured sizes next to `target`, each with its share, in the logarithm; beyond them the nearest."""
    low = max([h for h in measured if h <= target], default=measured[0])
    high = min([h for h in measured if h >= target], default=measured[-1])
    if low >= high:
        yield (low if low == target or high != target else high), 1.0
        return
    share = float(np.log(target / low) / np.log(high / low))
    yield low, 1.0 - share
    yield high, share
