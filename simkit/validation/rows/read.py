"""Rows of a table of serving benchmarks: one line a measured run, its settings and the means that were measured.

Owns the columns and the checks of their cells. Knows no scenario.
"""

from __future__ import annotations

import csv
import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simkit.errors import InputError, nearest
from simkit.logs.read.text import open_text, reading
from simkit.metrics.catalogue import ROWS, shown

TEXTS = ("row_id", "set", "engine", "engine_version", "model", "dtype_quant", "gpu", "request_rate", "other_config",
         "dataset", "notes", "source")  # fmt: skip
SETTINGS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
"""Of the engine; `default` leaves them open."""

COUNTS = ("n_gpu", "tp", "pp", "num_prompts", "max_concurrency", "batch_size", *SETTINGS, "kv_cache_tokens")
LENGTHS = ("input_len", "output_len")
"""Tokens of a request; a mean over requests may have a fraction."""

FLAGS = ("prefix_caching", "chunked_prefill")
"""Also with `enable_` before the name."""

CACHED = "cached_prompt_share"
"""Share of the prompt tokens that were in the prefix cache before the run; empty for none."""

NEEDED = ("row_id", "engine", "model", "gpu", *LENGTHS)
"""Columns without which nothing can be simulated; a cell of them may be empty, but not that of `row_id`."""

CLOSED_LOOP = "closed loop"
"""A `request_rate` that says only that `max_concurrency` is the load."""

_TRUE, _FALSE = ("1", "1.0", "true", "yes", "on", "enabled"), ("0", "0.0", "false", "no", "off", "disabled")
STATS = ("mean", "median", "p90", "p95", "p99")


METRICS: Mapping[str, tuple[str, float]] = {
    metric.name(ROWS): (metric.key, 1e-3 if metric.unit == "ms" and metric.name(ROWS).endswith("_s") else 1.0)
    for metric in shown(ROWS)
}
"""Column of a measured number to the key of `summary.json` that predicts it, and the factor to the column's unit."""

KNOWN = (*TEXTS, *COUNTS, *LENGTHS, CACHED, *FLAGS, *(f"enable_{flag}" for flag in FLAGS), *METRICS)


Section = dict[str, object]
"""A section of the scenario that a row becomes, or what is known of one, by key."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `cells` holds its texts by column, in one line each; what is empty is missing in the typed
    mappings: `numbers` (counts and lengths), `flags` and `measured` (METRICS). `odd` says of each cell that cannot be
    read its column and what was expected: such a row cannot be simulated.
    """

    line: int
    cells: Mapping[str, str]
    numbers: Mapping[str, float]
    flags: Mapping[str, bool]
    measured: Mapping[str, float]
    odd: tuple[str, ...] = ()

    def text(self, column: str) -> str:
        """The cell, empty where there is none."""
        return self.cells.get(column, "")

    def count(self, column: str) -> int | None:
        """The whole number in a column of COUNTS."""
        return int(self.numbers[column]) if column in self.numbers else None

    @property
    def id(self) -> str:
        """Its name, different from that of all others."""
        return self.cells["row_id"]


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file in its order. `ignored`: columns that nothing is read from. `num_zeros`: measured numbers
    of 0, which are taken as not measured.
    """

    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    ignored: tuple[str, ...]
    num_zeros: int


def read_rows(path: Path) -> Table:
    """The table in a CSV file, plain or packed. InputError, with file and line, for what cannot be read."""
    with reading(str(path)), open_text(path) as file:
        lines = csv.reader(file, strict=True)
        columns = _columns(next(lines, []), path)
        rows, seen = [], dict[str, int]()
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{path}:{lines.line_num}"
            row = _row(cells, columns, where, lines.line_num)
            if row.id in seen:
                raise InputError(
                    f"{where}: row_id: expected a name of its own, got {row.id!r} as in line {seen[row.id]}"
                )
            seen[row.id] = row.line
            rows.append(row)
    if not rows:
        raise InputError(f"{path}: expected rows under the header, got none")
    zeros = sum(name in METRICS and _is_zero(cell) for row in rows for name, cell in row.cells.items())
    return Table(tuple(rows), columns, tuple(name for name in columns if name not in KNOWN), zeros)


def select(table: Table, conditions: Sequence[str]) -> list[Row]:
    """The rows that meet all conditions ``COLUMN=GLOB`` (any case); of several on one column one must hold.

    Raises InputError for a condition that cannot be read, and when no row is left.
    """
    wanted: dict[str, list[str]] = {}
    for text in conditions:
        column, equals, glob = (part.strip() for part in text.partition("="))
        if not equals or not column:
            raise InputError(f"--select {text}: expected COLUMN=GLOB, e.g. --select model=*8B*")
        check_column(column, table, f"--select {text}")
        wanted.setdefault(column, []).append(glob.lower())
    rows = [
        row
        for row in table.rows
        if all(
            any(fnmatch.fnmatchcase(row.text(name).lower(), glob) for glob in globs) for name, globs in wanted.items()
        )
    ]
    if not rows:
        raise InputError(f"--select {' '.join(conditions)}: none of the {len(table.rows)} rows is left")
    return rows


def check_column(column: str, table: Table, label: str) -> None:
    """InputError for a column that the table does not have."""
    if column not in table.columns:
        raise InputError(f"{label}: expected a column of the file, got {column!r}{nearest(column, table.columns)}")


def _columns(header: Sequence[str], path: Path) -> tuple[str, ...]:
    columns = tuple(name.strip() for name in header)
    other = next((mark for mark in (";", "\t", "|") if len(columns) < 3 and mark in "".join(columns)), None)
    if other is not None:
        raise InputError(f"{path}:1: expected commas between the columns, got {other!r}")
    lacking = [name for name in NEEDED if name not in columns]
    if lacking:
        more = f" (nor {', '.join(lacking[1:])})" if lacking[1:] else ""
        close = nearest(lacking[0], columns)
        raise InputError(f"{path}:1: column {lacking[0]}: expected it in the header, got none{more}{close}")
    twice = next((name for position, name in enumerate(columns) if name and name in columns[:position]), None)
    if twice is not None:
        raise InputError(f"{path}:1: column {twice}: expected it once, got it twice")
    if not any(name in METRICS for name in columns):
        raise InputError(f"{path}:1: expected a column of measured numbers, e.g. mean_tpot_ms, got none")
    return columns


def _row(cells: Sequence[str], columns: Sequence[str], where: str, line: int) -> Row:
    if len(cells) != len(columns):
        raise InputError(f"{where}: expected {len(columns)} cells as in the header, got {len(cells)}")
    texts = {name: " ".join(cell.split()) for name, cell in zip(columns, cells, strict=True)}
    if not texts["row_id"]:
        raise InputError(f"{where}: row_id: expected a name, got nothing")
    odd: list[str] = []
    numbers, measured = dict(_numbers(texts, odd)), dict(_measured(texts, odd))
    return Row(line, texts, numbers, dict(_flags(texts, odd)), measured, tuple(odd))


def _numbers(texts: Mapping[str, str], odd: list[str]) -> Iterator[tuple[str, float]]:
    for name in (*COUNTS, *LENGTHS, CACHED, "request_rate"):
        cell = _stated(name, texts.get(name, ""))
        if not cell:
            continue
        try:
            if name == "request_rate":
                yield name, _rate(cell)
                continue
            value = _number(cell)
            if name == CACHED:
                if not 0 <= value <= 1:
                    raise InputError(f"expected a share from 0 to 1, got {texts[name]!r}")
                yield name, value
                continue
            if value <= 0 or (name in COUNTS and not value.is_integer()):
                what = "an integer >= 1" if name in COUNTS else "tokens > 0"
                raise InputError(f"expected {what}, got {texts[name]!r}")
            yield name, value
        except InputError as error:
            odd.append(f"{name}: {error}")


def _stated(name: str, cell: str) -> str:
    """The number that a cell states, without a remark in brackets behind it; empty where it leaves it open."""
    plain = cell.partition("(")[0].strip() if cell.endswith(")") else cell
    plain = plain or cell  # brackets around all of it are no remark
    low = plain.lower()
    if name == "request_rate":
        return "" if low.replace("-", " ") == CLOSED_LOOP else plain
    if name in LENGTHS:
        return plain[len("mean ") :] if low.startswith("mean ") else plain
    return "" if name in SETTINGS and low == "default" else plain


def _measured(texts: Mapping[str, str], odd: list[str]) -> Iterator[tuple[str, float]]:
    for name in METRICS:
        if not texts.get(name):
            continue
        try:
            value = _number(texts[name])
            if value < 0:
                raise InputError(f"expected a number >= 0, got {texts[name]!r}")
        except InputError as error:
            odd.append(f"{name}: {error}")
        else:
            if value:
                yield name, value


def _flags(texts: Mapping[str, str], odd: list[str]) -> Iterator[tuple[str, bool]]:
    """By the first word of a cell; a remark may follow it in brackets."""
    for flag in FLAGS:
        for name in (flag, f"enable_{flag}"):
            cell = texts.get(name, "").lower().partition("(")[0].strip()
            if cell == "default":
                continue
            if cell in _TRUE or cell in _FALSE:
                yield flag, cell in _TRUE
            elif texts.get(name):
                odd.append(f"{name}: expected true or false, got {texts[name]!r}")


def _rate(text: str) -> float:
    if text.lower() in ("inf", "infinite", "infinity"):
        return math.inf
    try:
        value = _number(text)
    except InputError:
        value = 0.0
    if value <= 0:
        raise InputError(f"expected a rate > 0, inf or {CLOSED_LOOP!r}, got {text[:40]!r}")
    return value


def _number(text: str) -> float:
    """A finite number, at most 1e15: what is larger is no count, length, time or rate."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= 1e15 or "_" in text:
        raise InputError(f"expected a number, got {text[:40]!r}")
    return value


def _is_zero(cell: str) -> bool:
    try:
        return float(cell) == 0
    except ValueError:
        return False
