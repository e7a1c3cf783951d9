"""A report as a page: one self-contained file, the same text for the same report. Owns the page, not its numbers."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from simkit.errors import InputError
from simkit.report.document import Report


def environment() -> Environment:
    """The templates of all pages, with the filters for numbers and pictures."""
    pages = Environment(
        loader=PackageLoader("simkit.report.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters.update(svg=Markup, arm=_breakable, name=_wrapping, code=_code)
    return pages


def write(path: Path, report: Report) -> None:
    """Write the page of a report. Raises InputError where that is not possible."""
    try:
        path.write_bytes(render(report).encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def render(report: Report) -> str:
    """The page as text; sections with nothing in them are left out."""
    shown = []
    for section in report.sections:
        drawn = [(drawing.draw(), drawing.missing) for drawing in section.figures]
        figures = [figure for figure, _ in drawn if figure is not None]
        missing = [why for figure, why in drawn if figure is None and why]
        if figures or not section.is_empty:
            shown.append((section, figures, missing))
    return environment().get_template(f"{report.layout}.html.j2").render(report=report, sections=shown)


def _breakable(name: str) -> Markup:
    """An arm name that may wrap behind ``+`` and ``@``."""
    return Markup("").join(
        Markup("{}<wbr>").format(char) if char in "+@=," else Markup("{}").format(char) for char in name
    )


def _wrapping(name: str) -> Markup:
    """A name, which may wrap behind a comma."""
    return Markup(",<wbr>").join(name.split(","))


def _code(text: str) -> Markup:
    """Text in which words between backticks are code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
