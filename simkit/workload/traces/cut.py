"""Part of a log: a window, a share of its sessions, the first requests. Imports `errors`, `units`, `workload.streams`,
its own siblings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simkit.errors import InputError
from simkit.types import Ints
from simkit.units import ns_to_s, s_to_ns
from simkit.workload.streams import Stream
from simkit.workload.traces.record import NO_TIME, Columns
from simkit.workload.traces.stats import session_roots


@dataclass(frozen=True, slots=True)
class Cut:
    """What is kept: requests of [start_s, end_s) of the log, of a share of the sessions, the first so many."""

    start_s: float = 0.0
    end_s: float | None = None
    keep_share: float = 1.0
    seed: int = 0
    max_requests: int | None = None


def kept_rows(columns: Columns, after: Ints, cut: Cut, where: str) -> tuple[Ints, list[str]]:
    """(rows kept, in order; notes on it). InputError when none is.

    Requests are in arrival order. One without a time of its own stays with its predecessor. Sessions are drawn, so all
    requests of one are kept or none is; the window and `max_requests` cut through them.
    """
    rows, notes = np.arange(len(columns)), []
    times = _times(columns, after)
    if cut.start_s > 0 or cut.end_s is not None:
        end_ns = int(times[-1]) + 1 if cut.end_s is None else s_to_ns(cut.end_s)
        rows = np.flatnonzero((times >= s_to_ns(cut.start_s)) & (times < end_ns))
        end = "the end" if cut.end_s is None else f"{cut.end_s:g} s"
        notes.append(f"cut from {cut.start_s:g} s to {end}: {len(rows)} of {len(columns)} requests")
    if cut.keep_share < 1:
        whole = len(rows)
        rows = rows[_drawn(columns, after, cut)[rows]]
        drawn = f"{cut.keep_share:g} of the sessions, drawn with seed {cut.seed}"
        notes.append(f"thinned to {drawn}: {len(rows)} of {whole} requests")
    if cut.max_requests is not None and len(rows) > cut.max_requests:
        notes.append(f"cut after the first {cut.max_requests} of {len(rows)} requests")
        rows = rows[: cut.max_requests]
    if not len(rows):
        span_s = ns_to_s(int(times.max()))
        raise InputError(f"{where}: nothing is left ({'; '.join(notes)}); the log lasts {span_s:g} s")
    return rows, notes


def _drawn(columns: Columns, after: Ints, cut: Cut) -> np.ndarray:
    """Whether each request's session is kept. Session i of the log has draw i, whatever else is cut."""
    roots, at = np.unique(session_roots(columns, after), return_inverse=True)
    kept = Stream("trace_keep_share", cut.seed, 0).uniforms(len(roots)) < cut.keep_share
    found: np.ndarray = kept[at]
    return found


def _times(columns: Columns, after: Ints) -> Ints:
    """Times of all requests; one without takes that of its predecessor, else that of the request before it."""
    times = columns.time_ns.copy()
    if np.any(times == NO_TIME):
        last = 0
        for row in range(len(times)):
            if times[row] == NO_TIME:
                times[row] = times[after[row]] if 0 <= after[row] < row else last
            last = int(times[row])
    return times
