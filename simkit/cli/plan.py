"""The command that plans: `plan`. It parses, calls the planner, writes and prints.

Owns its options and what it says of points that failed. Heavy modules are imported by the command.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console, studies
from simkit.cli.studies import Dask, Jobs, Json, NoReport, Quiet, Resume, Seed, Sets
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.planner.result import PlanResult

MAX_RATE_PER_S = 1e9
MANY_GPUS = 100_000


def plan(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file with an slo.")],
    axis: Annotated[
        list[str] | None,
        typer.Option("--axis", metavar="KEY=A,B", help="A further setting to try; repeat it for a grid."),
    ] = None,
    target_rate: Annotated[
        float | None, typer.Option("--target-rate", metavar="R", help="Requests per second to size GPUs for.")
    ] = None,
    spare: Annotated[int, typer.Option("--spare", metavar="N", min=0, help="Replicas to have beyond need.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output directory (default ./runs/<name>-plan).")
    ] = None,
    workload: studies.WorkloadFile = None,
    sets: Sets = None,
    seed: Seed = None,
    jobs: Jobs = None,
    dask: Dask = None,
    resume: Resume = False,
    json: Json = False,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> int:
    """Find the max_num_seqs, GPUs and cost that the objectives of a scenario ask for."""
    from simkit import scenario as schema

    _check_target(target_rate)
    chosen = schema.load(scenario, studies.settings_of(sets, seed), workload)
    axes = schema.parse_axes(chosen, axis or [], check_values=False)
    _check_axes(axes)
    from simkit import api
    from simkit.planner import plan as planner
    from simkit.planner.content import plan_csv, plan_json
    from simkit.runs import directory

    out_dir, overwrite = directory.choose(out, f"{chosen.name}-plan")
    options = studies.study_options(jobs, dask, resume, out_dir, quiet)
    with studies.stoppable(out_dir), console.progress(quiet) as progress, _forgetting(directory.kept_dir(out_dir)):
        result = planner.plan(chosen, axes, target_per_s=target_rate, spare=spare, progress=progress, options=options)
        content = plan_json(result)
        replaced = directory.name_of(out_dir) if overwrite else None
        if progress is not None:
            progress(1.0, "writing")
        with studies.writing(out, out_dir):
            written = api.write_plan(content, plan_csv(content), out_dir, overwrite=True, report=not no_report)
    for name, failure in result.failed.items():
        console.say(f"point {failure.line(name)}")
    if not quiet:
        _notes(result, content, replaced)
    if json:
        console.out_bytes((written / "plan.json").read_bytes())
    else:
        from simkit.report.render import terminal
        from simkit.report.sections import plan as sections

        console.out(*terminal.render(sections.report(content), console.width(), titled=False))
    if not quiet:
        console.say(f"wrote {written}" + ("" if no_report else f"; open {written / 'report.html'}"))
    from simkit.studies.study import exit_code

    return 1 if result.recommended is None else exit_code(result.failed)


@contextlib.contextmanager
def _forgetting(folder: Path) -> Iterator[None]:
    """What was kept for going on is of no use once there is an answer, or none can come."""
    from simkit.studies import checkpoint

    try:
        yield
    except InputError:
        checkpoint.clear(folder)
        raise
    checkpoint.clear(folder)


def _check_target(rate_per_s: float | None) -> None:
    if rate_per_s is not None and not (math.isfinite(rate_per_s) and 0 < rate_per_s <= MAX_RATE_PER_S):
        raise InputError(f"--target-rate: expected requests per second > 0 (and <= 1e9), got {rate_per_s:g}")


def _check_axes(axes: dict[str, list[Any]]) -> None:
    for key in axes:
        if key == "slo" or key.startswith("slo."):
            raise InputError(f"--axis {key}: expected a setting to choose, got the objective that it is chosen by")
        if key.startswith(
            (
                "workload.arrivals",
                "workload.trace.speed",
                "workload.trace.rate_per_s",
                "workload.servegen.rate_scale",
            )
        ):
            raise InputError(f"--axis {key}: expected another key: the planner itself looks for the rate")


def _notes(result: PlanResult, content: Mapping[str, Any], replaced: str | None) -> None:
    if replaced is not None:
        console.say(f"note: replaced the earlier run {replaced!r} in the same place; choose --out to keep both")
    for note in content["notes"]:
        console.say(f"note: {note}")
    line = console.not_simulated_line(content["not_simulated"])
    if line:
        console.say(line)
    if content["run_length"]["too_few"]:
        measured = content["run_length"]["measured_requests"]
        console.say(f"note: too few: a p99 from {measured} measured requests a replication; 1,000 make one")
    if result.scenario.hardware.price_per_gpu_hour is None:
        console.say("note: no cost: hardware.price_per_gpu_hour is not given")
    fleet = content.get("fleet")
    if fleet and fleet["gpus"] > MANY_GPUS:
        console.say(f"note: {fleet['gpus']:,} GPUs: is --target-rate meant per second?")
