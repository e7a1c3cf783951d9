"""Clocks that tick coarsely: how many neighbours share a time, the tick, and times spread over it.

Imports `types`, `units` and `workload.streams`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simkit.types import Ints
from simkit.units import ns_to_s
from simkit.workload.streams import Stream

MANY_TIES = 0.1
"""Above this share of neighbours with equal times a clock is coarse."""

JITTER = 0.01
"""A tick is regular when gaps miss its multiples by at most this share of it (gaps that are shorter are jitter) ..."""

REGULAR_SHARE = 0.95
"""... in this share of those gaps that are at most `NEAR_TICKS` long."""

NEAR_TICKS = 10
LEAST_SHARE = 0.25
"""Of all gaps that are not 0, the least share that must be of that length for a tick to be seen."""

NUM_CANDIDATES = 10


@dataclass(frozen=True, slots=True)
class CoarseClock:
    """A clock whose `tied_share` of neighbours is large; `tick_ns` is None where they follow no regular tick."""

    tied_share: float
    tick_ns: int | None

    def note(self) -> str:
        """What it means, in words."""
        share = f"{100 * self.tied_share:.0f} % of neighbours have equal times"
        if self.tick_ns is None:
            return f"{share}, at no regular tick"
        tick = f"{ns_to_s(self.tick_ns):.4g} s"
        return f"coarse clock: {share}, it ticks every {tick}, so each tick is a burst (spread_ties spreads them)"


def clock_of(time_ns: Ints) -> CoarseClock | None:
    """What is coarse about sorted times, see `coarse_clock`."""
    gaps = np.diff(time_ns)
    apart, counts = np.unique(gaps[gaps > 0], return_counts=True)
    return coarse_clock(len(gaps) - int(counts.sum()), apart, counts)


def coarse_clock(num_ties: int, apart: Ints, counts: Ints) -> CoarseClock | None:
    """What is coarse about times of which `num_ties` neighbours are equal, and `counts` are so far `apart` (rising).

    None when at most 10 % of neighbours are equal.
    """
    num_apart = int(counts.sum())
    if num_ties <= MANY_TIES * (num_ties + num_apart):
        return None
    return CoarseClock(num_ties / (num_ties + num_apart), _tick(apart, counts) if num_apart > 1 else None)


def _tick(apart: Ints, counts: Ints) -> int | None:
    """The largest frequent gap of whose multiples all short gaps are, jitter averaged out."""
    frequent = apart[np.argsort(-counts, kind="stable")[:NUM_CANDIDATES]]
    for tick in np.sort(np.append(frequent, apart[len(apart) // 2]))[::-1].tolist():
        multiple = np.rint(apart / tick)
        near = (apart > JITTER * tick) & (multiple <= NEAR_TICKS)
        regular = near & (np.abs(apart - multiple * tick) <= JITTER * tick)
        num_near, num_regular = int(counts[near].sum()), int(counts[regular].sum())
        if num_near >= LEAST_SHARE * counts.sum() and num_regular >= REGULAR_SHARE * num_near:
            steps = apart[regular] / multiple[regular]
            order = np.argsort(steps, kind="stable")
            ends = np.cumsum(counts[regular][order])
            return round(float(steps[order][np.searchsorted(ends, num_regular / 2)]))
    return None


def spread(time_ns: Ints, tick_ns: int, how: Literal["uniform", "even"], stream: Stream) -> Ints:
    """Sorted times with the requests of each tick spread over the time until the next, in the order they have.

    A tick is read as the beginning of the time that it stands for. `even`: n requests lie 1/n of a tick apart, the
    first on it. `uniform`: each is anywhere in the tick, drawn; value i of the stream is for request i.
    """
    starts = np.concatenate([[0], np.flatnonzero(np.diff(time_ns) > tick_ns / 2) + 1])
    counts = np.diff(np.append(starts, len(time_ns)))
    base = time_ns[starts]
    # A clock that jitters may tick a little early: nothing is spread beyond that.
    room = np.minimum(np.append(np.diff(base), tick_ns), tick_ns)
    group = np.repeat(np.arange(len(starts)), counts)
    if how == "even":
        share = (np.arange(len(time_ns)) - starts[group]) / counts[group]
    else:
        drawn = stream.uniforms(len(time_ns))
        share = drawn[np.lexsort((drawn, group))]
    return np.asarray(base[group] + np.floor(share * room[group]).astype(np.int64))
