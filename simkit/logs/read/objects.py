"""From JSON objects to columns: one function a format reads one object; what it refuses is logged with its line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from simkit.errors import InputError
from simkit.logs.read.format import Source
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import Columns, Record
from simkit.logs.read.stamps import Unit

ROWS_A_PART = 8192
BLOCKS_A_PART = 2**22
NUM_NAMED_FIELDS = 12

ReadRow = Callable[[int, dict[str, Any], Source], Record | None]
"""(line, object, source) to a request; None for what is none, which the function has logged. BadCell: unreadable."""


def read_objects(source: Source, read_row: ReadRow) -> Iterator[Columns]:
    """The requests of objects in file order, `ROWS_A_PART` at a time, fewer where they have many blocks."""
    records: list[Record] = []
    num_blocks = 0
    for line, row in source.rows:
        source.log.num_rows += 1
        try:
            found = read_row(line, row, source)
        except BadCell as error:
            source.log.add_bad(line, str(error))
            continue
        if found is not None:
            records.append(found)
            num_blocks += len(found.block_ids or ())
        if len(records) >= ROWS_A_PART or num_blocks >= BLOCKS_A_PART:
            yield Columns.of(records)
            records, num_blocks = [], 0
    yield Columns.of(records)


def require(source: Source, name: str, needs: Iterable[str]) -> None:
    """InputError unless the file is JSON whose first objects have all fields that format `name` needs."""
    if source.head.kind != "json":
        raise InputError(f"{source.log.where}: format {name} reads JSON objects, and this file has none")
    missing = [field for field in needs if field not in source.head.keys]
    if missing and source.head.objects:
        raise InputError(
            f"{source.log.where}: format {name} needs field {missing[0]!r}, the first objects have "
            f"{_named(source.head.keys)}"
        )


def note_unit(source: Source, name: str, unit: Unit) -> None:
    """Say that a time unit the user names is not used: field `name` is in `unit` whatever it says."""
    if source.spec.time_unit not in ("auto", unit):
        source.log.remark(f"time_unit {source.spec.time_unit} is not used: {name} is in {unit}")


def note_unused(source: Source, used: Iterable[str]) -> None:
    """Say once which fields of the first objects are not read."""
    unused = source.head.keys - frozenset(used)
    if unused:
        source.log.remark(f"fields not used: {_named(unused)}")


def _named(keys: Iterable[str]) -> str:
    names = sorted(key if key.isascii() and key.isprintable() and len(key) <= 40 else ascii(key[:40]) for key in keys)
    more = f" and {len(names) - NUM_NAMED_FIELDS} more" if len(names) > NUM_NAMED_FIELDS else ""
    return ", ".join(names[:NUM_NAMED_FIELDS]) + more if names else "none"
