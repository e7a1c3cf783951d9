"""What comes of a validation: a comparison with all around it, and what each effect of the latency model contributes.

Writes no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Unpack

from simkit.engine.build import Setup, set_up
from simkit.engine.run import Progress, simulate
from simkit.errors import CheckError, InputError
from simkit.latency.effects import EFFECTS
from simkit.logs import PlayedLog
from simkit.logs.read.log import RemarkKind
from simkit.metrics.histogram import DurationHistogram
from simkit.plain import Json, plain
from simkit.runs.replication import Result, assemble, replication_result
from simkit.scenario import Scenario, Trace, apply_sets
from simkit.studies.study import Options, Point, run_study
from simkit.units import NS_PER_US
from simkit.validation.bands import Verdict
from simkit.validation.runs.comparison import Comparison, Errors, compare, shown_requests
from simkit.version import __version__

ABLATED = ("ttft_ms.mean", "tpot_ms.mean", "e2e_ms.mean", "makespan_s.value")
"""What is told of an effect: the errors without it."""

AS_IT_WAS = ("keep_share", "idle_gap_cap_s", "spread_ties", "speed", "rate_per_s", "repeat", "sessions", "too_long")
"""Keys of a scenario's trace that play another run than the one that was measured."""

Ablation = dict[str, dict[str, float | None]]


def check_as_it_was(scenario: Scenario) -> None:
    """InputError where a log would be played at another pace or in another way than it was recorded, or twice."""
    if scenario.replications > 1:
        raise scenario.refuse("replications", f"expected 1, a log happened once, got {scenario.replications}")
    if scenario.workload.samples > 1:
        what = f"expected 1, a request of the log made one answer, got {scenario.workload.samples}"
        raise scenario.refuse("workload.samples", what)
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
    return assemble(setup, [replication_result(setup, 0, facts)]), facts.record.itl


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The content of validation.json: a comparison, and all around it that a reader needs.

    `num_requests` is how many are compared, in all and by metric, and what is left out; `requests` are (measured,
    predicted) of them by metric; `ablation` has the errors without each effect, None where it was not asked for.
    """

    name: str
    version: str
    log: str
    scenario: Mapping[str, object]
    latency_source: str
    latency_effects: Mapping[str, str]
    num_requests: Mapping[str, object]
    bands: tuple[Verdict, ...]
    errors: Errors
    curves: Mapping[str, Mapping[str, list[float]]]
    requests: Mapping[str, list[list[float]]]
    series: Mapping[str, object] | None
    ablation: Ablation | None
    notes: tuple[str, ...]

    def to_json(self) -> Json:
        """Plain data."""
        content: Json = plain(self)
        return content


def validation(
    result: Result,
    trace: PlayedLog,
    comparison: Comparison,
    *,
    verdicts: Sequence[Verdict] = (),
    ablated: Ablation | None = None,
    first_token_ns: int = 0,
) -> ValidationResult:
    """What comes of a validation. `trace` is what was played, and `result` the run that served it.

    `first_token_ns` is the path of a request that its predicted times hold.
    """
    manifest = result.manifest
    spec = manifest["scenario"]["workload"]["trace"]
    series = comparison.series
    requests = shown_requests(comparison.pairs_ms)
    notes = [*trace.notes, *_part_notes(spec), *comparison.notes, *(() if series is None else series.notes)]
    notes += _reading_notes(manifest, trace, comparison, first_token_ns)
    for metric, shown in requests.items():
        count = comparison.num_requests[metric]
        if len(shown) < count:
            notes.append(f"{metric}: {len(shown)} of {count} requests are listed one by one, evenly thinned")
    return ValidationResult(
        name=manifest["name"],
        version=__version__,
        log=PurePath(spec["path"]).name,
        scenario=manifest["scenario"],
        latency_source=manifest["latency_source"],
        latency_effects=manifest["latency_effects"],
        num_requests=comparison.num_requests | comparison.left_out.to_json(),
        bands=tuple(verdicts),
        errors=comparison.errors,
        curves=comparison.curves,
        requests=requests,
        series=None if series is None else series.to_json(),
        ablation=ablated,
        notes=tuple(dict.fromkeys(notes)),
    )


def _reading_notes(manifest: Json, trace: PlayedLog, comparison: Comparison, first_token_ns: int) -> list[str]:
    """How some numbers must be read."""
    notes = []
    if "concurrency" in comparison.errors:
        notes.append("concurrency.mean: requests in the system, from arrival to last token; those that wait are in it")
    if first_token_ns > 0 and RemarkKind.FROM_QUEUE in trace.remarks:
        path_us = f"{first_token_ns / NS_PER_US:,.10g}"
        notes.append(
            f"ttft_ms, e2e_ms: what is predicted holds the path of a request to the engine and back ({path_us} us, "
            "first_token_us); what is measured holds it only where queued_ts is a stamp of the client"
        )
    idle = manifest.get("without_effect")
    return [*notes, f"without effect here: {', '.join(idle)}"] if idle else notes


def _part_notes(spec: Json) -> list[str]:
    """What a part of a run cannot show."""
    whole = not spec["start_s"] and spec["end_s"] is None and spec["max_requests"] is None
    if whole:
        return []
    return ["a part of the log is served: the real engine had what came before and after it beside these requests"]


def arms(scenario: Scenario) -> dict[str, Scenario]:
    """Effect to the scenario without it, for each effect that the set-up has, in the order of `EFFECTS`.

    What the scenario itself switches off stays off in every arm. Raises InputError as `set_up` does.
    """
    sources = set_up(scenario).effects
    off = list(scenario.latency.without)
    return {
        effect: apply_sets(scenario, {"latency.without": [*off, effect]}, label="ablation")
        for effect in EFFECTS
        if effect in sources and sources[effect].is_on
    }


def ablate(
    scenario: Scenario, trace: PlayedLog, *, progress: Progress | None = None, **options: Unpack[Options]
) -> Ablation:
    """Effect to the errors (`ABLATED`) of the run without it, all other effects on.

    Effects that are off already, or have nothing to do here, are left out. Raises InputError and CheckError.
    """
    points = [Point(name, arm) for name, arm in arms(scenario).items()]
    if not points:
        return {}
    study = run_study(points, word="effect", progress=progress, **options)
    for name, failure in study.failed.items():
        raise (InputError if failure.kind == "input" else CheckError)(f"--ablate {failure.line(name)}")
    found: Ablation = {}
    for effect, result in study.results.items():
        errors = compare(result, trace).errors
        keys = [key.split(".") for key in ABLATED]
        found[effect] = {
            f"{metric}.{stat}": errors[metric][stat].error_pct for metric, stat in keys if metric in errors
        }
    return found
