"""From a file to its beginning and its rows: what kind it is by content, never by suffix.

Imports `errors`, `workload.files` and its own siblings; knows no format.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from simkit.errors import InputError
from simkit.workload.files import open_text, reading
from simkit.workload.traces.csv_rows import CsvRows
from simkit.workload.traces.format import Head
from simkit.workload.traces.log import RowLog
from simkit.workload.traces.parquet_rows import PARQUET_MAGIC, open_parquet

NUM_HEAD_OBJECTS = 50
HEAD_CHARACTERS = 4096


@contextmanager
def opened(path: Path, log: RowLog) -> Iterator[tuple[Head, Iterator[tuple[int, Any]]]]:
    """(beginning, rows) of a file; rows that cannot be told apart go to `log`, whose `line` follows them.

    Rows are (line, cells) of CSV, (line, object) of JSON, (number, object) of parquet, and none of running text.
    """
    with reading(f"trace {path}"):
        with path.open("rb") as file:
            is_parquet = file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
        if is_parquet:
            with open_parquet(path, log) as (columns, rows):
                yield Head("parquet", columns=columns), rows
            return
        with open_text(path) as text:
            yield _head_and_rows(text, log)


def _head_and_rows(text: IO[str], log: RowLog) -> tuple[Head, Iterator[tuple[int, Any]]]:
    first = _first_text(text)
    if not first:
        raise InputError(f"{log.where}: no requests")
    if first[0] in "{[":
        objects = _objects(text, log)
        peeked = list(itertools.islice(objects, NUM_HEAD_OBJECTS))
        found = tuple(item for _, item in peeked if isinstance(item, dict))
        return Head("json", objects=found, text=first), itertools.chain(peeked, objects)
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


def _objects(text: IO[str], log: RowLog) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text, start=1):
        if not line.strip():
            continue
        log.line = number
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            log.num_rows += 1
            log.add_bad(number, f"no JSON: {error}", cut=not line.endswith("\n"))
            continue
        yield number, found
