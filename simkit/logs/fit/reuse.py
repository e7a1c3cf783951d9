"""How prompts of a log begin as earlier ones: how much of a prompt is not new, and how many requests back it was."""

from __future__ import annotations

import numpy as np

from simkit.logs.fit.lengths import FEW, LEAST, Points, bin_of, binned, probabilities_of, rising, simplified, smoothed
from simkit.logs.read.blocks import walk
from simkit.logs.read.record import Blocks
from simkit.plain import Json
from simkit.types import Floats, Ints

MAX_BACK = 1_000_000
"""Requests; as far back as the schema lets a workload look."""


def fit_reuse(blocks: Blocks, prompts: Ints, block_tokens: int) -> tuple[Json | None, float]:
    """(the `reuse` section, token hit rate of an unlimited cache); None when hardly any prompt begins as another."""
    shared, back = shared_tokens(blocks, prompts, block_tokens)
    hit_rate = float(shared.sum() / prompts.sum())
    hits = np.flatnonzero(shared)
    if len(hits) < FEW:
        return None, hit_rate
    shares = [bin_of(upto, _shares(shared[rows], prompts[rows])) for upto, rows in binned(prompts)]
    backs = [
        bin_of(upto, _whole(_quantiles(back[hits[rows]].astype(np.float64), 0))) for upto, rows in binned(shared[hits])
    ]
    return {"prompt_shares": shares, "requests_back": backs}, hit_rate


def shared_tokens(blocks: Blocks, prompts: Ints, block_tokens: int) -> tuple[Ints, Ints]:
    """(tokens at the start of each prompt that an earlier one begins with, how many requests back the last such was).

    A block counts only when all before it do; tokens never beyond the prompt.
    """
    found = walk(blocks, prompts, block_tokens)
    back = np.where(found.known > 0, np.arange(len(prompts)) - found.latest, 0)
    return np.minimum(found.known * block_tokens, prompts), np.minimum(back, MAX_BACK)


def _shares(shared: Ints, prompts: Ints) -> Points:
    """Quantiles of the share of prompts that is not new, with the same tokens not new in all as in the log."""
    values = shared / prompts
    some = values[values > 0]
    none = 1 - len(some) / len(values)
    if none < 0.02 or len(some) < LEAST:
        pairs = _quantiles(values, 4, (0.0, 1.0))
    else:
        # What shares nothing apart from the rest: between the two there are no values to interpolate.
        rest = [[none + 0.0001 + (0.9999 - none) * p, value] for p, value in _quantiles(some, 4, (0.0, 1.0))]
        pairs = rising([[0, 0], [round(none, 4), 0], *([round(p, 4), value] for p, value in rest)])
    table = np.array(pairs)
    mean = float(np.trapezoid(table[:, 1], table[:, 0]))
    factor = float(shared.sum() / prompts.sum()) / mean if mean else 1.0
    return [[p, min(1.0, round(share * factor, 4))] for p, share in pairs]


def _quantiles(values: Floats, digits: int, bounds: tuple[float, float] | None = None) -> Points:
    points = probabilities_of(values)
    found = smoothed(np.sort(values), points, bounds)
    pairs = zip(points.tolist(), found.tolist(), strict=True)
    return simplified([[round(p, 5), round(value, digits)] for p, value in pairs])


def _whole(pairs: Points) -> Points:
    return [[p, max(1, int(value))] for p, value in pairs]
