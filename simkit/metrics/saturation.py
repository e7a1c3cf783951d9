"""Does the queue of an open-loop run grow without end? Imports numpy only.

The delay before first being scheduled is regressed on arrival time. In a stable run it has no trend; when requests
arrive faster than they are served each second of arrivals adds (1 - capacity / rate) seconds of delay.
"""

from __future__ import annotations

import numpy as np

from simkit.types import Ints

MIN_SLOPE = 0.02
"""Seconds of delay a second of arrivals: 2 % more arrivals than capacity."""

MIN_EXPLAINED = 0.5
"""Share of the variance of the delay that the trend must explain."""

MIN_REQUESTS = 100


def queue_growth(arrival_ns: Ints, queue_ns: Ints) -> float | None:
    """Seconds of delay added per second of arrivals when the run is saturated, else None.

    Judged on the later half of the arrivals, at least `MIN_REQUESTS` of them.
    """
    half = len(arrival_ns) // 2
    if len(arrival_ns) - half < MIN_REQUESTS:
        return None
    arrival = arrival_ns[half:].astype(np.float64)
    queue = queue_ns[half:].astype(np.float64)
    arrival -= arrival.mean()
    queue -= queue.mean()
    spread, variance = float((arrival * arrival).sum()), float((queue * queue).sum())
    if spread == 0.0 or variance == 0.0:
        return None
    covariance = float((arrival * queue).sum())
    slope = covariance / spread
    explained = covariance * covariance / (spread * variance)
    return slope if slope >= MIN_SLOPE and explained >= MIN_EXPLAINED else None
