"""Cells of a grid that were not measured but lie between measured ones. Owns their estimate.

Along each axis a cell is interpolated between its nearest measured neighbours in log size. The estimates of the axes
are averaged, each weighted by how well its axis does at cells that were measured: the inverse of its mean square error.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calib.table import Floats
from simkit.latency.profile import between_neighbours, log_sizes

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
