"""Which experts tokens go to: how many are touched, how many rows the busiest rank computes, how unequal they are.

Owns the three kinds of routing: independent and even (every expert has the same share of the tokens, each token draws
its own), by a power law, and by shares that are given.

The power law is that of NVIDIA's aiconfigurator (collector, `power_law_logits_v3`), by which the kernel tables were
measured: the loads of experts are drawn from a power law between 1 and 0.8 times the tokens, or between 0.01 and 2
where there are no more rows than experts, scaled to all rows and rounded. On one rank its draws are taken at their
quantiles; which experts share a rank is drawn a few times, by a generator of fixed seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from simkit.errors import InputError, nearest
from simkit.types import Floats

MEASURED_EXPONENT = 1.01
"""The exponent of the skewed rows of the kernel tables."""

DRAWS = 32
"""Of loads of experts that share ranks; the tables are the mean of five."""


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Loads of experts by a power law of this exponent."""

    exponent: float


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of all routed rows that each expert gets; the shares add up to 1."""

    of: tuple[float, ...]


Routing = PowerLaw | Shares | None
"""None: even and independent. That is what real routing is nearest to: models are trained until their experts get like
shares (a loss or a bias that balances them), and tokens do not take turns. Balanced rows of kernel tables touch every
expert at once, and in those of the power law the busiest of 128 experts gets 7 times its part of 1,024 tokens."""

KEY = "engine.moe_routing"
BALANCED = "balanced"
SUM_TOLERANCE = 1e-3
LONGEST_FILE = 1 << 20
KNOTS_PER_OCTAVE = 8
"""Numbers of tokens at which a load is worked out; between them it is a straight line."""


def read_shares(path: str, num_experts: int, model: str) -> Shares:
    """Shares of the experts from a file: numbers between commas, spaces or line ends. Raises InputError."""
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            words = file.read(LONGEST_FILE).replace(",", " ").split()
    except (OSError, UnicodeDecodeError) as error:
        why = "not a text file" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error)).lower()
        expected = f"expected {BALANCED}, {{power_law: 1.01}} or a file of shares"
        raise InputError(f"{path}: {why}; {expected}{nearest(path, [BALANCED])}", key=KEY) from None
    try:
        shares = [float(word) for word in words]
    except ValueError:
        shares = [math.nan]
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise InputError(f"{path}: expected numbers from 0 to 1 and nothing else", key=KEY)
    if len(shares) != num_experts:
        text = f"{path}: expected {num_experts} shares, one for each expert of {model}, got {len(shares)}"
        raise InputError(text, key=KEY)
    if abs(sum(shares) - 1.0) > SUM_TOLERANCE:
        raise InputError(f"{path}: expected shares that add up to 1, got {sum(shares):.6g}", key=KEY)
    return Shares(tuple(share / sum(shares) for share in shares))


@dataclass(frozen=True, slots=True)
class Load:
    """What the busiest rank has to do for passes of so many tokens: arrays of one length.

    `rows` are (token, expert) pairs, `touched` the experts that get any, `spread` how unequal experts are: 0 for equal
    loads, `MEASURED_EXPONENT` for those of that power law.
    """

    rows: Floats
    touched: Floats
    spread: Floats


def load_of(routing: Routing, num_experts: int, topk: int, ranks: int, tokens: Floats) -> Load:
    """The expected load of the busiest of `ranks` ranks, which hold equal runs of the experts."""
    if isinstance(routing, PowerLaw):
        return power_law_load(routing.exponent, num_experts, topk, ranks, tokens)
    if isinstance(routing, Shares):
        return _load_of_shares(np.asarray(routing.of, np.float64), topk, ranks, tokens)
    local = num_experts // ranks
    hit = -np.expm1(tokens * np.log1p(-min(topk / num_experts, 1.0 - 1e-12)))
    rows = tokens * (topk / ranks)
    most = _largest_of(ranks)
    rows = rows + most * np.sqrt(rows * (1.0 - 1.0 / ranks))
    touched = local * hit + most * np.sqrt(local * hit * (1.0 - hit))
    return _bounded(rows, touched, topk, local, tokens, 0.0 * tokens)


def load_over(routing: Routing, num_experts: int, topk: int, ranks: int, rows: Floats) -> Load:
    """`load_of` passes of many numbers of tokens, ascending from 1 on."""
    octaves = np.arange(int(np.log2(rows[-1]) * KNOTS_PER_OCTAVE) + 2) / KNOTS_PER_OCTAVE
    knots = np.unique(np.concatenate([np.rint(2.0**octaves), rows[-1:]]))
    at = load_of(routing, num_experts, topk, ranks, knots)
    return Load(*(np.interp(rows, knots, values) for values in (at.rows, at.touched, at.spread)))


def balanced_load(num_experts: int, topk: int, ranks: int, tokens: Floats) -> Load:
    """Of the balanced rows of a kernel table: tokens go round all experts in turn."""
    rows = np.maximum(tokens * (topk / ranks), 1.0)
    return Load(rows, np.minimum(rows, num_experts / ranks), 0.0 * tokens)


def power_law_load(exponent: float, num_experts: int, topk: int, ranks: int, tokens: Floats) -> Load:
    """Of the skewed rows of a kernel table, whose first rank is the busiest."""
    places = (np.arange(num_experts)[None, :] + 0.5) / num_experts
    if ranks > 1:
        places = np.random.Generator(np.random.PCG64(0)).random((DRAWS, num_experts))
    rows, touched = np.zeros(len(tokens)), np.zeros(len(tokens))
    for index, count in enumerate(tokens):
        loads = _power_law(exponent, num_experts, topk, float(count), places) * (count * topk)
        by_rank = loads.reshape(len(places), ranks, -1).sum(axis=2)
        hit = np.where(loads < 0.5, 0.0, np.minimum(loads, 1.0)).reshape(len(places), ranks, -1).sum(axis=2)
        busiest = by_rank.argmax(axis=1)[:, None]
        rows[index] = np.take_along_axis(by_rank, busiest, 1).mean()
        touched[index] = np.take_along_axis(hit, busiest, 1).mean()
    touched = touched if ranks > 1 else np.maximum(touched, float(topk))
    return _bounded(rows, touched, topk, num_experts // ranks, tokens, np.full(len(tokens), exponent))


def _power_law(exponent: float, num_experts: int, topk: int, tokens: float, places: Floats) -> Floats:
    """Shares of the experts at `places` of the distribution of their loads, a row a draw."""
    many, power = tokens * topk > num_experts, (1.0 - exponent) or -1e-9
    low, high = (1.0, max(0.8 * tokens, 1.0001)) if many else (0.01, 2.0)
    loads = (low**power + (high**power - low**power) * places) ** (1.0 / power)
    shares: Floats = loads / loads.sum(axis=1, keepdims=True)
    return shares


def _load_of_shares(shares: Floats, topk: int, ranks: int, tokens: Floats) -> Load:
    """A token draws an expert of share p with the chance k x p, at most 1."""
    local, chance = len(shares) // ranks, np.minimum(topk * shares, 1.0 - 1e-12)
    hit = -np.expm1(tokens[:, None] * np.log1p(-chance)[None, :])
    by_rank = hit.reshape(len(tokens), ranks, local).sum(axis=2).max(axis=1)
    largest = float(shares.reshape(ranks, local).sum(axis=1).max())
    even = tokens * (topk / ranks)
    rows = np.maximum(tokens * (topk * largest), even + _largest_of(ranks) * np.sqrt(even * (1.0 - 1.0 / ranks)))
    quantiles = (np.arange(len(shares))[None, :] + 0.5) / len(shares)
    steepest = np.array(
        [_power_law(MEASURED_EXPONENT, len(shares), topk, float(count), quantiles)[0, -1] for count in tokens]
    )
    # How far the busiest expert is from an even share, next to the busiest of the power law.
    spread = np.log(max(len(shares) * float(shares.max()), 1.0)) / np.log(np.maximum(len(shares) * steepest, 1.0001))
    return _bounded(rows, by_rank, topk, local, tokens, MEASURED_EXPONENT * np.minimum(spread, 1.0))


def _bounded(rows: Floats, touched: Floats, topk: int, local: int, tokens: Floats, spread: Floats) -> Load:
    """At least one row on the busiest rank, at most as many as its experts can get; no more touched than there are."""
    rows = np.maximum(np.minimum(rows, tokens * min(topk, local)), np.minimum(tokens, 1.0))
    return Load(rows, np.minimum(np.minimum(np.maximum(touched, np.minimum(tokens, 1.0)), local), rows), spread)


def _largest_of(count: int) -> float:
    """Expected largest of so many standard normal numbers (Blom 1958); 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0
