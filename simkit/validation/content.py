"""What validation.json holds: a comparison with all around it, and what each effect of the latency model contributes.

Imports the engine, errors, manifest, metrics, parts, planner, scenario, the workload and its own siblings; writes no
file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Unpack

from simkit import __version__
from simkit.engine.build import Setup
from simkit.engine.run import Progress, simulate
from simkit.errors import CheckError, InputError
from simkit.manifest import plain
from simkit.metrics.histogram import DurationHistogram
from simkit.parts import Result, assemble, part_of
from simkit.planner.study import Options, Point, run_study
from simkit.scenario import Scenario, Trace
from simkit.validation import ablation
from simkit.validation.bands import Verdict
from simkit.validation.comparison import Comparison, compare, shown_requests
from simkit.workload.traces import Trace as Played

ABLATED = ("ttft_ms.mean", "tpot_ms.mean", "e2e_ms.mean", "makespan_s.value")
"""What is told of an effect: the errors without it."""

AS_IT_WAS = ("keep_share", "idle_gap_cap_s", "spread_ties", "speed", "rate_per_s", "repeat", "sessions")
"""Keys of a scenario's trace that play another run than the one that was measured."""

Ablation = dict[str, dict[str, float | None]]


def check_as_it_was(scenario: Scenario) -> None:
    """InputError where a log would be played at another pace or in another way than it was recorded, or twice."""
    if scenario.replications > 1:
        raise InputError(scenario.blame(f"replications: expected 1, a log happened once, got {scenario.replications}"))
    trace = scenario.workload.trace
    assert trace is not None, "the scenario replays a log"
    for key in AS_IT_WAS:
        usual = Trace.model_fields[key].default
        if getattr(trace, key) != usual:
            shown = "null" if usual is None else usual
            raise InputError(
                f"--set workload.trace.{key}: expected {shown}: the requests that were measured came as the log says"
            )


def serve(setup: Setup, progress: Progress | None = None) -> tuple[Result, DurationHistogram]:
    """The run of one replication, and all gaps between its tokens. Raises InputError and CheckError."""
    facts = simulate(setup, 0, progress)
    return assemble(setup, [part_of(setup, 0, facts)]), facts.record.itl


def validation(
    result: Result,
    trace: Played,
    comparison: Comparison,
    *,
    verdicts: Sequence[Verdict] = (),
    ablated: Ablation | None = None,
) -> dict[str, Any]:
    """The content of validation.json, plain data. `trace` is what was played, and `result` the run that served it."""
    manifest = result.manifest
    spec = manifest["scenario"]["workload"]["trace"]
    series = comparison.series
    requests = shown_requests(comparison.pairs_ms)
    notes = [*trace.notes, *_part_notes(spec), *comparison.notes, *(() if series is None else series.notes)]
    for metric, shown in requests.items():
        count = comparison.num_requests[metric]
        if len(shown) < count:
            notes.append(f"{metric}: {len(shown)} of {count} requests are listed one by one, evenly thinned")
    content: dict[str, Any] = plain(
        {
            "name": manifest["name"],
            "version": __version__,
            "log": PurePath(spec["path"]).name,
            "scenario": manifest["scenario"],
            "latency_source": manifest["latency_source"],
            "latency_effects": manifest["latency_effects"],
            "num_requests": comparison.num_requests,
            "bands": [
                {"key": found.band.key, "limit_pct": found.band.limit_pct, "error_pct": found.error_pct, "ok": found.ok}
                for found in verdicts
            ],
            "errors": comparison.errors,
            "curves": comparison.curves,
            "requests": requests,
            "series": None if series is None else series.to_json(),
            "ablation": ablated,
            "notes": list(dict.fromkeys(notes)),
        }
    )
    return content


def _part_notes(spec: Mapping[str, Any]) -> list[str]:
    """What a part of a run cannot show."""
    whole = not spec["start_s"] and spec["end_s"] is None and spec["max_requests"] is None
    if whole:
        return []
    return ["a part of the log is served: the real engine had what came before and after it beside these requests"]


def ablate(
    scenario: Scenario, trace: Played, *, progress: Progress | None = None, **options: Unpack[Options]
) -> Ablation:
    """Effect to the errors (`ABLATED`) of the run without it, all other effects on.

    Effects that are off already, or have nothing to do here, are left out. Raises InputError and CheckError.
    """
    arms = ablation.arms(scenario)
    if not arms:
        return {}
    study = run_study([Point(name, arm) for name, arm in arms.items()], word="effect", progress=progress, **options)
    for name, failure in study.failed.items():
        raise (InputError if failure.kind == "input" else CheckError)(f"--ablate {failure.line(name)}")
    found: Ablation = {}
    for effect, result in study.results.items():
        errors = compare(result, trace).errors
        keys = [key.split(".") for key in ABLATED]
        found[effect] = {
            f"{metric}.{stat}": errors[metric][stat]["error_pct"] for metric, stat in keys if metric in errors
        }
    return found
