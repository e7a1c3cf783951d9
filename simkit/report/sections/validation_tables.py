"""What `simkit validate` prints: the parts of a comparison as the terminal shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from simkit.report.sections import validation
from simkit.report.sections.plan_tables import badge_lines, part_lines
from simkit.report.sections.validation_data import Content, effect_name

if TYPE_CHECKING:
    from rich.console import RenderableType

PICTURES = frozenset({"distributions", "requests", "series"})
"""Parts that are pictures."""


def terminal(content: Content, width: int = 100) -> list[RenderableType]:
    """Answer, bands, tables of errors, ablation, sources of the effects, notes; split to fit `width` columns."""
    found: list[RenderableType] = [
        Text(validation.title(content)),
        Text(validation.answer(content), "bold"),
    ]
    found += badge_lines(validation.badges(content))
    for part in validation.parts(content):
        if part.key == "effects":
            found += [Text(f"\n{part.title}", style="bold"), *_effects(content)]
        elif part.key not in PICTURES:
            found += part_lines(part, width)
    return found


def _effects(content: Content) -> list[Text]:
    """One line a source: sources are sentences, too long for a column."""
    by_source: dict[str, list[str]] = {}
    for effect, source in content["latency_effects"].items():
        by_source.setdefault(str(source), []).append(effect_name(effect))
    return [Text(f"- {source}: {', '.join(names)}") for source, names in by_source.items()]
