"""Values of one row: each is read, or refused with its name, what it was and what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simkit.logs.read.log import BadCell
from simkit.logs.read.stamps import Unit, number_ns, wall_ns

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
