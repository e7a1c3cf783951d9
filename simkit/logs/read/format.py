"""What a log format is: how it is recognised and how its rows become requests.

A format is a module of `formats/` with one `FORMAT`, and one line in the table there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simkit import scenario
from simkit.logs.read.cells import Unit
from simkit.logs.read.json import JsonRow
from simkit.logs.read.log import RowLog
from simkit.logs.read.record import Columns
from simkit.logs.read.tables import CsvRows, ParquetRows

Kind = Literal["csv", "json", "parquet", "text"]


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, from which its format is recognised.

    `kind` is how it is built: `csv` (delimited, `columns` is the header), `json` (one object a line, an array, or one
    document; `objects` are the first of them), `parquet` (`columns` are the names of its schema) or `text` (neither).
    `text` is the first few kB. `hash_block_tokens` is what the file says that its block ids stand for.
    """

    kind: Kind
    columns: tuple[str, ...] = ()
    objects: tuple[JsonRow, ...] = ()
    text: str = ""
    hash_block_tokens: int | None = None

    @property
    def keys(self) -> frozenset[str]:
        """All column names, or all keys of the first objects."""
        return frozenset(self.columns).union(*self.objects)


@dataclass(frozen=True, slots=True)
class Source:
    """An open file as a format reads it: where it is at, and its rows.

    `rows` gives (line, object) of JSON, `table` is the rest of a CSV or parquet file. `spec` holds what the user
    decided (`time_unit`, `failed`, `map`); `log` takes what is left out. `path` is for formats that read the file in a
    way of their own; `format` is the one that is read.
    """

    head: Head
    rows: Iterator[tuple[int, JsonRow]]
    table: CsvRows | ParquetRows | None
    spec: scenario.Trace
    log: RowLog
    path: Path
    format: Format

    def unit(self, own: Unit) -> Unit:
        """The unit of numeric times: what the user says, else the format's own."""
        return own if self.spec.time_unit == "auto" else self.spec.time_unit


@dataclass(frozen=True, slots=True)
class Format:
    """One log format.

    `matches` says in words by what it was recognised, or None when it is not this format. `read` gives the requests in
    file order, some thousand at a time; InputError when a column that it needs is missing. `hash_block_tokens` is the
    size of the blocks that its hash ids stand for, None where there are none. `needs` names what a file must have.
    `advice`: this is no log that can be replayed, and the text says why and what to do instead; `read` is then None.
    `title_of` tells versions of a format apart, and gives the `title` of the one at hand.
    """

    name: str
    title: str
    matches: Callable[[Head], str | None]
    read: Callable[[Source], Iterator[Columns]] | None
    needs: tuple[str, ...] = ()
    hash_block_tokens: int | None = None
    advice: str | None = None
    title_of: Callable[[Head], str] | None = None


def having(kind: Literal["csv", "json"], *needed: str) -> Callable[[Head], str | None]:
    """A rule: a table that has all these columns, in any order, or JSON whose first objects have all these fields."""
    why = f"{'columns' if kind == 'csv' else 'fields'} {', '.join(needed)}"

    def matches(head: Head) -> str | None:
        return why if head.kind == kind and set(needed) <= head.keys else None

    return matches
