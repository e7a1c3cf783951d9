"""Arrivals of a log as a rate that changes in steps, and how bursty the gaps are.

Steps are found by optimal segmentation of the counts in small cells (Bayesian blocks: Scargle, Norris, Jackson and
Chiang, Astrophysical Journal 764 (2013) 167, events in cells). A step holds many requests or none.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from simkit.logs.fit.lengths import LEAST, significant
from simkit.logs.play.clock import clock_of
from simkit.plain import Json
from simkit.types import Floats, Ints
from simkit.units import NS_PER_S, ns_to_s

MAX_CELLS = 8192
CELL_S = 1.0
MIN_CV = 0.01
"""Of gaps that are even: the schema wants more than 0."""
FALSE_ALARMS = 0.05
"""Chance that a step is seen in a steady stream, as the penalty is set."""


def fit_arrivals(time_ns: Ints) -> tuple[Json, list[str]]:
    """(the `arrivals` section, remarks) of rising times that start at 0."""
    clock = clock_of(time_ns)
    tick_s = None if clock is None or clock.tick_ns is None else significant(ns_to_s(clock.tick_ns), 3)
    times_s = time_ns / NS_PER_S
    remarks = []
    if tick_s is not None:
        # Half a tick early: stamps jitter to both sides of it.
        spread = _spread(np.floor(times_s / tick_s + 0.5), tick_s)
        shared = f"the clock of the log ticks every {tick_s:g} s and requests share its stamps, as here"
        remarks.append(f"{shared}; without tick_s they come one by one")
    else:
        spread = times_s
    # The last request is not the end: on average the next comes a gap later.
    span_s = float(spread[-1]) * len(spread) / (len(spread) - 1)
    cell_s = max(CELL_S, tick_s or 0.0, span_s / MAX_CELLS)
    edges = _edges(span_s, cell_s)
    counts = np.histogram(spread, edges)[0]
    cuts = _segmented(edges, counts)
    rates = np.array([counts[a:b].sum() for a, b in pairwise(cuts.tolist())]) / np.diff(edges[cuts])
    segments = [
        {"until_s": round(float(until), 3), "rate_per_s": significant(float(rate), 4)}
        for until, rate in zip(edges[cuts[1:]], rates, strict=True)
    ]
    cv = 1.0 if tick_s is not None else _gap_cv(spread, edges[cuts], rates)
    remarks.append(
        f"the rate changes in {len(segments)} steps of {cell_s:.3g} s or more with {LEAST} requests or more or none; "
        "bursts shorter than a step are only in cv"
    )
    found: dict[str, Any] = {"process": "piecewise", "cv": max(MIN_CV, round(cv, 3))}
    if tick_s is not None:
        found["tick_s"] = tick_s
    return found | {"segments": segments}, remarks


def _edges(span_s: float, cell_s: float) -> Floats:
    """Borders of cells of `cell_s`; the last cell ends with the span and may be up to half as long again."""
    count = max(1, int(span_s / cell_s))
    return np.append(np.arange(count) * cell_s, span_s)


def _spread(ticks: Floats, tick_s: float) -> Floats:
    """Times with those of one tick spread evenly over it."""
    first = np.searchsorted(ticks, ticks, side="left")
    count = np.searchsorted(ticks, ticks, side="right") - first
    return (ticks + (np.arange(len(ticks)) - first + 0.5) / count) * tick_s


def _segmented(edges: Floats, counts: Ints) -> Ints:
    """Indices into `edges` of the best steps: the most likely rates less a penalty a step.

    A step with n requests in w seconds adds n log(n / w). The penalty is that of Scargle et al., equation 21, for
    `FALSE_ALARMS`. O(cells squared).
    """
    total = int(counts.sum())
    penalty = 4.0 - np.log(73.53 * FALSE_ALARMS * float(total) ** -0.478)
    before = np.concatenate([[0], np.cumsum(counts)])
    best = np.zeros(len(edges))
    start = np.zeros(len(edges), dtype=np.int64)
    for end in range(1, len(edges)):
        # Starts before `many` leave enough requests inside, those from `none` on nobody; others are not allowed.
        many, none = np.searchsorted(before[:end], [before[end] - LEAST + 1, before[end]])
        inside, width = before[end] - before[:many], edges[end] - edges[:many]
        value = np.full(end, -np.inf)
        value[:many] = best[:many] + inside * np.log(inside / width) - penalty
        value[none:] = best[none:end] - penalty
        start[end] = np.argmax(value)
        best[end] = value[start[end]]
    cuts = [len(counts)]
    while cuts[-1] > 0:
        cuts.append(int(start[cuts[-1]]))
    return np.array(cuts[::-1])


def _gap_cv(times_s: Floats, ends_s: Floats, rates: Floats) -> float:
    """Coefficient of variation of the gaps, measured in expected requests."""
    expected = np.concatenate([[0.0], np.cumsum(np.diff(ends_s) * rates)])
    gaps = np.diff(np.interp(times_s, ends_s, expected))
    return float(gaps.std() / gaps.mean())
