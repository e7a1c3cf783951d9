"""The commands that set runs side by side: `compare` and `sweep`. They parse, call a study, write and print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simkit.cli import console, output
from simkit.cli.options import Printing, RunOptions, ScenarioOptions, StudyOptions, WorkloadFile, option
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.studies.compare import Comparison


def compare(
    *,
    scenarios: Annotated[
        list[Path], typer.Argument(metavar="SCENARIO [OTHER]", help="Scenario file, or two to set side by side.")
    ],
    axis: Annotated[list[str] | None, option("--axis", "Further arms, one a value; repeatable.", "KEY=A,B")] = None,
    out: Annotated[Path | None, option("--out", "Output directory (default ./runs/<name>-compare).", "DIR")] = None,
    workload: WorkloadFile = None,
    change: ScenarioOptions,
    study: StudyOptions,
    printing: RunOptions,
) -> int:
    """Serve the same customers with every batcher and KV allocator, or set two scenarios side by side."""
    from simkit import scenario as schema

    if len(scenarios) > 2:
        raise InputError(f"compare: expected one or two scenario files, got {len(scenarios)}")
    if len(scenarios) == 2 and axis:
        raise InputError("--axis: expected one scenario file with it, got two")
    chosen, *other = [schema.load(path, change.settings, workload) for path in scenarios]
    axes = schema.parse_axes(chosen, axis or [])
    from simkit import api
    from simkit.report.sections.run import compare_tables
    from simkit.studies import compare as studies

    target = output.Target.choose(out, f"{chosen.name}-compare")
    options = target.options(study, printing)
    with target.stoppable(), console.progress(printing.quiet) as progress:
        if other:
            found = studies.compare_files(chosen, other[0], progress=progress, **options)
        else:
            found = studies.compare(chosen, axes=axes, base_dir=chosen.base_dir, progress=progress, **options)
        if not found.arms:
            return output.tell_failures("arm", found.failed, target, printing)
        with target.writing(progress) as path:
            written = api.write_comparison(found, path, overwrite=True, report=not printing.no_report)
    code = output.tell_failures("arm", found.failed, target, printing)
    arms = {name: (arm.summary, arm.manifest) for name, arm in found.arms.items()}
    output.finish(
        printing,
        lambda: compare_tables(arms, found.paired, console.width()),
        written / "compare.json",
        before=_notes(found, target.replaced),
        after=[output.wrote(written, printing)],
    )
    return code


def _notes(found: Comparison, replaced: str | None) -> Iterator[str]:
    if found.baseline in found.failed:
        yield f"note: the baseline {found.baseline} failed, so there are no paired differences"
    yield from output.notes(replaced, found.arms.values())


def sweep(
    *,
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file; `simkit init` prints one.")],
    axis: Annotated[
        list[str] | None, option("--axis", "A setting and its values; repeat it for a grid.", "KEY=A,B")
    ] = None,
    out: Annotated[Path | None, option("--out", "Output directory (default ./runs/<name>-sweep).", "DIR")] = None,
    workload: WorkloadFile = None,
    change: ScenarioOptions,
    study: StudyOptions,
    printing: Printing,
) -> int:
    """Run one scenario at every combination of some settings, with the same customers."""
    from simkit import scenario as schema

    chosen = schema.load(scenario, change.settings, workload)
    axes = schema.parse_axes(chosen, axis or [])
    from simkit import api
    from simkit.report.sections.run import sweep_tables
    from simkit.studies import compare as studies

    target = output.Target.choose(out, f"{chosen.name}-sweep")
    options = target.options(study, printing)
    with target.stoppable(), console.progress(printing.quiet) as progress:
        found = studies.sweep(chosen, axes, base_dir=chosen.base_dir, progress=progress, **options)
        if not found.points:
            return output.tell_failures("point", found.failed, target, printing)
        with target.writing(progress) as path:
            written = api.write_sweep(found, path, overwrite=True)
    code = output.tell_failures("point", found.failed, target, printing)
    points = {name: (result.summary, result.manifest) for name, result in found.points.items()}
    output.finish(
        printing,
        lambda: sweep_tables(points, list(found.failed), console.width()),
        written / "sweep.json",
        before=output.notes(target.replaced, found.points.values()),
        after=[f"wrote {written}; {written / 'sweep.csv'} has a row a point"],
    )
    return code
