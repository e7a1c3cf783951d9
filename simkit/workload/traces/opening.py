"""From a file to its beginning and its rows: what kind it is by content, never by suffix.

Imports `errors`, `workload.files` and its own siblings; knows no format.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from simkit.errors import InputError
from simkit.workload.files import open_text, reading
from simkit.workload.traces import canonical
from simkit.workload.traces.format import Head
from simkit.workload.traces.json_rows import begins_json, head_and_objects
from simkit.workload.traces.log import RowLog

HEAD_CHARACTERS = 4096
DELIMITERS = (",", ";", "\t")


@contextmanager
def opened(path: Path, log: RowLog) -> Iterator[tuple[Head, Iterator[tuple[int, Any]]]]:
    """(beginning, rows) of a file; rows that cannot be told apart go to `log`, whose `line` follows them."""
    with reading(f"trace {path}"):
        parquet = is_parquet(path)
    if parquet:
        yield canonical.head_of(path), iter(())
        return
    with reading(f"trace {path}"), open_text(path) as text:
        first = _first_text(text)
        if begins_json(first):
            found, objects = head_and_objects(text, log)
            yield Head("json", objects=found, text=first), objects
            return
        header, rows = _cells(text, log)
        yield Head("csv", columns=header, text=first), rows


def is_parquet(path: Path) -> bool:
    """Whether a file begins as parquet does. OSError passes through."""
    with path.open("rb") as raw:
        return raw.read(4) == b"PAR1"


def _first_text(text: IO[str]) -> str:
    start = text.read(HEAD_CHARACTERS).lstrip()
    text.seek(0)
    return start


def _cells(text: IO[str], log: RowLog) -> tuple[tuple[str, ...], Iterator[tuple[int, list[str]]]]:
    lines = csv.reader(text)
    header = next((cells for cells in lines if cells), None)
    if header is None:
        raise InputError(f"{log.where}: no requests")
    log.line = lines.line_num

    def rows() -> Iterator[tuple[int, list[str]]]:
        for cells in lines:
            if cells:
                log.line = lines.line_num
                yield lines.line_num, cells

    return tuple(cell.strip() for cell in header), rows()
