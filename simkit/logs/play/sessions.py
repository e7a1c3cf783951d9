"""Who follows whom: sessions by parent, turn or order, and times for requests that have none of their own."""

from __future__ import annotations

import numpy as np

from simkit.logs.read.log import RowLog, counted, numbers
from simkit.logs.read.record import MAX_NS, NO_TIME, UNKNOWN, Columns
from simkit.types import Bools, Ints


def place_untimed(columns: Columns, time_ns: Ints, log: RowLog) -> tuple[Ints, Ints, Ints, Bools]:
    """Times for rows without one: their predecessor's time and their delay. Columns are in the order of the file.

    (times; how many rows without a time are between a row and one with a time; the predecessor of a row without a
    time, -1 for others; rows that could be placed). What has no predecessor with a time is logged as bad.
    """
    untimed = np.flatnonzero(columns.time_ns == NO_TIME).tolist()
    before = np.full(len(columns), -1, dtype=np.int64)
    depth = np.zeros(len(columns), dtype=np.int64)
    placed = np.ones(len(columns), dtype=np.bool_)
    if not untimed:
        return time_ns, depth, before, placed
    parents = _parents_in_file(columns, untimed)
    previous = _previous_in_session(columns, untimed)
    for row in untimed:
        before[row] = parents.get(row, previous.get(row, -1))
    times, depths = time_ns.tolist(), depth.tolist()
    delays = columns.delay_ns.tolist() if columns.delay_ns is not None else [UNKNOWN] * len(columns)
    waiting, befores = set(untimed), before.tolist()
    for first in untimed:
        chain = []
        row = first
        while row in waiting:
            waiting.discard(row)
            chain.append(row)
            row = befores[row]
        for row in reversed(chain):
            known = befores[row]
            # A predecessor still without a time is on this very chain (a circle) or could not be placed.
            found = times[known] + max(delays[row], 0) if known >= 0 and times[known] != NO_TIME else NO_TIME
            if found == NO_TIME or found > MAX_NS:
                placed[row] = False
                what = "expected a time or a predecessor that has one" if found == NO_TIME else "more than 146 years"
                log.add_bad(int(columns.line[row]), f"time null, {what}")
                continue
            times[row], depths[row] = found, depths[known] + 1
    return np.array(times, dtype=np.int64), np.array(depths, dtype=np.int64), before, placed


def _parents_in_file(columns: Columns, untimed: list[int]) -> dict[int, int]:
    """The parent of rows without a time: the last of that id before it in the file, else the first behind it."""
    if columns.parent is None or columns.id is None:
        return {}
    wanted = set(untimed)
    first: dict[str, int] = {}
    for row, name in enumerate(columns.id):
        if name is not None:
            first.setdefault(name, row)
    seen: dict[str, int] = {}
    found: dict[int, int] = {}
    for row, (name, parent) in enumerate(zip(columns.id, columns.parent, strict=True)):
        if row in wanted and parent is not None:
            at = seen.get(parent, first.get(parent, row))
            if at != row:
                found[row] = at
        if name is not None:
            seen[name] = row
    return found


def _previous_in_session(columns: Columns, untimed: list[int]) -> dict[int, int]:
    """The row before in the session, by turn where all of its rows have one, else as the file has them."""
    if columns.session is None:
        return {}
    wanted = {columns.session[row] for row in untimed} - {None}
    members: dict[str, list[int]] = {}
    for row, name in enumerate(columns.session):
        if name is not None and name in wanted:
            members.setdefault(name, []).append(row)
    turns = columns.turn.tolist() if columns.turn is not None else [UNKNOWN] * len(columns)
    found: dict[int, int] = {}
    for rows in members.values():
        if all(turns[row] != UNKNOWN for row in rows):
            rows.sort(key=turns.__getitem__)
        found.update(zip(rows[1:], rows[:-1], strict=True))
    return found


def predecessors(columns: Columns, before: Ints) -> tuple[Ints, list[str]]:
    """(the row that each row follows, -1 for none; notes). Columns are in order of arrival.

    `before` is what is already known, for rows without a time. By `parent` where the log names parents: the latest
    earlier row of that id; a parent that is missing, later or the row itself makes it a root. Else by session: by turn
    where all rows of the session have one, else by arrival. A predecessor is always an earlier row.
    """
    if columns.parent is not None and columns.id is not None:
        after, notes = _by_parent(columns)
    elif columns.session is not None:
        after, notes = _by_session(columns)
    else:
        return before.copy(), []
    after = np.where(before >= 0, before, after)
    late = after >= np.arange(len(columns))
    return np.where(late, -1, after), notes


def _by_parent(columns: Columns) -> tuple[Ints, list[str]]:
    assert columns.parent is not None
    assert columns.id is not None
    after = np.full(len(columns), -1, dtype=np.int64)
    seen: dict[str, int] = {}
    lost: list[int] = []
    for row, (name, parent) in enumerate(zip(columns.id, columns.parent, strict=True)):
        if parent is not None:
            after[row] = seen.get(parent, -1)
            if after[row] < 0:
                lost.append(row)
        if name is not None:
            seen[name] = row
    if not lost:
        return after, []
    own = sum(columns.parent[row] == columns.id[row] for row in lost)
    later = sum(columns.parent[row] in seen for row in lost) - own
    reasons = {"not in the log": len(lost) - later - own, "later": later, "the request itself": own}
    why = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
    lines = numbers(columns.line[lost].tolist())
    return after, [
        f"{counted(len(lost), 'request')} whose parent is no earlier request ({why}) start a session ({lines})"
    ]


def _by_session(columns: Columns) -> tuple[Ints, list[str]]:
    codes = _codes(columns)
    assert codes is not None
    num = len(columns)
    key = np.zeros(num, dtype=np.int64)
    if columns.turn is not None:
        named = codes >= 0
        without = np.unique(codes[named & (columns.turn == UNKNOWN)])
        key = np.where(np.isin(codes, without), 0, columns.turn)
    order = np.lexsort((np.arange(num), key, codes))
    same = (codes[order][1:] == codes[order][:-1]) & (codes[order][1:] >= 0)
    after = np.full(num, -1, dtype=np.int64)
    after[order[1:][same]] = order[:-1][same]
    late = int(np.count_nonzero(after > np.arange(num)))
    if not late:
        return after, []
    many = "s come" if late > 1 else " comes"
    return after, [f"{late} request{many} before the turn that precedes it in the session, and start a session"]


def session_codes(columns: Columns, after: Ints) -> Ints | None:
    """A number for each session, from 0 by first appearance, -1 for none; None where the log has no sessions.

    Where only parents are known, a session is what follows from one root.
    """
    codes = _codes(columns)
    if codes is not None:
        return codes
    if columns.parent is None and not np.any(after >= 0):
        return None
    found: list[int] = []
    count = 0
    for previous in after.tolist():
        found.append(count if previous < 0 else found[previous])
        count += previous < 0
    return np.array(found, dtype=np.int64)


def _codes(columns: Columns) -> Ints | None:
    if columns.session is None:
        return None
    known: dict[str, int] = {}
    values = [-1 if name is None else known.setdefault(name, len(known)) for name in columns.session]
    return np.array(values, dtype=np.int64)
