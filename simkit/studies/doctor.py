"""The doctor's proof: every advice is tried by running the same customers again with it, and judged by what came out.

Owns what is run again and which advice is best; `verdict` judges a re-run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np

from simkit.diagnosis.facts import REQUEST_COLUMNS, STEP_COLUMNS, Facts, gather
from simkit.diagnosis.findings import Finding
from simkit.diagnosis.rules import RULES, diagnose
from simkit.engine.build import set_up
from simkit.engine.run import Progress
from simkit.errors import InputError
from simkit.logs.read.text import resolve, sha256_of
from simkit.metrics.catalogue import number
from simkit.plain import Json, plain
from simkit.runs.manifest import run_id
from simkit.runs.replication import Result
from simkit.scenario import Scenario, apply_sets, from_dict
from simkit.studies.study import Options, Point, Settings, run_study, setting
from simkit.studies.verdict import Proof, judge, paired_ci95, watched

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
    for named in (workload.trace, workload.prompt_tokens, workload.output_tokens):
        path = getattr(named, "path", None)
        if path is not None and not resolve(path, base_dir).is_file():
            raise InputError(f"{label}: {path}: no such file; {ELSEWHERE}")
    known, trace = manifest.get("log_sha256"), workload.trace
    if trace is not None and known is not None and _content(resolve(trace.path, base_dir)) != known:
        expected = "expected the log of this run, but its content has changed since"
        raise InputError(f"{label}: {trace.path}: {expected}; replay it again")
    if workload.servegen is not None and not resolve(workload.servegen.path, base_dir).is_dir():
        raise InputError(f"{label}: {workload.servegen.path}: no such folder; {ELSEWHERE}")
    return scenario


def _content(path: Path) -> str | None:
    try:
        return sha256_of(path)
    except OSError:
        return None


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
