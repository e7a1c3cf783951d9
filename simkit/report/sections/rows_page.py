"""The page of a study of aggregate rows, from the content of rows.json. Owns the page, not its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simkit.report.figures import rows
from simkit.report.figures.run import Figure
from simkit.report.render import page
from simkit.report.sections import rows as rows_parts
from simkit.report.sections.plan_grid import LEFT
from simkit.report.sections.rows_data import Content

FIGURES: dict[str, Callable[[Content], Figure | None]] = {
    "agreement": rows.scatter,
    "concurrency": rows.concurrency,
}
"""The figure of a part, by the key of the part; a part of this list without its figure is left out."""


def write(path: Path, content: Content) -> None:
    """Write the page to `path`. Raises InputError where that is not possible."""
    page.write(path, render(content))


def render(content: Content) -> str:
    """The page as text. The same content gives the same text."""
    drawn = [(part, FIGURES[part.key](content) if part.key in FIGURES else None) for part in rows_parts.parts(content)]
    return page.render(
        title=rows_parts.title(content),
        answer=rows_parts.answer(content),
        badges=rows_parts.badges(content),
        parts=[(part, figure) for part, figure in drawn if figure or part.key not in FIGURES],
        definitions=rows_parts.DEFINITIONS,
        origin="Every number of this page comes from rows.json beside it: from these rows and this study.",
        provenance=rows_parts.provenance(content),
        left=LEFT | rows_parts.LEFT,
        version=content.get("version"),
    )
