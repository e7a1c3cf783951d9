"""The page of a run beside what was measured, from the content of validation.json. Owns the page, not its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from simkit.report.figures import validation
from simkit.report.figures.run import Figure
from simkit.report.render import page
from simkit.report.render.markdown import scenario_yaml
from simkit.report.sections import validation as validation_parts
from simkit.report.sections.plan_grid import LEFT
from simkit.report.sections.validation_data import Content

FIGURES: dict[str, Callable[[Content], Figure | None]] = {
    "distributions": validation.distributions,
    "requests": validation.requests,
    "series": validation.series,
    "ablation": validation.ablation,
}
"""The figure of a part, by the key of the part; a part of this list without its figure is left out."""


def write(path: Path, content: Content) -> None:
    """Write the page to `path`. Raises InputError where that is not possible."""
    page.write(path, render(content))


def render(content: Content) -> str:
    """The page as text. The same content gives the same text."""
    drawn = [
        (part, FIGURES[part.key](content) if part.key in FIGURES else None) for part in validation_parts.parts(content)
    ]
    scenario = content.get("scenario")
    return page.render(
        title=validation_parts.title(content),
        answer=validation_parts.answer(content),
        badges=validation_parts.badges(content),
        parts=[(part, figure) for part, figure in drawn if figure or part.sheets or part.key not in FIGURES],
        definitions=validation_parts.WORDS,
        origin="Every number of this page comes from validation.json beside it: from this log and this scenario.",
        provenance=validation_parts.provenance(content),
        left=LEFT | validation_parts.LEFT,
        version=content.get("version"),
        scenario=("The engine that was simulated", scenario_yaml(content)) if isinstance(scenario, Mapping) else None,
    )
