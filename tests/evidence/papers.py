"""Figures of papers, each simulated in its setting: settings and claims are public, and stand with their sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evidence import anyscale, sarathi
from evidence.inputs import module_of
from evidence.line import Chart, Line, Section

PAGED_SOURCE = "PagedAttention, SOSP 2023"


def _lines(shared: Path) -> list[Line]:
    """PagedAttention's memory, Anyscale's batching, Sarathi-Serve's chunks."""
    return [*paged_attention(), *anyscale.lines(), *sarathi.lines()]


def _charts() -> dict[str, Chart]:
    return anyscale.charts() | sarathi.charts()


def paged_attention() -> Iterator[Line]:
    """Requests that run together and KV memory that holds tokens, by the way in which memory is set aside."""
    for figure in module_of("theory/test_paper_figures.py").figures():
        yield Line(
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


PAPERS = Section("Papers", _lines, charts=_charts)
