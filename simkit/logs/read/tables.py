"""Rows of a table, some thousand at a time: of a delimited text, with the line of every row, and of a parquet file.

Memory does not grow with the file, whatever is in it. Knows no format.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from simkit.logs.read.text import BOMB_BYTES, BOMB_RATIO, MAX_LINE_BYTES, MAX_LINE_MIB, Refusal
from simkit.types import Ints

# --- delimited text ---------------------------------------------------------------------------------------------------
DELIMITERS = (",", ";", "\t")
MAX_COLUMNS = 50_000
MAX_PREAMBLE_LINES = 10_000
BLOCK_CHARACTERS = 2**18
"""Lines are taken in blocks of about so many characters: some thousand usual ones, one that is longer."""

_PREAMBLE = re.compile(r"---\s*|sep=.\s*|\s*(- )?[\w.-]+:(\s.*)?|\s*- .*", re.DOTALL)
_MAX_WORDS = 5


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows that follow each other, and the line on which each begins; there is at least one.

    `swallowed` is None, or how many lines the last row spans because a quote in it is never closed. `is_open`: the
    file ends behind the last row without a newline, as where a copy was cut short.
    """

    lines: Ints
    rows: list[list[str]]
    swallowed: int | None = None
    is_open: bool = False


class CsvRows:
    """The rows after the header, taken once; `header` has the names without blanks around them.

    `looks_like_one`: the first line can be a header, or a row of values, rather than running text. Lines before the
    header that begin with `#`, a block of YAML and what Excel puts there (`sep=;`) are not part of the table.
    """

    def __init__(self, text: IO[str]) -> None:
        self._text = text
        self._line = 0
        first = self._after_preamble()
        self.delimiter = sniff(first)
        rows = self._quoted([first] if first else [])
        self.header = tuple(cell.strip() for cell in rows.rows[0]) if rows is not None else ()
        self.looks_like_one = bool(self.header) and _is_tabular(first, self.delimiter, self.header)

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks; blank lines are left out."""
        while lines := self._text.readlines(BLOCK_CHARACTERS):
            joined = "".join(lines)
            if joined.isspace() and joined.strip("\r\n") == "":
                self._line += len(lines)
                continue
            block = self._quoted(lines) if '"' in joined else self._plain(lines)
            if block is not None:
                yield block

    def _plain(self, lines: list[str]) -> Block | None:
        """Without quotes every line is a row."""
        if max(map(len, lines)) > MAX_COLUMNS:
            for number, line in enumerate(lines, start=self._line + 1):
                _check_columns(line.count(self.delimiter), number)
        with _wide_fields():
            rows = list(csv.reader(lines, delimiter=self.delimiter))
        numbers = np.arange(self._line + 1, self._line + 1 + len(lines))
        self._line += len(lines)
        if [] in rows:
            kept = [at for at, cells in enumerate(rows) if cells]
            rows, numbers = [rows[at] for at in kept], numbers[kept]
        return Block(numbers, rows, is_open=not lines[-1].endswith(("\n", "\r"))) if rows else None

    def _quoted(self, lines: list[str]) -> Block | None:
        """Row by row; one that begins in the last of the lines goes on in those after them."""
        feed = _Feed(lines, self._text, self.delimiter, self._line)
        reader = csv.reader(feed, delimiter=self.delimiter)
        rows, numbers = [], []
        start = self._line
        with _wide_fields():
            while feed.has_lines:
                start = feed.begin_row()
                cells = next(reader)
                if cells:
                    rows.append(cells)
                    numbers.append(start)
        self._line = feed.line
        if not rows:
            return None
        swallowed = feed.line - start + 1 if feed.ended_inside else None
        return Block(np.array(numbers), rows, swallowed, not feed.last.endswith(("\n", "\r")))

    def _after_preamble(self) -> str:
        """The first line of the table, or "" where there is none."""
        while self._line < MAX_PREAMBLE_LINES and (line := self._text.readline()):
            if line.strip() and not line.startswith("#") and not _PREAMBLE.fullmatch(line):
                return line
            self._line += 1
        return ""


class _Feed:
    """Lines for a csv reader, which takes them one by one; knows where a row begins and bounds how far it goes."""

    def __init__(self, lines: list[str], text: IO[str], delimiter: str, line: int) -> None:
        self._lines = lines
        self._at = 0
        self._text = text
        self._delimiter = delimiter
        self.line = line
        self.last = ""
        self.ended_inside = False
        self._row_line = line
        self._row_size = 0
        self._row_columns = 0

    @property
    def has_lines(self) -> bool:
        return self._at < len(self._lines)

    def begin_row(self) -> int:
        """Called before each row; gives the number of its first line."""
        self._row_line, self._row_size, self._row_columns = self.line + 1, 0, 0
        return self._row_line

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        if self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
        else:
            line = self._text.readline()
            if not line:
                self.ended_inside = True
                raise StopIteration
        inside = self._row_size > 0
        self.line += 1
        self.last = line
        self._row_size += len(line)
        if self._row_size > MAX_LINE_BYTES:
            raise Refusal(f"line {self._row_line}: a row longer than {MAX_LINE_MIB} MiB (a quote that is not closed?)")
        if inside or len(line) > MAX_COLUMNS:
            # Between quotes a delimiter is text; a row's later lines begin between quotes.
            self._row_columns += sum(part.count(self._delimiter) for part in line.split('"')[inside::2])
            _check_columns(self._row_columns, self._row_line)
        return line


def sniff(header: str) -> str:
    """The delimiter that is there most often outside quotes; a comma when none is."""
    unquoted = "".join(header.split('"')[::2])
    return max(DELIMITERS, key=unquoted.count)


def _is_tabular(line: str, delimiter: str, header: tuple[str, ...]) -> bool:
    """Names or values between delimiters, rather than running text or something that is no text."""
    if delimiter not in line and " " in line.strip():
        return False
    return line.strip().replace("\t", "").isprintable() and all(len(cell.split()) <= _MAX_WORDS for cell in header)


def _check_columns(num_delimiters: int, line: int) -> None:
    if num_delimiters >= MAX_COLUMNS:
        raise Refusal(f"line {line}: more than {MAX_COLUMNS} columns")


@contextmanager
def _wide_fields() -> Iterator[None]:
    """The csv module's own limit of 131,072 characters a cell lifted: prompts and metadata can be longer."""
    before = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        yield
    finally:
        csv.field_size_limit(before)


# --- parquet ----------------------------------------------------------------------------------------------------------
PARQUET_MAGIC = b"PAR1"
BATCH_ROWS = 8192


@contextmanager
def open_parquet(path: Path) -> Iterator[ParquetRows]:
    """The rows of a file. Refusal when it is no complete parquet file."""
    import pyarrow.parquet

    with path.open("rb") as raw:
        with _refused():
            texts = _texts(pyarrow.parquet.read_metadata(raw))
            file = pyarrow.parquet.ParquetFile(raw, read_dictionary=texts)
            columns = tuple(file.schema_arrow.names)
            _check_size(file.metadata, path.stat().st_size)
        with file:
            yield ParquetRows(file, columns)


def _texts(metadata: Any) -> list[str]:
    """The columns of texts, which stay codes into a dictionary: one long text in every row is held once."""
    columns = [metadata.schema.column(at) for at in range(metadata.num_columns)]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY" and "." not in column.path]


def _check_size(metadata: Any, num_bytes: int) -> None:
    """Refuse what is far larger than its file; a value counts for at least a byte, since equal ones pack to nothing."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    unpacked = max(metadata.num_rows, sum(group.total_byte_size for group in groups))
    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * num_bytes:
        raise Refusal(f"unpacks to more than {BOMB_RATIO} times its size: not a log")


class ParquetRows:
    """The rows as record batches, taken once; `names` are those of the columns."""

    def __init__(self, file: Any, names: tuple[str, ...]) -> None:
        self.names = names
        self._file = file

    def batches(self, columns: list[str] | None = None) -> Iterator[Any]:
        """Record batches of up to BATCH_ROWS rows, of all columns or of some."""
        with _refused():
            batches = iter(self._file.iter_batches(BATCH_ROWS, columns=columns))
        while True:
            with _refused():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def plain_values(column: Any) -> list[Any]:
    """A column of a batch as Python values; timestamps, of any unit and zone, as int ns since 1970 UTC."""
    import pyarrow

    with _refused():
        if pyarrow.types.is_timestamp(column.type):
            column = column.cast(pyarrow.timestamp("ns", column.type.tz)).cast(pyarrow.int64())
        if not pyarrow.types.is_dictionary(column.type):
            values: list[Any] = column.to_pylist()
            return values
        codes = column.indices.fill_null(-1).to_numpy()
        known, at = np.unique(codes, return_inverse=True)
        texts = column.dictionary.take(pyarrow.array(known, mask=known < 0)).to_pylist()
    return [texts[place] for place in at.tolist()]


@contextmanager
def _refused() -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeError, OverflowError) as error:
        reason = (str(error).splitlines() or ["broken"])[0]
        raise Refusal(f"not readable as parquet: {reason[:200]}") from error
