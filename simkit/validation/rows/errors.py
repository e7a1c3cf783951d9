"""Errors of predicted rows, by metric and by what the rows have in common.

Owns the statistics and the bands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simkit.errors import InputError, nearest
from simkit.validation.rows.read import METRICS, STATS, Row

GROUPS = ("all", "engine", "gpu", "model", "concurrency", "set")
RUNNING = "running"
"""Held against a range, so it has no error percentage of its own in the statistics."""


@dataclass(frozen=True, slots=True)
class Band:
    """The mean absolute error that a metric may have, in percent."""

    metric: str
    limit_pct: float


def error_pct(predicted: float | None, measured: float) -> float | None:
    """Predicted over measured less 1, in percent; None where nothing is predicted."""
    return None if predicted is None else 100 * (predicted / measured - 1)


def statistics(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Group to value to metric to {n, mape_pct, bias_pct, worst_pct} of the `rows` of rows.json that were not fitted.

    `worst_pct` is the error with the largest absolute value, sign kept; `mape_zero_pct` the mean absolute error with
    the host terms at 0.
    """
    judged = [row for row in rows if row["role"] != "fit"]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for group in GROUPS:
        parts: dict[str, list[Mapping[str, Any]]] = {}
        for row in judged:
            parts.setdefault("all" if group == "all" else _text(row[group]), []).append(row)
        found[group] = {value: _by_metric(parts[value]) for value in sorted(parts, key=_order)}
    return found


def parse_bands(texts: Iterable[str]) -> list[Band]:
    """``METRIC=PCT`` of the command line. Raises InputError."""
    bands: list[Band] = []
    for text in texts:
        metric, equals, limit = (part.strip() for part in text.partition("="))
        if not equals or metric not in METRICS:
            close = nearest(_swapped(metric), METRICS)
            raise InputError(f"--max-error {text}: expected METRIC=PERCENT, e.g. mean_tpot_ms=5{close}")
        try:
            value = float(limit.removesuffix("%"))
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise InputError(f"--max-error {text}: expected a percentage >= 0 behind the =, got {limit!r}")
        if any(band.metric == metric for band in bands):
            raise InputError(f"--max-error {text}: expected each metric once, got {metric} twice")
        bands.append(Band(metric, value))
    return bands


def _swapped(metric: str) -> str:
    """``tpot_ms.mean``, as `summary.json` has it, in the words of the table: ``mean_tpot_ms``."""
    name, _, stat = metric.partition(".")
    word = {"p50": "median", "": "mean"}.get(stat, stat)
    return metric if metric.split("_")[0] in STATS else f"{word}_{name if '_' in name else f'{name}_ms'}"


def judge(bands: Iterable[Band], errors: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each band with the error it is for. Raises InputError for a metric that no judged row has."""
    judged = []
    for band in bands:
        stats = errors["all"].get("all", {}).get(band.metric)
        if stats is None:
            raise InputError(f"--max-error {band.metric}: expected a metric of the rows that are judged, none has it")
        ok = stats["mape_pct"] <= band.limit_pct
        judged.append({"key": band.metric, "limit_pct": band.limit_pct, "error_pct": stats["mape_pct"], "ok": ok})
    return judged


def check_measured(bands: Iterable[Band], rows: Iterable[Row]) -> None:
    """InputError for a band on what none of the `rows` measured, before they are simulated."""
    measured = {metric for row in rows for metric in row.measured}
    for band in bands:
        if band.metric not in measured:
            have = f"; they have {', '.join(sorted(measured))}" if measured else ""
            raise InputError(
                f"--max-error {band.metric}: expected a metric of the rows that are judged, none has it{have}"
            )


def _by_metric(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    errors: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for metric, values in row["metrics"].items():
            if metric != RUNNING and values["error_pct"] is not None:
                zero = values["error_zero_pct"]
                errors.setdefault(metric, []).append(
                    (values["error_pct"], values["error_pct"] if zero is None else zero)
                )
    return {metric: _stats(pairs) for metric, pairs in errors.items()}


def _stats(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    values = [value for value, _ in pairs]
    return {
        "n": len(values),
        "mape_pct": sum(map(abs, values)) / len(values),
        "bias_pct": sum(values) / len(values),
        "worst_pct": max(values, key=abs),
        "mape_zero_pct": sum(abs(zero) for _, zero in pairs) / len(values),
    }


def _text(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


def _order(text: str) -> tuple[bool, int, str]:
    """Numbers by size, before words."""
    return (not text.isdecimal(), int(text) if text.isdecimal() else 0, text)
