"""The command that plans: `plan`. It parses, calls the planner, writes and prints.

Owns what it says of points that failed. Heavy modules are imported by the command.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console, output
from simkit.cli.options import RunOptions, ScenarioOptions, StudyOptions, WorkloadFile, option
from simkit.errors import InputError

if TYPE_CHECKING:
    from simkit.planner.result import PlanResult

MAX_RATE_PER_S = 1e9
MANY_GPUS = 100_000
THE_RATE = (
    "workload.arrivals",
    "workload.trace.speed",
    "workload.trace.rate_per_s",
    "workload.servegen.rate_scale",
)


def plan(
    *,
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file with an slo.")],
    axis: Annotated[
        list[str] | None, option("--axis", "A further setting to try; repeat it for a grid.", "KEY=A,B")
    ] = None,
    target_rate: Annotated[float | None, option("--target-rate", "Requests per second to size GPUs for.", "R")] = None,
    spare: Annotated[int, option("--spare", "Replicas to have beyond need.", "N", min=0)] = 1,
    out: Annotated[Path | None, option("--out", "Output directory (default ./runs/<name>-plan).", "DIR")] = None,
    workload: WorkloadFile = None,
    change: ScenarioOptions,
    study: StudyOptions,
    printing: RunOptions,
) -> int:
    """Find the max_num_seqs, GPUs and cost that the objectives of a scenario ask for."""
    from simkit import scenario as schema

    _check_target(target_rate)
    chosen = schema.load(scenario, change.settings, workload)
    axes = schema.parse_axes(chosen, axis or [], check_values=False)
    _check_axes(axes)
    from simkit import api
    from simkit.planner import plan as planner
    from simkit.planner.content import plan_csv, plan_json
    from simkit.report.render import terminal
    from simkit.report.sections.plan import report
    from simkit.studies.study import exit_code

    target = output.Target.choose(out, f"{chosen.name}-plan")
    options = target.options(study, printing)
    with target.stoppable(), console.progress(printing.quiet) as progress, _forgetting(target.kept):
        result = planner.plan(chosen, axes, target_per_s=target_rate, spare=spare, progress=progress, options=options)
        content = plan_json(result)
        with target.writing(progress) as path:
            written = api.write_plan(content, plan_csv(content), path, overwrite=True, report=not printing.no_report)
    for name, failure in result.failed.items():
        console.say(f"point {failure.line(name)}")
    output.finish(
        printing,
        lambda: terminal.render(report(content), console.width(), titled=False),
        written / "plan.json",
        before=_notes(result, content, target.replaced),
        after=[output.wrote(written, printing)],
    )
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


def _check_axes(keys: Iterable[str]) -> None:
    for key in keys:
        if key == "slo" or key.startswith("slo."):
            raise InputError(f"--axis {key}: expected a setting to choose, got the objective that it is chosen by")
        if key.startswith(THE_RATE):
            raise InputError(f"--axis {key}: expected another key: the planner itself looks for the rate")


def _notes(result: PlanResult, content: Mapping[str, Any], replaced: str | None) -> Iterator[str]:
    yield from output.notes(replaced, [])
    yield from (f"note: {note}" for note in content["notes"])
    yield from output.not_simulated(content["not_simulated"])
    if content["run_length"]["too_few"]:
        measured = content["run_length"]["measured_requests"]
        yield f"note: too few: a p99 from {measured} measured requests a replication; 1,000 make one"
    if result.scenario.hardware.price_per_gpu_hour is None:
        yield "note: no cost: hardware.price_per_gpu_hour is not given"
    fleet = content.get("fleet")
    if fleet and fleet["gpus"] > MANY_GPUS:
        yield f"note: {fleet['gpus']:,} GPUs: is --target-rate meant per second?"
