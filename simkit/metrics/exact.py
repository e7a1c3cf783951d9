"""Sums of products of integers that do not overflow. Imports numpy and `types` only."""

from __future__ import annotations

import numpy as np

from simkit.types import Ints

_SAFE = 1 << 62


def dot(values: Ints, weights: Ints) -> int:
    """Sum of values x weights, exactly: by 64 bits where they suffice, else by Python's integers."""
    if not len(values):
        return 0
    largest = int(np.abs(values).max()) * int(np.abs(weights).max()) * len(values)
    if largest < _SAFE:
        return int(np.dot(values, weights))
    return sum(map(int.__mul__, values.tolist(), weights.tolist()))
