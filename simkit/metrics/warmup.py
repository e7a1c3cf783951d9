"""Warm-up: which requests count, by a fixed rule or by MSER-5.

MSER-5 (White, 1997; White, Cobb and Spratt, 2000): average the series in batches of five and cut the first d batches
that minimise the standard error of the mean of what is left, d at most half.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simkit.metrics.inputs import SummaryInputs
from simkit.metrics.latencies import values_ns
from simkit.metrics.summary import Warmup
from simkit.types import Bools, Floats, Ints
from simkit.units import NS_PER_S

BATCH = 5


def leave_out(table: Mapping[str, Ints], finished: Bools, inputs: SummaryInputs) -> tuple[Bools, Warmup]:
    """Which requests count, and what the manifest says of it. MSER-5 makes its proposal whatever the rule is."""
    arrival, rule = table["arrival_ns"], inputs.warmup
    proposal = mser5(values_ns(table, "e2e_ms")[finished].astype(np.float64))
    if rule == "none":
        method, measured = "none", np.ones(len(arrival), dtype=bool)
    elif rule == "mser5":
        finished_before: Ints = np.cumsum(finished) - finished
        method, measured = "mser5", np.asarray(finished_before >= (proposal or 0))
    else:
        assert not isinstance(rule, str), rule
        kind, value = rule
        method = f"first {value:g} {kind}"
        unit = {"requests": 1, "seconds": NS_PER_S, "ns": 1}[kind]
        measured = (table["id"] if kind == "requests" else arrival) >= value * unit
    return measured, Warmup(
        method=method if inputs.auto is None else "auto",
        why=inputs.auto,
        dropped_requests=int((~measured).sum()),
        mser5_proposal_requests=proposal,
        note=None if proposal is not None else "MSER-5 finds no steady state: its cut lies at half of the run",
    )


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
