"""What a study of aggregate rows says, as parts: sentences, tables, lists. The page and the terminal show them.

Owns words and columns; draws nothing. Imports rows_data, definitions, plan_parts and plan_sheets (for part and sheet).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simkit.report import rows_data
from simkit.report.numbers import MISSING, count, plain
from simkit.report.plan_parts import Part
from simkit.report.plan_sheets import Sheet, column
from simkit.report.rows_data import GROUPS, ROLES, Content, Errors, Row, metric_name, metric_unit, text
from simkit.report.tables import Column
from simkit.report.validation_data import error, known
from simkit.report.validation_parts import SIGN, WORDS

LEFT = frozenset({"engine", "GPU", "model", "role", "note"})
"""Columns of words."""

ZERO = "at 0"
MAX_IDS = 16
"""Rows that are named where they are only counted otherwise."""

TERMS = {
    "fixed_us": "a step, fixed",
    "per_seq_us": "a step, for each sequence",
    "first_token_us": "a request, to its first token",
}
"""Host terms and how they are called."""

DEFINITIONS: tuple[tuple[str, str], ...] = (
    *(pair for pair in WORDS if pair[0] in ("TTFT", "TPOT", "ITL", "E2E")),
    ("Row", "The means that somebody published of one run, with its settings. Each is a simulation of its own."),
    ("Error", SIGN),
    ("MAPE", "The mean size of the errors of the rows, whatever their sign."),
    ("Bias", "The mean of the errors with their signs: what they have in common."),
    ("Worst", "The error of largest size, with its sign."),
    ("Host terms", "Work of the host for a step, fixed and for each sequence, and the path of a request."),
    ("Rows fitted on, test rows", "Host terms are fitted on the first; the second were not looked at for it."),
)


def title(content: Content) -> str:
    """The heading."""
    return f"{content['name']}: predicted against measured rows"


def answer(content: Content) -> str:
    """What came out, in one sentence: over the test rows where there was a fit."""
    role = "test" if content.get("fit") else None
    rows = rows_data.of_role(content, role) if role else content["rows"]
    said = []
    for metric in rows_data.metrics(content):
        found = rows_data.errors_over(rows, metric, "error_pct")
        if found.n:
            said.append(f"{metric_name(metric)} {size(found.mape)} ({count(found.n)} rows)")
    over = ROLES["test"] if role else "all rows"
    return f"Mean size of the error over {over}: {', '.join(said) or 'none is known'}."


def parts(content: Content) -> list[Part]:
    """Everything there is something to say of, in order. Keys of pictures are those of the page."""
    found = [
        _errors(content),
        _fit(content),
        Part("agreement", "Row by row", (_AGREEMENT,)),
        Part("concurrency", "Error against concurrency", (_CONCURRENCY,)),
        *_groups(content),
        _skipped(content),
        _assumptions(content),
        _rows(content),
    ]
    return [part for part in found if part is not None]


_AGREEMENT = (
    "A mark is a row: to the right what was measured, upwards what was predicted. On the line both are the same; the "
    "band around it is 10 % to either side."
)
_CONCURRENCY = (
    "The error of each row against the requests that its client kept under way. An error that grows to the left is "
    "in what a step costs whatever it holds, one that grows to the right in what each sequence adds."
)


# --- errors -----------------------------------------------------------------------------------------------------------
def _errors(content: Content) -> Part:
    number = content["num_rows"]
    text_ = [
        f"Rows of {content['source']}: {count(number['read'])} read, {count(number['simulated'])} simulated, "
        f"{count(number['skipped'])} left out. {SIGN}"
    ]
    if rows_data.has_zero(content):
        text_.append(f"Columns “{ZERO}”: the same rows with the host terms at 0.")
    lines: list[tuple[str, Errors, Errors]] = []
    for metric in rows_data.metrics(content):
        for role in rows_data.roles(content):
            chosen = rows_data.of_role(content, role)
            lines.append(_line(f"{metric_name(metric)}, {ROLES[role]}", chosen, metric, None))
        total = _given(content, "all", metric)
        if total is not None and len(rows_data.roles(content)) > 1:
            lines.append(_line(f"{metric_name(metric)}, together", content["rows"], metric, total))
    return Part("errors", "Errors", tuple(text_), (_sheet("Errors", "metric", lines, rows_data.has_zero(content)),))


def _given(content: Content, group: str, metric: str) -> Errors | None:
    """The only value of a group that has one."""
    for values in (content["errors"].get(group) or {}).values():
        if metric in values:
            return rows_data.given(values[metric])
    return None


def _line(name: str, rows: Sequence[Row], metric: str, found: Errors | None) -> tuple[str, Errors, Errors]:
    """(name, errors, errors with the host terms at 0); `found`: what rows.json says of these rows."""
    zero = rows_data.errors_over(rows, metric, "error_zero_pct")
    if found is None:
        return name, rows_data.errors_over(rows, metric, "error_pct"), zero
    return name, found, zero if zero.n == found.n else Errors(0, None, None, None)


def _sheet(title_: str, head: str, lines: Sequence[tuple[str, Errors, Errors]], zeros: bool) -> Sheet:
    groups: list[tuple[Column, ...]] = [(column("n", [count(found.n) for _, found, _ in lines]),)]
    for name, key, show in (("MAPE", "mape", size), ("bias", "bias", error), ("worst", "worst", error)):
        group = [column(name, [show(getattr(found, key)) for _, found, _ in lines])]
        if zeros:
            group.append(column(f"{name}\n{ZERO}", [show(getattr(zero, key)) for _, _, zero in lines]))
        groups.append(tuple(group))
    return Sheet(title_, head, tuple(name for name, _, _ in lines), tuple(groups))


def size(value: float | None) -> str:
    """The size of an error in per cent, without a sign."""
    return MISSING if value is None else f"{value:.1f} %"


def _groups(content: Content) -> list[Part]:
    """A table for each group with more than one value."""
    sheets = []
    for group, name in GROUPS.items():
        values = content["errors"].get(group) or {}
        if len(values) < 2:
            continue
        lines = [
            _line(f"{metric_name(metric)}, {value}", rows_data.of_group(content, group, value), metric, found)
            for metric in rows_data.metrics(content)
            for value, by_metric in values.items()
            if (found := rows_data.given(by_metric.get(metric))) is not None
        ]
        sheets.append(_sheet(f"By {name}", name, lines, rows_data.has_zero(content)))
    return [Part("groups", "Errors by group", (), tuple(sheets))] if sheets else []


# --- what was fitted, left out, assumed -------------------------------------------------------------------------------
def _fit(content: Content) -> Part:
    fit = content.get("fit")
    if not fit:
        return Part("fit", "What was fitted", ("Nothing: no number was fitted to these rows.",))
    fitted = [TERMS.get(term, term) for term in fit["fitted"]]
    chosen, test = fit["rows"], fit["test_rows"]
    text_ = (
        f"{count(len(fitted))} {'number was' if len(fitted) == 1 else 'numbers were'} fitted, on {count(len(chosen))} "
        f"rows, and tested on {count(len(test))} others."
    )
    group = (
        column("time [us]", [plain(known(value)) for value in fit["terms"].values()]),
        column("fitted", ["yes" if term in fit["fitted"] else "no" for term in fit["terms"]]),
    )
    sheet = Sheet("Host terms", "host term", tuple(TERMS.get(term, term) for term in fit["terms"]), (group,))
    items = (f"Fitted on: {_some(chosen)}.", f"Tested on: {_some(test)}.")
    return Part("fit", "What was fitted", (text_,), (sheet,), items)


def _some(ids: Sequence[Any]) -> str:
    """Names of rows; of many only the first, as the tables of rows say of each what it is for."""
    if len(ids) <= MAX_IDS:
        return ", ".join(map(str, ids)) or "none"
    return f"{', '.join(map(str, ids[:MAX_IDS]))} and {count(len(ids) - MAX_IDS)} more, which rows.json names"


def _skipped(content: Content) -> Part | None:
    skipped = content.get("skipped") or {}
    if not skipped:
        return None
    items = tuple(f"{count(number)} {'row' if number == 1 else 'rows'}: {reason}" for reason, number in skipped.items())
    return Part("skipped", "Rows left out, and why", (), (), items)


def _assumptions(content: Content) -> Part | None:
    items = tuple(str(line) for line in content.get("assumptions") or ())
    text_ = "What the rows do not say, and what was taken instead."
    return Part("assumptions", "Assumptions", (text_,), (), items) if items else None


def _rows(content: Content) -> Part:
    """Every row, a folded table a metric."""
    sheets = tuple(_row_sheet(content, metric) for metric in rows_data.metrics(content))
    return Part("rows", "Every row", ("A table for each metric; the numbers are also in rows.json.",), sheets)


def _row_sheet(content: Content, metric: str) -> Sheet:
    rows = [row for row in content["rows"] if metric in row["metrics"]]
    settings = tuple(
        column(head, [text(row.get(key)) for row in rows])
        for head, key in (
            ("engine", "engine"), ("GPU", "gpu"), ("model", "model"), ("TP", "tp"), ("input\n[tokens]", "input_len"),
            ("output\n[tokens]", "output_len"), ("concur-\nrency", "concurrency"), ("role", "role"),
        )
    )  # fmt: skip
    shown: list[tuple[str, str, Any]] = [("measured", "measured", _number), ("predicted", "predicted", _number)]
    shown.append(("error", "error_pct", error))
    if rows_data.has_zero(content):
        shown += [(f"predicted\n{ZERO}", "predicted_zero", _number), (f"error\n{ZERO}", "error_zero_pct", error)]
    numbers = tuple(column(head, [show(row["metrics"][metric].get(key)) for row in rows]) for head, key, show in shown)
    notes = (column("note", [str(row.get("note") or "") for row in rows]),)
    unit = f" [{metric_unit(metric)}]" if metric_unit(metric) else ""
    names = tuple(str(row["id"]) for row in rows)
    groups = (settings, numbers, *((notes,) if any(notes[0].cells) else ()))
    return Sheet(f"{metric_name(metric)}{unit}, {count(len(rows))} rows", "row", names, groups, (), folded=True)


def _number(value: Any) -> str:
    return plain(known(value))


def provenance(content: Content) -> Sheet:
    """Names and counts."""
    number = content["num_rows"]
    facts = (
        ("name", str(content["name"])),
        ("rows from", str(content["source"])),
        ("rows read", count(number["read"])),
        ("rows simulated", count(number["simulated"])),
        ("rows left out", count(number["skipped"])),
        ("numbers fitted", count(len((content.get("fit") or {}).get("fitted", ())))),
    )
    return Sheet(
        "Facts", "fact", tuple(name for name, _ in facts), ((column("value", [value for _, value in facts]),),)
    )
