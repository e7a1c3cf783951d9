"""The doctor's section of a report: findings with their evidence, thresholds and advice, without any re-run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simkit.diagnosis.facts import gather
from simkit.diagnosis.findings import Evidence, Finding
from simkit.diagnosis.rules import RULES, alarm_line, diagnose
from simkit.report import words
from simkit.report.read.run import Run

UNITS = {"per s": "/s", "x": "x"}


@dataclass(frozen=True, slots=True)
class Told:
    """A finding in words. `evidence` are (name, value, what the rule looks for); `advice` (text, settings to try)."""

    rule: str
    severity: str
    diagnosis: str
    evidence: tuple[tuple[str, str, str], ...]
    advice: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor says of one arm; `line` sums it up."""

    arm: str
    line: str
    findings: tuple[Told, ...]


def diagnoses(runs: Sequence[Run]) -> list[Diagnosis]:
    """The diagnosis of every arm."""
    found = []
    for run in runs:
        findings = diagnose(gather(run.manifest, run.summary, run.requests, run.steps))
        found.append(Diagnosis(run.name, _line(findings), tuple(map(_told, findings))))
    return found


def shown(value: float | None, unit: str) -> str:
    """A number of the run with its unit; shares as per cent."""
    if unit == "share":
        return words.percent(value)
    text = words.count(value)
    if text == words.MISSING:
        return text
    return f"{text}{UNITS[unit]}" if unit in UNITS else f"{text} {unit}"


def looked_for(threshold: Mapping[str, Any] | None, unit: str) -> str:
    """The side of a threshold that a rule looks for; empty for what is only context."""
    return "" if threshold is None else f"{threshold['relation']} {shown(float(threshold['value']), unit)}"


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings as the command line takes them."""
    import json

    return ", ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()
    )


def _line(findings: list[Finding]) -> str:
    alarms = alarm_line(findings)
    notes = [finding.rule for finding in findings if not finding.alarming]
    parts = [*([alarms] if alarms else []), *([f"note: {', '.join(notes)}"] if notes else [])]
    return "; ".join(parts) if parts else f"nothing found by {len(RULES)} rules"


def _told(finding: Finding) -> Told:
    return Told(
        finding.rule,
        finding.severity,
        finding.diagnosis,
        tuple(map(_evidence, finding.evidence)),
        tuple(
            (advice.text, tuple(settings_text(candidate) for candidate in advice.candidates))
            for advice in finding.advice
        ),
    )


def _evidence(item: Evidence) -> tuple[str, str, str]:
    plain = item.to_json()
    return item.name, shown(item.value, item.unit), looked_for(plain["threshold"], item.unit)
