"""Whether requests arrive faster than they are served: then the queue grows for as long as they do."""

from __future__ import annotations

import numpy as np

from simkit.metrics import record as rec
from simkit.metrics.inputs import SummaryInputs
from simkit.types import Ints

MIN_GROWTH = 0.02
"""Waiting requests added per arrival: 2 % more arrivals than capacity."""

MIN_EXPLAINED = 0.5
"""Share of the variance of the queue that the trend must explain."""

MIN_REQUESTS = 100


def growth(table: dict[str, Ints], inputs: SummaryInputs) -> float | None:
    """Requests that stay behind for each that arrives, over all that ever waited; None where the queue does not grow. A
    closed loop cannot outgrow its clients."""
    if not inputs.open_loop:
        return None
    waited = (table["status"] != rec.REJECTED) & (table["status"] != rec.REFUSED)
    arrival, scheduled = table["arrival_ns"][waited], table["first_scheduled_ns"][waited]
    order = np.argsort(arrival, kind="stable")
    return queue_growth(arrival[order], np.where(scheduled >= 0, scheduled, table["left_ns"][waited])[order])


def queue_growth(arrival_ns: Ints, served_ns: Ints) -> float | None:
    """Requests added to the queue per arrival when an open-loop run is saturated, else None.

    The number of requests that wait is regressed on time, so the answer does not depend on who is served first. In a
    stable run it has no trend; when requests arrive faster than they are served it grows by (1 - capacity / rate) an
    arrival.

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
