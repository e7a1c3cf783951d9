"""Does the queue of an open-loop run grow without end?

The number of requests that wait is regressed on time, so the answer does not depend on who is served first. In a stable
run it has no trend; when requests arrive faster than they are served it grows by (1 - capacity / rate) an arrival.
"""

from __future__ import annotations

import numpy as np

from simkit.types import Ints

MIN_GROWTH = 0.02
"""Waiting requests added per arrival: 2 % more arrivals than capacity."""

MIN_EXPLAINED = 0.5
"""Share of the variance of the queue that the trend must explain."""

MIN_REQUESTS = 100


def queue_growth(arrival_ns: Ints, served_ns: Ints) -> float | None:
    """Requests added to the queue per arrival when the run is saturated, else None.

    `arrival_ns` ascending; `served_ns` is when each request stopped waiting (first scheduled, or gave up). Judged on
    the later half of the arrivals, at least `MIN_REQUESTS` of them.
    """
    count = len(arrival_ns)
    half = count // 2
    if count - half < MIN_REQUESTS or arrival_ns[-1] == arrival_ns[half]:
        return None
    waiting = np.arange(1, count + 1) - np.searchsorted(np.sort(served_ns), arrival_ns, side="right")
    time = (arrival_ns[half:] - arrival_ns[half]).astype(np.float64)
    queue = waiting[half:].astype(np.float64)
    time_off, queue_off = time - time.mean(), queue - queue.mean()
    variance = float((queue_off * queue_off).sum())
    if variance == 0.0:
        return None
    covariance, spread = float((time_off * queue_off).sum()), float((time_off * time_off).sum())
    explained = covariance * covariance / (spread * variance)
    growth = covariance / spread * float(time[-1]) / (count - half - 1)
    return growth if growth >= MIN_GROWTH and explained >= MIN_EXPLAINED else None
