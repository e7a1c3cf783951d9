"""Times that one row gives as clock times: when something happened, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simkit.logs.read.fields import tokens, wall
from simkit.logs.read.format import Source
from simkit.logs.read.log import BadCell
from simkit.logs.read.stamps import MAX_NS, epoch_unit, number_ns


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
