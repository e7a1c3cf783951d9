"""Lengths of a log that change over time: how those of a period rank among all."""

from __future__ import annotations

from typing import Any

import numpy as np

from simkit.logs.fit.lengths import MIN_A_BIN, binned, mean_around, rank_curve, ranks_of, shares_below
from simkit.types import Floats, Ints

MAX_PERIODS = 24
MIN_A_PERIOD = 2 * MIN_A_BIN
SURE = 1.95
"""Times the square root of the count: the largest distance of a steady period's ranks from even ones, at 0.1 %
(Kolmogorov-Smirnov)."""


def fit_drift(times_s: Floats, prompts: Ints, outputs: Ints) -> list[dict[str, Any]]:
    """The `drift` section: periods of as many requests each; empty when no period differs from the whole."""
    count = min(MAX_PERIODS, len(times_s) // MIN_A_PERIOD)
    ends_s = np.unique(np.rint([mean_around(times_s, k / count) for k in range(1, count)]))
    ends_s = ends_s[(ends_s > 0) & (ends_s < times_s[-1])]
    at = np.searchsorted(ends_s, times_s, side="right")
    groups = [rows for index in range(len(ends_s) + 1) if len(rows := np.flatnonzero(at == index)) >= MIN_A_BIN]
    if len(groups) < len(ends_s) + 1 or len(groups) < 2:
        return []  # so many requests at one time that periods cannot be told apart
    ranked = {"prompt_ranks": ranks_of(prompts), "output_ranks": _ranks_within(prompts, outputs)}
    if not any(_differs(ranks[rows]) for ranks in ranked.values() for rows in groups):
        return []
    columns = {key: _curves(ranks, groups) for key, ranks in ranked.items()}
    return [
        {"until_s": float(until), **{key: curves[index] for key, curves in columns.items()}}
        for index, until in enumerate([*ends_s, np.ceil(times_s[-1]) + 1])
    ]


def _ranks_within(prompts: Ints, outputs: Ints) -> Floats:
    """The rank of each output among those of prompts of about the same length."""
    ranks = np.empty(len(outputs))
    for _, rows in binned(prompts):
        ranks[rows] = ranks_of(outputs[rows])
    return ranks


def _differs(ranks: Floats) -> bool:
    ordered, n = np.sort(ranks), len(ranks)
    even = (np.arange(n) + 0.5) / n
    return bool(np.abs(ordered - even).max() * np.sqrt(n) > SURE)


def _curves(ranks: Floats, groups: list[Ints]) -> list[list[list[float]]]:
    """[probability, rank] pairs of each group, corrected so that all together are even."""
    curves = [rank_curve(ranks[rows]) for rows in groups]
    levels, below = shares_below(curves, [len(rows) for rows in groups])
    found = []
    for points, knots in curves:
        evened = np.interp(knots, levels, below)
        found.append([[round(float(p), 4), round(float(r), 4)] for p, r in zip(points, evened, strict=True)])
    return found
