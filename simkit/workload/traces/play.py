"""What is played of a log, and how: the window, the gaps. Imports `errors`, `scenario` (schema), `units`, siblings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.types import Ints
from simkit.units import NS_PER_S, ns_to_s, s_to_ns
from simkit.workload.traces.load import Log, load_log


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as they are played, in arrival order; `arrival_ns` counts from the start of the window."""

    arrival_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrival_ns)


def read_trace(spec: scenario.Trace, base_dir: Path | None) -> Trace:
    """Read `spec.path`, cut the window [start_s, end_s), which becomes time 0, and scale the gaps.

    `speed: 2` replays twice as fast: every gap is halved, lengths stay. InputError, one line, for anything unreadable.
    """
    return play(load_log(spec, base_dir), spec)


def play(log: Log, spec: scenario.Trace) -> Trace:
    """What `spec` plays of a log."""
    where = f"trace {spec.path}"
    notes = list(log.notes)
    arrival = log.columns.time_ns
    window = _window(arrival, spec, where)
    if window != slice(0, len(arrival)):
        notes.append(f"{where}: requests {window.start + 1} to {window.stop} of {len(arrival)} are replayed")
    arrival = arrival[window] - s_to_ns(spec.start_s)
    if spec.speed != 1:
        arrival = np.rint(arrival / spec.speed).astype(np.int64)
        notes.append(f"{where}: gaps divided by {spec.speed:g}")
    return Trace(arrival, log.columns.prompt_tokens[window], log.columns.output_tokens[window], tuple(notes))


def _window(arrival: Ints, spec: scenario.Trace, where: str) -> slice:
    """The rows of [start_s, end_s), at most `max_requests` of them."""
    start_ns = s_to_ns(spec.start_s)
    first = int(np.searchsorted(arrival, start_ns, side="left"))
    last = len(arrival) if spec.end_s is None else int(np.searchsorted(arrival, s_to_ns(spec.end_s), side="left"))
    if spec.max_requests is not None:
        last = min(last, first + spec.max_requests)
    if last <= first:
        end = "the end" if spec.end_s is None else f"{spec.end_s:g} s"
        span_s = ns_to_s(int(arrival[-1]))
        raise InputError(f"{where}: no requests from {start_ns / NS_PER_S:g} s to {end}; the trace lasts {span_s:g} s")
    return slice(first, last)
