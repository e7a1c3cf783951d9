"""From delimited rows to columns by a table: which column holds which field, and how its cells are read.

Blocks of rows are read a column at a time; only columns in which a cell is odd are read cell by cell, with the same
result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from simkit.errors import InputError, nearest
from simkit.logs.read.cells import NS_PER, WALL, Parse, Unit, epoch_unit, number
from simkit.logs.read.format import Source
from simkit.logs.read.log import BadCell, RowLog, listed
from simkit.logs.read.record import REQUIRED, UNKNOWN, Columns
from simkit.logs.read.tables import Block, CsvRows
from simkit.types import Ints

SKIPPED = "skipped"
"""Values of this name say why a row is no request of the engine, None for one that is."""

Values = dict[str, Any]
Derive = Callable[[Values, RowLog], None]


class Reader(NamedTuple):
    """A field whose column was found `at` a place, and whose `parse` is settled."""

    name: str
    at: int
    column: str
    parse: Parse


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name in `Columns`, or one of the format's own; the column that holds it; how its cells are read.

    A `required` column must be there. `parse` None: a time whose form and unit the first readable cell tells, a wall
    clock or a number of `unit`; without one, of the unit that its size names, else of that of its `hint`.
    """

    name: str
    column: str
    parse: Parse | None
    required: bool = True
    unit: Unit | None = None
    hint: Unit | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of a format, and what is made of them: `derive` takes the values of some rows, by field name, and
    puts what it finds out among them."""

    fields: tuple[Field, ...]
    derive: Derive | None = None


def read_layout(source: Source, layout: Layout) -> Iterator[Columns]:
    """The requests of a file in file order. InputError when a required column is missing or there twice."""
    log, header = source.log, source.head.columns
    if not isinstance(source.table, CsvRows):
        raise InputError(f"{log.where}: format {source.format.name} is CSV; this is {source.head.kind}")
    present = _present(layout, source)
    used = {field.column for field in present}
    if unused := [name for name in header if name not in used]:
        log.remark(f"columns not used: {listed(unused)}")
    if source.spec.time_unit != "auto" and any(field.name == "time_ns" and field.parse is WALL for field in present):
        log.remark(f"time_unit {source.spec.time_unit} is not used: times are wall clocks")
    yield from read_blocks(source.table.blocks(), header, present, layout.derive, log)


def read_blocks(
    blocks: Iterator[Block], header: Sequence[str], present: Sequence[Field], derive: Derive | None, log: RowLog
) -> Iterator[Columns]:
    """Rows of cells to columns; `present` are fields whose column is in the header."""
    readers: list[Reader] | None = None
    for block in blocks:
        if readers is None:
            places = [header.index(field.column) for field in present]
            readers = [
                Reader(field.name, at, field.column, field.parse or _settled(field, at, block, log))
                for field, at in zip(present, places, strict=True)
            ]
        found = _read(block, len(header), readers, log)
        if not len(found["line"]):
            continue
        if derive is not None:
            derive(found, log)
        yield _columns(found, log)


def _present(layout: Layout, source: Source) -> list[Field]:
    header, where = source.head.columns, source.log.where
    for field in layout.fields:
        if field.required and field.column not in header:
            raise InputError(
                f"{where}: format {source.format.name} needs column {field.column!r}, header was {listed(header)!r}"
                f"{nearest(field.column, header[:1000])}"
            )
        if header.count(field.column) > 1:
            raise InputError(f"{where}: column {field.column!r} appears more than once in the header")
    return [field for field in layout.fields if field.column in header]


def _settled(field: Field, at: int, block: Block, log: RowLog) -> Parse:
    """How the timestamps of a column are read, by the first that can be read at all."""
    cells = [cells[at].strip() for cells in block.rows if at < len(cells)]
    for cell in cells:
        try:
            WALL.one(cell)
        except ValueError:
            pass
        else:
            if field.unit is not None:
                log.remark(f"{listed([field.column])} is a wall clock: no unit of time is used")
            return WALL
        try:
            size = number("ns").one(cell)
        except ValueError:
            continue
        assert isinstance(size, int)
        if field.unit is not None:
            return number(field.unit)
        if (unit := epoch_unit(size)) is not None:
            log.remark(f"{listed([field.column])} is read as {unit} since 1970, by its size")
            return _of_size(unit)
        if field.hint is not None:
            log.remark(f"{listed([field.column])} is read as {field.hint}, by its name")
            return number(field.hint)
        raise InputError(
            f"{log.where}: column {listed([field.column])!r} begins with {cell[:40]}, which could be s, ms, us or ns: "
            "expected time_unit (--time-unit)"
        )
    begin = repr(cells[0][:60]) if cells else "nothing"
    expected = "a time that even in ns is within 146 years of 0" if cells and _is_number(cells[0]) else _TIMESTAMP
    raise InputError(f"{log.where}: column {listed([field.column])!r} begins with {begin}, expected {expected}")


_TIMESTAMP = "a wall clock or a number"


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _of_size(unit: Unit) -> Parse:
    """Numbers in `unit` as long as their size names that unit."""
    parse = number(unit)

    def one(cell: str) -> int | str | None:
        found = parse.one(cell)
        assert isinstance(found, int)
        if epoch_unit(found / NS_PER[unit]) != unit:
            raise ValueError(cell)
        return found

    def many(cells: Sequence[str]) -> Ints | None:
        values = parse.many(cells)
        if not isinstance(values, np.ndarray):
            return None
        ends = {epoch_unit(int(end) / NS_PER[unit]) for end in (values.min(), values.max())}
        return values if ends == {unit} else None

    return Parse(f"a time in {unit} since 1970, as in the rows before", one, many)


def _read(block: Block, width: int, readers: Sequence[Reader], log: RowLog) -> Values:
    """The values of the readable rows by field name, and their `line`; what is wrong with the others is logged."""
    log.num_rows += len(block.rows)
    # Whoever makes the blocks may have read on, to a line that is no row.
    log.line = max(log.line, int(block.lines[-1]))
    rows, kept = block.rows, np.arange(len(block.rows))
    problems: dict[int, str] = {}
    if set(map(len, rows)) != {width}:
        problems = {at: f"{len(cells)} cells, expected {width}" for at, cells in enumerate(rows) if len(cells) != width}
        kept = np.array([at for at in range(len(rows)) if at not in problems], dtype=np.int64)
        rows = [rows[at] for at in kept.tolist()]
    found: Values = {reader.name: np.zeros(0, dtype=np.int64) for reader in readers}
    if rows:
        cells_of = list(zip(*rows, strict=True))
        usual = {reader.name: reader.parse.many(cells_of[reader.at]) for reader in readers}
        lost: dict[int, str] = {}
        for reader in readers:
            values = usual[reader.name]
            found[reader.name] = _read_exactly(reader, cells_of[reader.at], lost) if values is None else values
        for reader in readers:
            readable = (cell for row, cell in enumerate(cells_of[reader.at]) if cell and row not in lost)
            # Usual cells are all of one form: one of them tells of all.
            _remark(reader, readable if usual[reader.name] is None else itertools.islice(readable, 1), log)
        if lost:
            good = np.array([row for row in range(len(rows)) if row not in lost], dtype=np.int64)
            problems |= {int(kept[row]): problem for row, problem in lost.items()}
            kept = kept[good]
            found = {name: _take(values, good) for name, values in found.items()}
    found["line"] = block.lines[kept]
    _log_problems(block, problems, width, log)
    return found


def _read_exactly(reader: Reader, cells: Sequence[str], lost: dict[int, str]) -> Ints:
    """A column cell by cell; what is wrong with rows that cannot be read goes to `lost`."""
    values: list[Any] = []
    for row, cell in enumerate(cells):
        try:
            value = reader.parse.one(cell)
        except ValueError:
            lost.setdefault(row, str(BadCell(reader.column, cell, reader.parse.expected)))
            value = None
        values.append(UNKNOWN if value is None else value)
    return np.array(values, dtype=np.int64)


def _remark(reader: Reader, cells: Iterable[str], log: RowLog) -> None:
    """What readable cells tell of how all are read."""
    if reader.parse.remark is None:
        return
    for cell in cells:
        if (remark := reader.parse.remark(cell)) is not None:
            log.add_remark(remark)


def _log_problems(block: Block, problems: dict[int, str], width: int, log: RowLog) -> None:
    last = len(block.rows) - 1
    for at in sorted(problems):
        cells, problem = block.rows[at], problems[at]
        swallowed = block.swallowed or 1 if at == last else 1
        if swallowed > 1:
            problem += f" (a quote in it is never closed, to line {int(block.lines[at]) + swallowed - 1})"
        is_cut = at == last and block.is_open and swallowed == 1
        log.add_bad(int(block.lines[at]), problem, cut=is_cut and (len(cells) < width or not cells[-1].strip()))
        # The rows that it took in cannot be read either, and must not make the share of bad rows look small.
        log.num_rows += swallowed - 1
        log.num_bad += swallowed - 1


def _columns(found: Values, log: RowLog) -> Columns:
    reasons = found.pop(SKIPPED, None)
    for name in ("ttft_ns", "e2e_ns", "delay_ns"):
        if name in found and (negative := found[name] < 0).any():
            if (found[name][negative] != UNKNOWN).any():
                log.remark(f"negative {name.removesuffix('_ns')} times are taken as not measured")
            found[name] = np.where(negative, UNKNOWN, found[name])
    columns = Columns(**{name: _or_none(name, found[name]) for name in _NAMES if name in found})
    if reasons is None or not any(reasons):
        return columns
    for line, reason in zip(found["line"].tolist(), reasons, strict=True):
        if reason is not None:
            log.add_skipped(reason, line)
    return columns.take(np.array([at for at, reason in enumerate(reasons) if reason is None], dtype=np.int64))


_NAMES = tuple(field.name for field in fields(Columns))


def _or_none(name: str, values: Any) -> Any:
    """A column as `Columns` has it: None for an optional one in which no row has a value."""
    if isinstance(values, np.ndarray):
        return values if name in REQUIRED or (values != UNKNOWN).any() else None
    return tuple(values) if any(value is not None for value in values) else None


def _take(values: Any, rows: Ints) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows.tolist()]
