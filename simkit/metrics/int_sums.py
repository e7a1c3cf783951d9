"""Sums of products of integers that do not overflow."""

from __future__ import annotations

import numpy as np

from simkit.types import Floats, Ints

_SAFE = 1 << 62


def dot(values: Ints, weights: Ints) -> int:
    """The exact sum of values x weights. It is taken in 64 bits where they suffice, else in Python's integers."""
    if not len(values):
        return 0
    largest = int(np.abs(values).max()) * int(np.abs(weights).max()) * len(values)
    if largest < _SAFE:
        return int(np.dot(values, weights))
    return sum(map(int.__mul__, values.tolist(), weights.tolist()))


def total(values: Ints) -> int:
    """The exact sum of values."""
    return dot(values, np.ones(len(values), dtype=np.int64))


def rounded_total(values: Floats) -> int:
    """The exact sum of values that are rounded to integers first."""
    rounded = np.rint(values)
    if not len(rounded) or float(np.abs(rounded).max()) * len(rounded) < _SAFE:
        return int(rounded.astype(np.int64).sum())
    return sum(map(int, rounded.tolist()))
