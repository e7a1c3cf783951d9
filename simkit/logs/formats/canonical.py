"""The canonical parquet file of a log, as `simkit trace convert` writes it: every field of a request, read and written.

The same requests give the same bytes, however they came in parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simkit.errors import InputError
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.log import RowLog
from simkit.logs.read.record import (
    MAX_NS,
    MAX_TOKENS,
    NO_TIME,
    RAGGED,
    REQUIRED,
    STRINGS,
    UNKNOWN,
    Columns,
    Ragged,
    missing,
    offsets_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_A_GROUP = 1 << 16
META_KEY = b"simkit.trace"
SCHEMA_VERSION = 1

NEEDS = ("arrival_ns", "prompt_tokens", "output_tokens")
NAMES = tuple(({"time_ns": "arrival_ns"} | RAGGED).get(field.name, field.name) for field in fields(Columns))
"""The columns of the file: those of `record.Columns`, with `arrival_ns` from the first arrival on; null: unknown."""

NEEDED = tuple(name for name in NAMES if name != "gaps_ns")
"""Those that every file has: earlier versions of simkit wrote no gaps between tokens."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What a canonical file says of itself.

    `format` and `title` are those of the log it was made from, `start_ns` is its first arrival on that log's clock,
    `hash_block_tokens` what a block id stands for, `notes` all that was detected, decided and left out.
    """

    format: str
    title: str
    start_ns: int = 0
    hash_block_tokens: int | None = None
    notes: tuple[str, ...] = ()


def schema() -> pa.Schema:
    """The arrow schema."""
    import pyarrow as pa

    kinds = dict.fromkeys(STRINGS, pa.string())
    kinds |= {"block_ids": pa.list_(pa.uint64()), "gaps_ns": pa.list_(pa.int64())}
    return pa.schema([pa.field(name, kinds.get(name, pa.int64())) for name in NAMES])


class CanonicalWriter:
    """Writes requests in arrival order, whose `time_ns` count from the first of them. Close it with the meta data."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(path, schema(), compression="zstd")
        self._rows: list[Columns] = []
        self._num_rows = 0

    def add(self, columns: Columns) -> None:
        """Take the next requests."""
        self._rows.append(columns)
        self._num_rows += len(columns)
        if self._num_rows >= ROWS_A_GROUP:
            self._flush(last=False)

    def _flush(self, *, last: bool) -> None:
        waiting = Columns.concatenate(self._rows)
        first = 0
        while len(waiting) - first >= ROWS_A_GROUP or (last and first < len(waiting)):
            rows = np.arange(first, min(first + ROWS_A_GROUP, len(waiting)))
            self._writer.write_table(to_arrow(waiting.take(rows)), row_group_size=ROWS_A_GROUP)
            first += len(rows)
        self._rows = [waiting.take(np.arange(first, len(waiting)))]
        self._num_rows = len(waiting) - first

    def close(self, meta: Meta) -> None:
        """Write what is left and `meta`."""
        self._flush(last=True)
        content = {"version": SCHEMA_VERSION, **asdict(meta)}
        text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
        self._writer.add_key_value_metadata({META_KEY: text.encode()})
        self._writer.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._writer.close()


def to_arrow(columns: Columns) -> pa.Table:
    """A table of `schema()`. InputError for a text that no file can hold (half of a surrogate pair)."""
    import pyarrow as pa

    arrays = []
    for field, target in zip(fields(Columns), schema(), strict=True):
        column = getattr(columns, field.name)
        if column is None:
            arrays.append(pa.nulls(len(columns), target.type))
        elif field.name in STRINGS:
            arrays.append(_texts(field.name, column))
        elif field.name in RAGGED:
            empty = np.append(np.diff(column.offsets) == 0, False)
            offsets = pa.array(column.offsets.astype(np.int32), mask=empty)
            arrays.append(pa.ListArray.from_arrays(offsets, pa.array(column.values)))
        else:
            arrays.append(pa.array(column, mask=column == missing(field.name)))
    return pa.Table.from_arrays(arrays, schema=schema())


def _texts(name: str, column: tuple[str | None, ...]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(column, pa.string())
    except UnicodeEncodeError as error:
        raise InputError(f"a {name} of the log is no text that a file can hold: {error.object!r:.60}") from None


def meta_of(path: Path) -> Meta | None:
    """What a parquet file says of itself; None when simkit did not write it. InputError when it is damaged."""
    with _arrow(path):
        import pyarrow.parquet as pq

        found = (pq.read_metadata(path).metadata or {}).get(META_KEY)
    if found is None:
        return None
    try:
        content = json.loads(found)
        version = content.pop("version")
        if version != SCHEMA_VERSION:
            text = f"{path}: canonical file of version {version}, this simkit reads {SCHEMA_VERSION}"
            raise InputError(text, key="")
        meta = Meta(**content | {"notes": tuple(map(str, content["notes"]))})
        tokens = meta.hash_block_tokens
        if not (type(meta.start_ns) is int and abs(meta.start_ns) <= MAX_NS):
            raise ValueError("start_ns")
        if not (tokens is None or (type(tokens) is int and 1 <= tokens <= MAX_TOKENS)):
            raise ValueError("hash_block_tokens")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(f"{path}: what the file says of itself ({META_KEY.decode()}) cannot be read", key="") from None
    return meta


def read_parts(path: Path, log: RowLog) -> Iterator[Columns]:
    """The requests of a canonical file on the clock of the log it was made from; rows that make no sense go to `log`.

    `line` is that of the original log. InputError for columns of other types.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    start_ns = found.start_ns if (found := meta_of(path)) is not None else 0
    first = 0
    with _arrow(path), pq.ParquetFile(path) as file:
        names = set(file.schema_arrow.names)
        lost = next((name for name in NEEDED if name not in names), None)
        if lost is not None:
            raise InputError(f"{log.where}: format canonical needs column {lost!r}")
        there = [name for name in NAMES if name in names]
        for batch in file.iter_batches(ROWS_A_GROUP, columns=there):
            table = pa.Table.from_batches([batch]).select(there)
            for name in NAMES[len(there) :]:
                table = table.append_column(name, pa.nulls(len(table), schema().field(name).type))
            try:
                table = table.cast(schema())
            except pa.ArrowException as error:
                raise InputError(f"{log.where}: not the columns of a canonical file: {_line(error)}") from None
            log.num_rows += len(table)
            yield _checked(table, start_ns, first, log)
            first += len(table)
            log.line = first


@contextmanager
def _arrow(path: Path) -> Iterator[None]:
    """Turn what pyarrow and the file system raise into an InputError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise InputError(f"trace {path}: not a readable parquet file: {_line(error)}") from None
    except OSError as error:
        raise InputError(f"trace {path}: {error.strerror or _line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _checked(table: pa.Table, start_ns: int, first: int, log: RowLog) -> Columns:
    """The rows of a batch that make sense; `first` is how many came before it."""
    columns = _from_arrow(table)
    bad = np.zeros(len(columns), dtype=np.bool_)
    for field, name in zip(fields(Columns), NAMES, strict=True):
        column = getattr(columns, field.name)
        if column is None or field.name in STRINGS or field.name in RAGGED:
            continue
        most = MAX_NS if name.endswith("_ns") or name == "line" else MAX_TOKENS
        least = 0 if name in ("prompt_tokens", "output_tokens") else UNKNOWN
        known = (column != NO_TIME) | (least == 0)
        wrong = ~bad & known & ((column < least) | (column > most))
        for row in np.flatnonzero(wrong).tolist():
            log.add_bad(first + row + 1, f"{name} {int(column[row])}, expected 0 to {most}")
        bad |= wrong
    if columns.gaps is not None:
        odd = (columns.gaps.values < 0) | (columns.gaps.values > MAX_NS)
        wrong = ~bad & (np.diff(offsets_of(odd.astype(np.int64))[columns.gaps.offsets]) > 0)
        for row in np.flatnonzero(wrong).tolist():
            log.add_bad(first + row + 1, f"gaps_ns with a value that is not 0 to {MAX_NS}")
        bad |= wrong
    times = np.where(columns.time_ns == NO_TIME, NO_TIME, columns.time_ns + start_ns)
    changed = replace(columns, time_ns=times)
    return changed.take(np.flatnonzero(~bad)) if bad.any() else changed


def _from_arrow(table: pa.Table) -> Columns:
    found: dict[str, Any] = {}
    for field, name in zip(fields(Columns), NAMES, strict=True):
        column = table.column(name).combine_chunks()
        if column.null_count == len(column) and field.name not in REQUIRED:
            found[field.name] = None
        elif field.name in STRINGS:
            found[field.name] = tuple(column.to_pylist())
        elif field.name in RAGGED:
            offsets = offsets_of(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
            found[field.name] = Ragged(column.flatten().fill_null(0).to_numpy(zero_copy_only=False), offsets)
        else:
            found[field.name] = column.fill_null(missing(field.name)).to_numpy(zero_copy_only=False)
    return Columns(**found)


def matches(head: Head) -> str | None:
    """By all of its columns."""
    if head.kind != "parquet" or not set(NEEDED) <= set(head.columns):
        return None
    return f"parquet with {', '.join(NEEDS)} and all other canonical columns"


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order, which is that of arrival."""
    if source.head.kind != "parquet":
        raise InputError(f"{source.log.where}: format canonical is a parquet file, got {source.head.kind}")
    return read_parts(source.path, source.log)


FORMAT = Format("canonical", "simkit canonical parquet", matches, read, NEEDS)
