"""The whole table of public benchmarks: every row that can be simulated, with the terms that ship and nothing fitted.

No bar is set: flags, versions and lengths of many rows are not stated, and prompts may have been in a cache. It shows
how far off simkit is where nobody chose the rows. Imports `simkit.validation`.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from statistics import fmean

from reports.validation.evidence import chosen
from reports.validation.line import Line
from simkit.validation.row_study import RowStudy, study_rows
from simkit.validation.rows import read_rows

SECTION = "All public rows"
NEEDS = (str(chosen()["tables"]["shared"]),)
METRICS = {
    "mean_tpot_ms": "TPOT mean",
    "median_tpot_ms": "TPOT median",
    "output_tok_s": "output throughput",
}
"""What a row is held against: the first of these that it has."""


def lines(shared: Path | None) -> list[Line]:
    """A line for all rows, one for each set, engine and GPU, and one for those that are left out."""
    if shared is None:
        return []
    study = _study(shared / NEEDS[0])
    groups: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for row in study.rows:
        metric = next((name for name in METRICS if row["metrics"].get(name, {}).get("error_pct") is not None), None)
        if metric is not None:
            key = f"{row['set']}: {row['engine']}, {row['gpu']}", METRICS[metric]
            groups.setdefault(key, []).append((row["id"], row["metrics"][metric]["error_pct"]))
    everything = [pair for pairs in groups.values() for pair in pairs]
    ordered = sorted(groups.items())
    return [
        _line("every row that can be simulated", "TPOT, else output throughput", everything),
        *(_line(evidence, metric, pairs) for (evidence, metric), pairs in ordered),
        _left_out(study),
    ]


@functools.cache
def _study(path: Path) -> RowStudy:
    return study_rows(read_rows(path).rows, name="all", source=path.name, jobs=None)


def _line(evidence: str, metric: str, pairs: list[tuple[str, float]]) -> Line:
    worst, error = max(pairs, key=lambda pair: abs(pair[1]))
    within = sum(abs(error) <= 20.0 for _, error in pairs)
    return Line(
        section=SECTION,
        evidence=evidence,
        source=Path(NEEDS[0]).name,
        n=len(pairs),
        metric=f"{metric}, MAPE",
        error_pct=fmean(abs(error) for _, error in pairs),
        judged=False,
        fitted="none",
        text=f"bias {fmean(error for _, error in pairs):+.1f} %, {within} of {len(pairs)} within 20 %",
        note=f"worst: {worst} {error:+.0f} %",
    )


def _left_out(study: RowStudy) -> Line:
    reasons = Counter(study.skipped).most_common()
    text = "; ".join(f"{count}: {reason}" for reason, count in reasons)
    return Line(
        section=SECTION,
        evidence="rows that are left out",
        source=Path(NEEDS[0]).name,
        n=len(study.skipped_rows),
        metric="rows",
        error_pct=None,
        judged=False,
        fitted="none",
        text=text,
    )
