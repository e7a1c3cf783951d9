"""The HTML report of a plan: one self-contained page from the content of plan.json. Owns the page, not its numbers."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from simkit.report import plan_curves, plan_figures, plan_front, plan_parts, plan_words
from simkit.report.figures import Figure
from simkit.report.html import environment
from simkit.report.plan_data import Content
from simkit.report.plan_markdown import scenario_yaml
from simkit.report.plan_sheets import LEFT, joined

FIGURES: dict[str, Callable[[Content], Figure | None]] = {
    "capacity": plan_figures.capacity,
    "chance": plan_figures.chance,
    "throughput": plan_curves.throughput,
    "latency": plan_curves.latency,
    "pareto": plan_front.pareto,
    "pressure": plan_curves.pressure,
    "sensitivity": plan_figures.sensitivity,
}
"""The figure of a part, by the key of the part."""


def render_plan(content: Content) -> str:
    """The page as text. The same content gives the same bytes."""
    parts = [(part, FIGURES[part.key](content) if part.key in FIGURES else None) for part in plan_parts.parts(content)]
    pages = environment()
    pages.filters.update(joined=joined, name=_breakable)
    return pages.get_template("plan.html.j2").render(
        title=f"Plan of {content['name']}",
        answer=content["answer"],
        badges=plan_words.badges(content),
        parts=[
            (part, figure) for part, figure in parts if figure or part.text or part.sheets or part.items or part.code
        ],
        definitions=plan_words.definitions(),
        provenance=plan_parts.provenance(content),
        scenario=scenario_yaml(content),
        left=LEFT,
        version=content["version"],
    )


def _breakable(name: str) -> Markup:
    """The name of a point, which may wrap behind a comma."""
    return Markup(",<wbr>").join(name.split(","))
