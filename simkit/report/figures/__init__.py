"""Every chart of a report, one file a subject: from plain data to SVG. Knows matplotlib, and no page."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from simkit.report.document import Drawing, Figure, Section, Table


def later(chart: str, content: Mapping[str, Any]) -> tuple[Drawing, ...]:
    """A chart of this package (``module.function``) of plain data, of which the module is loaded when it is drawn."""
    module, _, name = chart.partition(".")

    def draw() -> Figure | None:
        found: Figure | None = getattr(import_module(f"{__name__}.{module}"), name)(content)
        return found

    return (Drawing(draw),)


def picture(chart: str, content: Mapping[str, Any], title: str, *says: str, tables: tuple[Table, ...] = ()) -> Section:
    """A section about a chart, which gives it its key; a terminal leaves it out."""
    return Section(chart.rpartition(".")[2], title, says, tables, figures=later(chart, content), brief=())
