"""What the doctor says: of runs as they are, of an examination, on a terminal and as Markdown, and in a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from simkit.diagnosis.facts import gather
from simkit.diagnosis.findings import Advice, Finding, Threshold
from simkit.diagnosis.rules import RULES, alarm_line, diagnose
from simkit.diagnosis.thresholds import PROOF, TABLE
from simkit.metrics.catalogue import LATENCIES
from simkit.plain import Json
from simkit.report import words
from simkit.report.document import Badge, Column, Section, Table, across, column, single
from simkit.report.read.run import Run
from simkit.report.render.terminal import fit
from simkit.report.words import count, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

UNITS = {"per s": "/s", "x": "x"}


INTRO = (
    "Rules of thumb, each with the numbers of the run and the threshold that it looks for. Whether an advice helps is "
    "for a re-run to say: `simkit doctor RUN_DIR` serves the same customers again with each setting and prints before "
    "and after; `simkit doctor --rules` lists all thresholds."
)
KINDS = {"serious": "bad", "warning": "warn"}
"""What kind of label a severity is."""


def section(runs: Sequence[Run]) -> Section:
    """The diagnosis of every arm, without any re-run: a part a finding, and around them one an arm if it has others."""
    parts: list[Section] = []
    for run in runs:
        findings = diagnose(gather(run.manifest, run.summary, run.requests, run.steps))
        line = _line(findings)
        told = tuple(map(_finding, findings)) or (Section("", "", (f"{line.capitalize()}.",)),)
        parts += told if len(runs) == 1 else [Section("", f"{run.name}: {line}", parts=told)]
    return Section("doctor", "Doctor", (INTRO,), parts=tuple(parts))


def shown(value: float | None, unit: str) -> str:
    """A number of the run with its unit; shares as per cent."""
    if unit == "share":
        return words.percent(value)
    text = words.count(value)
    if text == words.MISSING:
        return text
    return f"{text}{UNITS[unit]}" if unit in UNITS else f"{text} {unit}"


def looked_for(threshold: Json | None, unit: str) -> str:
    """The side of a threshold that a rule looks for; empty for what is only context."""
    return "" if threshold is None else f"{threshold['relation']} {shown(float(threshold['value']), unit)}"


def settings_text(settings: Json) -> str:
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


def _finding(finding: Finding) -> Section:
    """A finding: its evidence with what the rule looks for, and its advice with the settings to try."""
    return Section(
        "",
        finding.rule,
        (finding.diagnosis,),
        (_evidence_table([item.to_json() for item in finding.evidence]),),
        tuple(map(_advice, finding.advice)),
        badge=Badge(finding.severity, "", KINDS.get(finding.severity, "")),
    )


def _advice(advice: Advice) -> str:
    settings = " or ".join(f"`{settings_text(candidate)}`" for candidate in advice.candidates)
    return f"{advice.text} Try {settings}." if settings else advice.text


def _evidence_table(evidence: Sequence[Json]) -> Table:
    """A row a piece of evidence: its value, and what the rule looks for."""
    rows = evidence_rows(evidence)
    columns = across(("this run", "looked for"), [row[1:] for row in rows])
    return Table("Evidence", "evidence", tuple(row[0] for row in rows), (columns,))


# --- what `simkit doctor` prints, and its Markdown --------------------------------------------------------------------
NO_PROOF = "not proven: no re-run was made"


def doctor_tables(found: Json, labels: Mapping[str, str], width: int = 100) -> list[RenderableType]:
    """Everything an examination says; `labels` maps summary keys to words."""
    parts: list[RenderableType] = [Text(headline(found), style="bold")]
    for number, finding in enumerate(found["findings"], start=1):
        parts.append(Text(f"\n{number}. {finding['rule']} ({finding['severity']})", style="bold"))
        parts.append(Padding(Text(finding["diagnosis"]), (0, 0, 0, 3)))
        evidence = _evidence_table(finding["evidence"])
        parts += fit(evidence.head, evidence.names, evidence.groups, width)
        parts += [Padding(Text(line), (0, 0, 0, 3)) for line in _advice_lines(entries_of(finding))]
        table = before_and_after(finding, labels.__getitem__, "this run", _short)
        if table is not None:
            parts += fit(table.head, table.names, table.groups, width)
    return parts


def headline(found: Json) -> str:
    """How many findings there are, and what was looked for."""
    checks = f"{len(found['checked'])} rules checked"
    rules = [finding["rule"] for finding in found["findings"]]
    made = "; the run was made again, for simkit or the profile has changed since" if found["remade"] else ""
    if not rules:
        return f"{found['name']}: nothing found ({checks}: {', '.join(found['checked'])})"
    return f"{found['name']}: {len(rules)} finding{'s' if len(rules) > 1 else ''} ({checks}{made})"


def entries_of(finding: Json) -> list[Json]:
    """All advice of a finding, the best first: ``{text, settings, proof}``."""
    if finding["advice"] is None:
        return []
    return [{**finding["advice"], "proof": finding["proof"]}, *finding["also_tried"]]


def proven_of(finding: Json) -> list[Json]:
    """The advice of a finding that could be tried: what could not be run has no numbers."""
    return [
        entry
        for entry in entries_of(finding)
        if entry["proof"] and any(value is not None for value in entry["proof"]["after"].values())
    ]


def evidence_rows(evidence: Sequence[Json]) -> list[tuple[str, str, str]]:
    """(name, value, what the rule looks for) of every piece of evidence."""
    return [
        (item["name"], shown(item["value"], item["unit"]), looked_for(item["threshold"], item["unit"]))
        for item in evidence
    ]


def _advice_lines(entries: Sequence[Json]) -> Iterator[str]:
    """A line a sentence of advice, under it the settings and what came of them."""
    last = None
    for entry in entries:
        if entry["text"] != last:
            yield f"-> {entry['text']}"
            last = entry["text"]
        if entry["settings"]:
            verdict = entry["proof"]["verdict"] if entry["proof"] else NO_PROOF
            yield f"   {settings_text(entry['settings'])}: {verdict}"


def before_and_after(
    finding: Json, label: Callable[[str], str], now: str, header: Callable[[Json], str]
) -> Table | None:
    """A row a metric, a column for `now` and one for each advice that could be tried; None where none could.

    `label` says a key of the summary in words, and `header` settings; a star marks what the finding is judged by.
    """
    proofs = [entry["proof"] for entry in proven_of(finding)]
    if not proofs:
        return None
    before: Json = proofs[0]["before"]
    keys = [key for key in before if any(values[key] is not None for values in (before, *(p["after"] for p in proofs)))]
    heads = (now, *(header(entry["settings"]) for entry in proven_of(finding)))
    columns = (
        column(head, (_metric_value(key, values[key]) for key in keys))
        for head, values in zip(heads, (before, *(proof["after"] for proof in proofs)), strict=True)
    )
    names = tuple(_metric_name(finding, key, label(key)) for key in keys)
    title = f"{finding['rule']}, before and after"
    return Table(title, "before and after", names, single(*columns), ("* what the advice is judged by",), folded=True)


def _short(settings: Json) -> str:
    """Settings without their sections, a line each."""
    return "\n".join(settings_text({key.rpartition(".")[2]: value}) for key, value in settings.items())


def _metric_name(finding: Json, key: str, label: str) -> str:
    """The name of a metric with its unit; a star for what the finding is judged by."""
    unit = ", ms" if key.partition(".")[0].endswith("_ms") else ""
    return label + unit + (" *" if key in finding["judged_by"] else "")


def _metric_value(key: str, value: float | None) -> str:
    """A number before or after."""
    return percent(value) if key.endswith("share_of_allocated") else count(value)


def rules_tables(width: int = 100) -> list[RenderableType]:
    """All thresholds by rule, and how a re-run is judged."""
    rows: list[tuple[str, str]] = []
    for rule, bounds in (*TABLE, ("proof", PROOF)):
        rows += [(rule, ""), *((f"  {bound.name}", _side(bound)) for bound in bounds)]
    unbound = ", ".join(rule for rule, bounds in TABLE if not bounds)
    note = f"{unbound}: no threshold of their own, but the summary's verdicts on the queue and on the SLO"
    return [
        *fit(
            "rule and what it looks at",
            [name for name, _ in rows],
            [(Column("for", tuple(side for _, side in rows)),)],
            width,
        ),
        Text(note),
    ]


def _side(bound: Threshold) -> str:
    return looked_for({"relation": bound.relation, "value": bound.value}, bound.unit)


def markdown(found: Json, labels: Mapping[str, str]) -> str:
    """The examination as Markdown, for a pull request."""
    lines = [f"# simkit doctor: {found['name']}", "", f"{headline(found)}.", "", f"Run `{found['run_id']}`."]
    for number, finding in enumerate(found["findings"], start=1):
        lines += ["", f"## {number}. {finding['rule']} ({finding['severity']})", "", finding["diagnosis"], ""]
        lines += _md_table(["evidence", "this run", "looked for"], evidence_rows(finding["evidence"]))
        advice = _advice_lines(entries_of(finding))
        lines += ["", *(line.replace("-> ", "- ").replace("   ", "  - ", 1) for line in advice)]
        table = before_and_after(finding, labels.__getitem__, "this run", _as_code)
        if table is not None:
            names = (name.replace("*", "\\*") for name in table.names)
            rows = list(zip(names, *(each.cells for each in table.columns), strict=True))
            lines += ["", *_md_table([table.head, *(each.header for each in table.columns)], rows)]
            lines += ["", "\\* what the advice is judged by"]
    return "\n".join(lines) + "\n"


def _as_code(settings: Json) -> str:
    return f"`{settings_text(settings)}`"


def _md_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    align = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, align, *rows)]


# --- what a plan tells of its recommended point -----------------------------------------------------------------------
_NAMES = {"num_preemptions": "preemptions", "num_requests.finished": "finished requests"}


def of_plan(content: Json) -> list[Section]:
    """What the doctor found, where the plan brings it."""
    found = content.get("doctor")
    if not found:
        return []
    return [
        Section(
            "doctor", "What the doctor says", (_examined(found),), _evidence_tables(found["findings"]), _advised(found)
        )
    ]


def _examined(found: Json) -> str:
    """What was examined, and how much was found."""
    load = "" if found.get("rate_per_s") is None else f" at {words.plain(float(found['rate_per_s']))} requests/s"
    what = f"One run of the recommended point{load}, the lower end by the simulation alone, by rules of thumb"
    if not found["findings"]:
        return f"{what}: nothing found."
    number = len(found["findings"])
    return f"{what}: {number} finding{'s' if number > 1 else ''}."


def _advised(found: Json) -> tuple[str, ...]:
    """A line a finding, and one a sentence of advice with the settings that were tried and what came of them."""
    lines = []
    for finding in found["findings"]:
        lines.append(f"{_title(finding)}: {finding['diagnosis']}")
        tried: dict[str, list[str]] = {}
        for entry in entries_of(finding):
            verdicts = tried.setdefault(entry["text"], [])
            if entry["settings"]:
                verdict = entry["proof"]["verdict"] if entry["proof"] else NO_PROOF
                verdicts.append(f"{settings_text(entry['settings'])} {verdict}")
        for text, verdicts in tried.items():
            outcome = f" Tried: {'; '.join(verdicts)}." if verdicts else ""
            lines.append(f"{finding['rule']}, advice: {text}{outcome}")
    return tuple(lines)


def _evidence_tables(findings: Sequence[Json]) -> tuple[Table, ...]:
    """The evidence of every finding, and what its metrics were before and after."""
    tables = []
    for finding in findings:
        title = _title(finding)
        rows = evidence_rows(finding["evidence"])
        headers = ("value", "looked for")
        columns = across(headers, [row[1:] for row in rows], words=headers)
        tables.append(Table(title, title, tuple(row[0] for row in rows), (columns,), folded=True))
        compared = before_and_after(finding, _label, "as planned", _header)
        tables += [] if compared is None else [compared]
    return tuple(tables)


def _title(finding: Json) -> str:
    return f"{finding['rule']} ({finding['severity']})"


def _header(settings: Json) -> str:
    """Settings without their sections, over several lines of a narrow column."""
    text = settings_text({key.rpartition(".")[2]: value for key, value in settings.items()})
    return text.replace(", ", ",\n").replace("=", "\n")


def _label(key: str) -> str:
    metric, _, stat = key.partition(".")
    return f"{LATENCIES[metric]} {stat}" if metric in LATENCIES else _NAMES.get(key, (stat or metric).replace("_", " "))
