"""Service level objectives: goodput, and whether a run meets each value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simkit.metrics.inputs import NOT_STREAMED, SummaryInputs
from simkit.metrics.latencies import PER_REQUEST, LatencyStats, defined, values_ns
from simkit.metrics.window import Window
from simkit.types import Bools, Ints
from simkit.units import NS_PER_MS


@dataclass(frozen=True, slots=True)
class SloResult:
    """One value of the SLO and what the run gave. `met` is None where no counted request has the metric."""

    target_ms: float
    share_within: float | None
    value_ms: float | None
    met: bool | None


Slo = Mapping[str, Mapping[str, SloResult]]
"""Results by metric and statistic."""


def goodput(
    table: Mapping[str, Ints], finished: Bools, window: Window, inputs: SummaryInputs
) -> tuple[float | None, str | None]:
    """Finished requests a second of the window that meet every per-request value, counted as throughput counts them;
    and where there is no such number, why.

    An undefined TPOT passes. Pooled ITL and means bind no single request.
    """
    bounds = {
        metric: min(value for key, value in values.items() if key != "mean")
        for metric, values in inputs.slo.items()
        if metric in PER_REQUEST and values.keys() != {"mean"}
    }
    if not bounds:
        return None, "no slo with a value per request" if inputs.slo else "no slo"
    if not inputs.stream and "tpot_ms" in bounds:
        return None, NOT_STREAMED
    if not window.length_ns:
        return None, "no request finished"
    good = finished.copy()
    for metric, bound in bounds.items():
        good &= _within(table, metric, bound) | ~defined(table, metric)
    return window.per_s(np.ones_like(table["id"]), good), None


def slo_results(
    latencies: Mapping[str, LatencyStats],
    table: Mapping[str, Ints],
    counted: Bools,
    num_missing: int,
    inputs: SummaryInputs,
) -> Slo | None:
    """For each value of the SLO whether the run meets it, by the very numbers of the summary (`latencies`).

    A percentile key asks for that share of requests: of those that are `counted` and have the metric, and of the
    `num_missing` measured ones that were rejected, refused, gave up or did not end, which miss every value. A mean is
    compared with the mean, and ITL with its pooled percentile. `met` is None where no counted request has the metric.
    """
    if not inputs.slo:
        return None
    results: dict[str, dict[str, SloResult]] = {}
    for metric, values in inputs.slo.items():
        results[metric] = {}
        for key, target in values.items():
            value, share = latencies[metric].stat(key), None
            if key != "mean" and metric in PER_REQUEST and value is not None:
                have = counted & defined(table, metric)
                within = int((have & _within(table, metric, target)).sum())
                share = within / (int(have.sum()) + num_missing)
            met = None if value is None else _meets(key, target, share, value)
            results[metric][key] = SloResult(target, share, value, met)
    return results


def _meets(key: str, target: float, share: float | None, value: float) -> bool:
    return value <= target if share is None else share >= float(key[1:]) / 100


def _within(table: Mapping[str, Ints], metric: str, bound_ms: float) -> Bools:
    return np.asarray(values_ns(table, metric) / NS_PER_MS <= bound_ms)
