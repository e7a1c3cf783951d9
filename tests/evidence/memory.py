"""Memory: tokens of KV cache that start-up logs print, against the rules."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from statistics import fmean, median
from typing import Any

from evidence.line import Curves, Line, Section, mape, off_pct
from evidence.startup_logs import judge, read_evidence

TABLE = "data/evidence/kv_capacity.csv"
SOURCE = "public start-up logs (kv_capacity.csv)"
GROUPS = ("V1 since 0.17, TP 1", "V1 since 0.17, TP", "V1 before 0.17", "V0")
LABELS = {"V1 since 0.17, TP": "V1 since 0.17, TP 2 and more"}
Verdicts = list[dict[str, Any]]
"""What is said of each start-up."""

NOT_JUDGED = "not judged"
FITTED = "the memory rules of the version (simkit/data/engine_memory.yaml names the rows each rests on)"


def _lines(shared: Path) -> list[Line]:
    """A line a group of engine versions, one for refusals, one for each reason why rows are not judged."""
    verdicts = _verdicts(shared)
    found = [_group(name, verdicts) for name in GROUPS]
    return [*(line for line in found if line is not None), _refusals(verdicts), *_left_out(verdicts)]


def _curves(shared: Path) -> Curves:
    """Logged and predicted KV tokens of every start-up that prints them, by group."""
    points = {name: _tokens(name, _verdicts(shared)) for name in GROUPS}
    named = {LABELS.get(name, name): [list(point[1:]) for point in found] for name, found in points.items()}
    return {"kv_tokens": named}


@functools.cache
def _verdicts(shared: Path) -> Verdicts:
    return [judge(row) for row in read_evidence(shared / TABLE)]


def _tokens(group: str, verdicts: Verdicts) -> list[tuple[str, float, float]]:
    """(row, logged, predicted) where the start-up printed a pool and neither side refused it."""
    return [
        (verdict["id"], verdict["kv_tokens"]["logged"], float(verdict["kv_tokens"]["predicted"]))
        for verdict in verdicts
        if verdict["group"] == group
        and verdict["kv_tokens"]["logged"]
        and verdict["kv_tokens"]["predicted"]
        and not verdict["refused"]["logged"]
        and not verdict["refused"]["predicted"]
    ]


def _group(group: str, verdicts: Verdicts) -> Line | None:
    found = _tokens(group, verdicts)
    if not found:
        return None
    errors = {row: off_pct(predicted, logged) for row, logged, predicted in found}
    worst = max(errors, key=lambda row: abs(errors[row]))
    in_group = sum(verdict["group"] == group for verdict in verdicts)
    return Line(
        evidence=f"KV tokens, {LABELS.get(group, group)}",
        source=SOURCE,
        n=len(found),
        metric="KV tokens, MAPE",
        error_pct=mape(errors.values()),
        fitted=FITTED,
        text=f"median {median(abs(error) for error in errors.values()):.2f} %, bias {fmean(errors.values()):+.2f} %",
        note=f"worst: {worst} {errors[worst]:+.1f} %; {in_group - len(found)} further rows print no pool or refuse",
    )


def _refusals(verdicts: Verdicts) -> Line:
    told = [(bool(v["refused"]["logged"]), bool(v["refused"]["predicted"])) for v in verdicts if "refused" in v]
    wrong = sum(logged != predicted for logged, predicted in told)
    return Line(
        evidence="starts or is refused",
        source=SOURCE,
        n=len(told),
        metric="start-ups told wrongly",
        error_pct=100.0 * wrong / len(told),
        fitted="none",
        text=f"{wrong} of {len(told)} wrong",
        note=f"{sum(logged for logged, _ in told)} of them were refused",
    )


def _left_out(verdicts: Verdicts) -> list[Line]:
    why: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict["group"] == NOT_JUDGED:
            why[_reason(str(verdict["why_not"]))] += 1
    return [
        Line(evidence="start-ups not judged", source=SOURCE, n=count, metric="rows", judged=False, text=reason)
        for reason, count in sorted(why.items())
    ]


def _reason(text: str) -> str:
    """The first clause of a message, without the list of everything that is known."""
    return text.split(";")[0]


MEMORY = Section("Memory", _lines, curves=_curves, needs=(TABLE,))
