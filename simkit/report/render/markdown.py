"""A plan's report as GitHub-flavoured Markdown, for a pull request: the page's parts without its pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from simkit.report.sections import plan, plan_words
from simkit.report.sections.plan_data import Content
from simkit.report.sections.plan_grid import LEFT, Sheet, joined

_SPECIAL = re.compile(r"[\\`*|]|<(?=[A-Za-z/!?])|\](?=[(\[:])")


def plan_markdown(content: Content) -> str:
    """The whole report as text. The same content gives the same bytes."""
    lines = [f"# simkit plan: {escaped(content['name'])}", "", f"**{escaped(content['answer'])}**", ""]
    for badge in plan_words.badges(content):
        lines.append(f"- **{escaped(badge.label)}**: {escaped(badge.text)}")
    for part in plan.parts(content):
        if part.text or part.sheets or part.items or part.code:
            lines += ["", f"## {escaped(part.title)}", *_blocks(part)]
    lines += ["", "## What the words mean", ""]
    lines += [f"- **{escaped(name)}**: {escaped(text)}" for name, text in plan_words.definitions()]
    lines += ["", "## Provenance", *_table(plan.provenance(content)), "", "<details>"]
    lines += ["<summary>Scenario, every default written out</summary>", "", *fenced(scenario_yaml(content), "yaml")]
    return "\n".join([*lines, "", "</details>"]) + "\n"


def scenario_yaml(content: Content) -> str:
    """The scenario of a plan as its file would say it, every default written out."""
    return yaml.safe_dump(dict(content["scenario"]), sort_keys=False, allow_unicode=True, width=100).rstrip("\n")


def escaped(text: object) -> str:
    """Text without a meaning of its own in Markdown, on one line."""
    return _SPECIAL.sub(lambda match: "\\" + match[0], " ".join(str(text).split()))


def fenced(code: str, language: str) -> list[str]:
    """Lines of code, fenced by more backticks than it has in a row."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return [f"{fence}{language}", *code.split("\n"), fence]


def _blocks(part: plan.Part) -> Iterator[str]:
    for text in part.text:
        yield from ("", escaped(text))
    if part.items:
        yield ""
        yield from (f"- {escaped(item)}" for item in part.items)
    for sheet in part.sheets:
        if len(part.sheets) > 1:
            yield from ("", f"### {escaped(sheet.title)}")
        yield from _table(sheet)
    if part.code is not None:
        yield from ("", *fenced(part.code, "sh"))


def _table(sheet: Sheet) -> Iterator[str]:
    columns = sheet.columns
    yield ""
    yield _line([sheet.head, *(joined(column.header) for column in columns)])
    yield _line(["---", *("---" if column.header in LEFT else "---:" for column in columns)], plain=True)
    for index, name in enumerate(sheet.names):
        yield _line([name, *(column.cells[index] for column in columns)])
    for note in sheet.notes:
        yield from ("", escaped(note))


def _line(cells: list[str], plain: bool = False) -> str:
    return f"| {' | '.join(cell if plain else escaped(cell) for cell in cells)} |"
