"""rows.json: its groups, its metrics and errors over its rows. Reads values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simkit.plain import Json
from simkit.report.words import MISSING, known

Content = Json
Row = Json

GROUPS = {
    "engine": "engine",
    "gpu": "GPU",
    "model": "model",
    "concurrency": "concurrency",
    "set": "set of rows",
}
"""What rows are grouped by, and how it is called."""

ROLES = {"fit": "rows fitted on", "test": "test rows", "all": "rows"}
"""What a row is for; "all" where nothing was fitted for its engine."""

RUNNING = "running"
"""The logged count of running requests: held against a range, so it has no place among the errors."""

_METRIC = re.compile(r"(?:(mean|median|p\d+)_)?(ttft|tpot|itl|e2e)_(ms|s)")
_OTHERS = {
    "output_tok_s": ("output throughput", "tokens/s"),
    "total_tok_s": ("total throughput", "tokens/s"),
    "req_per_s": ("request throughput", "requests/s"),
    "duration_s": ("duration", "s"),
}
_FIRST = ("mean_tpot_ms", "output_tok_s", "mean_ttft_ms", "mean_e2e_s")


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of `n` rows in per cent: mean size, mean with sign, and the one of largest size (with its sign)."""

    n: int
    mape: float | None
    bias: float | None
    worst: float | None


NO_ERRORS = Errors(0, None, None, None)


def metric_name(metric: str) -> str:
    """``mean_tpot_ms`` as TPOT mean; an unknown one as it is."""
    return _parts(metric)[0]


def metric_unit(metric: str) -> str:
    """Its unit, empty where it is not known."""
    return _parts(metric)[1]


def _parts(metric: str) -> tuple[str, str]:
    match = _METRIC.fullmatch(metric)
    if match is None:
        return _OTHERS.get(metric, (metric, ""))
    stat, name, unit = match.groups()
    return f"{name.upper()} {stat}" if stat else name.upper(), unit


def metrics(content: Content) -> list[str]:
    """All metrics of the rows that have errors, the usual ones first."""
    seen = dict.fromkeys(metric for row in content["rows"] for metric in row["metrics"] if metric != RUNNING)
    return [*(metric for metric in _FIRST if metric in seen), *(metric for metric in seen if metric not in _FIRST)]


def fits(content: Content) -> Sequence[Json]:
    """The fits, one for each engine that has one."""
    found = content.get("fit") or ()
    return (found,) if isinstance(found, Mapping) else tuple(found)


def has_zero(content: Content) -> bool:
    """Whether rows were also predicted with the host terms at 0."""
    return any(
        known(values.get("predicted_zero")) is not None for row in content["rows"] for values in row["metrics"].values()
    )


def roles(content: Content) -> list[str]:
    """The roles that rows have, in order."""
    seen = {row["role"] for row in content["rows"]}
    return [role for role in ROLES if role in seen]


def of_role(content: Content, role: str) -> list[Row]:
    """The rows of a role."""
    return [row for row in content["rows"] if row["role"] == role]


def judged(content: Content) -> list[Row]:
    """The rows that errors are over: all that were not fitted on."""
    return [row for row in content["rows"] if row["role"] != "fit"]


def judged_name(content: Content) -> str:
    """What those are called."""
    found = {row["role"] for row in judged(content)}
    return ROLES[found.pop()] if len(found) == 1 else "rows not fitted on"


def of_group(content: Content, group: str, value: str) -> list[Row]:
    """The judged rows with this value, as text, of a group."""
    return [row for row in judged(content) if group == "all" or text(row.get(group)) == value]


def errors_over(rows: Iterable[Row], metric: str, key: str) -> Errors:
    """Errors of `metric` over rows; `key` is error_pct or error_zero_pct."""
    return summary([(row["metrics"].get(metric) or {}).get(key) for row in rows])


def summary(values: Iterable[Any]) -> Errors:
    """Those that are known, put together."""
    found = [value for item in values if (value := known(item)) is not None]
    if not found:
        return NO_ERRORS
    return Errors(
        len(found),
        math.fsum(map(abs, found)) / len(found),
        math.fsum(found) / len(found),
        max(found, key=abs),
    )


def given(values: Json | None) -> Errors | None:
    """Errors as rows.json has them, None where it has none."""
    if values is None:
        return None
    return Errors(int(values["n"]), *(known(values.get(key)) for key in ("mape_pct", "bias_pct", "worst_pct")))


def text(value: Any) -> str:
    """A value of a group as text."""
    return MISSING if value in (None, "") else str(value)


def labels(rows: Sequence[Row], most: int) -> dict[str, list[Row]]:
    """The rows by what tells them apart, in at most `most` groups: as fine as that allows."""
    for keys in (
        ("engine", "gpu", "model"),
        ("engine", "gpu"),
        ("gpu", "model"),
        ("model",),
        ("gpu",),
        ("engine",),
        ("set",),
    ):
        vary = [key for key in keys if len({text(row.get(key)) for row in rows}) > 1]
        found: dict[str, list[Row]] = {}
        for row in rows:
            found.setdefault(", ".join(text(row.get(key)) for key in vary) or "all rows", []).append(row)
        if len(found) <= most and (len(found) > 1 or keys == ("set",)):
            return found
    ordered = sorted(found, key=lambda name: -len(found[name]))
    kept = {name: found[name] for name in ordered[: most - 1]}
    return kept | {"others": [row for name in ordered[most - 1 :] for row in found[name]]}
