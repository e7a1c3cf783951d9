"""Trace files: opening, detection, windowing, and the table of formats.

A format is a module with `TITLE`, `matches(header)` and `read(header, rows, log)`, and one line in `READERS`. Imports
`errors`, `scenario` (schema), `types`, `units` and its own modules; knows nothing of random streams.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from simkit import scenario
from simkit.errors import InputError, nearest
from simkit.types import Ints
from simkit.units import NS_PER_S, ns_to_s, s_to_ns
from simkit.workload.files import open_text, reading, resolve
from simkit.workload.traces import azure
from simkit.workload.traces.rows import Columns, Row, RowLog


class Reader(NamedTuple):
    """One log format: how it is called, how it is recognised by its column names, how its rows are read."""

    title: str
    matches: Callable[[Sequence[str]], bool]
    read: Callable[[Sequence[str], Iterator[Row], RowLog], Columns]


READERS: dict[str, Reader] = {"azure": Reader(azure.TITLE, azure.matches, azure.read)}


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of a trace, in arrival order, int64 each; `arrival_ns` counts from the start of the window."""

    arrival_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrival_ns)


def read_trace(spec: scenario.Trace, base_dir: Path | None) -> Trace:
    """Read `spec.path` (relative to `base_dir`), sort it by time, cut the window and scale the gaps.

    Times count from the earliest request kept. The window is [start_s, end_s) of trace time and becomes time 0;
    `speed: 2` replays twice as fast: every gap is halved, lengths stay. InputError, one line, for anything unreadable.
    """
    path = resolve(spec.path, base_dir)
    # As the scenario writes it: notes end in the manifest, which must not depend on where the scenario lies.
    where = f"trace {spec.path}"
    log = RowLog(where)
    with reading(f"trace {path}"), open_text(path) as text:
        columns, name, last_line = _read_rows(text, spec.format, log)
    notes = log.finish(last_line)
    if not columns:
        raise InputError(f"{where}: no requests" + (f" ({'; '.join(notes)})" if log.num_rows else ""))
    time_ns = np.asarray(columns.time_ns, dtype=np.int64)
    prompt = np.asarray(columns.prompt_tokens, dtype=np.int64)
    output = np.asarray(columns.output_tokens, dtype=np.int64)
    if (note := _jumps_note(time_ns)) is not None:
        notes.append(f"{where}: {note}")
        order = np.argsort(time_ns, kind="stable")
        time_ns, prompt, output = time_ns[order], prompt[order], output[order]
    arrival = time_ns - time_ns[0]
    notes.insert(0, f"{where}: read as {READERS[name].title}, {_describe(arrival)}")
    window = _window(arrival, spec, where)
    if window != slice(0, len(arrival)):
        notes.append(f"{where}: requests {window.start + 1} to {window.stop} of {len(arrival)} are replayed")
    arrival = arrival[window] - s_to_ns(spec.start_s)
    if spec.speed != 1:
        arrival = np.rint(arrival / spec.speed).astype(np.int64)
        notes.append(f"{where}: gaps divided by {spec.speed:g}")
    return Trace(arrival, prompt[window], output[window], tuple(notes))


def _read_rows(text: IO[str], wanted: str, log: RowLog) -> tuple[Columns, str, int]:
    """(requests, name of the format, number of the last line) of an open file."""
    lines = csv.reader(text)
    header = next((cells for cells in lines if cells), None)
    if header is None:
        raise InputError(f"{log.where}: no requests")
    header = [cell.strip() for cell in header]
    name = _format(header, wanted, log.where)
    rows = (Row(lines.line_num, cells) for cells in lines if cells)
    columns = READERS[name].read(header, rows, log)
    return columns, name, lines.line_num


def _format(header: Sequence[str], wanted: str, where: str) -> str:
    if wanted != "auto":
        if wanted not in READERS:
            known = ("auto", *READERS)
            raise InputError(f"{where}: format {wanted!r} is not one of {', '.join(known)}{nearest(wanted, known)}")
        return wanted
    for name, reader in READERS.items():
        if reader.matches(header):
            return name
    shown = ",".join(header)
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    readable = ", ".join(reader.title for reader in READERS.values())
    raise InputError(f"{where}: format not recognised, header was {shown!r}; this version reads {readable}")


def _jumps_note(time_ns: Ints) -> str | None:
    """A note when times fall from one row to the next, None when the file is in order."""
    back_s = -np.diff(time_ns) / NS_PER_S
    back_s = back_s[back_s > 0]
    if not back_s.size:
        return None
    plural = "s are" if back_s.size > 1 else " is"
    note = (
        f"{back_s.size} row{plural} earlier than the row before (by up to {back_s.max():.6g} s): sorted by time, equal "
        "times keep the order of the file"
    )
    if np.any((back_s >= 3590) & (back_s <= 3600)):
        note += "; a fall by an hour looks like a clock change, so the times may not be what they say"
    return note


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


def _describe(arrival: Ints) -> str:
    span_s = ns_to_s(int(arrival[-1]))
    rate = f", {(len(arrival) - 1) / span_s:.4f} requests/s" if span_s > 0 else ""
    return f"{len(arrival)} request{'s' if len(arrival) > 1 else ''} over {span_s:.3f} s{rate}"
