"""Times as logs write them, to exact int nanoseconds: wall clocks, numbers with a unit, epochs of unknown unit.

Knows no format.
"""

from __future__ import annotations

import datetime
import functools
import re
from decimal import Decimal, InvalidOperation
from typing import Literal

from simkit.units import NS_PER_S

Unit = Literal["s", "ms", "us", "ns"]

NS_PER: dict[Unit, int] = {"s": NS_PER_S, "ms": NS_PER_S // 10**3, "us": NS_PER_S // 10**6, "ns": 1}

MAX_NS = 2**62
"""Later times are refused: sums of two still fit 64 bits."""

_WALL = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[ T](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<fraction>\d+))?"
    r" ?(?P<zone>Z|UTC|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)


@functools.lru_cache(maxsize=64)
def _day_s(date: str) -> int:
    return (datetime.date.fromisoformat(date) - datetime.date(1970, 1, 1)).days * 86_400


def wall_ns(text: str) -> tuple[int, bool]:
    """A wall-clock time as (ns since 1970 UTC, whether it names its zone). Exact; digits beyond 1 ns are cut.

    ValueError when it is not of the form `YYYY-MM-DD hh:mm:ss[.fraction][Z|UTC|+hh:mm]`, with `T` or a space, and
    beyond 146 years either side of 1970.
    """
    match = _WALL.fullmatch(text)
    if match is None:
        raise ValueError(text)
    date, hour, minute, second, fraction, zone = match.groups()
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        raise ValueError(text)
    seconds = _day_s(date) + int(hour) * 3600 + int(minute) * 60 + int(second)
    if zone is not None and zone[0] in "+-":
        sign = -1 if zone[0] == "-" else 1
        digits = zone[1:].replace(":", "").ljust(4, "0")
        seconds -= sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
    nanos = int((fraction or "").ljust(9, "0")[:9])
    found = seconds * NS_PER_S + nanos
    if abs(found) > MAX_NS:
        raise ValueError(text)
    return found, zone is not None


def number_ns(value: object, unit: Unit) -> int:
    """A number, or its text, in `unit` as ns. Exact for ints and decimal text; a float is taken by its shortest digits.

    ValueError for what is no finite number, and beyond 146 years either side of 0.
    """
    if isinstance(value, bool):
        raise ValueError(value)
    if isinstance(value, int):
        found = value * NS_PER[unit]
    elif isinstance(value, float | str):
        text = value.strip() if isinstance(value, str) else repr(value)
        try:
            exact = Decimal(text if len(text) <= 40 else "")
        except InvalidOperation:
            raise ValueError(value) from None
        if not exact.is_finite() or abs(exact) >= 10**20:
            raise ValueError(value)
        found = int((exact * NS_PER[unit]).to_integral_value())
    else:
        raise ValueError(value)
    if abs(found) > MAX_NS:
        raise ValueError(value)
    return found


def epoch_unit(value: float) -> Unit | None:
    """The unit of a stamp that counts from 1970, by its size; None for small numbers, which could be any unit.

    Above 1e17 ns, above 1e14 us, above 1e11 ms, above 1e8 s.
    """
    for unit, least in (("ns", 1e17), ("us", 1e14), ("ms", 1e11), ("s", 1e8)):
        if abs(value) > least:
            return unit  # type: ignore[return-value]
    return None
