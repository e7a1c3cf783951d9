"""What a CSV cell means: a parse reads one cell exactly, and a column of usual cells many times faster.

The two agree: a cell that the fast way does not know for certain is named odd, and whoever asked reads it the exact
way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simkit.logs.read.log import NAIVE, Remark
from simkit.logs.read.record import MAX_TOKENS, UNKNOWN
from simkit.logs.read.timestamps import MAX_NS, NS_PER, Unit, number_ns, wall_ns
from simkit.types import Ints

_MAX_DIGITS = 12
_STRETCH = 128
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_COUNT = re.compile(r"(\d{1,12})(\.0*)?", re.ASCII)
_ZONE = re.compile(r"(Z|UTC|[+-]\d\d:?\d\d)?$", re.ASCII)

# A stamp to the second, yyyy-mm-dd hh:mm:ss: where its digits are, and what stands between them.
_NUM_TO_SECONDS = 19
_DIGITS_AT = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]
_MARKS_AT = {4: "-", 7: "-", 10: " T", 13: ":", 16: ":"}
_DATE_WEIGHTS = 10 ** np.arange(7, -1, -1)
_FRACTION_WEIGHTS = 10 ** np.arange(8, -1, -1)
_TWO_DIGITS = np.array([10, 1])
_MAX_STAMP = 64
_MAX_LOOKS = 20


class Column(NamedTuple):
    """Values of a column of cells; those at `odd` are not read."""

    values: Ints | list[str | None]
    odd: Sequence[int]


@dataclass(frozen=True, slots=True)
class Parse:
    """How cells are read. `one`: the value of a cell, None for one that says nothing; ValueError when unreadable.

    `expected` says what a cell must be, `many` reads at least one cell, `remark` is what one readable cell tells of all
    of them.
    """

    expected: str
    one: Callable[[str], int | str | None]
    many: Callable[[Sequence[str]], Column]
    remark: Callable[[str], Remark | None] | None = None


# --- counts and texts -------------------------------------------------------------------------------------------------
def _count(cell: str) -> int:
    match = _COUNT.fullmatch(cell.strip())
    if match is None or int(match[1]) > MAX_TOKENS:
        raise ValueError(cell)
    return int(match[1])


def _counts(cells: Sequence[str]) -> Column:
    values, odd = _digits(cells, _MAX_DIGITS)
    above = np.flatnonzero(values > MAX_TOKENS).tolist()
    return Column(values, [*odd, *above] if above else odd)


def _digits(cells: Sequence[str], most: int) -> tuple[Ints, Sequence[int]]:
    """(values, odd) of cells of 1 to `most` decimal digits; anything else is odd and 0."""
    odd: list[int] = []
    if not _all_digits(cells, most):
        # Few cells are odd: look for them only where some are.
        for first in range(0, len(cells), _STRETCH):
            if not _all_digits(stretch := cells[first : first + _STRETCH], most):
                odd.extend(at for at, cell in enumerate(stretch, first) if not _all_digits((cell,), most))
        usual = list(cells)
        for at in odd:
            usual[at] = "0"
        cells = usual
    return np.fromiter(map(int, cells), np.int64, len(cells)), odd


def _all_digits(cells: Sequence[str], most: int) -> bool:
    if max(map(len, cells)) > most or "" in cells:
        return False
    joined = "".join(cells)
    return joined.isascii() and joined.isdecimal()


def _text(cell: str) -> str | None:
    return cell or None


def _texts(cells: Sequence[str]) -> Column:
    return Column([cell or None for cell in cells], ())


TOKENS = Parse("a number of tokens >= 0", _count, _counts)
COUNT = Parse("a whole number >= 0", _count, _counts)
TEXT = Parse("a text", _text, _texts)


# --- times ------------------------------------------------------------------------------------------------------------
def number(unit: Unit) -> Parse:
    """A number in `unit`, in ns."""
    places = len(str(NS_PER[unit])) - 1

    def one(cell: str) -> int:
        cell = cell.strip()
        if _NUMBER.fullmatch(cell) is None:
            raise ValueError(cell)
        return number_ns(cell, unit)

    def many(cells: Sequence[str]) -> Column:
        if not _all_digits(cells, 18):
            return _decimals(cells, places)
        whole, _ = _digits(cells, 18)
        above = np.flatnonzero(whole > MAX_NS // NS_PER[unit])
        whole[above] = 0
        return Column(whole * NS_PER[unit], above.tolist())

    return Parse(f"a time in {unit}", one, many)


def _decimals(cells: Sequence[str], places: int) -> Column:
    """Numbers with at most `places` digits after a point, in units of the last of them."""
    values, odd = [], []
    for at, cell in enumerate(cells):
        whole, _, fraction = cell.partition(".")
        digits = whole + fraction.ljust(places, "0")
        if whole and len(fraction) <= places and len(digits) <= 19 and digits.isdecimal() and digits.isascii():
            value = int(digits)
            if value <= MAX_NS:
                values.append(value)
                continue
        values.append(0)
        odd.append(at)
    return Column(np.array(values, dtype=np.int64), odd)


def _wall(cell: str) -> int:
    return wall_ns(cell.strip())[0]


def _walls(cells: Sequence[str]) -> Column:
    """Stamps with the zone of the first that can be read, those of equal length together, as a table of characters."""
    zone = _zone_of(cells)
    lengths = np.fromiter(map(len, cells), np.int64, len(cells))
    values = np.zeros(len(cells), dtype=np.int64)
    known = np.zeros(len(cells), dtype=np.bool_)
    for length in np.unique(lengths).tolist():
        end = length - len(zone)
        if not (end == _NUM_TO_SECONDS or _NUM_TO_SECONDS + 1 < end < _MAX_STAMP):
            continue
        rows = np.flatnonzero(lengths == length)
        text = "".join(cells if len(rows) == len(cells) else [cells[row] for row in rows.tolist()])
        if text.isascii():
            table = np.frombuffer(text.encode("ascii"), dtype=np.uint8).reshape(len(rows), length)
            values[rows], known[rows] = _stamps(table, end, zone)
    return Column(values, [] if known.all() else np.flatnonzero(~known).tolist())


def _zone_of(cells: Sequence[str]) -> str:
    for cell in cells[:_MAX_LOOKS]:
        try:
            _wall(cell)
        except ValueError:
            continue
        match = _ZONE.search(cell)
        return match[0] if match is not None else ""
    return ""


def _stamps(table: Any, end: int, zone: str) -> tuple[Ints, Any]:
    """(ns, which rows are known) of stamps, a row each and a column a character; `end` is where their zone begins."""
    # Unsigned, so that characters before "0" become large too.
    digits = table - np.uint8(ord("0"))
    places = [*_DIGITS_AT, *range(_NUM_TO_SECONDS + 1, end)]
    known = (digits[:, places] <= 9).all(axis=1)
    for at, allowed in _MARKS_AT.items():
        known &= np.isin(table[:, at], list(allowed.encode()))
    if end > _NUM_TO_SECONDS:
        known &= np.isin(table[:, _NUM_TO_SECONDS], list(b".,"))
    known &= (table[:, end:] == np.frombuffer(zone.encode(), dtype=np.uint8)).all(axis=1)
    hour, minute, second = (digits[:, at : at + 2] @ _TWO_DIGITS for at in (11, 14, 17))
    known &= (hour <= 23) & (minute <= 59) & (second <= 59)
    # Digits beyond 1 ns are cut.
    to_ns = digits[:, _NUM_TO_SECONDS + 1 : min(end, _NUM_TO_SECONDS + 10)]
    fraction = to_ns @ _FRACTION_WEIGHTS[: to_ns.shape[1]]
    date = np.where(known, digits[:, _DIGITS_AT[:8]] @ _DATE_WEIGHTS, 0)
    dates, day_of = np.unique(date, return_inverse=True)
    days = [_day_ns(day, zone) for day in dates.tolist()]
    known &= np.array([day is not None for day in days])[day_of]
    starts = np.array([day or 0 for day in days], dtype=np.int64)[day_of]
    found = starts + ((hour * 60 + minute) * 60 + second) * NS_PER["s"] + fraction
    return found, known & (np.abs(found) <= MAX_NS)


def _day_ns(date: int, zone: str) -> int | None:
    """The begin of a day written as yyyymmdd; None where there is no such day."""
    text = f"{date:08d}"
    try:
        return wall_ns(f"{text[:4]}-{text[4:6]}-{text[6:]} 00:00:00{zone}")[0]
    except ValueError:
        return None


def _naive(cell: str) -> Remark | None:
    return None if wall_ns(cell.strip())[1] else NAIVE


WALL = Parse("YYYY-MM-DD hh:mm:ss.fraction", _wall, _walls, _naive)


# --- both -------------------------------------------------------------------------------------------------------------
def optional(parse: Parse) -> Parse:
    """The same, and an empty cell says nothing."""

    def one(cell: str) -> int | str | None:
        return parse.one(cell) if cell.strip() else None

    def many(cells: Sequence[str]) -> Column:
        if "" not in cells:
            return parse.many(cells)
        usual = next((cell for cell in cells if cell), None)
        if usual is None:
            return Column(np.full(len(cells), UNKNOWN, dtype=np.int64), ())
        values, odd = parse.many([cell or usual for cell in cells])
        assert isinstance(values, np.ndarray)
        empty = {at for at, cell in enumerate(cells) if not cell}
        values[list(empty)] = UNKNOWN
        return Column(values, [at for at in odd if at not in empty])

    def remark(cell: str) -> Remark | None:
        return parse.remark(cell) if parse.remark is not None and cell.strip() else None

    return Parse(f"{parse.expected}, or nothing", one, many, remark)
