"""A whole log in arrival order, with what was found on the way. Imports `errors`, `scenario` (schema), siblings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simkit import scenario
from simkit.errors import InputError
from simkit.types import Ints
from simkit.units import NS_PER_S, ns_to_s
from simkit.workload.traces.format import Format
from simkit.workload.traces.record import Columns
from simkit.workload.traces.scan import scanning


@dataclass(frozen=True, slots=True)
class Log:
    """The requests of a log in arrival order; `columns.time_ns` counts from the earliest of them.

    `after` is the row of the predecessor that a request waits for, -1 for the first of a session and where there are no
    sessions. A request without a time of its own comes right behind its predecessor. `hash_block_tokens` is None where
    the log has no prompt block identities. `notes` tell all that was detected, decided and left out, first what the
    file was read as.
    """

    columns: Columns
    after: Ints
    format: Format
    why: str
    hash_block_tokens: int | None
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.columns)


def load_log(spec: scenario.Trace, base_dir: Path | None = None) -> Log:
    """Read `spec.path` whole. InputError, one line, for anything unreadable and for a log without requests."""
    with scanning(spec, base_dir) as scan:
        columns = Columns.concatenate([part for part in scan.parts if len(part)])
        notes = scan.notes()
    where = scan.log.where
    if not len(columns):
        raise InputError(f"{where}: no requests" + (f" ({'; '.join(notes)})" if scan.log.num_rows else ""))
    if (note := _jumps_note(columns.time_ns)) is not None:
        notes.append(f"{where}: {note}")
        columns = columns.take(np.argsort(columns.time_ns, kind="stable"))
    columns = replace(columns, time_ns=columns.time_ns - columns.time_ns[0])
    notes.insert(0, f"{where}: read as {scan.format.title}, {_describe(columns.time_ns)}")
    after = np.full(len(columns), -1, dtype=np.int64)
    block_tokens = scan.format.hash_block_tokens if columns.blocks is not None else None
    return Log(columns, after, scan.format, scan.why, block_tokens, tuple(notes))


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


def _describe(arrival: Ints) -> str:
    span_s = ns_to_s(int(arrival[-1]))
    rate = f", {(len(arrival) - 1) / span_s:.4f} requests/s" if span_s > 0 else ""
    return f"{len(arrival)} request{'s' if len(arrival) > 1 else ''} over {span_s:.3f} s{rate}"
