"""The clock of a log: jumps back, runs joined in one file, clock changes, and ticks so coarse that requests share them.

Owns how times that fall are told apart, what `on_restart` does, and how times are spread over a tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.read.record import MAX_NS
from simkit.streams import Stream
from simkit.types import Ints
from simkit.units import NS_PER_MS, NS_PER_S, ns_to_s

# --- times that fall --------------------------------------------------------------------------------------------------
CLOCK_CHANGE_S = (3590, 3600)
"""A naive wall clock that falls by so much was set back by an hour."""

RESTART_SHARE = 0.5
"""A restart falls by at least this share of the log's whole span ..."""

NEAR_START_SHARE = 0.05
"""... to within this share of the span from the first time."""

MAX_TOLD = 20
"""A log that falls more often in one of these ways is out of order, and nothing is read into it."""

Fall = Literal["row", "restart", "clock change"]


def straighten(time_ns: Ints, spec: scenario.Trace, *, naive: bool) -> tuple[Ints, list[str]]:
    """The times of a file in its order, and notes on how they fall; the caller sorts.

    `on_restart: append` moves a run that starts again behind the one before, after the mean gap of that; `sort` leaves
    it where it is. The hour of a clock change is added to all that follows: sorted as they stand, two hours would be
    played in one. `naive`: the clock names no zone.
    InputError with `on_restart: error` for either, and for times that lie more than 146 years apart.
    """
    if time_ns.size and int(time_ns.max()) - int(time_ns.min()) > MAX_NS:
        raise InputError(f"trace {spec.path}: the times lie more than 146 years apart: expected one unit and one clock")
    falls = np.flatnonzero(np.diff(time_ns) < 0) + 1
    if not falls.size:
        return time_ns, []
    kinds = _kinds(time_ns, falls, naive=naive)
    notes = []
    append = spec.on_restart == "append"
    for kind in ("restart", "clock change"):
        rows = [row for row, found in zip(falls.tolist(), kinds, strict=True) if found == kind]
        if rows:
            note = _restarts(time_ns, rows, append=append) if kind == "restart" else _clock_changes(time_ns, rows)
            if spec.on_restart == "error":
                raise InputError(f"trace {spec.path}: {note} (on_restart: sort or append reads it)")
            notes.append(note)
    time_ns = _moved(time_ns, falls.tolist(), kinds, append=append, where=f"trace {spec.path}")
    back_s = -np.diff(time_ns) / NS_PER_S
    back_s = back_s[back_s > 0]
    if back_s.size:
        are = "rows are" if back_s.size > 1 else "row is"
        notes.insert(
            0,
            f"{back_s.size} {are} earlier than the row before (by up to {back_s.max():.6g} s): sorted by time, equal "
            "times keep the order of the file",
        )
    return time_ns, notes


def _kinds(time_ns: Ints, falls: Ints, *, naive: bool) -> list[Fall]:
    """What each fall is, by the first row after it."""
    back_ns = time_ns[falls - 1] - time_ns[falls]
    span_ns = int(time_ns.max() - time_ns.min())
    least, most = (NS_PER_S * seconds for seconds in CLOCK_CHANGE_S)
    hours = falls[(back_ns >= least) & (back_ns <= most)] if naive else falls[:0]
    near_start = np.abs(time_ns[falls] - time_ns[0]) <= NEAR_START_SHARE * span_ns
    far = back_ns >= RESTART_SHARE * span_ns
    starts = np.setdiff1d(falls[far & near_start], hours)
    if np.count_nonzero(far & ~near_start) > len(starts):
        starts = starts[:0]  # rows in no order fall far to anywhere
    kind: dict[int, Fall] = {}
    if len(hours) <= MAX_TOLD:
        kind |= {row: "clock change" for row in hours.tolist() if _stays_behind(time_ns, row)}
    if len(starts) <= MAX_TOLD:
        kind |= {row: "restart" for row in starts.tolist() if _goes_on(time_ns, row)}
    return [kind.get(row, "row") for row in falls.tolist()]


def _goes_on(time_ns: Ints, row: int) -> bool:
    """Whether a run begins at `row`: a single late row falls back as far, but what follows it is not earlier."""
    rest = time_ns[row:]
    return len(rest) > 1 and row > 1 and 2 * int(np.count_nonzero(rest < time_ns[row - 1])) >= len(rest)


def _stays_behind(time_ns: Ints, row: int) -> bool:
    """Whether the clock goes on from where it fell to at `row`: a single late row is followed by others in time."""
    return row + 1 < len(time_ns) and bool(time_ns[row + 1] < time_ns[row - 1])


def _restarts(time_ns: Ints, rows: list[int], *, append: bool) -> str:
    counts = np.diff([0, *rows, len(time_ns)]).tolist()
    runs = f"{len(counts)} runs are joined in this file ({' and '.join(map(str, counts))} requests)"
    row = rows[0]
    fell = f"times fall from {_after_s(time_ns, row - 1):.6g} s after the first row to {_after_s(time_ns, row):.6g} s"
    if not append:
        return f"{runs}: {fell}; they are played together (on_restart: append puts one behind the other)"
    runs_ns = np.split(time_ns, rows)[:-1]
    gaps = ", ".join(f"{ns_to_s(_mean_gap(run_ns)):.6g} s" for run_ns in runs_ns)
    return f"{runs}: {fell}; each is put behind the one before, after its mean gap of {gaps}"


def _clock_changes(time_ns: Ints, rows: list[int]) -> str:
    falls = ", ".join(f"{ns_to_s(int(time_ns[row - 1] - time_ns[row])):.6g} s" for row in rows)
    return f"a fall by an hour is taken for a clock change ({falls}): the hour is added to what follows"


def _after_s(time_ns: Ints, row: int) -> float:
    return ns_to_s(int(time_ns[row] - time_ns[0]))


def _mean_gap(run_ns: Ints) -> int:
    return int(run_ns.max() - run_ns.min()) // max(1, len(run_ns) - 1)


def _moved(time_ns: Ints, falls: list[int], kinds: list[Fall], *, append: bool, where: str) -> Ints:
    """Times with clock changes undone and, with `append`, each run behind the one before."""
    moved = time_ns.copy()
    first = 0
    for row, kind in zip(falls, kinds, strict=True):
        if kind == "clock change":
            shift = 3600 * NS_PER_S
        elif kind == "restart" and append:
            run = moved[first:row]
            shift = int(run.max()) + _mean_gap(run) - int(moved[row:].min())
            first = row
        else:
            continue
        if int(moved[row:].max()) + shift > MAX_NS:
            raise InputError(f"{where}: a {kind} would put requests after more than 146 years")
        moved[row:] += shift
    return moved


# --- coarse clocks ----------------------------------------------------------------------------------------------------
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
