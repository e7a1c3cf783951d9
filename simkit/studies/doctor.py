"""The doctor's proof: every advice is tried by running the same customers again with it, and judged by what came out.

Owns what is run again and which advice is best, and how a re-run is judged: what got better, what got worse, and
whether the replications are sure of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from simkit.diagnosis import thresholds as at
from simkit.diagnosis.facts import REQUEST_COLUMNS, STEP_COLUMNS, Facts, gather
from simkit.diagnosis.findings import Finding, Threshold
from simkit.diagnosis.rules import RULES, diagnose
from simkit.engine.build import set_up
from simkit.engine.run import Progress
from simkit.errors import InputError
from simkit.logs.read.text import resolve, sha256_of
from simkit.metrics import catalogue
from simkit.metrics.catalogue import DOCTOR, HIGHER, number
from simkit.metrics.intervals import half_width_95
from simkit.plain import Json, plain
from simkit.runs.manifest import run_id
from simkit.runs.replication import Result
from simkit.scenario import Scenario, apply_sets, from_dict
from simkit.studies.study import Options, Point, Settings, run_study, setting

SAME = "the run itself"
ELSEWHERE = "relative paths of the scenario start in the working directory, or give --base-dir"


@dataclass(frozen=True, slots=True)
class _Tried:
    """What candidates are compared with (`before`, and its replications where there are several), and what came of
    each, or why nothing did, by the name of its settings."""

    before: Json
    replications: Sequence[Json]
    outcomes: Mapping[str, Result | str]
    remade: bool


def facts_of(result: Result) -> Facts:
    """The facts of a run that was just made."""

    def columns(table: str, names: Sequence[str]) -> Json:
        return {name: np.asarray(result.tables[table].column(name).to_numpy()) for name in names}

    return gather(result.manifest, result.summary, columns("requests", REQUEST_COLUMNS), columns("steps", STEP_COLUMNS))


def rebuild(manifest: Json, label: str, base_dir: Path | None = None) -> Scenario:
    """The scenario of a run from its manifest, ready to be changed. Raises InputError for what cannot be run again.

    What was only a consequence of other settings is left open again, so that it follows when these change.
    """
    data = plain(manifest["scenario"])
    engine = data["engine"]
    if engine.get("max_num_active_seqs") == engine.get("max_num_seqs"):
        engine["max_num_active_seqs"] = None
    if engine.get("stream") == (engine.get("batching") == "continuous"):
        engine["stream"] = None
    scenario = from_dict(data, label=label)
    if base_dir is not None:
        scenario = scenario.based_at(base_dir)
    workload = scenario.workload
    for path in workload.files:
        if not resolve(path, base_dir).is_file():
            raise InputError(f"{label}: {path}: no such file; {ELSEWHERE}")
    known, trace = manifest.get("log_sha256"), workload.trace
    if trace is not None and known is not None and sha256_of(resolve(trace.path, base_dir)) != known:
        expected = "expected the log of this run, but its content has changed since"
        raise InputError(f"{label}: {trace.path}: {expected}; replay it again")
    if workload.servegen is not None and not resolve(workload.servegen.path, base_dir).is_dir():
        raise InputError(f"{label}: {workload.servegen.path}: no such folder; {ELSEWHERE}")
    return scenario


def examine(
    scenario: Scenario | None,
    run: Result | Facts,
    *,
    only: Collection[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Json:
    """Findings of a run, as plain data; with a `scenario` (that of the run) every advice is proven by running it.

    ``{"run_id", "name", "checked": [rule], "findings": [{rule, severity, diagnosis, evidence, advice: {text, settings}
    | null, proof: {before, after, difference_ci95, verdict, helps} | null, also_tried: [{text, settings, proof}]}]}``.
    The advice is the one that did best; settings are empty where there is nothing to set. A re-run that fails is a
    verdict, not an error. InputError: the run itself cannot be made again.
    `only` names the rules to check, None for all.
    """
    facts = run if isinstance(run, Facts) else facts_of(run)
    findings = [finding for finding in diagnose(facts) if only is None or finding.rule in only]
    tried = _Tried(facts.summary, (), {}, remade=False)
    if scenario is not None:
        tried = _run_again(scenario, facts, findings, progress, options)
    return {
        "run_id": facts.manifest.get("run_id"),
        "name": facts.manifest.get("name"),
        "checked": [rule for rule in RULES if only is None or rule in only],
        "remade": tried.remade,
        "findings": [_finding_json(finding, tried) for finding in findings],
    }


def _run_again(
    scenario: Scenario, facts: Facts, findings: Sequence[Finding], progress: Progress | None, options: Options
) -> _Tried:
    """All candidates of all findings, each once.

    A run of another version or profile is made again as well, for only like is compared with like; and one of several
    replications, whose differences are taken replication by replication.
    """
    changes = {
        name_of(candidate): candidate
        for finding in findings
        for advice in finding.advice
        for candidate in advice.candidates
    }
    if not changes:
        return _Tried(facts.summary, (), {}, remade=False)
    try:
        setup = set_up(scenario)
    except InputError as error:
        raise InputError(f"{error}; {ELSEWHERE}") from None
    points = []
    same = run_id(setup.scenario.to_dict(), setup.profile_hash, scenario.seed)
    remade = same != facts.manifest.get("run_id")
    if remade or scenario.replications > 1:
        points.append(Point(SAME, scenario))
    outcomes: dict[str, Result | str] = {}
    for name, candidate in changes.items():
        try:
            changed = apply_sets(scenario, candidate, label="with")
            set_up(changed)
            points.append(Point(name, changed, candidate))
        except InputError as error:
            outcomes[name] = str(error)
    if points:
        study = run_study(points, progress=progress, **options)
        outcomes |= {name: failure.message for name, failure in study.failed.items()}
        outcomes |= study.results
    itself = outcomes.pop(SAME, None)
    if isinstance(itself, str):
        raise InputError(f"the run cannot be made again: {itself}")
    if itself is None:
        return _Tried(facts.summary, (), outcomes, remade)
    return _Tried(itself.summary, itself.replications, outcomes, remade)


def name_of(settings: Settings) -> str:
    """Settings as a scenario would have them, in one line."""
    return ", ".join(setting(key, value) for key, value in settings.items())


def _finding_json(finding: Finding, done: _Tried) -> Json:
    """A finding as plain data, the best advice in front."""
    shown = tuple(dict.fromkeys((*finding.judged_by, *watched())))
    now = {key: number(done.before, key) for key in shown}
    tried: list[tuple[str, Settings, Proof | None]] = []
    for advice in finding.advice:
        for candidate in advice.candidates or ({},):
            outcome = done.outcomes.get(name_of(candidate)) if candidate else None
            proof = None if outcome is None else _proof(finding, candidate, now, outcome, done.replications)
            tried.append((advice.text, candidate, proof))
    if any(proof is not None for _, _, proof in tried):
        worst = (False, -len(shown) - 1, 0.0)
        tried.sort(key=lambda item: worst if item[2] is None else item[2].rank, reverse=True)
    entries = [
        {"text": text, "settings": dict(settings), "proof": _proof_json(proof, now)} for text, settings, proof in tried
    ]
    first = entries[0] if entries else None
    content = finding.to_json()
    content["advice"] = None if first is None else {"text": first["text"], "settings": first["settings"]}
    content["proof"] = None if first is None else first["proof"]
    content["also_tried"] = entries[1:]
    return content


def _proof(
    finding: Finding,
    candidate: Settings,
    now: Mapping[str, float | None],
    outcome: Result | str,
    replications: Sequence[Json],
) -> Proof:
    if isinstance(outcome, str):
        return judge(finding.judged_by, candidate, now, outcome)
    ci95 = paired_ci95(now, replications, outcome.replications) if replications else None
    return judge(finding.judged_by, candidate, now, outcome.summary, ci95)


def _proof_json(proof: Proof | None, before: Json) -> Json | None:
    if proof is None:
        return None
    return {
        "before": dict(before),
        "after": dict(proof.after),
        "difference_ci95": None if proof.ci95 is None else dict(proof.ci95),
        "verdict": proof.verdict,
        "helps": proof.helps,
    }


# --- how a re-run is judged -------------------------------------------------------------------------------------------
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
