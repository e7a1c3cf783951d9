"""From JSON objects to columns: the values of one object, each read or refused by name, and the loop over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from simkit.errors import InputError
from simkit.logs.read.cells import Unit, epoch_unit, number_ns, wall_ns
from simkit.logs.read.format import Source
from simkit.logs.read.log import NAIVE, BadCell
from simkit.logs.read.record import MAX_NS, MAX_TOKENS, Columns, Record

MAX_ID = 2**64 - 1
MAX_TEXT = 1000
ROWS_A_PART = 8192
BLOCKS_A_PART = 2**22
NUM_NAMED_FIELDS = 12

_HALF = re.compile(r"[\ud800-\udfff]")  # half a character, which JSON can name and no file can hold


@dataclass(frozen=True, slots=True)
class Row:
    """One object of a log, on `line` of `source`.

    Each method reads a value, or refuses it with its name, what it is and what was expected (BadCell). Of several names
    for the same thing the first that has a value in this row counts; null and "" are no values.
    """

    line: int
    values: Mapping[str, object]
    source: Source

    def within(self, values: Mapping[str, object]) -> Row:
        """An object inside this one."""
        return replace(self, values=values)

    def get(self, name: str) -> object:
        """A value as it stands there; None where there is none."""
        return self.values.get(name)

    def first(self, *names: str) -> str | None:
        """The first of some names for the same thing that has a value."""
        for name in names:
            value = self.values.get(name)
            if value is not None and value != "":
                return name
        return None

    def skip(self, reason: str) -> None:
        """Log that this row is no request."""
        self.source.log.add_skipped(reason, self.line)

    def tokens(self, name: str) -> int:
        """A count of tokens >= 0: an int, a float without fraction, or the text of one."""
        value = self.values.get(name)
        if type(value) is int:
            found = value
        elif isinstance(value, str):
            found = int(value) if value.isascii() and value.strip().isdecimal() and len(value) <= 12 else -1
        else:
            found = int(value) if isinstance(value, float) and value.is_integer() else -1
        if not 0 <= found <= MAX_TOKENS:
            raise BadCell(name, value, "a number of tokens >= 0")
        return found

    def tokens_unless(self, failed: str | None, *names: str) -> int:
        """A count of tokens under any of its names; 0 where a request that `failed` has none."""
        if (name := self.first(*names)) is not None:
            return self.tokens(name)
        if failed is None:
            raise BadCell(names[0], None, "a number of tokens >= 0")
        return 0

    def count(self, name: str) -> int | None:
        """A number >= 0 as `tokens` reads it; None where there is none."""
        return None if self.first(name) is None else self.tokens(name)

    def cached_tokens(self, prompt_tokens: int, *names: str) -> int | None:
        """Prompt tokens that a cache held; more than the prompt has cannot be, and are left out with a remark."""
        if (name := self.first(*names)) is None:
            return None
        found = self.tokens(name)
        if found > prompt_tokens:
            self.source.log.remark(f"some rows have more {name} than prompt tokens: these are left out for them")
            return None
        return found

    def block_ids(self, name: str) -> Sequence[int] | None:
        """A list of unsigned 64-bit identities; None where the field is missing or null."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_ID for item in value):
            raise BadCell(name, value, "a list of integers from 0 to 2**64 - 1")
        return value

    def text(self, *names: str) -> str | None:
        """A text that Unicode can write, or the text of a number; None where there is none."""
        if (name := self.first(*names)) is None:
            return None
        value = self.values[name]
        if isinstance(value, str) and len(value) <= MAX_TEXT and (value.isascii() or not _HALF.search(value)):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        raise BadCell(name, value, f"a text of at most {MAX_TEXT} characters")

    def time(self, name: str, unit: Unit) -> int:
        """A number (or its text) in `unit`, in ns."""
        try:
            return number_ns(self.values.get(name), unit)
        except ValueError:
            raise BadCell(name, self.values.get(name), f"a time in {unit}") from None

    def duration(self, name: str, unit: Unit) -> int | None:
        """A time >= 0 in `unit`, in ns; None where the field is missing or null."""
        if self.values.get(name) is None:
            return None
        found = self.time(name, unit)
        if found < 0:
            raise BadCell(name, self.values[name], f"a time >= 0 in {unit}")
        return found

    def timestamp(self, *names: str) -> int | None:
        """A time since 1970 in ns: a wall clock, or a number whose unit its size tells.

        `time_unit` of the scenario, where given, is the unit of numbers. None where no name has a value.
        """
        if (name := self.first(*names)) is None:
            return None
        value = self.values[name]
        if isinstance(value, str) and not value.strip().replace(".", "", 1).isdecimal():
            try:
                found, has_zone = wall_ns(value.strip())
            except ValueError:
                raise BadCell(name, value, "YYYY-MM-DD hh:mm:ss.fraction") from None
            if not has_zone:
                self.source.log.add_remark(NAIVE)
            return found
        given = self.source.spec.time_unit
        if isinstance(value, str | int | float):
            with suppress(ValueError, OverflowError):
                unit = epoch_unit(float(value)) if given == "auto" else given
                if unit is not None:
                    return number_ns(value, unit)
        raise BadCell(name, value, "a time since 1970 (time_unit names the unit of other numbers)")

    def arrival(self, *names: str) -> int:
        """A `timestamp` that every row must have."""
        found = self.timestamp(*names)
        if found is None:
            raise BadCell(names[0], None, "a time")
        return found

    def elapsed(self, start: int, end: int | None, what: str) -> int | None:
        """From `start` to `end`, where both are known; a time that runs backwards is left out, with a remark."""
        if end is None:
            return None
        if not 0 <= end - start <= MAX_NS:
            self.source.log.remark(f"some rows have a {what} that is not after their arrival: it is left out for them")
            return None
        return end - start


ReadRow = Callable[[Row], Record | None]
"""A row to a request; None for what is none, which the function has logged. BadCell: unreadable."""


def read_objects(source: Source, read_row: ReadRow) -> Iterator[Columns]:
    """The requests of objects in file order, `ROWS_A_PART` at a time, fewer where they have many blocks."""
    records: list[Record] = []
    num_blocks = 0
    for line, values in source.rows:
        source.log.num_rows += 1
        try:
            found = read_row(Row(line, values, source))
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


def require(source: Source, needs: Iterable[str]) -> None:
    """InputError unless the file is JSON whose first objects have all of these fields."""
    name = source.format.name
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
