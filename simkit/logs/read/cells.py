"""What a CSV cell means: a parse reads one cell exactly, and a column of usual cells many times faster.

The two agree: where a cell is none that the fast way knows for certain, the whole column is read the exact way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simkit.logs.read.log import NAIVE, Remark
from simkit.logs.read.record import MAX_TOKENS, UNKNOWN
from simkit.logs.read.timestamps import MAX_NS, NS_PER, Unit, number_ns, wall_ns
from simkit.types import Ints

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


# --- counts and texts -------------------------------------------------------------------------------------------------
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


# --- times ------------------------------------------------------------------------------------------------------------
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
