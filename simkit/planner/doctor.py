"""The doctor's proof: every advice is tried by running the same customers again with it, and judged by what came out.

Owns what is run again, how a re-run is judged and which advice is best. Imports diagnosis and its siblings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from simkit.manifest import plain, run_id
from simkit.parts import Result
from simkit.planner.study import Options, Point, run_study, setting
from simkit.scenario import Scenario, apply_sets, from_dict
from simkit.workload.files import resolve

WATCHED = (
    "throughput.output_tokens_per_s",
    "ttft_ms.p99",
    "tpot_ms.p99",
    "itl_ms.p99",
    "e2e_ms.p99",
    "num_preemptions",
    "num_requests.finished",
)
"""Shown for every re-run beside what the finding is judged by, so that nobody pays unseen."""

LABELS = {
    "throughput.output_tokens_per_s": "output tokens/s",
    "throughput.requests_per_s": "requests/s",
    "num_preemptions": "preemptions",
    "num_requests.finished": "requests finished",
    "kv.internal.share_of_allocated": "KV internal waste",
}
SAME = "the run itself"
ELSEWHERE = "relative paths of the scenario start in the working directory, or give --base-dir"


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of one candidate. `worse` are metrics that pay; `gain` is summed over those that judge."""

    settings: Mapping[str, Any]
    after: Mapping[str, float | None]
    verdict: str
    helps: bool
    worse: tuple[str, ...] = ()
    gain: float = 0.0

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Larger is better: helps, at the price of fewer metrics, by more."""
        return self.helps, -len(self.worse), self.gain


def facts_of(result: Result) -> Facts:
    """The facts of a run that was just made."""

    def columns(table: str, names: Sequence[str]) -> dict[str, Any]:
        return {name: np.asarray(result.tables[table].column(name).to_numpy()) for name in names}

    return gather(result.manifest, result.summary, columns("requests", REQUEST_COLUMNS), columns("steps", STEP_COLUMNS))


def rebuild(manifest: Mapping[str, Any], label: str, base_dir: Path | None = None) -> Scenario:
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
    for named in (workload.trace, workload.prompt_tokens, workload.output_tokens):
        path = getattr(named, "path", None)
        if path is not None and not resolve(path, base_dir).is_file():
            raise InputError(f"{label}: {path}: no such file; {ELSEWHERE}")
    return scenario


def examine(
    scenario: Scenario | None,
    run: Result | Facts,
    *,
    only: Collection[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    """Findings of a run, as plain data; with a `scenario` (that of the run) every advice is proven by running it.

    ``{"run_id", "name", "checked": [rule], "findings": [{rule, severity, diagnosis, evidence, advice: {text, settings}
    | null, proof: {before, after, verdict, helps} | null, also_tried: [{text, settings, proof}]}]}``. Advice is that
    which did best; settings are empty where there is nothing to set. Re-runs that fail are verdicts, never errors.
    `only` names the rules to check, None for all.
    """
    facts = run if isinstance(run, Facts) else facts_of(run)
    findings = [finding for finding in diagnose(facts) if only is None or finding.rule in only]
    outcomes: Mapping[str, Any] = {}
    before: Mapping[str, Any] = facts.summary
    if scenario is not None:
        outcomes, before = _run_again(scenario, facts, findings, progress, options)
    return {
        "run_id": facts.manifest.get("run_id"),
        "name": facts.manifest.get("name"),
        "checked": [rule for rule in RULES if only is None or rule in only],
        "remade": before is not facts.summary,
        "findings": [_told(finding, before, outcomes) for finding in findings],
    }


def _run_again(
    scenario: Scenario, facts: Facts, findings: Sequence[Finding], progress: Progress | None, options: Options
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Summary, or why there is none, by the name of the settings; and the summary to compare with.

    A run of another version or profile is made again as well: only like is compared with like.
    """
    changes = {
        name_of(candidate): candidate
        for finding in findings
        for advice in finding.advice
        for candidate in advice.candidates
    }
    if not changes:
        return {}, facts.summary
    try:
        setup = set_up(scenario)
    except InputError as error:
        raise InputError(f"{error}; {ELSEWHERE}") from None
    points = []
    same = run_id(setup.scenario.to_dict(), setup.profile_hash, scenario.seed)
    if same != facts.manifest.get("run_id"):
        points.append(Point(SAME, scenario))
    outcomes: dict[str, Any] = {}
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
        outcomes |= {name: result.summary for name, result in study.results.items()}
    before = outcomes.pop(SAME, facts.summary)
    if isinstance(before, str):
        raise InputError(f"the run cannot be made again: {before}")
    return outcomes, before


def name_of(settings: Mapping[str, Any]) -> str:
    """Settings as a scenario would have them, in one line."""
    return ", ".join(setting(key, value) for key, value in settings.items())


def _told(finding: Finding, before: Mapping[str, Any], outcomes: Mapping[str, Any]) -> dict[str, Any]:
    """A finding as plain data, the best advice in front."""
    shown = tuple(dict.fromkeys((*finding.judged_by, *WATCHED)))
    now = {key: look_up(before, key) for key in shown}
    tried: list[tuple[str, Mapping[str, Any], Proof | None]] = []
    for advice in finding.advice:
        for candidate in advice.candidates or ({},):
            outcome = outcomes.get(name_of(candidate)) if candidate else None
            proof = None if outcome is None else judge(finding.judged_by, candidate, now, outcome)
            tried.append((advice.text, candidate, proof))
    if any(proof is not None for _, _, proof in tried):
        worst = (False, -len(shown) - 1, 0.0)
        tried.sort(key=lambda item: worst if item[2] is None else item[2].rank, reverse=True)
    entries = [
        {"text": text, "settings": dict(settings), "proof": _proof_json(proof, now)} for text, settings, proof in tried
    ]
    first = entries[0] if entries else None
    told = finding.to_json()
    told["advice"] = None if first is None else {"text": first["text"], "settings": first["settings"]}
    told["proof"] = None if first is None else first["proof"]
    told["also_tried"] = entries[1:]
    return told


def _proof_json(proof: Proof | None, before: Mapping[str, Any]) -> dict[str, Any] | None:
    if proof is None:
        return None
    return {"before": dict(before), "after": dict(proof.after), "verdict": proof.verdict, "helps": proof.helps}


def judge(
    judged_by: Sequence[str], settings: Mapping[str, Any], before: Mapping[str, float | None], outcome: Any
) -> Proof:
    """Whether a re-run helps: a metric the finding is about gets better, and none of these gets worse.

    `before` has the metrics to look at; `outcome` is the new summary, or in words why there is none.
    """
    if isinstance(outcome, str):
        return Proof(settings, dict.fromkeys(before), f"cannot be run: {outcome}", False, tuple(before))
    after = {key: look_up(outcome, key) for key in before}
    gains = {key: gain_of(key, before[key], after[key]) for key in before}
    worse = tuple(key for key, gain in gains.items() if _counts(key, gain, at.WORSE_RATE, at.WORSE_LATENCY, -1))
    better = [key for key in judged_by if _counts(key, gains.get(key), at.BETTER_RATE, at.BETTER_LATENCY, 1)]
    helps = bool(better) and not any(key in worse for key in judged_by)
    named = ", ".join(label(key) for key in worse)
    if helps:
        verdict = "helps" + (f", but makes {named} worse" if worse else "")
    else:
        verdict = "does not help" + (f", and makes {named} worse" if worse else "")
    if outcome.get("saturated"):
        verdict += "; saturated, so latencies depend on the run's length"
    return Proof(settings, after, verdict, helps, worse, sum(gains[key] or 0.0 for key in judged_by))


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
    return key.startswith(("throughput.", "goodput", "num_requests.finished"))


def label(key: str) -> str:
    """A summary key in words: ``ttft_ms.p99`` is TTFT p99."""
    metric, _, stat = key.partition(".")
    return LABELS.get(key, f"{metric.removesuffix('_ms').upper()} {stat}" if metric.endswith("_ms") else key)


def labels(found: Mapping[str, Any]) -> dict[str, str]:
    """Words for every metric of an examination."""
    keys = (*WATCHED, *(key for finding in found["findings"] for key in finding["judged_by"]))
    return {key: label(key) for key in keys}


def look_up(summary: Mapping[str, Any], key: str) -> float | None:
    """The number at a dotted key, None where there is none."""
    here: Any = summary
    for part in key.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return None if here is None else float(here)
