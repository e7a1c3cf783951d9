"""The Python API: load a scenario, run it, look at the result, write a run directory.

    import simkit

    result = simkit.run(simkit.load("scenarios/eight-requests.yaml"))
    result.summary["num_steps"], result.requests.head(), result.steps.head()
    simkit.write(result, "runs/eight", overwrite=True)

The report is imported only to write one. Runs in this process alone: many processes are the affair of studies.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simkit.engine.build import Setup, set_up
from simkit.engine.run import Progress
from simkit.errors import InputError
from simkit.plain import canonical_json
from simkit.runs.long_enough import long_enough
from simkit.runs.manifest import CREATED_BY, is_run_dir
from simkit.runs.replication import Part, Result, assemble, make_part
from simkit.scenario import Scenario, load

if TYPE_CHECKING:
    import pyarrow as pa

    from simkit.studies.compare import Comparison
    from simkit.studies.sweep import Sweep

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

MAX_FOLDER_BYTES = 200
"""Of a folder named after an arm or a point; file systems refuse names longer than 255."""

ROWS_A_GROUP = 1 << 20
"""Of a parquet file; what pyarrow takes by itself."""


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
    return told_length(assemble(ready.setup, [ready.first, *rest]), ready.said)


def run_set_up(setup: Setup, *, progress: Progress | None = None, single_step: bool = False) -> Result:
    """All replications of a scenario that is set up, each as long as it says."""
    return assemble(setup, _parts(setup, range(setup.scenario.replications), progress, single_step))


def told_length(result: Result, said: dict[str, Any] | None) -> Result:
    """The result with what is to be told of its length in its manifest."""
    return replace(result, manifest={**result.manifest, "run_length": said})


def _parts(setup: Setup, replications: range, progress: Progress | None, single_step: bool) -> list[Part]:
    count = setup.scenario.replications
    return [
        make_part(setup, replication, _share(progress, replication, count), single_step=single_step)
        for replication in replications
    ]


def write(result: Result, out_dir: str | Path, overwrite: bool = False, report: bool = True) -> Path:
    """Write a run directory: manifest, summary, tables and (unless `report` is false) report.html.

    Written to a sibling and renamed when complete, so that a directory of that name is always whole. `overwrite`
    replaces an earlier run of simkit; anything else in the way raises InputError. OSError passes through.
    """
    with _replacing(Path(out_dir), overwrite) as directory:
        _write_run(result, directory)
        if report:
            from simkit.report.render.html import write_report

            name = result.manifest["name"]
            write_report(directory / "report.html", {name: directory}, title=name)
    return Path(out_dir)


def write_validation(
    result: Result,
    validation: Mapping[str, Any],
    out_dir: str | Path,
    page: str = "validation.html",
    overwrite: bool = False,
    report: bool = True,
) -> Path:
    """Write a run directory with validation.json (see `validation.runs.content`) and, as `page`, its page.

    `report` is as for `write`, and of both pages.
    """
    with _replacing(Path(out_dir), overwrite) as directory:
        _write_run(result, directory)
        (directory / "validation.json").write_bytes(canonical_json(validation))
        if report:
            from simkit.report.render import html
            from simkit.report.sections import validation as pages

            name = result.manifest["name"]
            html.write_report(directory / "report.html", {name: directory}, title=name)
            html.write(directory / page, pages.report(validation))
    return Path(out_dir)


def write_comparison(comparison: Comparison, out_dir: str | Path, overwrite: bool = False, report: bool = True) -> Path:
    """Write a comparison: ``arms/<name>`` run directories, compare.json, manifest.json and report.html."""
    with _replacing(Path(out_dir), overwrite) as directory:
        folders = _write_runs(comparison.arms, directory / "arms")
        content = comparison.to_json()
        (directory / "compare.json").write_bytes(canonical_json(content))
        manifest = {
            "name": comparison.name,
            "baseline": comparison.baseline,
            **_contents("arms", comparison.arms, folders),
        }
        (directory / "manifest.json").write_bytes(canonical_json(manifest))
        if report and folders:
            from simkit.report.render.html import write_report

            facts = json.loads(canonical_json(content))
            facts = {"baseline": comparison.baseline, "paired": facts["paired"], "failed": facts["failed"]}
            write_report(directory / "report.html", folders, title=comparison.name, comparison=facts)
    return Path(out_dir)


def write_sweep(sweep: Sweep, out_dir: str | Path, overwrite: bool = False) -> Path:
    """Write a sweep: ``points/<name>`` run directories, sweep.json, sweep.csv and manifest.json."""
    with _replacing(Path(out_dir), overwrite) as directory:
        folders = _write_runs(sweep.points, directory / "points")
        (directory / "sweep.json").write_bytes(canonical_json(sweep.to_json()))
        (directory / "sweep.csv").write_text(sweep.to_csv(), encoding="utf-8", newline="")
        manifest = {"name": sweep.name, "axes": sweep.axes, **_contents("points", sweep.points, folders)}
        (directory / "manifest.json").write_bytes(canonical_json(manifest))
    return Path(out_dir)


def write_plan(
    content: Mapping[str, Any], table: str, out_dir: str | Path, overwrite: bool = False, report: bool = True
) -> Path:
    """Write a plan: plan.json, plan.csv, manifest.json, and (unless `report` is false) report.html and report.md.

    `content` is that of `planner.result`, `table` that of plan.csv.
    """
    with _replacing(Path(out_dir), overwrite) as directory:
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


def write_memory(memory: Mapping[str, Any], out_dir: str | Path, overwrite: bool = False) -> Path:
    """Write what `simkit.studies.memory` gives: memory.json, memory.svg, memory.png and manifest.json."""
    from simkit.report.figures.memory import write_figure

    with _replacing(Path(out_dir), overwrite) as directory:
        (directory / "memory.json").write_bytes(canonical_json(memory))
        write_figure(memory, directory)
        name = f"memory of {memory['model']} on {memory['gpu']}"
        (directory / "manifest.json").write_bytes(canonical_json({"name": name, "created_by": CREATED_BY}))
    return Path(out_dir)


def write_rows(
    content: Mapping[str, Any],
    table: str,
    facts: Mapping[str, Any],
    out_dir: str | Path,
    overwrite: bool = False,
    report: bool = True,
) -> Path:
    """Write a study of benchmark rows: rows.json, rows.csv, manifest.json and (unless `report` is false) report.html.

    `content` and `table` are those of `validation.row_study`; `facts` say what was asked, for the manifest.
    """
    with _replacing(Path(out_dir), overwrite) as directory:
        (directory / "rows.json").write_bytes(canonical_json(content))
        (directory / "rows.csv").write_text(table, encoding="utf-8", newline="")
        (directory / "manifest.json").write_bytes(canonical_json({**facts, "created_by": CREATED_BY}))
        if report:
            from simkit.report.render import html
            from simkit.report.sections import rows

            html.write(directory / "report.html", rows.report(content))
    return Path(out_dir)


def write_trace_info(
    info: Mapping[str, Any], curves: Mapping[str, Any], out_dir: str | Path, overwrite: bool = False
) -> Path:
    """Write what `simkit.logs.describe` gives: info.json, trace.svg, trace.png and manifest.json."""
    from simkit.report.figures.log import write_figure

    with _replacing(Path(out_dir), overwrite) as directory:
        (directory / "info.json").write_bytes(canonical_json(info))
        write_figure(info, curves, directory)
        manifest = {"name": f"log of {info['num_requests']} requests", "created_by": CREATED_BY}
        (directory / "manifest.json").write_bytes(canonical_json(manifest))
    return Path(out_dir)


def _write_runs(results: Mapping[str, Result], directory: Path) -> dict[str, Path]:
    """A run directory for each; their folders by name."""
    folders = {}
    for name, result in results.items():
        folders[name] = directory / file_safe(name)
        folders[name].mkdir(parents=True)
        _write_run(result, folders[name])
    return folders


def _contents(kind: str, results: Mapping[str, Result], folders: Mapping[str, Path]) -> dict[str, Any]:
    """What the manifest of a study says of its runs."""
    return {
        kind: {name: f"{kind}/{folder.name}" for name, folder in folders.items()},
        "run_ids": {name: result.manifest["run_id"] for name, result in results.items()},
        "created_by": CREATED_BY,
    }


def file_safe(name: str) -> str:
    """The name of an arm or a point as a folder name; different names stay different."""
    safe = "".join(c if c.isalnum() or c in "+-._@=," else f"%{ord(c):02x}" for c in name)
    if safe.startswith("."):
        safe = f"%2e{safe[1:]}"
    if len(safe.encode()) <= MAX_FOLDER_BYTES:
        return safe
    return safe.encode()[: MAX_FOLDER_BYTES // 2].decode(errors="ignore") + "~" + _digest(name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _write_run(result: Result, directory: Path) -> None:
    (directory / "manifest.json").write_bytes(canonical_json(result.manifest))
    (directory / "summary.json").write_bytes(canonical_json(result.summary))
    if result.measured is not None:
        (directory / "measured.json").write_bytes(canonical_json(result.measured))
    for name, table in result.tables.items():
        _write_table(table, directory / f"{name}.parquet")


def _write_table(table: pa.Table, path: Path) -> None:
    """Write a table a row group at a time; the bytes do not depend on how its rows are chunked in memory."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, table.schema) as writer:
        for first in range(0, table.num_rows, ROWS_A_GROUP) or (0,):
            rows = table.slice(first, ROWS_A_GROUP)
            writer.write_table(rows.combine_chunks(), row_group_size=ROWS_A_GROUP)


@contextmanager
def _replacing(out_dir: Path, overwrite: bool) -> Iterator[Path]:
    """A temporary sibling that takes the place of `out_dir` when the block ends well, and vanishes when it does not."""
    if out_dir.exists():
        occupied = any(out_dir.iterdir()) if out_dir.is_dir() else True
        if occupied and not (overwrite and is_run_dir(out_dir)):
            raise InputError(f"{out_dir}: already there; expected a new directory or overwrite=True for an earlier run")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.partial-", dir=out_dir.parent))
    try:
        partial.chmod(0o755)
        yield partial
        _put_in_place(partial, out_dir)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, out_dir: Path) -> None:
    """Rename `partial` to `out_dir`; whatever another run put there meanwhile makes way."""
    for last in (False, False, False, True):
        if out_dir.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.old-", dir=out_dir.parent))
            with suppress(FileNotFoundError):
                out_dir.replace(old / "old")
            shutil.rmtree(old)
        try:
            partial.replace(out_dir)
            return
        except OSError:
            if last:
                raise


def _share(progress: Progress | None, index: int, count: int) -> Progress | None:
    """Progress of one replication among several."""
    if progress is None:
        return None
    return lambda done, label: progress(
        (index + done) / count, label or (f"replication {index + 1} of {count}" if count > 1 else "simulating")
    )
