"""What a reader left out and why, by line number: nothing is dropped, clipped or guessed in silence."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from simkit.errors import InputError

MAX_BAD_SHARE = 0.01
NUM_NAMED_LINES = 5
MAX_REASONS = 20
"""Reasons come from files and could be a new one on every row; those after so many are counted together."""


def listed(names: Iterable[str]) -> str:
    """Names from a file for a message: one line, and no longer than a reader can take in."""
    shown = ",".join(itertools.islice(names, 100))
    shown = "".join(character if character.isprintable() else "?" for character in shown)
    return shown if len(shown) <= 120 else shown[:117] + "..."


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60
_SHORT.maxlevel = 2


def shown(value: object) -> str:
    """A value as messages show it: on one line, at most 60 characters, at no cost that grows with the value."""
    text = _SHORT.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def counted(count: int, noun: str) -> str:
    """A number of things for a message: "1 request", "3 requests"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def numbers(lines: Sequence[int], count: int | None = None) -> str:
    """Line numbers for a message, the first few of `count`: "lines 1, 2, 3, 4, 5, ..."."""
    count = len(lines) if count is None else count
    named = ", ".join(map(str, lines[:NUM_NAMED_LINES])) + (", ..." if count > NUM_NAMED_LINES else "")
    return f"line{'s' if count > 1 else ''} {named}"


class BadCell(ValueError):
    """A value that cannot be read: `text` names the column, shows the value and says what was expected."""

    def __init__(self, column: str, value: object, expected: str) -> None:
        super().__init__(f"{column} {shown(value)}, expected {expected}")


class RemarkKind(Enum):
    """What a remark is about, for those who decide by it."""

    OTHER = "other"
    NAIVE_TIMES = "times name no zone"
    FROM_QUEUE = "latencies count from the engine's queue"


class Remark(NamedTuple):
    """Something that was detected or decided while a log was read."""

    text: str
    kind: RemarkKind = RemarkKind.OTHER


NAIVE = Remark("times name no zone and are read as UTC", RemarkKind.NAIVE_TIMES)


class BadRow(NamedTuple):
    """A row that cannot be read."""

    line: int
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


@dataclass(slots=True)
class RowLog:
    """Rows that were not kept. *Bad* rows cannot be read; *skipped* rows can, and are no served request.

    Only the first few of each kind are kept with their line, so memory does not grow with the file. `remarks` are what
    was detected or decided beside. `line` is where reading is at, for errors that have no row. `num_prefills`
    counts requests that were not served and are kept for their prompt alone. `where` names the log in messages.
    """

    where: str
    allow_bad: bool = False
    num_rows: int = 0
    num_bad: int = 0
    line: int = 0
    num_prefills: int = 0
    bad: list[BadRow] = field(default_factory=list)
    skipped: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    _cut_line: int | None = None

    def remark(self, text: str, kind: RemarkKind = RemarkKind.OTHER) -> None:
        """Note something that was detected or decided; the same is noted once."""
        self.add_remark(Remark(text, kind))

    def add_remark(self, remark: Remark) -> None:
        """The same, of a remark that is made already."""
        if remark not in self.remarks:
            self.remarks.append(remark)

    def add_bad(self, line: int, problem: str, *, cut: bool = False) -> None:
        """Count a row that cannot be read. `cut`: it looks like a last line that was cut short."""
        self.num_bad += 1
        if len(self.bad) < NUM_NAMED_LINES:
            self.bad.append(BadRow(line, problem))
        if cut:
            self._cut_line = line

    def add_skipped(self, reason: str, *lines: int) -> None:
        """Count readable rows that are no served requests, all for the same reason."""
        reason = listed([reason])
        if reason not in self.skipped and len(self.skipped) >= MAX_REASONS:
            reason = "for other reasons"
        known, named = self.skipped.setdefault(reason, (0, []))
        named.extend(lines[: NUM_NAMED_LINES - len(named)])
        self.skipped[reason] = (known + len(lines), named)

    def finish(self) -> list[str]:
        """Notes on everything left out. InputError when more than 1 % of the rows are bad, unless that is allowed.

        A last line that cannot be read because it is too short is what a copy in progress leaves: noted, not bad.
        """
        notes = [remark.text for remark in self.remarks]
        num_bad, bad = self.num_bad, self.bad
        if self._cut_line is not None and self._cut_line == self.line:
            num_bad -= 1
            bad = [row for row in bad if row.line != self.line]
            notes.append(f"the last line ({self.line}) is cut short and was left out")
        problems = "; ".join(map(str, bad))
        if num_bad > MAX_BAD_SHARE * self.num_rows and not self.allow_bad:
            found = f"{num_bad} of {self.num_rows} rows cannot be read, more than 1 %"
            hint = "--allow-bad, or allow_bad of a trace, reads the rest"
            raise InputError(f"{self.where}: {found} ({hint}): {problems}")
        if num_bad:
            more = "; ..." if num_bad > len(bad) else ""
            notes.append(f"left out {self._share(num_bad)} that cannot be read: {problems}{more}")
        if self.skipped:
            num_skipped = sum(count for count, _ in self.skipped.values())
            reasons = [f"{count} {reason} ({numbers(lines, count)})" for reason, (count, lines) in self.skipped.items()]
            notes.append(f"skipped {self._share(num_skipped)}: {'; '.join(reasons)}")
        if self.num_prefills:
            kept = self._share(self.num_prefills)
            notes.append(f"kept {kept} that were not served for their prompt alone, with 0 output tokens")
        return notes

    def nothing(self, notes: Sequence[str]) -> InputError:
        """That a log has no requests, and the notes that say why."""
        why = "; ".join(f"{self.where}: {note}" for note in notes)
        return InputError(f"{self.where}: no requests" + (f" ({why})" if why else ""))

    def _share(self, count: int) -> str:
        share = 100 * count / max(self.num_rows, 1)
        return f"{count} of {self.num_rows} rows ({share:.{2 if share < 10 else 3}g} %)"
