"""Service level objectives: goodput, and whether a run meets each value. Imports metrics.record and metrics.terms."""

from __future__ import annotations

from typing import Any

import numpy as np

from simkit.metrics.record import Record
from simkit.metrics.terms import NOT_STREAMED, Bools, Terms, gaps, measured_span_ns, ratio
from simkit.types import Floats, Ints
from simkit.units import NS_PER_MS, NS_PER_S, ns_to_ms


def goodput(table: dict[str, Ints], counted: Bools, measured: Bools, terms: Terms) -> dict[str, Any]:
    """Measured requests a second that meet every per-request value; pooled ITL and means bind no single request."""
    bounds = {
        metric: min(value for key, value in values.items() if key != "mean")
        for metric, values in terms.slo.items()
        if metric != "itl_ms" and values.keys() != {"mean"}
    }
    if not bounds:
        return {"goodput_per_s": None, "goodput_reason": "no slo with a value per request" if terms.slo else "no slo"}
    if not terms.stream and "tpot_ms" in bounds:
        return {"goodput_per_s": None, "goodput_reason": NOT_STREAMED}
    if not counted.any():
        return {"goodput_per_s": None, "goodput_reason": "no request finished"}
    good = counted.copy()
    for metric, bound in bounds.items():
        good &= _per_request_ms(table, metric) <= bound
    span_ns = measured_span_ns(table, counted, measured)
    return {"goodput_per_s": ratio(int(good.sum()) * NS_PER_S, span_ns), "goodput_reason": None}


def slo_results(
    record: Record, table: dict[str, Ints], counted: Bools, measured: Bools, terms: Terms
) -> dict[str, Any] | None:
    """For each value of the SLO whether the run meets it; a percentile key asks for that share of measured requests.

    Rejected, refused, aborted and unfinished requests miss every value. A mean is compared with the mean, and ITL with
    its pooled percentile. `met` is None where the metric does not exist.
    """
    if not terms.slo:
        return None
    num_measured = int(measured.sum()) + record.num_arrived - len(measured)
    results: dict[str, Any] = {}
    for metric, values in terms.slo.items():
        results[metric] = {}
        for key, target in values.items():
            share = value = None
            if metric == "itl_ms" and terms.stream:
                value = record.itl.mean_ns() if key == "mean" else record.itl.percentile_ns(float(key[1:]))
                value = None if value is None else ns_to_ms(value)
            elif metric != "itl_ms" and (terms.stream or metric != "tpot_ms") and counted.any():
                each = _per_request_ms(table, metric)
                if key == "mean":
                    value = float(each[counted].sum()) / int(counted.sum())
                else:
                    share = int((counted & (each <= target)).sum()) / num_measured
                    value = _percentile_ms(table, metric, counted, float(key[1:]))
            met = None if share is None and value is None else _meets(key, target, share, value)
            results[metric][key] = {"target_ms": target, "share_within": share, "value_ms": value, "met": met}
    return results


def _percentile_ms(table: dict[str, Ints], metric: str, counted: Bools, percent: float) -> float | None:
    """The percentile that the summary shows: an undefined TPOT is left out."""
    defined = counted & (gaps(table) > 0) if metric == "tpot_ms" else counted
    return float(np.percentile(_per_request_ms(table, metric)[defined], percent)) if defined.any() else None


def _meets(key: str, target: float, share: float | None, value: float | None) -> bool:
    if share is not None:
        return share >= float(key[1:]) / 100
    return value is not None and value <= target


def _per_request_ms(table: dict[str, Ints], metric: str) -> Floats:
    """Value of each request in ms; an undefined TPOT passes every bound."""
    if metric == "tpot_ms":
        num_gaps = gaps(table)
        decoding_ns = table["last_token_ns"] - table["first_token_ns"]
        return np.where(num_gaps > 0, decoding_ns / np.maximum(num_gaps, 1), 0.0) / NS_PER_MS
    end = "first_token_ns" if metric == "ttft_ms" else "last_token_ns"
    return (table[end] - table["arrival_ns"]) / NS_PER_MS
