"""Any table with a time, prompt tokens and output tokens, whose columns the user names: CSV, JSON or parquet."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simkit.errors import InputError, nearest
from simkit.logs.read.cells import COUNT, TEXT, TOKENS, Parse, Unit, number, optional
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.json import JsonRow
from simkit.logs.read.layout import Field, Layout, read_blocks, read_layout
from simkit.logs.read.log import listed
from simkit.logs.read.record import Columns
from simkit.logs.read.tables import Block, ParquetRows, plain_values

NEEDS = ("prompt", "output", "time")
FIELD_OF: dict[str, tuple[str, Parse | None]] = {
    "prompt": ("prompt_tokens", TOKENS),
    "output": ("output_tokens", TOKENS),
    "time": ("time_ns", None),
    "id": ("id", TEXT),
    "session": ("session", TEXT),
    "turn": ("turn", optional(COUNT)),
    "parent": ("parent", TEXT),
    "model": ("model", TEXT),
    "cached": ("cached_tokens", optional(TOKENS)),
    "delay": ("delay_ns", None),
    "ttft": ("ttft_ns", None),
    "e2e": ("e2e_ns", None),
}
"""What a map may name: the field, and how its cells are read (None: a time, whose unit depends on the file)."""

_UNIT_AT_END = re.compile(r"(?:^|[^a-zA-Z0-9])(s|sec|secs|seconds|ms|us|ns)\)?$", re.IGNORECASE)
_MAX_INT = 10**25
BLOCK_ROWS = 4096


def matches(head: Head) -> str | None:
    """Never by itself: the user says which column holds what."""
    return None


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order. InputError for a map that does not fit the file."""
    head, log = source.head, source.log
    if head.kind == "text":
        raise InputError(f"{log.where}: format generic reads CSV, JSON and parquet; this is running text")
    column_of = _checked(source)
    fields = tuple(_field(name, column, source) for name, column in column_of.items())
    if head.kind == "csv":
        yield from read_layout(source, Layout(fields))
        return
    # Values become cells, so that all kinds of files are read by the same rules.
    header = list(column_of.values())
    if isinstance(source.table, ParquetRows):
        blocks = _parquet_blocks(source.table, header)
    else:
        blocks = _object_blocks(source.rows, [_getter(path) for path in header])
    yield from read_blocks(blocks, header, fields, None, log)


def _checked(source: Source) -> Mapping[str, str]:
    """The map, whose names are known, complete and in the file."""
    where, head, column_of = source.log.where, source.head, source.spec.map
    for name in column_of:
        if name not in FIELD_OF:
            raise InputError(f"{where}: map names {name!r}, expected {', '.join(FIELD_OF)}{nearest(name, FIELD_OF)}")
    if missing := [name for name in NEEDS if name not in column_of]:
        names = sorted(head.keys)
        raise InputError(
            f"{where}: format generic needs map with {', '.join(missing)} (--map prompt=COLUMN,output=COLUMN,"
            f"time=COLUMN); columns are {listed(names)!r}"
        )
    for name, column in column_of.items():
        if head.kind == "json":
            get = _getter(column)
            known = not head.objects or any(get(found) is not None for found in head.objects)
        else:
            known = column in head.columns or (head.kind == "parquet" and column.split(".")[0] in head.columns)
        # Optional fields may begin later in a JSON file than its head does.
        if not known and (head.kind != "json" or name in NEEDS):
            names = sorted(head.keys)
            raise InputError(
                f"{where}: map {name}={column}: no column {column!r} among {listed(names)!r}"
                f"{nearest(column, names[:1000])}"
            )
        if max(head.columns.count(column), head.columns.count(column.split(".")[0])) > 1:
            raise InputError(f"{where}: column {column!r} appears more than once")
    return column_of


def _field(name: str, column: str, source: Source) -> Field:
    field_name, parse = FIELD_OF[name]
    match = _UNIT_AT_END.search(column)
    named: Unit | None = _unit(match[1]) if match is not None else None
    given: Unit | None = None if source.spec.time_unit == "auto" else source.spec.time_unit
    if name == "time":
        return Field(field_name, column, None, unit=given, hint=named)
    if parse is None:
        unit = named or given
        if unit is None:
            raise InputError(
                f"{source.log.where}: map {name}={column}: the unit of {column!r} is not known: expected a name that "
                "ends in _s, _ms, _us or _ns, or time_unit (--time-unit)"
            )
        parse = optional(number(unit))
    return Field(field_name, column, parse, required=name in NEEDS)


def _unit(text: str) -> Unit:
    short: dict[str, Unit] = {"ms": "ms", "us": "us", "ns": "ns"}
    return short.get(text.lower(), "s")


# --- values of objects and parquet columns as cells -------------------------------------------------------------------
def _object_blocks(rows: Iterator[tuple[int, JsonRow]], getters: Sequence[Callable[[Any], Any]]) -> Iterator[Block]:
    lines: list[int] = []
    cells: list[list[str]] = []
    for line, found in rows:
        # Only what is mapped is kept: the rest of an object can be a long prompt.
        lines.append(line)
        cells.append([_cell(get(found)) for get in getters])
        if len(lines) == BLOCK_ROWS:
            yield Block(np.array(lines, dtype=np.int64), cells)
            lines, cells = [], []
    if lines:
        yield Block(np.array(lines, dtype=np.int64), cells)


def _parquet_blocks(rows: ParquetRows, paths: Sequence[str]) -> Iterator[Block]:
    number_of_rows = 0
    tops = [path if path in rows.names else path.split(".")[0] for path in paths]
    getters = [
        _getter(path.removeprefix(f"{top}.")) if path != top else None for path, top in zip(paths, tops, strict=True)
    ]
    for batch in rows.batches(list(dict.fromkeys(tops))):
        if not batch.num_rows:
            continue
        columns = []
        for top, get in zip(tops, getters, strict=True):
            values = plain_values(batch.column(top))
            columns.append([_cell(value if get is None else get(value)) for value in values])
        numbers = np.arange(number_of_rows + 1, number_of_rows + 1 + batch.num_rows)
        number_of_rows += batch.num_rows
        yield Block(numbers, list(map(list, zip(*columns, strict=True))))


def _getter(path: str) -> Callable[[Any], Any]:
    """What `path` holds of an object: the field of that name, else a walk along its dots; None where there is none."""
    parts = path.split(".")

    def get(found: Any) -> Any:
        if isinstance(found, dict) and path in found:
            return found[path]
        for part in parts:
            if isinstance(found, dict):
                found = found.get(part)
            elif isinstance(found, list) and part.isdecimal() and len(part) < 10 and int(part) < len(found):
                found = found[int(part)]
            else:
                return None
        return found

    return get


def _cell(value: Any) -> str:
    """A value as the text that a CSV file would hold; "" for none and for not-a-number."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(value) if abs(value) < _MAX_INT else "a number above 1e25"
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return str(int(value)) if value.is_integer() and abs(value) < _MAX_INT else repr(value)
    return str(value)[:100]


FORMAT = Format("generic", "table with a map", matches, read)
