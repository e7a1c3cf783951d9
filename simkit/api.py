"""The Python API: load a scenario, run it, look at the result, write a run directory.

    import simkit

    result = simkit.run(simkit.load("scenarios/eight-requests.yaml"))
    result.summary["num_steps"], result.requests.head(), result.steps.head()
    simkit.write(result, "runs/eight", overwrite=True)

The report is imported only to write one. Runs in this process alone: many processes are the affair of studies.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simkit.engine.build import Setup, set_up
from simkit.engine.run import Progress
from simkit.plain import Json, canonical_json, plain
from simkit.runs.directory import replacing, write_run, write_runs
from simkit.runs.long_enough import long_enough
from simkit.runs.manifest import CREATED_BY, RunLength
from simkit.runs.replication import ReplicationResult, Result, assemble, replicate, with_error
from simkit.scenario import Scenario, load

if TYPE_CHECKING:
    from simkit.studies.compare import Comparison, Sweep

__all__ = [
    "Result",
    "load",
    "run",
    "write",
    "write_comparison",
    "write_memory",
    "write_rows",
    "write_sweep",
    "write_trace_info",
    "write_validation",
]


def run(
    scenario: Scenario,
    *,
    base_dir: Path | None = None,
    progress: Progress | None = None,
    single_step: bool = False,
) -> Result:
    """Simulate a scenario, all its replications one after the other, each long enough (`simkit.runs.long_enough`).

    `base_dir` is where relative paths start (default: the folder of the scenario file). `single_step` prices one step
    at a time; the result is the same, slower. Raises InputError for a scenario that cannot be run and CheckError for
    a livelock or a broken invariant.
    """
    if base_dir is not None:
        scenario = scenario.based_at(base_dir)
    return run_long_enough(set_up(scenario), progress=progress, single_step=single_step)


def run_long_enough(setup: Setup, *, progress: Progress | None = None, single_step: bool = False) -> Result:
    """`run` of a scenario that is set up already."""
    count = setup.scenario.replications
    ready = long_enough(setup, _share(progress, 0, count), single_step=single_step)
    rest = _parts(ready.setup, range(1, ready.setup.scenario.replications), progress, single_step)
    first = with_error(ready.setup, ready.first, single_step=single_step)
    return with_length(assemble(ready.setup, [first, *rest]), ready.length)


def run_set_up(setup: Setup, *, progress: Progress | None = None, single_step: bool = False) -> Result:
    """All replications of a scenario that is set up, each as long as it says."""
    return assemble(setup, _parts(setup, range(setup.scenario.replications), progress, single_step))


def with_length(result: Result, length: RunLength | None) -> Result:
    """The result with a manifest that says what became of the length that was asked for."""
    return replace(result, manifest={**result.manifest, "run_length": plain(length)})


def _parts(setup: Setup, replications: range, progress: Progress | None, single_step: bool) -> list[ReplicationResult]:
    count = setup.scenario.replications
    return [
        replicate(setup, replication, _share(progress, replication, count), single_step=single_step)
        for replication in replications
    ]


def write(result: Result, out_dir: str | Path, overwrite: bool = False, report: bool = True) -> Path:
    """Write a run directory: manifest, summary, tables and (unless `report` is false) report.html.

    Written to a sibling and renamed when complete, so that a directory of that name is always whole. `overwrite`
    replaces an earlier run of simkit; anything else in the way raises InputError. OSError passes through.
    """
    with replacing(Path(out_dir), overwrite) as directory:
        write_run(result, directory)
        if report:
            from simkit.report.render import html
            from simkit.report.sections import runs

            name = result.manifest["name"]
            html.write(directory / "report.html", runs.report({name: directory}, name))
    return Path(out_dir)


def write_validation(
    result: Result,
    validation: Json,
    fitted: Collection[str],
    out_dir: str | Path,
    page: str = "validation.html",
    overwrite: bool = False,
    report: bool = True,
) -> Path:
    """Write a run directory with validation.json (see `validation.runs.result`) and, as `page`, its page.

    `fitted` are the effects with numbers that were fitted, which the page names. `report` is as for `write`, and of
    both pages.
    """
    with replacing(Path(out_dir), overwrite) as directory:
        write_run(result, directory)
        (directory / "validation.json").write_bytes(canonical_json(validation))
        if report:
            from simkit.report.render import html
            from simkit.report.sections import runs
            from simkit.report.sections import validation as compared

            name = result.manifest["name"]
            html.write(directory / "report.html", runs.report({name: directory}, name))
            html.write(directory / page, compared.report(validation, fitted))
    return Path(out_dir)


def write_comparison(comparison: Comparison, out_dir: str | Path, overwrite: bool = False, report: bool = True) -> Path:
    """Write a comparison: ``arms/<name>`` run directories, compare.json, manifest.json and report.html."""
    with replacing(Path(out_dir), overwrite) as directory:
        folders = write_runs(comparison.arms, directory / "arms")
        content = comparison.to_json()
        (directory / "compare.json").write_bytes(canonical_json(content))
        manifest = {
            "name": comparison.name,
            "baseline": comparison.baseline,
            **_contents("arms", comparison.arms, folders),
        }
        (directory / "manifest.json").write_bytes(canonical_json(manifest))
        if report and folders:
            from simkit.report.render import html
            from simkit.report.sections import runs

            facts = json.loads(canonical_json(content))
            facts = {"baseline": comparison.baseline, "paired": facts["paired"], "failed": facts["failed"]}
            html.write(directory / "report.html", runs.report(folders, comparison.name, facts))
    return Path(out_dir)


def write_sweep(sweep: Sweep, out_dir: str | Path, overwrite: bool = False) -> Path:
    """Write a sweep: ``points/<name>`` run directories, sweep.json, sweep.csv and manifest.json."""
    with replacing(Path(out_dir), overwrite) as directory:
        folders = write_runs(sweep.points, directory / "points")
        (directory / "sweep.json").write_bytes(canonical_json(sweep.to_json()))
        (directory / "sweep.csv").write_text(sweep.to_csv(), encoding="utf-8", newline="")
        manifest = {"name": sweep.name, "axes": sweep.axes, **_contents("points", sweep.points, folders)}
        (directory / "manifest.json").write_bytes(canonical_json(manifest))
    return Path(out_dir)


def write_plan(content: Json, table: str, out_dir: str | Path, overwrite: bool = False, report: bool = True) -> Path:
    """Write a plan: plan.json, plan.csv, manifest.json, and (unless `report` is false) report.html and report.md.

    `content` is that of `planner.content`, `table` that of plan.csv.
    """
    with replacing(Path(out_dir), overwrite) as directory:
        (directory / "plan.json").write_bytes(canonical_json(content))
        (directory / "plan.csv").write_text(table, encoding="utf-8", newline="")
        manifest = {key: content[key] for key in ("name", "version", "seed", "profile", "scenario", "created_by")}
        (directory / "manifest.json").write_bytes(canonical_json(manifest))
        if report:
            from simkit.report.render import html, markdown
            from simkit.report.sections import plan

            told, title = plan.report(content), f"simkit plan: {content['name']}"
            html.write(directory / "report.html", told)
            (directory / "report.md").write_text(markdown.render(told, title), encoding="utf-8", newline="")
    return Path(out_dir)


def write_memory(memory: Json, out_dir: str | Path, overwrite: bool = False) -> Path:
    """Write what `simkit.studies.memory` gives: memory.json, memory.svg, memory.png and manifest.json."""
    from simkit.report.figures.memory import write_budget

    with replacing(Path(out_dir), overwrite) as directory:
        (directory / "memory.json").write_bytes(canonical_json(memory))
        write_budget(memory, directory)
        name = f"memory of {memory['model']} on {memory['gpu']}"
        (directory / "manifest.json").write_bytes(canonical_json({"name": name, "created_by": CREATED_BY}))
    return Path(out_dir)


def write_rows(
    content: Json,
    table: str,
    facts: Json,
    out_dir: str | Path,
    overwrite: bool = False,
    report: bool = True,
) -> Path:
    """Write a study of benchmark rows: rows.json, rows.csv, manifest.json and (unless `report` is false) report.html.

    `content` and `table` are those of `validation.rows.results`; `facts` say what was asked, for the manifest.
    """
    with replacing(Path(out_dir), overwrite) as directory:
        (directory / "rows.json").write_bytes(canonical_json(content))
        (directory / "rows.csv").write_text(table, encoding="utf-8", newline="")
        (directory / "manifest.json").write_bytes(canonical_json({**facts, "created_by": CREATED_BY}))
        if report:
            from simkit.report.render import html
            from simkit.report.sections import rows

            html.write(directory / "report.html", rows.report(content))
    return Path(out_dir)


def write_trace_info(info: Json, curves: Json, out_dir: str | Path, overwrite: bool = False) -> Path:
    """Write what `simkit.logs.describe` gives: info.json, trace.svg, trace.png and manifest.json."""
    from simkit.report.figures.log import write_overview

    with replacing(Path(out_dir), overwrite) as directory:
        (directory / "info.json").write_bytes(canonical_json(info))
        write_overview(info, curves, directory)
        manifest = {"name": f"log of {info['num_requests']} requests", "created_by": CREATED_BY}
        (directory / "manifest.json").write_bytes(canonical_json(manifest))
    return Path(out_dir)


def _contents(kind: str, results: Mapping[str, Result], folders: Mapping[str, Path]) -> Json:
    """What the manifest of a study says of its runs."""
    return {
        kind: {name: f"{kind}/{folder.name}" for name, folder in folders.items()},
        "run_ids": {name: result.manifest["run_id"] for name, result in results.items()},
        "created_by": CREATED_BY,
    }


def _share(progress: Progress | None, index: int, count: int) -> Progress | None:
    """Progress of one replication among several."""
    if progress is None:
        return None
    return lambda done, label: progress(
        (index + done) / count, label or (f"replication {index + 1} of {count}" if count > 1 else "simulating")
    )
