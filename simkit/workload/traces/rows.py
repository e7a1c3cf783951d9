"""What a trace reader reports: the kept requests and, by line number, what it left out and why.

Imports `errors` only.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from simkit.errors import InputError

MAX_BAD_SHARE = 0.01
NUM_NAMED_LINES = 5


class Row(NamedTuple):
    """One line of a delimited file: its number in the file (1 = header) and its cells."""

    line: int
    cells: list[str]


@dataclass(slots=True)
class Columns:
    """Kept requests in file order, 8 bytes a value: ns since 1970 UTC, prompt tokens, output tokens (both >= 1)."""

    time_ns: array[int] = field(default_factory=lambda: array("q"))
    prompt_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))

    def add(self, time_ns: int, prompt_tokens: int, output_tokens: int) -> None:
        """Append one request."""
        self.time_ns.append(time_ns)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(slots=True)
class RowLog:
    """Rows that were not kept. *Bad* rows cannot be read; *skipped* rows can, and are no served request (0 tokens).

    Only the first few of each kind are kept with their line, so memory does not grow with the file.
    """

    where: str
    num_rows: int = 0
    num_bad: int = 0
    bad: list[str] = field(default_factory=list)
    skipped: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    _cut_line: int | None = None

    def add_bad(self, line: int, problem: str, *, short: bool = False) -> None:
        """Count a row that cannot be read. `short`: it has fewer cells than the header, as a cut last line has."""
        self.num_bad += 1
        if len(self.bad) < NUM_NAMED_LINES:
            self.bad.append(f"line {line}: {problem}")
        if short:
            self._cut_line = line

    def add_skipped(self, line: int, reason: str) -> None:
        """Count a readable row that is no served request."""
        count, lines = self.skipped.setdefault(reason, (0, []))
        if len(lines) < NUM_NAMED_LINES:
            lines.append(line)
        self.skipped[reason] = (count + 1, lines)

    def finish(self, last_line: int) -> list[str]:
        """Notes on everything left out. InputError when more than 1 % of the rows are bad.

        A last line with too few cells is what a copy in progress leaves: noted, not counted as bad.
        """
        notes = list(self.remarks)
        if self._cut_line is not None and self._cut_line == last_line:
            self.num_bad -= 1
            cut = f"line {last_line}: "
            self.bad = [problem for problem in self.bad if not problem.startswith(cut)]
            notes.append(f"{self.where}: the last line ({last_line}) is cut short and was left out")
        if self.num_bad > MAX_BAD_SHARE * self.num_rows:
            found = f"{self.num_bad} of {self.num_rows} rows cannot be read, more than 1 %"
            raise InputError(f"{self.where}: {found}: {'; '.join(self.bad)}")
        if self.num_bad:
            share = 100 * self.num_bad / self.num_rows
            notes.append(
                f"{self.where}: left out {self.num_bad} of {self.num_rows} rows ({share:.2g} %) that cannot be read: "
                f"{'; '.join(self.bad)}{'; ...' if self.num_bad > len(self.bad) else ''}"
            )
        for reason, (count, lines) in self.skipped.items():
            share = 100 * count / self.num_rows
            named = ", ".join(map(str, lines)) + (", ..." if count > len(lines) else "")
            notes.append(
                f"{self.where}: skipped {count} of {self.num_rows} rows ({share:.2g} %): {reason} "
                f"(line{'s' if count > 1 else ''} {named})"
            )
        return notes
