"""Confidence intervals from replications. Imports numpy and scipy.special only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def half_width_95(values: Sequence[float]) -> float | None:
    """Half width of the 95 % Student-t interval of the mean of independent values; None for fewer than two."""
    count = len(values)
    if count < 2:
        return None
    from scipy.special import stdtrit

    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)


SETTINGS = ("capacity_tokens", "num_gpu_blocks", "target_ms", "index")
"""Keys of a summary that are settings, not results: no interval."""


def combine(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over replications, each number with a sibling ``KEY_ci95`` (half width, None for one replication).

    Integers stay integers for a single replication. A value that is None in some replication is None in the mean:
    an average over the replications that happen to have it would be of another population. Texts and flags are taken
    from the first replication that has one; a flag holds if it does in any replication, ``met`` if in all of them.
    """
    first = summaries[0]
    combined: dict[str, Any] = {}
    for key, value in first.items():
        values = [summary[key] for summary in summaries]
        if isinstance(value, dict):
            combined[key] = combine([v if isinstance(v, dict) else {} for v in values])
        elif key == "replicas":
            combined[key] = [combine(alike) for alike in zip(*values, strict=True)]
        elif isinstance(value, bool):
            combined[key] = all(values) if key == "met" else any(values)
        elif key in SETTINGS:
            combined[key] = value
        elif all(isinstance(v, int | float) for v in values) or _sometimes_number(values):
            combined[key], combined[f"{key}_ci95"] = _mean(values)
        else:
            combined[key] = next((v for v in values if v is not None), None)
    return combined


def _sometimes_number(values: Sequence[Any]) -> bool:
    return any(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _mean(values: Sequence[Any]) -> tuple[float | int | None, float | None]:
    if any(value is None for value in values):
        return None, None
    if len(values) == 1:
        return values[0], None
    return math.fsum(values) / len(values), half_width_95(values)
