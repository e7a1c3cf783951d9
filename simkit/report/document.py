"""What a report is made of, whatever shows it: a title, an answer, labels, and sections of words, tables and figures.

A subject makes one `Report` of its plain data; every renderer takes a `Report` and nothing else. Figures are drawn when
a renderer asks for them, so that what has no pictures never loads matplotlib.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

Terms = tuple[tuple[str, str], ...]
"""Words and what they mean."""


@dataclass(frozen=True, slots=True)
class Badge:
    """A label that a reader must see before any number, and what it means.

    `kind` is ``good``, ``warn`` or ``bad``; `details` are folded away behind `unfold`.
    """

    label: str
    text: str
    kind: str
    details: tuple[str, ...] = ()
    unfold: str = "which and how fast"


@dataclass(frozen=True, slots=True)
class Figure:
    """One drawing: inline SVG and the line under it."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ready text; `header` may have several lines. `words` read from the left, numbers from the right."""

    header: str
    cells: tuple[str, ...]
    words: bool = False

    @property
    def name(self) -> str:
        """Its header on one line: a word that was broken is whole again."""
        return re.sub(r"(?<=[a-z])-\n(?=[a-z])", "", self.header).replace("\n", " ")


def column(header: str, cells: Iterable[str], *, words: bool = False) -> Column:
    """A column of any cells."""
    return Column(header, tuple(cells), words)


def across(headers: Iterable[str], rows: Sequence[Sequence[str]], words: Collection[str] = ()) -> tuple[Column, ...]:
    """Columns of the cells of all rows, in which those that are named hold `words`."""
    return tuple(column(header, (row[at] for row in rows), words=header in words) for at, header in enumerate(headers))


def single(*columns: Column) -> tuple[tuple[Column, ...], ...]:
    """Groups of one column each: none must stay beside another."""
    return tuple((column,) for column in columns)


@dataclass(frozen=True, slots=True)
class Note:
    """A remark, and what it is about: a mark in a table or the names of some arms; empty where it is about all."""

    text: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: what a row is (`head`, `names`), columns in groups that stay together, and notes under it.

    `folded`: shown by a page only on demand, and not at all by a terminal. `arm`: whose it is, where there are several.
    """

    title: str
    head: str
    names: tuple[str, ...]
    groups: tuple[tuple[Column, ...], ...]
    notes: tuple[str, ...] = ()
    folded: bool = False
    arm: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns."""
        return tuple(column for group in self.groups for column in group)


@dataclass(frozen=True, slots=True)
class Cell:
    """A number as text, its 95 % interval (may be empty), and the mark of the note that says why there is none."""

    text: str
    interval: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A metric over all arms."""

    label: str
    unit: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of metrics with an arm a column: rows under headings, notes for the marks in its cells."""

    caption: str
    arms: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Row, ...]], ...]
    notes: tuple[Note, ...]

    def table(self) -> Table:
        """The same as a plain table."""
        rows = [row for _, group in self.groups for row in group]
        names = tuple(f"{row.label} [{row.unit}]" if row.unit else row.label for row in rows)
        cells = [[f"{cell.text}{cell.mark} {cell.interval}".rstrip() for cell in row.cells] for row in rows]
        columns = single(*across(self.arms, cells))
        return Table(self.caption, "metric", names, columns, tuple(f"{note.about}: {note.text}" for note in self.notes))


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure that is drawn when it is called for; `missing` says what is not drawn, and why, where nothing comes."""

    draw: Callable[[], Figure | None]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A section under a title: what it says, its figures, a line to paste, a list, tables, and sections within.

    `key` is its anchor and `short` its name among the contents, if not the title; `badge` stands beside the title.
    `brief`: what a terminal shows in place of words, list and tables, where it cannot show all. A section with an
    empty one is about its figures: a terminal leaves it out, and so does a page that has neither figure nor tables.
    """

    key: str
    title: str
    says: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    items: tuple[str, ...] = ()
    code: str | None = None
    figures: tuple[Drawing, ...] = ()
    grids: tuple[Grid, ...] = ()
    parts: tuple[Section, ...] = ()
    brief: tuple[str, ...] | None = None
    short: str = ""
    badge: Badge | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing but, perhaps, figures."""
        words = () if self.brief == () else self.says
        return not (words or self.tables or self.items or self.code or self.grids or self.parts)

    @property
    def plain_tables(self) -> tuple[Table, ...]:
        """All its tables, for those who know but one kind."""
        return (*(grid.table() for grid in self.grids), *self.tables)


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, under a title where there are several such lists; `arms` share them, () for all."""

    pairs: Terms
    title: str = ""
    arms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers of a report come from.

    `runs` has a row a run, where there are any. `warmups` say what was left out of each, and `scenarios` are
    (what it is, its file).
    """

    origin: str
    facts: tuple[Facts, ...]
    scenarios: tuple[tuple[str, str], ...] = ()
    runs: Table | None = None
    warmups: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told of a subject. `answer` is one sentence; `definitions` say what its words mean.

    `layout` is that of its page: ``page``, or ``runs`` for that of run directories.
    """

    title: str
    answer: str
    badges: tuple[Badge, ...]
    sections: tuple[Section, ...]
    definitions: Terms
    provenance: Provenance
    version: str | None = None
    layout: str = "page"


def present(*found: Table | None) -> tuple[Table, ...]:
    """The tables that there are."""
    return tuple(table for table in found if table is not None)
