"""From JSON objects to columns: the values of one object, each read or refused by name, and the loop over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from simkit.errors import InputError
from simkit.logs.read.format import Source
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import Columns, Record
from simkit.logs.read.timestamps import MAX_NS, Unit, epoch_unit, number_ns, wall_ns

MAX_TOKENS = 2**31 - 1
MAX_ID = 2**64 - 1
MAX_TEXT = 1000

_HALF = re.compile(r"[\ud800-\udfff]")  # half a character, which JSON can name and no file can hold


def tokens(row: Mapping[str, Any], name: str) -> int:
    """A count of tokens >= 0: an int, a float without fraction, or the text of one."""
    value = row.get(name)
    if type(value) is int:
        found = value
    elif isinstance(value, str):
        found = int(value) if value.isascii() and value.strip().isdecimal() and len(value) <= 12 else -1
    else:
        found = int(value) if isinstance(value, float) and value.is_integer() else -1
    if not 0 <= found <= MAX_TOKENS:
        raise BadCell(name, value, "a number of tokens >= 0")
    return found


def time(row: Mapping[str, Any], name: str, unit: Unit) -> int:
    """A number (or its text) in `unit`, in ns."""
    value = row.get(name)
    try:
        return number_ns(value, unit)
    except ValueError:
        raise BadCell(name, value, f"a time in {unit}") from None


def wall(row: Mapping[str, Any], name: str) -> tuple[int, bool]:
    """A wall-clock time as (ns since 1970 UTC, whether it names its zone)."""
    value = row.get(name)
    try:
        return wall_ns(value.strip() if isinstance(value, str) else "")
    except ValueError:
        raise BadCell(name, value, "YYYY-MM-DD hh:mm:ss.fraction") from None


def block_ids(row: Mapping[str, Any], name: str) -> Sequence[int] | None:
    """A list of unsigned 64-bit identities; None where the field is missing or null."""
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_ID for item in value):
        raise BadCell(name, value, "a list of integers from 0 to 2**64 - 1")
    return value


def text(row: Mapping[str, Any], name: str) -> str | None:
    """A text that Unicode can write, or the text of a number; None where the field is missing, null or empty."""
    value = row.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, str) and len(value) <= MAX_TEXT and (value.isascii() or not _HALF.search(value)):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise BadCell(name, value, f"a text of at most {MAX_TEXT} characters")


def count(row: Mapping[str, Any], name: str) -> int | None:
    """A number >= 0 as `tokens` reads it; None where the field is missing, null or empty."""
    return None if row.get(name) in (None, "") else tokens(row, name)


def duration(row: Mapping[str, Any], name: str, unit: Unit) -> int | None:
    """A time >= 0 in `unit`, in ns; None where the field is missing or null."""
    if row.get(name) is None:
        return None
    found = time(row, name, unit)
    if found < 0:
        raise BadCell(name, row[name], f"a time >= 0 in {unit}")
    return found


def first_of(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of some names for the same thing that has a value in this row."""
    return next((name for name in names if row.get(name) is not None and row[name] != ""), None)


def moment(row: Mapping[str, Any], names: tuple[str, ...], source: Source) -> int | None:
    """A time since 1970 in ns, under any of `names`: a wall clock, or a number whose unit its size tells.

    `time_unit` of the scenario, where given, is the unit of numbers. None where no name has a value.
    """
    name = first_of(row, names)
    if name is None:
        return None
    value = row[name]
    if isinstance(value, str) and not value.strip().replace(".", "", 1).isdecimal():
        found, has_zone = wall(row, name)
        if not has_zone:
            source.log.remark("times name no zone and are read as UTC")
        return found
    unit = source.spec.time_unit
    try:
        found_unit = epoch_unit(float(value)) if unit == "auto" else unit
        if found_unit is not None:
            return number_ns(value, found_unit)
    except (TypeError, ValueError, OverflowError):
        pass
    raise BadCell(name, value, "a time since 1970 (time_unit names the unit of other numbers)")


def arrival(row: Mapping[str, Any], names: tuple[str, ...], source: Source) -> int:
    """A `moment` that every row must have."""
    found = moment(row, names, source)
    if found is None:
        raise BadCell(names[0], None, "a time")
    return found


def took(start: int, end: int | None, what: str, source: Source) -> int | None:
    """From `start` to `end`, where both are known; a time that runs backwards is left out, with a remark."""
    if end is None:
        return None
    if not 0 <= end - start <= MAX_NS:
        source.log.remark(f"some rows have a {what} that is not after their arrival: it is left out for them")
        return None
    return end - start


def cached(row: Mapping[str, Any], names: tuple[str, ...], prompt_tokens: int, source: Source) -> int | None:
    """Prompt tokens that a cache held; more than the prompt has cannot be, and are left out with a remark."""
    name = first_of(row, names)
    if name is None:
        return None
    found = tokens(row, name)
    if found > prompt_tokens:
        source.log.remark(f"some rows have more {name} than prompt tokens: these are left out for them")
        return None
    return found


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
