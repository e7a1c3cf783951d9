"""What `simkit plan` prints: the parts of a plan's report as the terminal shows them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from simkit.report.sections import plan_words
from simkit.report.sections.headline import Badge
from simkit.report.sections.plan import Part, parts
from simkit.report.sections.plan_data import Content
from simkit.report.sections.run import fit

if TYPE_CHECKING:
    from rich.console import RenderableType

SKIPPED = frozenset({"throughput", "latency", "pareto", "pressure"})
"""Parts that are pictures."""

INDENT = 2


def plan_tables(content: Content, width: int = 100) -> list[RenderableType]:
    """The answer, its labels, and the tables of a plan, split to fit `width` columns."""
    found: list[RenderableType] = [Text(str(content["answer"]), style="bold")]
    found += badge_lines(plan_words.badges(content))
    for part in parts(content):
        if part.key == "limits":
            found += [Text(f"\n{part.title}", style="bold"), *(Text(f"- {item}") for item in part.items)]
        elif part.key == "chance":
            found += [Text(f"\n{part.title}", style="bold"), *map(Text, (*part.text, *_steps(part)))]
        elif part.key not in SKIPPED:
            found += part_lines(part, width)
    return found


def badge_lines(badges: Iterable[Badge]) -> list[RenderableType]:
    """Labels with what they mean, indented."""
    return [Padding(Text(f"{badge.label}: {badge.text}"), (0, 0, 0, INDENT), expand=False) for badge in badges]


def _steps(part: Part) -> Iterator[str]:
    """A curve as one sentence: it falls at every rate that is named."""
    for sheet in part.sheets:
        steps = zip(sheet.names, sheet.columns[0].cells, strict=True)
        yield f"Above {', '.join(f'{rate}/s: {share}' for rate, share in steps)}."


def part_lines(part: Part, width: int) -> list[RenderableType]:
    """A part as the terminal shows it: title, paragraphs, items, tables that are not folded, the line to paste."""
    found: list[RenderableType] = [Text(f"\n{part.title}", style="bold")]
    found += [Text(line) for line in part.text]
    found += [Text(f"- {item}") for item in part.items]
    for sheet in part.sheets:
        if not sheet.folded:
            found += fit(sheet.head, sheet.names, [g for g in sheet.groups if any(map(_told, g))], width)
            found += [Text(note) for note in sheet.notes]
    if part.code is not None:
        found.append(Text("\n".join(continued(part.code, width))))
    return found


def _told(column: object) -> bool:
    return any(getattr(column, "cells", ()))


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
