"""Warm-up: which requests count, by a fixed rule or by MSER-5. Imports numpy only.

MSER-5 (White, 1997; White, Cobb and Spratt, 2000): average the series in batches of five and cut the first d batches
that minimise the standard error of the mean of what is left, d at most half.
"""

from __future__ import annotations

import numpy as np

from simkit.types import Floats

BATCH = 5


def mser5(series: Floats) -> int | None:
    """How many leading values to drop; None when the minimum lies at the half: no steady state was reached.

    A series of fewer than 10 batches is too short to say anything: 0.
    """
    num_batches = len(series) // BATCH
    if num_batches < 10:
        return 0
    means = series[: num_batches * BATCH].reshape(num_batches, BATCH).mean(axis=1)
    remaining = np.arange(num_batches, 0, -1, dtype=np.float64)
    tail_sum = np.cumsum(means[::-1])[::-1]
    tail_square_sum = np.cumsum((means * means)[::-1])[::-1]
    spread = np.maximum(tail_square_sum - tail_sum * tail_sum / remaining, 0.0) / (remaining * remaining)
    half = num_batches // 2
    best = int(np.argmin(spread[: half + 1]))
    return None if best >= half else best * BATCH
