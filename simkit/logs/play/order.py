"""The order of a log: jumps back, runs joined in one file, clock changes.

Owns how times that fall are told apart, and what `on_restart` does.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.read.record import MAX_NS
from simkit.types import Ints
from simkit.units import NS_PER_S, ns_to_s

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
