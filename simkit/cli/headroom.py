"""What the commands of one run say at their end: its headroom, and the option that leaves it out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simkit.runs.replication import Result
    from simkit.scenario import Scenario

NoHeadroom = Annotated[bool, typer.Option("--no-headroom", help="Do not look for the rate up to which the slo holds.")]


def with_headroom(
    result: Result, scenario: Scenario, progress: console.Report | None = None, *, wanted: bool = True
) -> Result:
    """`result` with its headroom in the summary, where it is `wanted` and there is any to look for."""
    if not wanted or scenario.slo is None:
        return result
    from simkit.plain import plain
    from simkit.planner.headroom import headroom, is_asked

    if not is_asked(scenario):
        return result
    found = headroom(scenario, result.summary, _ran(result, scenario), progress)
    told = {**plain(found), "text": found.text}
    return replace(result, summary={**result.summary, "headroom": told})


def _ran(result: Result, scenario: Scenario) -> Scenario | None:
    """The scenario as long as the run was, None where it was as long as asked for."""
    if not result.manifest.get("run_length"):
        return None
    from simkit import scenario as schema

    ran = result.manifest["scenario"]
    changes = {f"workload.{key}": ran["workload"][key] for key in ("num_requests", "duration_s")}
    return schema.apply_sets(scenario, {**changes, "warmup": ran["warmup"]}, label="run length")


def say(summary: Mapping[str, Any]) -> None:
    """The headroom as the last line of a run's tables, where it was looked for."""
    found = summary.get("headroom")
    if found:
        console.out_lines([found["text"]])
