"""What a cell means: times to exact int nanoseconds, counts and texts, one cell or a column of them at a time.

A parse reads one cell exactly, and a column of usual cells many times faster. The two agree: where a cell is none that
the fast way knows for certain, the whole column is read the exact way. Knows no format.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

import numpy as np
import numpy.typing as npt

from simkit.logs.read.log import NAIVE, Remark
from simkit.logs.read.record import MAX_NS, MAX_TOKENS, UNKNOWN
from simkit.types import Ints
from simkit.units import NS_PER_S

# --- exact times ------------------------------------------------------------------------------------------------------
Unit = Literal["s", "ms", "us", "ns"]

NS_PER: dict[Unit, int] = {"s": NS_PER_S, "ms": NS_PER_S // 10**3, "us": NS_PER_S // 10**6, "ns": 1}

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


# --- a cell, and many of them -----------------------------------------------------------------------------------------
_MAX_DIGITS = 12
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_COUNT = re.compile(r"(\d{1,12})(\.0*)?", re.ASCII)
_ZONE = re.compile(r"(Z|UTC|[+-]\d\d:?\d\d)?$", re.ASCII)

# A timestamp to the second, yyyy-mm-dd hh:mm:ss: where its digits are, and what stands between them.
_NUM_TO_SECONDS = 19
_DIGITS_AT = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]
_MARKS_AT = {4: "-", 7: "-", 10: " T", 13: ":", 16: ":"}
_DATE_WEIGHTS = 10 ** np.arange(7, -1, -1)
_FRACTION_WEIGHTS = 10 ** np.arange(8, -1, -1)
_TWO_DIGITS = np.array([10, 1])
_MAX_TIMESTAMP = 64


@dataclass(frozen=True, slots=True)
class Parse:
    """How cells are read. `one`: the value of a cell, None for one that says nothing; ValueError when unreadable.

    `many` reads at least one cell; None when one of them is of another form than usual ones, and `one` must read them.
    `expected` says what a cell must be, `remark` is what one readable cell tells of all cells of its form.
    """

    expected: str
    one: Callable[[str], int | str | None]
    many: Callable[[Sequence[str]], Ints | list[str | None] | None]
    remark: Callable[[str], Remark | None] | None = None


# --- cells of counts and texts ----------------------------------------------------------------------------------------
def _count(cell: str) -> int:
    match = _COUNT.fullmatch(cell.strip())
    if match is None or int(match[1]) > MAX_TOKENS:
        raise ValueError(cell)
    return int(match[1])


def _counts(cells: Sequence[str]) -> Ints | None:
    values = _digits(cells, _MAX_DIGITS)
    return values if values is not None and values.max() <= MAX_TOKENS else None


def _digits(cells: Sequence[str], most: int) -> Ints | None:
    """Cells of 1 to `most` decimal digits; None where one is anything else."""
    if max(map(len, cells)) > most or "" in cells:
        return None
    joined = "".join(cells)
    if not (joined.isascii() and joined.isdecimal()):
        return None
    return np.fromiter(map(int, cells), np.int64, len(cells))


def _text(cell: str) -> str | None:
    return cell or None


def _texts(cells: Sequence[str]) -> list[str | None]:
    return [cell or None for cell in cells]


TOKENS = Parse("a number of tokens >= 0", _count, _counts)
COUNT = Parse("a whole number >= 0", _count, _counts)
TEXT = Parse("a text", _text, _texts)


# --- cells of times ---------------------------------------------------------------------------------------------------
def number(unit: Unit) -> Parse:
    """A number in `unit`, in ns."""
    places = len(str(NS_PER[unit])) - 1

    def one(cell: str) -> int:
        cell = cell.strip()
        if _NUMBER.fullmatch(cell) is None:
            raise ValueError(cell)
        return number_ns(cell, unit)

    def many(cells: Sequence[str]) -> Ints | None:
        whole = _digits(cells, 18)
        if whole is None:
            return _decimals(cells, places)
        return whole * NS_PER[unit] if whole.max() <= MAX_NS // NS_PER[unit] else None

    return Parse(f"a time in {unit}", one, many)


def _decimals(cells: Sequence[str], places: int) -> Ints | None:
    """Numbers with at most `places` digits after a point, in units of the last of them; None where one is another."""
    values = []
    for cell in cells:
        whole, _, fraction = cell.partition(".")
        digits = whole + fraction.ljust(places, "0")
        if not (whole and len(fraction) <= places and len(digits) <= 19 and digits.isdecimal() and digits.isascii()):
            return None
        value = int(digits)
        if value > MAX_NS:
            return None
        values.append(value)
    return np.array(values, dtype=np.int64)


def _wall(cell: str) -> int:
    return wall_ns(cell.strip())[0]


def _walls(cells: Sequence[str]) -> Ints | None:
    """Timestamps with the zone of the first, those of equal length together, as a table of characters."""
    match = _ZONE.search(cells[0])
    zone = match[0] if match is not None else ""
    lengths = np.fromiter(map(len, cells), np.int64, len(cells))
    values = np.zeros(len(cells), dtype=np.int64)
    for length in np.unique(lengths).tolist():
        end = length - len(zone)
        if not (end == _NUM_TO_SECONDS or _NUM_TO_SECONDS + 1 < end < _MAX_TIMESTAMP):
            return None
        rows = np.flatnonzero(lengths == length)
        text = "".join(cells if len(rows) == len(cells) else [cells[row] for row in rows.tolist()])
        if not text.isascii():
            return None
        table = np.frombuffer(text.encode("ascii"), dtype=np.uint8).reshape(len(rows), length)
        found = _timestamps(table, end, zone)
        if found is None:
            return None
        values[rows] = found
    return values


def _timestamps(table: npt.NDArray[np.uint8], end: int, zone: str) -> Ints | None:
    """Timestamps in ns, a row each and a column a character, their zone from `end` on; None where one is odd."""
    # Unsigned, so that characters before "0" become large too.
    digits = table - np.uint8(ord("0"))
    places = [*_DIGITS_AT, *range(_NUM_TO_SECONDS + 1, end)]
    marks = _MARKS_AT if end == _NUM_TO_SECONDS else _MARKS_AT | {_NUM_TO_SECONDS: ".,"}
    hour, minute, second = (digits[:, at : at + 2] @ _TWO_DIGITS for at in (11, 14, 17))
    is_usual = (
        bool((digits[:, places] <= 9).all())
        and all(np.isin(table[:, at], list(allowed.encode())).all() for at, allowed in marks.items())
        and bool((table[:, end:] == np.frombuffer(zone.encode(), dtype=np.uint8)).all())
        and max(int(hour.max()) - 23, int(minute.max()) - 59, int(second.max()) - 59) <= 0
    )
    if not is_usual:
        return None
    # Digits beyond 1 ns are cut.
    to_ns = digits[:, _NUM_TO_SECONDS + 1 : min(end, _NUM_TO_SECONDS + 10)]
    fraction = to_ns @ _FRACTION_WEIGHTS[: to_ns.shape[1]]
    dates, day_of = np.unique(digits[:, _DIGITS_AT[:8]] @ _DATE_WEIGHTS, return_inverse=True)
    texts = [f"{date:08d}" for date in dates.tolist()]
    try:
        days = [wall_ns(f"{text[:4]}-{text[4:6]}-{text[6:]} 00:00:00{zone}")[0] for text in texts]
    except ValueError:
        return None
    found: Ints = np.array(days)[day_of] + ((hour * 60 + minute) * 60 + second) * NS_PER["s"] + fraction
    return found if np.abs(found).max() <= MAX_NS else None


def _naive(cell: str) -> Remark | None:
    return None if wall_ns(cell.strip())[1] else NAIVE


WALL = Parse("YYYY-MM-DD hh:mm:ss.fraction", _wall, _walls, _naive)


# --- both -------------------------------------------------------------------------------------------------------------
def optional(parse: Parse) -> Parse:
    """The same, and an empty cell says nothing."""

    def one(cell: str) -> int | str | None:
        return parse.one(cell) if cell.strip() else None

    def many(cells: Sequence[str]) -> Ints | list[str | None] | None:
        if "" not in cells:
            return parse.many(cells)
        empty = np.array([not cell for cell in cells])
        usual = next((cell for cell in cells if cell), None)
        if usual is None:
            return np.full(len(cells), UNKNOWN, dtype=np.int64)
        values = parse.many([cell or usual for cell in cells])
        return np.where(empty, UNKNOWN, values) if isinstance(values, np.ndarray) else None

    def remark(cell: str) -> Remark | None:
        return parse.remark(cell) if parse.remark is not None and cell.strip() else None

    return Parse(f"{parse.expected}, or nothing", one, many, remark)
