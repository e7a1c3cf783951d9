"""The doctor's examination in a plan's report: what is wrong there, if anything, and which advice helped.

Runs no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simkit.report.document import Table, column
from simkit.report.read.plan import METRICS
from simkit.report.sections import doctor_text
from simkit.report.sections.doctor import settings_text
from simkit.report.words import plain

NAMES = {"num_preemptions": "preemptions", "num_requests.finished": "finished requests"}


def intro(found: Mapping[str, Any]) -> str:
    """What was examined, and how much was found."""
    load = "" if found.get("rate_per_s") is None else f" at {plain(float(found['rate_per_s']))} requests/s"
    what = f"One run of the recommended point{load}, the rate that it is sure to carry, by rules of thumb"
    if not found["findings"]:
        return f"{what}: nothing found."
    count = len(found["findings"])
    return f"{what}: {count} finding{'s' if count > 1 else ''}."


def items(found: Mapping[str, Any]) -> tuple[str, ...]:
    """A line a finding, and one a sentence of advice with the settings that were tried and what came of them."""
    lines = []
    for finding in found["findings"]:
        lines.append(f"{_title(finding)}: {finding['diagnosis']}")
        tried: dict[str, list[str]] = {}
        for entry in doctor_text.entries_of(finding):
            verdicts = tried.setdefault(entry["text"], [])
            if entry["settings"]:
                verdict = entry["proof"]["verdict"] if entry["proof"] else doctor_text.NO_PROOF
                verdicts.append(f"{settings_text(entry['settings'])} {verdict}")
        for text, verdicts in tried.items():
            outcome = f" Tried: {'; '.join(verdicts)}." if verdicts else ""
            lines.append(f"{finding['rule']}, advice: {text}{outcome}")
    return tuple(lines)


def sheets(found: Mapping[str, Any]) -> tuple[Table, ...]:
    """The evidence of every finding, and what its metrics were before and after."""
    tables = []
    for finding in found["findings"]:
        title = _title(finding)
        rows = doctor_text.evidence_rows(finding)
        columns = (
            column("value", [row[1] for row in rows], words=True),
            column("looked for", [row[2] for row in rows], words=True),
        )
        tables.append(Table(title, title, tuple(row[0] for row in rows), (columns,), folded=True))
        if doctor_text.proven_of(finding):
            tables.append(_before_and_after(finding))
    return tuple(tables)


def _title(finding: Mapping[str, Any]) -> str:
    return f"{finding['rule']} ({finding['severity']})"


def _before_and_after(finding: Mapping[str, Any]) -> Table:
    proven = doctor_text.proven_of(finding)
    keys = doctor_text.compared_keys(proven)
    labels = {key: _label(key) for key in keys}
    before = proven[0]["proof"]["before"]
    groups = [(column("as planned", [doctor_text.metric_value(key, before[key]) for key in keys]),)]
    for entry in proven:
        header = settings_text({key.rpartition(".")[2]: value for key, value in entry["settings"].items()})
        after = entry["proof"]["after"]
        cells = [doctor_text.metric_value(key, after[key]) for key in keys]
        groups.append((column(header.replace(", ", ",\n").replace("=", "\n"), cells),))
    names = tuple(doctor_text.metric_name(finding, key, labels) for key in keys)
    note = "* what the advice is judged by"
    return Table(f"{finding['rule']}, before and after", "before and after", names, tuple(groups), (note,), folded=True)


def _label(key: str) -> str:
    metric, _, stat = key.partition(".")
    return f"{METRICS[metric]} {stat}" if metric in METRICS else NAMES.get(key, (stat or metric).replace("_", " "))
