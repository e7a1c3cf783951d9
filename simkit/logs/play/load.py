"""A whole log in arrival order, with what was found on the way; the last one read is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simkit import scenario
from simkit.logs.play.clock import CoarseClock, clock_of, straighten
from simkit.logs.play.sessions import place_untimed, predecessors, session_codes
from simkit.logs.read.blocks import checked_blocks
from simkit.logs.read.format import Format
from simkit.logs.read.log import RemarkKind, RowLog, counted
from simkit.logs.read.open import scanning
from simkit.logs.read.record import NO_TIME, Columns, Ragged
from simkit.logs.read.text import resolve, sha256_of
from simkit.logs.running_stats import too_fast
from simkit.types import Bools, Ints
from simkit.units import ns_to_s, s_to_ns

KEEP_ALL_ROWS = 1 << 20
"""Rows that are kept wherever they lie; beyond them, those that `end_s` leaves out for certain are not."""


MAX_REMEMBERED_BYTES = 1 << 28
MAX_REMEMBERED_NUMBERS = 1 << 25
"""Logs in larger files, or of more numbers (a row has some ten, and one for each block), are read every time."""

PLAYED_KEYS = frozenset(
    (
        "start_s", "warmup_s", "max_requests", "keep_share", "idle_gap_cap_s", "spread_ties", "speed", "rate_per_s",
        "repeat", "sessions", "too_long",
    )
)  # fmt: skip
"""Keys of a scenario's trace that say how a log is played: what is read does not depend on them."""


@dataclass(frozen=True, slots=True)
class Log:
    """The requests of a log in arrival order; `columns.time_ns` counts from the earliest of them.

    `after` is the row of the predecessor that a request follows (an earlier row), -1 for the first of a session and
    where there are no sessions. `session` numbers the sessions from 0, -1 for none; it is None where the log has none.
    Where `untimed`, the log gives no time: the request is placed its delay after its predecessor's time.
    `hash_block_tokens` is None where nothing is known of prompts; else only rows whose identities fit have any.
    `clock` tells of a coarse clock. `notes` tell all that was detected, decided and left out, first what the file was
    read as; `remarks` are the kinds of some of them.
    """

    columns: Columns
    after: Ints
    session: Ints | None
    untimed: Bools
    format: Format
    why: str
    hash_block_tokens: int | None
    clock: CoarseClock | None
    notes: tuple[str, ...]
    remarks: frozenset[RemarkKind]

    def __len__(self) -> int:
        return len(self.columns)


# A plan plays the same log for every trial, a comparison for every arm, a replay once more for its twin.
_last: tuple[tuple[object, ...], Log] | None = None


def load_log(spec: scenario.Trace, base_dir: Path | None = None) -> Log:
    """Read `spec.path` whole, or give the last log again when it is this file, unchanged, read in the same way.

    InputError, one line, for anything unreadable and for a log without requests. The arrays cannot be written to.
    """
    global _last  # one log of this process
    key = _key(spec, base_dir)
    if key is not None and _last is not None and _last[0] == key:
        return _last[1]
    _last = None
    with scanning(spec, base_dir) as scan:
        columns = Columns.concatenate(list(_within(scan.parts, spec, scan.log)))
        log = arrange(columns, spec, scan.log, scan.format, scan.why)
    arrays = _locked(log)
    # A file that changes while it is read is read again.
    if key is not None and key == _key(spec, base_dir) and sum(map(len, arrays)) <= MAX_REMEMBERED_NUMBERS:
        _last = key, log
    return log


def _key(spec: scenario.Trace, base_dir: Path | None) -> tuple[object, ...] | None:
    """What a log depends on: the content of its file and how it is read; None for what is not remembered.

    The content itself: times of change are too coarse to tell two writings in quick succession apart.
    """
    try:
        path = resolve(spec.path, base_dir)
        # A pipe can be read only once.
        if not path.is_file() or path.stat().st_size > MAX_REMEMBERED_BYTES:
            return None
        content = sha256_of(path)
    except (OSError, ValueError, RuntimeError):
        return None  # reading says what is wrong
    return None if content is None else (path.absolute(), content, spec.model_dump_json(exclude=set(PLAYED_KEYS)))


def _locked(log: Log) -> list[npt.NDArray[np.generic]]:
    """The arrays of a log, which may be given to several: no longer writeable."""
    columns = [getattr(log.columns, field.name) for field in fields(Columns)]
    values = [log.after, log.session, log.untimed, *columns]
    values += [part for ragged in values if isinstance(ragged, Ragged) for part in (ragged.values, ragged.offsets)]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    for array in arrays:
        array.flags.writeable = False
    return arrays


def arrange(columns: Columns, spec: scenario.Trace, log: RowLog, format: Format, why: str) -> Log:
    """A log from the requests of a file in its order. `log` knows what was left out, and takes what cannot be placed.

    InputError for a log without requests, and for what `spec` says is an error.
    """
    timed = np.flatnonzero(columns.time_ns != NO_TIME)
    remarks = frozenset(remark.kind for remark in log.remarks)
    naive = RemarkKind.NAIVE_TIMES in remarks
    times = columns.time_ns.copy()
    times[timed], order_notes = straighten(columns.time_ns[timed], spec, naive=naive)
    times, depth, before, placed = place_untimed(columns, times, log)
    notes = log.finish()
    rows = np.flatnonzero(placed)
    if not rows.size:
        raise log.nothing(notes if log.num_rows else ())
    # At equal times the file's order, but a request without a time is never before the one that it follows.
    rows = rows[np.lexsort((rows, depth[rows], times[rows]))]
    columns = columns.take(rows) if np.any(np.diff(rows) != 1) or len(rows) < len(columns) else columns
    time_ns, before = times[rows], _moved(before, rows)
    untimed = columns.time_ns == NO_TIME
    columns = replace(columns, time_ns=time_ns - time_ns[0])
    after, session_notes = predecessors(columns, before)
    columns, block_tokens, block_notes = checked_blocks(columns, spec, format.hash_block_tokens)
    clock = clock_of(columns.time_ns[~untimed])
    notes = [
        f"read as {format.title}, {_describe(columns.time_ns)}",
        *notes,
        *order_notes,
        *session_notes,
        *block_notes,
    ]
    notes += [clock.note()] if clock is not None else []
    notes += too_fast(len(columns), ns_to_s(int(columns.time_ns[-1])))
    session = session_codes(columns, after)
    return Log(columns, after, session, untimed, format, why, block_tokens, clock, tuple(notes), remarks)


def _within(parts: Iterator[Columns], spec: scenario.Trace, log: RowLog) -> Iterator[Columns]:
    """The parts that have rows. In a large file rows that lie beyond `end_s` whatever follows are not kept.

    The log begins at the earliest of its times, so what is `end_s` after any of them is outside.
    """
    held = num_dropped = 0
    earliest, all_timed = None, True
    for part in parts:
        if not len(part):
            continue
        all_timed = all_timed and not np.any(part.time_ns == NO_TIME)
        if all_timed and spec.end_s is not None:
            least = int(part.time_ns.min())
            earliest = least if earliest is None else min(earliest, least)
            if held >= KEEP_ALL_ROWS:
                inside = np.flatnonzero(part.time_ns - earliest < s_to_ns(spec.end_s))
                num_dropped += len(part) - len(inside)
                part = part.take(inside) if len(inside) < len(part) else part
        held += len(part)
        yield part
    if num_dropped:
        log.remark(f"{num_dropped} requests beyond end_s were not kept")


def _moved(before: Ints, rows: Ints) -> Ints:
    """Row numbers of the file as numbers of the chosen `rows`; -1 where a row is not among them."""
    at = np.full(len(before) + 1, -1, dtype=np.int64)
    at[rows] = np.arange(len(rows))
    return at[before[rows]]


def _describe(arrival: Ints) -> str:
    span_s = ns_to_s(int(arrival[-1]))
    rate = f", {(len(arrival) - 1) / span_s:.4f} requests/s" if span_s > 0 else ""
    return f"{counted(len(arrival), 'request')} over {span_s:.3f} s{rate}"
