"""What `simkit validate --summary` prints: the parts of a study of rows as the terminal shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from simkit.report import rows_parts
from simkit.report.plan_tables import badge_lines, part_lines
from simkit.report.rows_data import Content

if TYPE_CHECKING:
    from rich.console import RenderableType

SKIPPED = frozenset({"agreement", "concurrency", "rows"})
"""Parts that are pictures, and the table of every row, which is on the page and in the JSON."""


def terminal(content: Content, width: int = 100) -> list[RenderableType]:
    """Answer, errors, fit, errors by group, what was left out and assumed; split to fit `width` columns."""
    found: list[RenderableType] = [Text(rows_parts.title(content)), Text(rows_parts.answer(content), "bold")]
    found += badge_lines(rows_parts.badges(content))
    for part in rows_parts.parts(content):
        if part.key not in SKIPPED:
            found += part_lines(part, width)
    return found
