"""What a report is made of, whatever shows it: a title, an answer, labels, and sections of words, tables and figures.

A subject makes one `Report` of its plain data; every renderer takes a `Report` and nothing else. Figures are drawn when
a renderer asks for them, so that what has no pictures never loads matplotlib.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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


@dataclass(frozen=True, slots=True)
class Table:
    """A table: what a row is (`head`, `names`), columns in groups that stay together, and notes under it.

    `folded`: shown by a page only on demand, and not at all by a terminal.
    """

    title: str
    head: str
    names: tuple[str, ...]
    groups: tuple[tuple[Column, ...], ...]
    notes: tuple[str, ...] = ()
    folded: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns."""
        return tuple(column for group in self.groups for column in group)


@dataclass(frozen=True, slots=True)
class Section:
    """A section under a title: what it says, its figure, a line to paste, a list, and tables. `key` is its anchor.

    `brief`: what a terminal shows in place of words, list and tables, where it cannot show all. A section with an
    empty one is about its figure: a terminal leaves it out, and so does a page that has neither figure nor tables.
    """

    key: str
    title: str
    says: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    items: tuple[str, ...] = ()
    code: str | None = None
    figure: Callable[[], Figure | None] | None = None
    brief: tuple[str, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing but, perhaps, a figure."""
        words = () if self.brief == () else self.says
        return not (words or self.tables or self.items or self.code)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers of a report come from: facts by name, and the scenario, if any, as (what it is, its file)."""

    origin: str
    facts: Terms
    scenario: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told of a subject. `answer` is one sentence; `definitions` say what its words mean."""

    title: str
    answer: str
    badges: tuple[Badge, ...]
    sections: tuple[Section, ...]
    definitions: Terms
    provenance: Provenance
    version: str | None = None


def present(*found: Table | None) -> tuple[Table, ...]:
    """The tables that there are."""
    return tuple(table for table in found if table is not None)
