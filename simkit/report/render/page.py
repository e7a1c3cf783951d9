"""A page of parts: heading, answer, labels, then words, pictures and tables, and where they come from.

One self-contained file. Owns the page and its writing, not its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from simkit.errors import InputError
from simkit.report.figures.run import Figure
from simkit.report.render.html import environment
from simkit.report.sections.headline import Badge
from simkit.report.sections.plan import Part
from simkit.report.sections.plan_grid import Sheet, joined


def render(
    *,
    title: str,
    answer: str,
    badges: Sequence[Badge],
    parts: Sequence[tuple[Part, Figure | None]],
    definitions: Sequence[tuple[str, str]],
    origin: str,
    provenance: Sheet,
    left: frozenset[str],
    version: str | None,
    scenario: tuple[str, str] | None = None,
) -> str:
    """The page as text; parts with nothing in them are left out.

    `left`: headers of columns of words. `scenario`: what its file is, and the file. The same input gives the same text.
    """
    pages = environment()
    pages.filters.update(joined=joined, name=_breakable)
    summary, text = scenario or (None, None)
    values: Mapping[str, Any] = {
        "title": title,
        "answer": answer,
        "badges": badges,
        "parts": [(part, figure) for part, figure in parts if figure or _says(part)],
        "definitions": definitions,
        "origin": origin,
        "provenance": provenance,
        "scenario_summary": summary,
        "scenario": text,
        "left": left,
        "version": version,
    }
    return pages.get_template("page.html.j2").render(values)


def write(path: Path, page: str) -> None:
    """Write a page. Raises InputError where that is not possible."""
    try:
        path.write_bytes(page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def _says(part: Part) -> bool:
    return bool(part.text or part.sheets or part.items or part.code)


def _breakable(name: str) -> Markup:
    """A name, which may wrap behind a comma."""
    return Markup(",<wbr>").join(name.split(","))
