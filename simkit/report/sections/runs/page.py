"""The report of one run or of several beside each other, from their directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from simkit.errors import InputError
from simkit.metrics.glossary import DEFINITIONS
from simkit.plain import Json
from simkit.report.document import Report, Section, Table
from simkit.report.read.run import Run, load_run
from simkit.report.read.summary import are_several, gpus_text
from simkit.report.sections import doctor
from simkit.report.sections.runs import arms, charts, headline, provenance, replay


def report(directories: Mapping[str, Path], title: str, comparison: Json | None = None) -> Report:
    """The report of finished run directories, by the name of their arm.

    `comparison` is the parsed compare.json (``baseline``, ``paired``, ``failed``); without it the first arm is the
    baseline. Raises InputError when a run directory cannot be used.
    """
    if not directories:
        raise InputError("a report needs at least one run directory")
    runs = [load_run(name, directory) for name, directory in directories.items()]
    if len(runs) == 1 and are_several([runs[0].manifest]):
        title = f"{title}: {gpus_text(runs[0].manifest)}"
    told = (_numbers(runs, comparison), _log(runs), doctor.section(runs), arms.lengths(runs))
    sections = (*told, *charts.sections(runs))
    return Report(
        title=title,
        answer=headline.sentence(runs, comparison),
        badges=tuple(headline.badges(runs, comparison)),
        sections=tuple(section for section in sections if section is not None),
        definitions=DEFINITIONS,
        provenance=provenance.provenance(runs),
        version=runs[0].manifest.get("version"),
        layout="runs",
    )


def _numbers(runs: Sequence[Run], comparison: Json | None) -> Section:
    """Every metric, and the paired differences where arms were compared."""
    title = "Numbers" if len(runs) == 1 else "The arms side by side"
    replications = max(int(run.manifest.get("replications") or 1) for run in runs)
    caption = f"Means over {replications} replications, ± half a 95 % interval."
    if replications == 1:
        caption = "Numbers of summary.json. Latencies over finished, measured requests."
    grids = (arms.grid(runs, caption),)
    baseline = (comparison or {}).get("baseline", runs[0].name)
    interval = ", mean over replications, ± half a 95 % interval."
    if replications == 1:
        interval = "; no interval (needs replications)."
    paired = arms.paired_grid(runs, comparison, f"Arm minus {baseline}{interval}") if comparison else None
    if paired is None:
        return Section("numbers", title, grids=grids, short="Numbers")
    says = "Every arm served the same customers, so differences are taken request stream by request stream.\n"
    if replications == 1:
        says += (
            "One replication: how far chance moves these differences is unknown; an interval needs `replications: 2` "
            "or more."
        )
    part = Section("paired", f"Paired differences to {baseline}", (says,), grids=(paired,))
    return Section("numbers", title, grids=grids, parts=(part,), short="Numbers")


def _log(runs: Sequence[Run]) -> Section | None:
    """What logs measured beside the runs, and the logs beside even workloads."""
    found: list[Table] = []
    for run in runs:
        found += replay.tables(run.summary, run.measured, "" if len(runs) == 1 else run.name)
    return Section("log", "The log", tables=tuple(found)) if found else None
