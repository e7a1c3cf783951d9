"""Confidence intervals from replications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from simkit.plain import Json


def half_width_95(values: Sequence[float]) -> float | None:
    """Half width of the 95 % Student-t interval of the mean of independent values; None for fewer than two."""
    count = len(values)
    if count < 2:
        return None
    return student_t_95(count - 1) * math.sqrt(_variance(values) / count)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (of a sample, n - 1) of at least one value; the deviation of one value is 0."""
    return math.fsum(values) / len(values), math.sqrt(_variance(values)) if len(values) > 1 else 0.0


def student_t_95(degrees: int) -> float:
    """The quantile by which a standard error becomes the half width of a two-sided 95 % interval."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def one_sided_t_95(degrees: int) -> float:
    """The quantile by which a standard error becomes the one-sided 95 % bound of a mean."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.95))


def normal_quantile_95(mean: float, deviation: float, quantile: float, count: int) -> tuple[float, float]:
    """The 95 % interval of the point `quantile` deviations below the mean of a normal distribution of which `count`
    values have this mean and deviation; it has no bounds for one value. Exact, by the non-central t distribution (Hahn
    and Meeker, Statistical Intervals, 1991).
    """
    if count < 2:
        return -math.inf, math.inf
    from scipy.special import nctdtrit

    root = math.sqrt(count)
    far, near = (float(nctdtrit(count - 1, quantile * root, share)) for share in (0.975, 0.025))
    return mean - far * deviation / root, mean - near * deviation / root


def jackknife_error(values: Sequence[float]) -> float:
    """Standard error of an estimate whose values with each of n parts left out are these.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 11.
    """
    mean = math.fsum(values) / len(values)
    return math.sqrt((len(values) - 1) / len(values) * math.fsum((value - mean) ** 2 for value in values))


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


NORMAL_95 = 1.96
"""The quantile of an error whose size is known."""

RANGED = ("_ms", "_s", "cost_per_million_output_tokens")
"""Endings of keys of times, rates and costs, which have a range."""


def range_95(values: Sequence[float], erring: Sequence[float], half_width: float | None) -> tuple[float, float]:
    """The 95 % interval that holds the error of step times, of the mean of `values`, one a replication.

    `erring` are those of the same replications with step times that err by a draw, `half_width` is that of the mean.
    What step times err by is the same in all replications of reality, so it does not become less with their number: the
    variance of its effect, the mean square of the paired differences, is added to that of the mean. Where all values
    are positive it is the logarithm that is taken as normal.
    """
    if min(*values, *erring) > 0:
        mean = math.fsum(values) / len(values)
        logs = [math.log(value) for value in values], [math.log(value) for value in erring]
        squares = math.fsum((wrong - right) ** 2 for right, wrong in zip(*logs, strict=True))
        width = math.hypot((half_width or 0.0) / mean, NORMAL_95 * math.sqrt(squares / len(values)))
        return mean * math.exp(-width), mean * math.exp(width)
    return differences_range_95(values, erring, half_width)


def differences_range_95(
    values: Sequence[float], erring: Sequence[float], half_width: float | None
) -> tuple[float, float]:
    """`range_95` of what may be of any sign."""
    mean = math.fsum(values) / len(values)
    squares = math.fsum((wrong - right) ** 2 for right, wrong in zip(values, erring, strict=True))
    width = math.hypot(half_width or 0.0, NORMAL_95 * math.sqrt(squares / len(values)))
    return mean - width, mean + width


SETTINGS = ("capacity_tokens", "num_gpu_blocks", "target_ms", "index")
"""Keys of a summary that are settings, not results: no interval."""


def combine(summaries: Sequence[Json], erring: Sequence[Json] = (), *, ranged: bool = False) -> Json:
    """Means over replications, each number with a sibling ``KEY_ci95`` (half width, None for one replication).

    `erring` are the summaries of the same replications with step times that err: times, rates and costs then have a
    sibling ``KEY_range95`` as well, [low, high], which is `range_95` (None where a value is missing). `ranged`: whether
    all numbers are such.

    Integers stay integers for a single replication. A value that is None in some replication is None in the mean:
    an average over the replications that happen to have it would be of another population. Texts and flags are taken
    from the first replication that has one; a flag holds if it does in any replication, ``met`` if in all of them (and
    is None where it is missed in none and unknown in some).
    """
    first = summaries[0]
    combined: dict[str, Any] = {}
    for key, value in first.items():
        values = [summary[key] for summary in summaries]
        wrong = [summary.get(key) for summary in erring]
        has_range = ranged or key.endswith(RANGED)
        if isinstance(value, dict):
            combined[key] = combine(_dicts(values), _dicts(wrong), ranged=has_range)
        elif key == "replicas":
            combined[key] = [combine(alike) for alike in zip(*values, strict=True)]
        elif key == "met":
            combined[key] = False if False in values else None if None in values else True
        elif isinstance(value, bool):
            combined[key] = any(values)
        elif key in SETTINGS:
            combined[key] = value
        elif all(isinstance(v, int | float) for v in values) or _sometimes_number(values):
            combined[key], combined[f"{key}_ci95"] = _mean(values)
            if erring and has_range:
                combined[f"{key}_range95"] = _range(values, wrong, combined[f"{key}_ci95"])
        else:
            combined[key] = next((v for v in values if v is not None), None)
    return combined


def _dicts(values: Sequence[Any]) -> list[Json]:
    return [value if isinstance(value, dict) else {} for value in values]


def _sometimes_number(values: Sequence[Any]) -> bool:
    return any(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _range(values: Sequence[Any], erring: Sequence[Any], half_width: float | None) -> list[float] | None:
    if any(value is None for value in (*values, *erring)):
        return None
    return list(range_95(values, erring, half_width))


def _mean(values: Sequence[Any]) -> tuple[float | int | None, float | None]:
    if any(value is None for value in values):
        return None, None
    if len(values) == 1:
        return values[0], None
    return math.fsum(values) / len(values), half_width_95(values)
