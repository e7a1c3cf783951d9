"""A report as a terminal shows it: text and tables of a given width. No number is ever cut.

When the columns of a table do not fit the width, it continues in a second one under it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from simkit.report.document import Column, Report, Section

if TYPE_CHECKING:
    from rich.console import RenderableType

INDENT = 2
GAP, EDGE = 2, 2


def render(report: Report, width: int = 100, *, titled: bool = True) -> list[RenderableType]:
    """Title (where `titled`), answer, labels and sections without pictures, tables split to fit `width` columns."""
    found: list[RenderableType] = [Text(report.title)] if titled else []
    found.append(Text(report.answer, style="bold"))
    found += [Padding(Text(f"{b.label}: {b.text}"), (0, 0, 0, INDENT), expand=False) for b in report.badges]
    for section in report.sections:
        found += _section(section, width)
    return found


def _section(section: Section, width: int) -> Iterator[RenderableType]:
    """Title, paragraphs, items, tables that are not folded, the line to paste; or what is shown in their place."""
    if section.brief == ():
        return
    yield Text(f"\n{section.title}", style="bold")
    if section.brief is not None:
        yield from map(Text, section.brief)
        return
    yield from map(Text, section.says)
    yield from (Text(f"- {item}") for item in section.items)
    for table in section.plain_tables:
        if not table.folded:
            yield from fit(table.head, table.names, [g for g in table.groups if any(c.cells for c in g)], width)
            yield from map(Text, table.notes)
    if section.code is not None:
        yield Text("\n".join(continued(section.code, width)))
    for part in section.parts:
        yield from _section(part, width)


def fit(
    head: str, names: Sequence[str], groups: Sequence[tuple[Column, ...]], width: int, title: str | None = None
) -> list[RichTable]:
    """As few tables as `width` allows, each beginning with the column of names; groups are kept together."""
    longest = max((len(name) for name in (head, *names)), default=0) + 2
    widest = max((_width(column) for group in groups for column in group), default=0)
    # Names up to 28 characters keep their line; longer ones fold, so that numbers do not have to.
    room = width - EDGE - min(longest, max(30, width - EDGE - widest))
    pages: list[list[Column]] = [[]]
    for group in groups:
        pieces = [group] if sum(map(_width, group)) <= room else [(column,) for column in group]
        for piece in pieces:
            used = sum(map(_width, pages[-1]))
            if pages[-1] and used + sum(map(_width, piece)) > room:
                pages.append([])
            pages[-1].extend(piece)
    tables = []
    for index, columns in enumerate(pages):
        table = new_table(title if index == 0 else None)
        table.add_column(head, overflow="fold")
        for column in columns:
            table.add_column(column.header, justify="right", no_wrap=True)
        for row, name in enumerate(names):
            table.add_row(name, *(column.cells[row] for column in columns))
        tables.append(table)
    return tables


def new_table(title: str | None = None) -> RichTable:
    """An empty table as all of them look."""
    from rich import box

    # The box adds a space between columns and on both edges; one of padding makes it a gap of two.
    return RichTable(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
    )


def _width(column: Column) -> int:
    """Characters that a column needs, with the gap to the next."""
    return max(len(line) for text in (column.header, *column.cells) for line in text.split("\n")) + GAP


def continued(command: str, width: int) -> list[str]:
    """A command over several lines as a shell takes it: a flag stays with its value, lines are joined by ``\\``."""
    pieces: list[str] = []
    for word in shlex.split(command):
        if pieces and word.startswith("-"):
            pieces.append(shlex.quote(word))
        else:
            pieces[-1:] = [" ".join([*pieces[-1:], shlex.quote(word)])]
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + 1 + len(piece) + len(" \\") <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"    {piece}" if lines else piece)
    return [*(f"{line} \\" for line in lines[:-1]), *lines[-1:]]
