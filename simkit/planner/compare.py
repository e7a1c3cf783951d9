"""The three generations side by side: the same customers served by every batcher with every KV allocator.

Owns which arms there are and their paired differences. Imports api and scenario.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simkit.api import Result, run
from simkit.engine.run import Progress
from simkit.errors import CheckError, InputError
from simkit.metrics.intervals import half_width_95
from simkit.scenario import Scenario, apply_sets

BASELINE = "static+contiguous"
GENERATIONS = ("static", "dynamic", "continuous")
ALLOCATORS = ("contiguous", "paged")
PAIRED_METRICS = (
    "throughput.requests_per_s",
    "throughput.output_tokens_per_s",
    "concurrency_mean",
    "slot_utilization",
    "slot_occupancy",
    "kv.reserved.share_of_allocated",
    "kv.internal.share_of_allocated",
    "kv.external.share_of_allocated",
    "num_preemptions",
    "goodput_per_s",
    "ttft_ms.p50",
    "ttft_ms.p95",
    "ttft_ms.p99",
    "tpot_ms.p50",
    "tpot_ms.p95",
    "tpot_ms.p99",
    "e2e_ms.p50",
    "e2e_ms.p95",
    "e2e_ms.p99",
    "itl_ms.p99",
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms by name in the order in which they were run, and for each the paired differences to the baseline."""

    name: str
    baseline: str
    arms: dict[str, Result]
    paired: dict[str, dict[str, dict[str, float | None]]]

    def to_json(self) -> dict[str, Any]:
        """The content of compare.json."""
        return {"arms": {name: result.summary for name, result in self.arms.items()}, "paired": self.paired}


def compare(
    scenario: Scenario,
    *,
    axes: Mapping[str, Sequence[Any]] | None = None,
    base_dir: Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run all arms: six generations x allocators, each again for every axis value, then the file's variants.

    Every arm draws its customers from the same named streams, so differences are paired by replication. Raises
    InputError or CheckError naming the arm.
    """
    if base_dir is not None:
        scenario = scenario.based_at(base_dir)
    changes = _arms(scenario, axes or {})
    arms: dict[str, Result] = {}
    for index, (name, change) in enumerate(changes.items()):
        try:
            arms[name] = run(
                apply_sets(scenario, change, label=f"arm {name}"), progress=_part(progress, index, len(changes), name)
            )
        except InputError as error:
            raise InputError(f"arm {name}: {error}") from None
        except CheckError as error:
            raise CheckError(f"arm {name}: {error}") from None
    return Comparison(scenario.name, BASELINE, arms, _paired(arms, BASELINE))


def compare_files(first: Scenario, second: Scenario, *, progress: Progress | None = None) -> Comparison:
    """Two scenarios side by side, the first as baseline. Both draw from the same named streams of their seeds."""
    names = (first.name, second.name if second.name != first.name else f"{second.name} (2)")
    arms: dict[str, Result] = {}
    for index, (name, scenario) in enumerate(zip(names, (first, second), strict=True)):
        try:
            arms[name] = run(scenario, progress=_part(progress, index, 2, name))
        except InputError as error:
            raise InputError(f"arm {name}: {error}") from None
        except CheckError as error:
            raise CheckError(f"arm {name}: {error}") from None
    if first.replications != second.replications:
        raise InputError(f"arm {names[1]}: replications: expected {first.replications}, as in {names[0]}")
    return Comparison(f"{names[0]}-and-{names[1]}", names[0], arms, _paired(arms, names[0]))


def _arms(scenario: Scenario, axes: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Arm name to the keys it changes."""
    base = {
        f"{batching}+{allocator}": {"engine.batching": batching, "engine.kv_allocator": allocator}
        for batching in GENERATIONS
        for allocator in ALLOCATORS
    }
    arms: dict[str, dict[str, Any]] = dict(base)
    for key, values in axes.items():
        for value in values:
            for name, change in base.items():
                arms[f"{name}@{key}={_text(value)}"] = {**change, key: value}
    for name, change in scenario.variants.items():
        if name in arms:
            what = f"variants: expected names of their own, got {name!r}, an arm of every comparison"
            raise InputError(scenario.blame(what))
        arms[name] = dict(change)
    return arms


def _text(value: Any) -> str:
    """A value as the scenario file would have it."""
    return value if isinstance(value, str) else json.dumps(value)


def _part(progress: Progress | None, index: int, count: int, name: str) -> Progress | None:
    if progress is None:
        return None
    return lambda done, label: progress((index + done) / count, name)


def _paired(arms: Mapping[str, Result], baseline: str) -> dict[str, dict[str, dict[str, float | None]]]:
    """Arm minus baseline, replication by replication; the interval needs at least two replications."""
    base = arms[baseline].replications
    return {
        name: {metric: _difference(result.replications, base, metric) for metric in PAIRED_METRICS}
        for name, result in arms.items()
        if name != baseline
    }


def _difference(arm: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]], metric: str) -> dict[str, float | None]:
    pairs = [(_look_up(a, metric), _look_up(b, metric)) for a, b in zip(arm, base, strict=True)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < len(pairs):
        return {"difference": None, "ci95": None}
    differences = [a - b for a, b in known]
    return {"difference": sum(differences) / len(differences), "ci95": half_width_95(differences)}


def _look_up(summary: Mapping[str, Any], metric: str) -> float | None:
    value: Any = summary
    for key in metric.split("."):
        value = value[key]
    return None if value is None else float(value)
