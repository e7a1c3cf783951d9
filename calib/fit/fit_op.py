"""Fits one op: the physics by least squares on log time, then residuals on the grid of measured sizes.

Cells that were not measured but lie between measured ones are filled: along each axis a cell is interpolated between
its nearest measured neighbours in log size, and the estimates of the axes are averaged, each weighted by how well its
axis does at cells that were measured (the inverse of its mean square error).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calib import CalibrationError
from calib.table import Floats, Rows
from simkit.latency.profile import (
    AXES,
    MEMORY_BOUND_OPS,
    Limits,
    OpFit,
    Physics,
    ResidualGrid,
    Work,
    between_neighbours,
    grid_key_sizes,
    grid_keys,
    log_sizes,
    work_of,
)  # fmt: skip

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Estimate:
    """For every cell of a grid: what its neighbours say of it (never itself), and whether it lies between them."""

    values: Floats
    inside: Bools


def estimate(cells: Floats, axes: Seq[Floats], between: Seq[int]) -> Estimate:
    """Estimates of all cells; NaN where no axis has neighbours on both sides.

    `inside` are the cells with measured neighbours on both sides along every axis of `between` that has two sizes.
    """
    along = [between_neighbours(cells, log_sizes(axis), index) for index, axis in enumerate(axes)]
    total, weights = np.zeros(cells.shape), np.zeros(cells.shape)
    for guess in along:
        error = (guess - cells)[~np.isnan(guess) & ~np.isnan(cells)]
        if not len(error):
            continue
        weight = 1.0 / max(float(np.mean(error * error)), 1e-8)
        there = ~np.isnan(guess)
        total[there] += weight * guess[there]
        weights += weight * there
    values = np.where(weights > 0, total / np.where(weights > 0, weights, 1.0), np.nan)
    inside = np.ones(cells.shape, dtype=bool)
    for index in between:
        if len(axes[index]) > 1:
            inside &= ~np.isnan(along[index])
    return Estimate(values, inside & (weights > 0))


MAX_PHYSICS_ROWS = 4000
"""Rows, evenly spread over the sorted sizes, that six parameters are fitted to."""

START = (0.7, 0.7, 1e-3, 1e-3, 3.0, 2.0)
LOWEST = (0.01, 0.01, 0.0, 0.0, 0.01, 1.0)
HIGHEST = (1.0, 1.0, 10.0, 10.0, 200.0, 20.0)
MAX_CACHE_FRACTION = 20.0
"""How many times the memory's bandwidth a cache may have."""

PRIOR = 0.01
"""Weight of the start values, which decide what the measurements do not (a kernel without FLOPs, two rows)."""

MAX_CELLS = 4_000_000
"""Cells of the grid of all measured sizes: sizes that hardly repeat make one too large to interpolate in."""

SPIKE = 1.4
"""A time this many times what its neighbours say, or less than its inverse, is listed as an outlier."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MeasuredGrid:
    """The measured residuals of an op on the full grid of its keys and axes, and what neighbours say of each cell."""

    names: tuple[str, ...]
    axes: tuple[Floats, ...]
    cells: Floats
    neighbours: Estimate


@dataclass(frozen=True, slots=True)
class Fitted:
    """An op that was fitted: what a profile stores, the grid behind it, and how many cells were filled in."""

    fit: OpFit
    grid: MeasuredGrid
    num_filled: int


def fit_op(rows: Rows, limits: Limits) -> Fitted:
    """Fit `rows` (one row a key). Values are rounded as a profile stores them, so a written profile predicts alike."""
    work = work_of(rows.op, rows.dtype, rows.sizes)
    physics = fit_physics(work, rows.us, limits, in_memory=rows.op in MEMORY_BOUND_OPS)
    grid = _measured_grid(rows, np.log(rows.us / physics.us(work, limits)))
    fillable = np.isnan(grid.cells) & grid.neighbours.inside
    full = np.where(fillable, grid.neighbours.values, grid.cells).round(3)
    num_keys = len(grid_keys(rows.op, rows.dtype))
    measured = ~np.isnan(grid.cells)
    grids = {}
    for key in np.ndindex(full.shape[:num_keys]):
        if measured[key].any():
            name = tuple(int(grid.axes[i][place]) for i, place in enumerate(key))
            grids[name] = _residual_grid(grid.axes[num_keys:], full[key])
    filled = sum(int((~np.isnan(grid.residuals)).sum()) for grid in grids.values()) - int(measured.sum())
    return Fitted(OpFit(rows.op, rows.dtype, physics, limits, grids), grid, filled)


def _residual_grid(axes: tuple[Floats, ...], residuals: Floats) -> ResidualGrid:
    """A grid without the sizes of which this key has no measurement."""
    kept = []
    for axis in range(residuals.ndim):
        others = tuple(i for i in range(residuals.ndim) if i != axis)
        kept.append(np.flatnonzero((~np.isnan(residuals)).any(axis=others)))
    return ResidualGrid([axis[keep].tolist() for axis, keep in zip(axes, kept, strict=True)], residuals[np.ix_(*kept)])


def fit_physics(work: Work, us: Floats, limits: Limits, *, in_memory: bool) -> Physics:
    """The six numbers of `Physics` that fit best, robustly, on the logarithm of time.

    Only ops whose operands are `in_memory` cannot use more than the whole bandwidth.
    """
    from scipy.optimize import least_squares

    chosen = np.unique(np.linspace(0, len(us) - 1, min(len(us), MAX_PHYSICS_ROWS)).astype(np.int64))
    part = Work(work.flops[chosen], work.moved_bytes[chosen], work.chain[chosen], work.pieces[chosen])
    log_us = np.log(us[chosen])
    start = np.array(START)
    # Floors start at the fastest call: a kernel is never faster than its launch.
    start[4] = min(max(float(us.min()) * 0.9, LOWEST[4] * 2), HIGHEST[4] / 2)

    highest = np.array(HIGHEST)
    if not in_memory:
        highest[1] = MAX_CACHE_FRACTION

    def errors(values: Floats) -> Floats:
        with np.errstate(over="ignore"):
            time = np.log(Physics(*values).us(part, limits)) - log_us
        prior: Floats = np.concatenate([time, PRIOR * (values - start) / np.maximum(start, 1e-3)])
        return prior

    found = least_squares(errors, start, bounds=(LOWEST, highest), loss="soft_l1", x_scale=np.maximum(start, 1e-3))
    return Physics(*(_rounded(float(value)) for value in found.x))


def _rounded(value: float, digits: int = 5) -> float:
    """To so many significant digits: what a profile stores, and the same on every machine."""
    if value == 0:
        return 0.0
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def _measured_grid(rows: Rows, residual: Floats) -> MeasuredGrid:
    keys = grid_keys(rows.op, rows.dtype)
    names = (*keys, *AXES[rows.op])
    sizes = _all_sizes(rows)
    axes = tuple(np.unique(sizes[name]) for name in names)
    num_cells = math.prod(len(axis) for axis in axes)
    if num_cells > MAX_CELLS:
        counts = ", ".join(f"{len(axis):,} {name}" for axis, name in zip(axes, names, strict=True) if len(axis) > 1)
        raise CalibrationError(
            f"{rows.op} {rows.dtype}: {len(rows):,} shapes make a grid of {num_cells:,} cells ({counts}), expected at "
            f"most {MAX_CELLS:,}: measure combinations of few sizes"
        )
    cells = np.full([len(axis) for axis in axes], np.nan)
    cells[tuple(np.searchsorted(axis, sizes[name]) for axis, name in zip(axes, names, strict=True))] = residual
    return MeasuredGrid(names, axes, cells, estimate(cells, axes, range(len(keys), len(names))))


def _all_sizes(rows: Rows) -> dict[str, Floats]:
    return {**rows.sizes, **grid_key_sizes(rows.op, rows.dtype, rows.sizes)}


def spikes(rows: Rows, grid: MeasuredGrid) -> Indices:
    """Rows far from what their neighbours say although these agree with theirs: isolated, so perhaps not real."""
    sizes = _all_sizes(rows)
    places = tuple(np.searchsorted(axis, sizes[name]) for name, axis in zip(grid.names, grid.axes, strict=True))
    off = np.nan_to_num(np.abs(grid.cells - grid.neighbours.values))
    lonely = off > math.log(SPIKE)
    for axis in range(off.ndim):
        for step in (1, -1):
            rolled = np.roll(off, step, axis)
            # Along an axis the neighbours of a spike are off as well, but by less than the spike itself.
            edge = [slice(None)] * off.ndim
            edge[axis] = slice(0, 1) if step == 1 else slice(-1, None)
            rolled[tuple(edge)] = 0.0
            lonely &= rolled < off
    return np.flatnonzero(lonely[places])
