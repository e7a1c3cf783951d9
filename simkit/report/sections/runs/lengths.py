"""Why the gain of continuous batching depends on the spread of output lengths, in numbers of the runs themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simkit.report import words
from simkit.report.read.run import Run, num_rows, select


@dataclass(frozen=True, slots=True)
class Spread:
    """One setting of `workload.output_tokens`: who was compared and what came out. None where it cannot be computed."""

    setting: str
    static: str
    continuous: str
    ratio: float | None
    slot_utilization: float | None
    live_share_of_held: float | None
    mean_output_tokens: float | None
    mean_longest_output_tokens: float | None
    std_output_tokens: float | None


def spreads(runs: Sequence[Run]) -> list[Spread]:
    """A line per output-length setting that has a static+contiguous and a continuous+paged arm; [] unless they differ.

    Of several such arms those with the slots of the first static+contiguous arm count, so that lengths alone differ.
    """
    static = [run for run in runs if _kind(run) == ("static", "contiguous")]
    if not static:
        return []
    slots = static[0].engine.get("max_num_seqs")
    found: dict[str, Spread] = {}
    for low in static:
        setting = _setting(low)
        high = next(
            (
                run
                for run in runs
                if _kind(run) == ("continuous", "paged")
                and _setting(run) == setting
                and run.engine.get("max_num_seqs") == slots
            ),
            None,
        )
        if high is not None and low.engine.get("max_num_seqs") == slots and setting not in found:
            found[setting] = _spread(low, high)
    return list(found.values()) if len(found) > 1 else []


def describe_setting(output_tokens: Mapping[str, Any]) -> str:
    """A distribution in words, e.g. ``lognormal, mean 256, cv 1``."""
    rest = ", ".join(
        f"{key} {words.plain(value)}" for key, value in output_tokens.items() if key != "dist" and value is not None
    )
    return f"{output_tokens.get('dist', '?')}{', ' if rest else ''}{rest}"


def _kind(run: Run) -> tuple[Any, Any]:
    return run.engine.get("batching"), run.engine.get("kv_allocator")


def _setting(run: Run) -> str:
    return json.dumps((run.scenario.get("workload") or {}).get("output_tokens"), sort_keys=True)


def _spread(static: Run, continuous: Run) -> Spread:
    low, high = (run.value("throughput", "requests_per_s") for run in (static, continuous))
    used, held = static.value("slot_utilization"), static.value("slot_occupancy")
    done = select(static.requests, (static.requests["replication"] == 0) & (static.requests["status"] == "finished"))
    outputs = done["output_tokens"].astype(float)
    return Spread(
        setting=describe_setting((static.scenario.get("workload") or {}).get("output_tokens") or {}),
        static=static.name,
        continuous=continuous.name,
        ratio=high / low if low and high is not None else None,
        slot_utilization=used,
        live_share_of_held=used / held if held and used is not None else None,
        mean_output_tokens=float(outputs.mean()) if len(outputs) else None,
        mean_longest_output_tokens=_mean_longest(static, dict(zip(done["id"].tolist(), outputs.tolist(), strict=True))),
        std_output_tokens=float(outputs.std()) if len(outputs) else None,
    )


def _mean_longest(static: Run, output_of: Mapping[int, float]) -> float | None:
    """Mean over batches of the longest output of a batch; a batch is who was admitted at one instant on one replica."""
    longest: dict[tuple[int, int], float] = {}
    if not num_rows(static.slots):
        return None
    for replica, admitted, request in zip(
        static.slots["replica"].tolist(), static.slots["admitted_ns"].tolist(), static.slots["id"].tolist(), strict=True
    ):
        if request in output_of:
            key = (replica, admitted)
            longest[key] = max(longest.get(key, 0.0), output_of[request])
    return float(np.mean(list(longest.values()))) if longest else None
