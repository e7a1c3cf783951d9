"""The HTML report of a plan: one self-contained page from the content of plan.json. Owns the page, not its numbers."""

from __future__ import annotations

from collections.abc import Callable

from simkit.report.figures import capacity, curves, front
from simkit.report.figures.run import Figure
from simkit.report.render import page
from simkit.report.render.markdown import scenario_yaml
from simkit.report.sections import plan, plan_words
from simkit.report.sections.plan_data import Content
from simkit.report.sections.plan_grid import LEFT

FIGURES: dict[str, Callable[[Content], Figure | None]] = {
    "capacity": capacity.capacity,
    "chance": capacity.chance,
    "throughput": curves.throughput,
    "latency": curves.latency,
    "pareto": front.pareto,
    "pressure": curves.pressure,
    "sensitivity": capacity.sensitivity,
}
"""The figure of a part, by the key of the part."""


def render_plan(content: Content) -> str:
    """The page as text. The same content gives the same bytes."""
    parts = [(part, FIGURES[part.key](content) if part.key in FIGURES else None) for part in plan.parts(content)]
    return page.render(
        title=f"Plan of {content['name']}",
        answer=content["answer"],
        badges=plan_words.badges(content),
        parts=parts,
        definitions=plan_words.definitions(),
        origin="Every number of this page comes from this scenario, profile, seed and version.",
        provenance=plan.provenance(content),
        left=LEFT,
        version=content["version"],
        scenario=("The file that the plan was made from", scenario_yaml(content)),
    )
