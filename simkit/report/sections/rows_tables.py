"""What `simkit validate --summary` prints: the parts of a study of rows as the terminal shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from simkit.report.sections import rows
from simkit.report.sections.plan_tables import badge_lines, part_lines
from simkit.report.sections.rows_data import Content

if TYPE_CHECKING:
    from rich.console import RenderableType

SKIPPED = frozenset({"agreement", "concurrency", "rows"})
"""Parts that are pictures, and the table of every row, which is on the page and in the JSON."""


def terminal(content: Content, width: int = 100) -> list[RenderableType]:
    """Answer, errors, fit, errors by group, what was left out and assumed; split to fit `width` columns."""
    found: list[RenderableType] = [Text(rows.title(content)), Text(rows.answer(content), "bold")]
    found += badge_lines(rows.badges(content))
    for part in rows.parts(content):
        if part.key not in SKIPPED:
            found += part_lines(part, width)
    return found
