"""How a re-run is judged: what got better, what got worse, and whether the replications are sure of it.

Owns verdicts and their words. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simkit.diagnosis import thresholds as at
from simkit.diagnosis.findings import Threshold
from simkit.metrics import catalogue
from simkit.metrics.catalogue import DOCTOR, HIGHER, number
from simkit.metrics.intervals import half_width_95
from simkit.plain import Json
from simkit.studies.study import Settings


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of one candidate. `worse` are metrics that pay; `gain` is summed over those that judge.

    `ci95` are half widths of the paired differences over replications, None for one replication.
    """

    settings: Settings
    after: Mapping[str, float | None]
    verdict: str
    helps: bool
    worse: tuple[str, ...] = ()
    gain: float = 0.0
    ci95: Mapping[str, float] | None = None

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Larger is better: helps, at the price of fewer metrics, by more."""
        return self.helps, -len(self.worse), self.gain


def judge(
    judged_by: Sequence[str],
    settings: Settings,
    before: Mapping[str, float | None],
    outcome: Any,
    ci95: Mapping[str, float] | None = None,
) -> Proof:
    """Whether a re-run helps: a metric the finding is about gets better, and none of these gets worse.

    `before` has the metrics to look at; `outcome` is the new summary, or in words why there is none. With `ci95` (see
    `paired_ci95`) a change within its interval counts neither as better nor as worse.
    """
    if isinstance(outcome, str):
        return Proof(settings, dict.fromkeys(before), f"cannot be run: {outcome}", False, tuple(before))
    after = {key: number(outcome, key) for key in before}
    gains = {key: gain_of(key, before[key], after[key]) for key in before}
    sure = {key: _sure(before[key], after[key], (ci95 or {}).get(key)) for key in before}
    worse = tuple(
        key for key, gain in gains.items() if sure[key] and _counts(key, gain, at.WORSE_RATE, at.WORSE_LATENCY, -1)
    )
    seems = [key for key in judged_by if _counts(key, gains[key], at.BETTER_RATE, at.BETTER_LATENCY, 1)]
    helps = any(sure[key] for key in seems) and not any(key in worse for key in judged_by)
    named = ", ".join(label(key) for key in worse)
    if helps:
        verdict = "helps" + (f", but makes {named} worse" if worse else "")
    elif seems and not any(sure[key] for key in seems):
        seeming = ", ".join(label(key) for key in seems)
        verdict = f"not certain: {seeming} better on average, within the interval of the replications"
    else:
        verdict = "does not help" + (f", and makes {named} worse" if worse else "")
    if outcome.get("saturated"):
        verdict += "; saturated, so latencies depend on the run's length"
    return Proof(settings, after, verdict, helps, worse, sum(gains[key] or 0.0 for key in judged_by), ci95)


def paired_ci95(keys: Iterable[str], before: Sequence[Json], after: Sequence[Json]) -> dict[str, float] | None:
    """Half widths of the 95 % intervals of after - before, replication by replication; None for fewer than two."""
    found = {}
    for key in keys:
        pairs = [(number(a, key), number(b, key)) for a, b in zip(after, before, strict=True)]
        half = half_width_95([a - b for a, b in pairs if a is not None and b is not None])
        if half is not None:
            found[key] = half
    return found or None


def _sure(before: float | None, after: float | None, half_width: float | None) -> bool:
    """Whether a difference is larger than chance makes it; without an interval it is taken as it is."""
    return before is None or after is None or half_width is None or abs(after - before) > half_width


def gain_of(key: str, before: float | None, after: float | None) -> float | None:
    """Change for the better as a share of `before`, negative for the worse; None where a value is missing."""
    if before is None or after is None:
        return None
    change = after - before if _is_rate(key) else before - after
    if not change:
        return 0.0
    return change / abs(before) if before else float(np.copysign(1.0, change))


def _counts(key: str, gain: float | None, rate: Threshold, latency: Threshold, sign: int) -> bool:
    if key == "num_requests.finished" and sign < 0:
        return gain is not None and gain < 0
    return gain is not None and (rate if _is_rate(key) else latency).crossed(sign * gain)


def _is_rate(key: str) -> bool:
    """Whether more of it is better."""
    metric = catalogue.find(key)
    return metric is not None and metric.better is HIGHER


def watched() -> tuple[str, ...]:
    """Keys shown for every re-run beside what the finding is judged by, so that nobody pays unseen."""
    return tuple(metric.key for metric in catalogue.shown(DOCTOR))


def label(key: str) -> str:
    """A summary key in words: ``ttft_ms.p99`` is TTFT p99."""
    metric = catalogue.find(key)
    return key if metric is None else metric.name(DOCTOR)


def labels(found: Json) -> dict[str, str]:
    """Words for every metric of an examination."""
    keys = (*watched(), *(key for finding in found["findings"] for key in finding["judged_by"]))
    return {key: label(key) for key in keys}
