"""A report as GitHub-flavoured Markdown, for a pull request: all that a page says, without its pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator

from simkit.report.document import Report, Section, Table

_SPECIAL = re.compile(r"[\\`*|]|<(?=[A-Za-z/!?])|\](?=[(\[:])")


def render(report: Report, title: str) -> str:
    """The whole report as text under `title`. The same report gives the same bytes."""
    lines = [f"# {escaped(title)}", "", f"**{escaped(report.answer)}**", ""]
    lines += [f"- **{escaped(badge.label)}**: {escaped(badge.text)}" for badge in report.badges]
    for section in report.sections:
        if not section.is_empty:
            lines += ["", f"## {escaped(section.title)}", *_blocks(section)]
    lines += ["", "## What the words mean", ""]
    lines += [f"- **{escaped(name)}**: {escaped(text)}" for name, text in report.definitions]
    lines += ["", "## Provenance"]
    for facts in report.provenance.facts:
        lines += ["", "| fact | value |", "| --- | --- |", *map(_line, facts.pairs)]
    for _, text in report.provenance.scenarios:
        lines += ["", "<details>", "<summary>Scenario, every default written out</summary>", ""]
        lines += [*fenced(text, "yaml"), "", "</details>"]
    return "\n".join(lines) + "\n"


def escaped(text: object) -> str:
    """Text without a meaning of its own in Markdown, on one line."""
    return _SPECIAL.sub(lambda match: "\\" + match[0], " ".join(str(text).split()))


def fenced(code: str, language: str) -> list[str]:
    """Lines of code, fenced by more backticks than it has in a row."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return [f"{fence}{language}", *code.split("\n"), fence]


def _blocks(section: Section) -> Iterator[str]:
    for text in section.says:
        yield from ("", escaped(text))
    if section.items:
        yield ""
        yield from (f"- {escaped(item)}" for item in section.items)
    tables = section.plain_tables
    for table in tables:
        if len(tables) > 1:
            yield from ("", f"### {escaped(table.title)}")
        yield from table_lines(table)
    if section.code is not None:
        yield from ("", *fenced(section.code, "sh"))
    for part in section.parts:
        yield from ("", f"### {escaped(part.title)}", *_blocks(part))


def table_lines(table: Table) -> Iterator[str]:
    """A table, and its notes under it."""
    columns = table.columns
    yield ""
    yield _line((table.head, *(column.name for column in columns)))
    yield f"| {' | '.join(('---', *('---' if column.words else '---:' for column in columns)))} |"
    for index, name in enumerate(table.names):
        yield _line((name, *(column.cells[index] for column in columns)))
    for note in table.notes:
        yield from ("", escaped(note))


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"
