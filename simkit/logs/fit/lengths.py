"""Lengths of a log as quantiles: of prompts, of outputs for prompts of about the same length, and how both change.

Owns how coarse a published quantile must be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simkit.plain import Json
from simkit.types import Floats, Ints

LEAST = 50
"""Requests between two quantiles, and of whose values a quantile is the mean; as many have a length kept exactly."""
LEAST_IN_TAIL = 20
"""The same from the percentile `TAIL` on, and of groups of fewer than `FEW` requests."""
TAIL = 0.95
FEW = 2 * LEAST
DIGITS = 3
MAX_POINTS = 200
MIN_STEP = 2e-4
"""Probability between two quantiles, so that they differ when they are rounded."""
WANTED = (0.5, 0.95, 0.99, 0.9, 0.999)
"""Percentiles that are kept before others, most wanted first."""
MIN_A_BIN = 5 * LEAST
MAX_BINS = 12
MAX_COMMON = 20
"""Lengths whose share of the requests is kept exactly."""
TOLERANCE = 0.004
"""Quantiles that their neighbours give as well as this are left out."""

Points = list[list[float]]


def fit_prompts(prompts: Ints) -> Json:
    """The `prompt_tokens` section."""
    return {"dist": "empirical", "quantiles": quantiles_of(prompts)}


def fit_outputs(prompts: Ints, outputs: Ints) -> Json:
    """The `output_tokens` section: for each bin of prompts, how outputs rank among all, as quantiles.

    Ranks first: the outputs of all bins together then are distributed as the log's, however few points a bin has.
    """
    ranks = ranks_of(outputs)
    overall, common = np.array(quantiles_of(outputs, simplify=False)), _common(outputs)
    bins = binned(prompts)
    curves = [rank_curve(ranks[rows]) for _, rows in bins]
    # The ranks that the bins give together are not quite even: a value belongs at the rank below which its share lies.
    levels, below = shares_below(curves, [len(rows) for _, rows in bins])
    overall[:, 0] = np.interp(overall[:, 0], below, levels)
    return {
        "dist": "conditional",
        "on": "prompt_tokens",
        "bins": [
            bin_of(upto, _composed(points, knots, overall, common))
            for (upto, _), (points, knots) in zip(bins, curves, strict=True)
        ],
    }


def shares_below(curves: Sequence[tuple[Floats, Floats]], counts: Sequence[int]) -> tuple[Floats, Floats]:
    """(ranks, share below each) when groups of `counts` requests have these curves."""
    levels = np.unique(np.concatenate([knots for _, knots in curves]))
    parts = [count * np.interp(levels, knots, points) for count, (points, knots) in zip(counts, curves, strict=True)]
    return levels, np.sum(parts, axis=0) / sum(counts)


def rank_curve(ranks: Floats) -> tuple[Floats, Floats]:
    """(probabilities, rising ranks) of one group of requests, from its ranks among all."""
    ordered = np.sort(ranks)
    points = probabilities_of(ordered)
    # Strictly rising, so that each rank has one probability.
    return points, smoothed(ordered, points, (0.0, 1.0)) + 1e-9 * np.arange(len(points))


def binned(values: Ints) -> list[tuple[int | None, Ints]]:
    """(upper end, rows) of bins of about equal counts, about `MIN_A_BIN` rows or more each; the last has no end."""
    count = max(1, min(MAX_BINS, len(values) // MIN_A_BIN))
    left = np.sort(values)
    wanted = [int(mean_around(left, k / count)) for k in range(1, count)]
    common = _common(values)
    ends: list[int] = []
    for end in dict.fromkeys(int(_round(float(value), common)) for value in wanted):
        below = int(np.searchsorted(left, end, side="right"))
        # Rounding and lengths that many have may leave a bin too small: it is then joined to the next.
        if below >= MIN_A_BIN // 2 and len(left) - below >= MIN_A_BIN // 2:
            ends.append(end)
            left = left[below:]
    at = np.searchsorted(np.array(ends, dtype=np.int64), values, side="left")
    return [(end, np.flatnonzero(at == index)) for index, end in enumerate([*ends, None])]


def bin_of(upto_tokens: int | None, quantiles: Points) -> Json:
    """A bin as the schema has it."""
    return ({} if upto_tokens is None else {"upto_tokens": upto_tokens}) | {"quantiles": quantiles}


def quantiles_of(values: Ints, simplify: bool = True) -> Points:
    """[probability, tokens] pairs from 0 to 1; the tokens are means of groups or lengths that `LEAST` requests have."""
    ordered = np.sort(values).astype(np.float64)
    common = _common(values)
    edges = _edges(ordered, common)
    points = probabilities_of(values, tuple(edges))
    found = [edges.get(p, value) for p, value in zip(points.tolist(), smoothed(ordered, points).tolist(), strict=True)]
    found = np.maximum.accumulate([max(1.0, _round(value, common)) for value in found]).tolist()
    pairs = [[round(p, 5), value] for p, value in zip(points.tolist(), found, strict=True)]
    return simplified(pairs) if simplify else pairs


def smoothed(ordered: Floats, points: Floats, bounds: tuple[float, float] | None = None) -> Floats:
    """Rising values at probabilities from 0 to 1 of sorted values, none that of a single request.

    Between the ends each is the mean of the requests around it. The ends give the first and the last group their mean,
    unless they would then lie outside of `bounds`, or without those of the values there are: they are the bound then,
    or the mean of the outermost `LEAST_IN_TAIL`.
    """
    if len(points) == 2:
        return np.full(2, ordered.mean())
    n = len(ordered)
    found = np.array([mean_around(ordered, p) for p in points.tolist()])
    first, last = ordered[: round(points[1] * n)].mean(), ordered[round(points[-2] * n) :].mean()
    low, high = 2 * first - found[1], 2 * last - found[-2]
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    else:
        low = low if low >= ordered[0] else ordered[:LEAST_IN_TAIL].mean()
        high = high if high <= ordered[-1] else ordered[-LEAST_IN_TAIL:].mean()
    found[0], found[-1] = low, high
    return np.maximum.accumulate(np.minimum(found, high))


def mean_around(ordered: Floats | Ints, probability: float) -> float:
    """The mean of the sorted values around a probability: of `LEAST`, in the tail or of few of `LEAST_IN_TAIL`."""
    n = len(ordered)
    at = round(probability * n)
    beside = (LEAST_IN_TAIL if probability >= TAIL else least_of(n)) // 2
    start = max(0, min(at - beside, n - 2 * beside))
    return float(ordered[start : start + 2 * beside].mean())


def least_of(num_requests: int) -> int:
    """Requests for which a quantile of `num_requests` stands."""
    return LEAST if num_requests >= FEW else LEAST_IN_TAIL


def significant(value: float, digits: int) -> float:
    """`value` to some significant digits."""
    return float(f"{value:.{digits}g}")


def simplified(pairs: Points) -> Points:
    """Fewer pairs: those are left out that interpolation between the kept ones gives within `TOLERANCE`."""
    table = np.array(pairs)
    kept = [0]
    last = len(pairs) - 1
    while kept[-1] < last:
        first = kept[-1]
        end = first + 1
        while end < last and _is_straight(table[first : end + 2]):
            end += 1
        kept.append(end)
    return [_plain(pairs[index]) for index in kept]


def _is_straight(table: Floats) -> bool:
    between = np.interp(table[1:-1, 0], table[[0, -1], 0], table[[0, -1], 1])
    return bool(np.all(np.abs(between - table[1:-1, 1]) <= TOLERANCE * table[1:-1, 1]))


def _plain(pair: list[float]) -> list[float]:
    return [number if number != int(number) else int(number) for number in pair]


def _edges(ordered: Floats, common: frozenset[float]) -> dict[float, float]:
    """Probability to value where a length that many have begins and ends, of the `MAX_COMMON` most frequent."""
    n = len(ordered)
    spans = []
    for value in sorted(common):
        low = int(np.searchsorted(ordered, value, side="left"))
        high = int(np.searchsorted(ordered, value, side="right"))
        spans.append((high - low, low, high, value))
    found: dict[float, float] = {}
    for _, low, high, value in sorted(spans, reverse=True)[:MAX_COMMON]:
        found |= {low / n: value, high / n: value}
    return found


def probabilities_of(values: Ints | Floats, first: Sequence[float] = ()) -> Floats:
    """Probabilities between which there are always enough requests: those of `first`, then the wanted percentiles."""
    n = len(values)
    usual = least_of(n)
    points = min(MAX_POINTS, n // usual)
    grid = np.arange(1, points) / points if points == MAX_POINTS else np.arange(1, points) * usual / n
    kept = [0.0, 1.0]
    for p in (*first, *WANTED, 1 - LEAST_IN_TAIL / n, *grid.tolist()):
        # In the tail neighbours may share half of the requests of which they are means, the last two only some.
        apart, from_end = (LEAST_IN_TAIL // 2, LEAST_IN_TAIL) if p >= TAIL else (usual, usual)
        # Slightly less than the distance of neighbours on the grid, which rounding may shorten.
        if min(p, 1 - p) * n >= 0.999 * from_end and np.abs(p - np.array(kept)).min() >= max(
            0.999 * apart / n, MIN_STEP
        ):
            kept.append(p)
    return np.array(sorted(kept))


def _common(values: Ints) -> frozenset[float]:
    found, counts = np.unique(values, return_counts=True)
    return frozenset(found[counts >= LEAST].astype(np.float64).tolist())


def _round(value: float, common: frozenset[float]) -> float:
    return value if value in common else significant(value, DIGITS)


def ranks_of(values: Ints) -> Floats:
    """The rank of each value among all, 0 to 1, equal values in order of arrival."""
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = (np.arange(len(values)) + 0.5) / len(values)
    return ranks


def _composed(points: Floats, ranks: Floats, overall: Floats, common: frozenset[float]) -> Points:
    """Quantiles of a bin from quantiles of its ranks and the value at each rank, exact at the points of both."""
    inside = overall[(overall[:, 0] > ranks[0]) & (overall[:, 0] < ranks[-1]), 0]
    levels = np.union1d(inside, ranks)
    probabilities = np.interp(levels, ranks, points)
    values = np.interp(levels, overall[:, 0], overall[:, 1])
    pairs = zip(probabilities.tolist(), values.tolist(), strict=True)
    return simplified(rising([[round(p, 4), _round(value, common)] for p, value in pairs]))


def rising(pairs: Points) -> Points:
    """Pairs whose probabilities rise and whose values do not fall: of equal probabilities the last."""
    found: Points = []
    for p, value in pairs:
        if found and p <= found[-1][0]:
            found[-1][1] = max(value, found[-1][1])
        else:
            found.append([p, max(value, found[-1][1]) if found else value])
    return found


MAX_PERIODS = 24
MIN_A_PERIOD = 2 * MIN_A_BIN
SURE = 1.95
"""Times the square root of the count: the largest distance of a steady period's ranks from even ones, at 0.1 %
(Kolmogorov-Smirnov)."""


def fit_drift(times_s: Floats, prompts: Ints, outputs: Ints) -> list[Json]:
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
