"""Figures of papers, each simulated in its setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evidence import anyscale, sarathi
from evidence.from_tests import module_of
from evidence.line import Line

SECTION = "Papers"
NEEDS: tuple[str, ...] = ()
"""Files of `shared`: none, the settings and claims are public and stand in the modules with their sources."""
PAGED_SOURCE = "PagedAttention, SOSP 2023"


def lines(shared: Path | None) -> list[Line]:
    """PagedAttention's memory, Anyscale's batching, Sarathi-Serve's chunks."""
    return [*paged_attention(), *anyscale.lines(shared), *sarathi.lines(shared)]


def figures() -> dict[str, Any]:
    """What there is to plot: key to {title, x, y_by_name (None where a line has no point), x_label, y_label, log}."""
    return anyscale.figures() | sarathi.figures()


def paged_attention() -> list[Line]:
    """Requests that run together and KV memory that holds tokens, by the way in which memory is set aside."""
    return [
        Line(
            section=SECTION,
            evidence=f"PagedAttention: {figure.name}",
            source=PAGED_SOURCE,
            n=1,
            metric="average over time while somebody waits",
            error_pct=100.0 * figure.difference,
            bar_pct=None if figure.bar is None else 100.0 * figure.bar,
            judged=figure.bar is not None,
            fitted="none",
            text=f"paper {figure.paper:.2f}, simulated {figure.simkit:.2f}",
            note=figure.note,
        )
        for figure in module_of("theory/test_paper_figures.py").figures()
    ]
