"""Clocks that tick coarsely: how many neighbours share a time, the tick, and times spread over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simkit.streams import Stream
from simkit.types import Ints
from simkit.units import NS_PER_MS, NS_PER_S, ns_to_s

MANY_TIES = 0.1
"""Above this share of neighbours with equal times a clock is coarse."""

JITTER = 0.01
"""Gaps miss the multiples of a tick by at most this share of them."""

MAX_JITTER_NS = 10 * NS_PER_MS
LEAST_JITTERED = 10
"""Stamps of one tick may lie this far apart, and at most `JITTER` of the tick, where so many gaps are regular."""

NEAR_TICKS = 10
"""Longer gaps are not looked at for jitter: the tick is not known well enough."""

LEAST_SHARE = 0.25
"""Of all gaps that are not 0, the least share that must be of at most that length for a shorter tick to be seen."""

CERTAIN_NS = NS_PER_S
"""A clock that only has multiples of so much ticks, however rare requests are."""


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
        tick = f"{ns_to_s(self.tick_ns):g} s"
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
    """The longest tick of whose multiples all gaps are, jitter aside: then no gap but jitter is shorter than it."""
    step = int(np.gcd.reduce(apart))
    if step >= CERTAIN_NS:
        return step
    # Shorter gaps are jitter only where a far longer one follows.
    beyond = apart[1:][apart[:-1] <= np.minimum(JITTER * apart[1:], MAX_JITTER_NS)]
    for shortest in (*beyond[::-1].tolist(), int(apart[0])):
        if (tick := _jittering(apart, counts, shortest)) is not None:
            return tick
    return step if _seen(apart, counts, step) else None


def _jittering(apart: Ints, counts: Ints, shortest: int) -> int | None:
    """The tick, jitter averaged out, where the `shortest` gap beyond jitter is one; None where gaps are irregular."""
    longer = apart >= shortest
    multiple = np.rint(apart / shortest)
    near = longer & (multiple <= NEAR_TICKS)
    least = 2 if longer.all() else LEAST_JITTERED
    if not _seen(apart[longer], counts[longer], shortest) or int(counts[near].sum()) < least:
        return None
    # The shortest gap is a little shorter than a tick, and a longer one is off by that for each of its ticks.
    if np.any(np.abs(apart - multiple * shortest)[near] > JITTER * shortest * multiple[near]):
        return None
    steps = apart[near] / multiple[near]
    order = np.argsort(steps, kind="stable")
    ends = np.cumsum(counts[near][order])
    return round(float(steps[order][np.searchsorted(ends, ends[-1] / 2)]))


def _seen(apart: Ints, counts: Ints, tick: int) -> bool:
    return int(counts[apart <= NEAR_TICKS * tick].sum()) >= LEAST_SHARE * int(counts.sum())


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
