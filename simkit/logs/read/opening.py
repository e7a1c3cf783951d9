"""From a file to its beginning and its rows: what kind it is by content, never by suffix.

Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from simkit.errors import InputError
from simkit.logs.canonical import meta_of
from simkit.logs.files import check_regular, open_text, reading
from simkit.logs.read.csv_rows import CsvRows
from simkit.logs.read.format import Head
from simkit.logs.read.json_rows import begins_json, head_and_objects
from simkit.logs.read.log import RowLog
from simkit.logs.read.parquet_rows import PARQUET_MAGIC, open_parquet

HEAD_CHARACTERS = 4096


@contextmanager
def opened(path: Path, log: RowLog) -> Iterator[tuple[Head, Iterator[tuple[int, Any]]]]:
    """(beginning, rows) of a file; rows that cannot be told apart go to `log`, whose `line` follows them.

    Rows are (line, cells) of CSV, (line, object) of JSON, (number, object) of parquet, and none of running text.
    """
    with reading(f"trace {path}"):
        check_regular(path)
        with path.open("rb") as file:
            is_parquet = file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
        if is_parquet:
            with open_parquet(path, log) as (columns, rows):
                meta = meta_of(path)
                block_tokens = None if meta is None else meta.hash_block_tokens
                yield Head("parquet", columns=columns, hash_block_tokens=block_tokens), rows
            return
        with open_text(path) as text:
            yield _head_and_rows(text, log)


def _head_and_rows(text: IO[str], log: RowLog) -> tuple[Head, Iterator[tuple[int, Any]]]:
    first = _first_text(text)
    if not first:
        raise InputError(f"{log.where}: no requests")
    if begins_json(first):
        found, objects = head_and_objects(text, log)
        if not found:
            notes = log.finish(log.line)
            raise InputError(f"{log.where}: no requests" + (f" ({'; '.join(notes)})" if notes else ""))
        return Head("json", objects=found, text=first), objects
    rows = CsvRows(text)
    if not rows.looks_like_one:
        return Head("text", text=first), iter(())
    return Head("csv", columns=rows.header, text=first), rows


def _first_text(text: IO[str]) -> str:
    """The first characters that are not blank; "" where there are none."""
    start = ""
    while not start and (chunk := text.read(HEAD_CHARACTERS)):
        start = chunk.lstrip()
    text.seek(0)
    return start
