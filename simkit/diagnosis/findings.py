"""What a rule says: a diagnosis, the evidence for it, and settings to try. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A bound that a rule compares with. `unit`: share, ms, x (a ratio) or what is counted."""

    name: str
    relation: Literal[">=", ">", "<", "<="]
    value: float
    unit: str

    def crossed(self, value: float | None) -> bool:
        """Whether a value is on the side that a rule looks for; a missing value never is."""
        if value is None:
            return False
        if value == self.value:
            return "=" in self.relation
        return (value > self.value) == self.relation.startswith(">")

    def evidence(self, value: float | None, name: str | None = None) -> Evidence:
        """A value of the run beside this threshold."""
        return Evidence(name or self.name, value, self.unit, self)

    def context(self, value: float | None) -> Evidence:
        """A value that did not have to cross this threshold: the bound is shown only where it did."""
        return Evidence(self.name, value, self.unit, self if self.crossed(value) else None)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A number of the run. Without a threshold it is shown for context and decides nothing."""

    name: str
    value: float | None
    unit: str
    threshold: Threshold | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain data; ``threshold`` is null, or ``{relation, value}`` in the same unit."""
        bound = self.threshold
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "threshold": None if bound is None else {"relation": bound.relation, "value": bound.value},
        }


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change, in a sentence, and the values to try: each candidate maps dotted keys to plain values."""

    text: str
    candidates: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis. `judged_by` are dotted keys of summary.json that the advice should better, the first leading."""

    rule: str
    severity: Severity
    diagnosis: str
    evidence: tuple[Evidence, ...]
    advice: tuple[Advice, ...] = ()
    judged_by: tuple[str, ...] = field(default=())

    @property
    def alarming(self) -> bool:
        """Whether something should be done; a note only explains."""
        return self.severity != "note"

    def to_json(self) -> dict[str, Any]:
        """As plain data, without any proof."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "diagnosis": self.diagnosis,
            "evidence": [item.to_json() for item in self.evidence],
            "advice": [
                {"text": item.text, "candidates": [dict(candidate) for candidate in item.candidates]}
                for item in self.advice
            ],
            "judged_by": list(self.judged_by),
        }
