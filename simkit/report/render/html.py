"""A report as a page: one self-contained file, the same text for the same report. Owns the page, not its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from simkit.errors import InputError
from simkit.metrics.glossary import DEFINITIONS
from simkit.report import words
from simkit.report.document import Report
from simkit.report.figures import run as figures
from simkit.report.read import summary
from simkit.report.read.run import load_run
from simkit.report.sections import doctor
from simkit.report.sections.runs import arms as arm_table
from simkit.report.sections.runs import headline, lengths, provenance, replay


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
    pages.filters.update(plain=words.plain, percent=words.percent, svg=Markup, arm=_breakable, name=_wrapping)
    return pages


def write_report(
    out_file: Path, arms: Mapping[str, Path], *, title: str, comparison: Mapping[str, Any] | None = None
) -> None:
    """Write the report of `arms` (name -> finished run directory) to `out_file`.

    `comparison` is the parsed compare.json (``baseline``, ``paired``, ``failed``); without it the first arm is the
    baseline. The same input gives the same bytes. Raises InputError when a run directory or the output cannot be used.
    """
    _write(out_file, render_runs(arms, title=title, comparison=comparison))


def write(path: Path, report: Report) -> None:
    """Write the page of a report. Raises InputError where that is not possible."""
    _write(path, render(report))


def _write(path: Path, page: str) -> None:
    try:
        path.write_bytes(page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def render(report: Report) -> str:
    """The page as text; sections with nothing in them are left out."""
    drawn = [(section, section.figure() if section.figure else None) for section in report.sections]
    shown = [(section, figure) for section, figure in drawn if figure or not section.is_empty]
    return environment().get_template("page.html.j2").render(report=report, sections=shown)


def render_runs(arms: Mapping[str, Path], *, title: str, comparison: Mapping[str, Any] | None = None) -> str:
    """The page as text; see `write_report`."""
    if not arms:
        raise InputError("a report needs at least one run directory")
    runs = [load_run(name, run_dir) for name, run_dir in arms.items()]
    paired = arm_table.paired_table(runs, comparison) if comparison else None
    page = environment().get_template("report.html.j2")
    if len(runs) == 1 and summary.are_several([runs[0].manifest]):
        title = f"{title}: {summary.gpus_text(runs[0].manifest)}"
    return page.render(
        title=title,
        answer=headline.sentence(runs, comparison),
        badges=headline.badges(runs, comparison),
        table=arm_table.arm_table(runs),
        paired=paired,
        baseline=(comparison or {}).get("baseline", runs[0].name),
        replications=max(int(run.manifest.get("replications") or 1) for run in runs),
        sheets=[(run.name, sheet) for run in runs for sheet in replay.sheets(run.summary, run.measured)],
        diagnoses=doctor.diagnoses(runs),
        spreads=lengths.spreads(runs),
        sections=figures.sections(runs),
        definitions=DEFINITIONS,
        provenance=provenance.provenance(runs),
        single=len(runs) == 1,
        version=runs[0].manifest.get("version"),
    )


def _breakable(name: str) -> Markup:
    """An arm name that may wrap behind ``+`` and ``@``."""
    return Markup("").join(
        Markup("{}<wbr>").format(char) if char in "+@=," else Markup("{}").format(char) for char in name
    )


def _wrapping(name: str) -> Markup:
    """A name, which may wrap behind a comma."""
    return Markup(",<wbr>").join(name.split(","))
