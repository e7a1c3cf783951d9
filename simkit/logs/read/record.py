"""One request of a log, and columns of many: what every reader gives and everything after it takes.

Owns how "the log does not say" is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from simkit.types import Ints

UNKNOWN = -1
"""In a column of values that are never negative: the log does not say."""

NO_TIME = -(2**63)
"""In `time_ns`: the log gives no time, the request follows its predecessor."""

EPOCH_NS = 10**17
"""Later times count from 1970, earlier ones from an origin of their own."""

MAX_TOKENS = 2**31 - 1
"""Of a prompt and of an output."""

MAX_NS = 2**62
"""Later times are refused: sums of two still fit 64 bits."""

Number = TypeVar("Number", bound=np.generic)
Strings = tuple[str | None, ...]


class Record(NamedTuple):
    """One request as its log has it; None: the log does not say.

    `line` is the line in the file (1 = the first), or the number of the row or element where there are no lines.
    `time_ns` is the arrival on the log's own clock; None: when its predecessor has ended and `delay_ns` are over. The
    predecessor is the request whose `id` is `parent`, else the one before it in the same `session`. `delay_ns` is think
    or tool time. `block_ids` are identities of consecutive prompt blocks, unsigned 64 bits. `failed` says why it was
    not served. `ttft_ns` and `e2e_ns` are what the log measured, from arrival, and `gaps_ns` the times between the
    tokens behind the first; `cached_tokens` is what its cache held.
    """

    line: int
    time_ns: int | None
    prompt_tokens: int
    output_tokens: int
    id: str | None = None
    session: str | None = None
    turn: int | None = None
    parent: str | None = None
    delay_ns: int | None = None
    block_ids: Sequence[int] | None = None
    model: str | None = None
    failed: str | None = None
    ttft_ns: int | None = None
    e2e_ns: int | None = None
    cached_tokens: int | None = None
    gaps_ns: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Ragged(Generic[Number]):
    """A column with any number of values a row: row i has ``values[offsets[i]:offsets[i + 1]]``, none: not known."""

    values: npt.NDArray[Number]
    offsets: Ints

    def of(self, row: int) -> npt.NDArray[Number]:
        """Those of one row."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: Ints) -> Ragged[Number]:
        """Those of some rows, in the order given."""
        counts = np.diff(self.offsets)[rows]
        offsets = offsets_of(counts)
        at = np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        return Ragged(self.values[at], offsets)


Blocks = Ragged[np.uint64]
"""Prompt block identities."""

Gaps = Ragged[np.int64]
"""Times between tokens in ns."""


def offsets_of(counts: Ints | Sequence[int]) -> Ints:
    """Where the values of each row of a ragged column begin, and where the last end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Columns:
    """Requests as columns of equal length. An optional column is None where no row has a value.

    Ints are int64 with UNKNOWN (`time_ns`: NO_TIME) where a row has none; strings are tuples with None.
    """

    line: Ints
    time_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    id: Strings | None = None
    session: Strings | None = None
    turn: Ints | None = None
    parent: Strings | None = None
    delay_ns: Ints | None = None
    blocks: Blocks | None = None
    model: Strings | None = None
    failed: Strings | None = None
    ttft_ns: Ints | None = None
    e2e_ns: Ints | None = None
    cached_tokens: Ints | None = None
    gaps: Gaps | None = None

    def __len__(self) -> int:
        return len(self.line)

    def take(self, rows: Ints) -> Columns:
        """Some rows, in the order given."""
        return Columns(**{field.name: _take(getattr(self, field.name), rows) for field in fields(self)})

    @classmethod
    def of(cls, records: Sequence[Record]) -> Columns:
        """The columns of some records."""
        by_name = dict(zip(Record._fields, zip(*records, strict=True), strict=True)) if records else {}
        columns: dict[str, Any] = {}
        for field in fields(cls):
            values = by_name.get(RAGGED.get(field.name, field.name), ())
            is_known = field.name in REQUIRED or any(value is not None for value in values)
            columns[field.name] = _column(field.name, values) if is_known else None
        return cls(**columns)

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """The rows of all parts, one after the other."""
        if not parts:
            return cls.of(())
        if len(parts) == 1:
            return parts[0]
        return cls(**{field.name: _join(field.name, parts) for field in fields(cls)})


REQUIRED = ("line", "time_ns", "prompt_tokens", "output_tokens")
STRINGS = ("id", "session", "parent", "model", "failed")
RAGGED = {"blocks": "block_ids", "gaps": "gaps_ns"}
"""Columns with lists in their rows, and what the field of a record is called."""


def known(column: Ints | None, rows: Ints) -> Ints:
    """Some rows of an optional column of numbers."""
    return np.full(len(rows), UNKNOWN, dtype=np.int64) if column is None else column[rows]


def missing(name: str) -> int:
    """How a column of numbers writes that the log does not say."""
    return NO_TIME if name == "time_ns" else UNKNOWN


def _column(name: str, values: Sequence[Any]) -> Any:
    """A column from the values of its rows, None where there is none."""
    if name in STRINGS:
        return tuple(values)
    if name in RAGGED:
        flat = [number for value in values if value is not None for number in value]
        kind = np.uint64 if name == "blocks" else np.int64
        return Ragged(np.array(flat, dtype=kind), offsets_of([len(value or ()) for value in values]))
    return np.array([missing(name) if value is None else value for value in values], dtype=np.int64)


def _take(column: Any, rows: Ints) -> Any:
    if column is None:
        return None
    if isinstance(column, tuple):
        return tuple(column[row] for row in rows.tolist())
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def _join(name: str, parts: Sequence[Columns]) -> Any:
    columns = [getattr(part, name) for part in parts]
    if all(column is None for column in columns):
        return None
    filled = [
        _column(name, (None,) * len(part)) if column is None else column
        for part, column in zip(parts, columns, strict=True)
    ]
    if name in STRINGS:
        return tuple(value for column in filled for value in column)
    if name in RAGGED:
        counts = np.concatenate([np.diff(column.offsets) for column in filled])
        return Ragged(np.concatenate([column.values for column in filled]), offsets_of(counts))
    return np.concatenate(filled)
