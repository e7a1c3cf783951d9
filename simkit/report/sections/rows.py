"""The report of a study of aggregate rows, from the content of rows.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simkit.plain import Json
from simkit.report.document import Column, Facts, Provenance, Report, Section, Table, column, present
from simkit.report.figures import picture
from simkit.report.read import rows as rows_data
from simkit.report.read.rows import GROUPS, ROLES, RUNNING, Content, Errors, Row, metric_name, metric_unit, text
from simkit.report.sections.validation import SIGN, WORDS, band_badges, band_table
from simkit.report.words import MISSING, count, error, known, plain

ZERO = "at 0"
MAX_RUNNING = 40
"""Rows of logged counts that are shown unasked."""

MAX_IDS = 16
"""Rows that are named where they are only counted otherwise."""

MAX_NAMED = 3
"""Rows that are named of those left out for one reason."""

TERMS = {
    "fixed_us": "a step, fixed",
    "per_seq_us": "a step, for each sequence",
    "per_request_us": "a step, for each new request",
    "gap_us": "idle between steps",
    "tp_us": "a step, for each doubling of the GPUs",
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


def report(content: Content) -> Report:
    """Everything there is something to say of, in order."""
    sections = (
        _errors(content),
        _fit(content),
        picture("rows.agreement", content, "Row by row", _AGREEMENT),
        picture("rows.concurrency", content, "Error against concurrency", _CONCURRENCY),
        *_groups(content),
        _skipped(content),
        _assumptions(content),
        _rows(content),
    )
    return Report(
        title=f"{content['name']}: predicted against measured rows",
        answer=_answer(content),
        badges=tuple(band_badges(content.get("bands") or (), metric_name, size)),
        sections=tuple(section for section in sections if section is not None),
        definitions=DEFINITIONS,
        provenance=_provenance(content),
        version=content.get("version"),
    )


def _answer(content: Content) -> str:
    """What came out, in one sentence: over the rows that nothing was fitted on."""
    said = []
    for metric in rows_data.metrics(content):
        found = _given(content, "all", "all", metric)
        if found is not None:
            said.append(f"{metric_name(metric)} {size(found.mape)} ({_rows_text(found.n)})")
    over = rows_data.judged_name(content)
    return f"Mean size of the error over {over}: {', '.join(said) or 'none is known'}."


def _rows_text(number: int) -> str:
    return f"{count(number)} {'row' if number == 1 else 'rows'}"


_AGREEMENT = (
    "A mark is a row: to the right what was measured, upwards what was predicted. On the line both are the same; the "
    "band around it is 10 % to either side."
)
_CONCURRENCY = (
    "The error of each row against the requests that its client kept under way. An error that grows to the left is "
    "in what a step costs whatever it holds, one that grows to the right in what each sequence adds."
)


# --- errors -----------------------------------------------------------------------------------------------------------
def _errors(content: Content) -> Section:
    number = content["num_rows"]
    text_ = [
        f"Rows of {content['source']}: {count(number['read'])} read, {count(number['simulated'])} simulated, "
        f"{count(number['skipped'])} left out. {SIGN}"
    ]
    if rows_data.has_zero(content):
        text_.append(f"Columns “{ZERO}”: the same rows with the host terms at 0.")
    zeros, roles = rows_data.has_zero(content), rows_data.roles(content)
    lines: list[Line] = []
    for metric in rows_data.metrics(content):
        name = metric_name(metric)
        if "fit" in roles:
            lines.append(_line(f"{name}, {ROLES['fit']}", rows_data.of_role(content, "fit"), metric))
        given = (content["errors"].get("all") or {}).get("all") or {}
        lines.append(_line(f"{name}, {rows_data.judged_name(content)}", rows_data.judged(content), metric, given))
        if {"test", "all"} <= set(roles):
            lines.append(_line(f"{name}, of them {ROLES['test']}", rows_data.of_role(content, "test"), metric))
    sheets = [_sheet("Errors", "metric", lines, zeros)] if lines else []
    bands = band_table(content.get("bands") or (), metric_name, size)
    running = _running(content)
    return Section("errors", "Errors", tuple(text_), present(*sheets, bands, running))


Line = tuple[str, Errors, Errors]
"""Name, errors, and errors with the host terms at 0."""


def _given(content: Content, group: str, value: str, metric: str) -> Errors | None:
    return rows_data.given(((content["errors"].get(group) or {}).get(value) or {}).get(metric))


def _line(name: str, rows: Sequence[Row], metric: str, by_metric: Json | None = None) -> Line:
    """Errors over `rows`; `by_metric`: what rows.json says of them, where it does."""
    zero = rows_data.errors_over(rows, metric, "error_zero_pct")
    found = rows_data.given((by_metric or {}).get(metric))
    if found is None:
        return name, rows_data.errors_over(rows, metric, "error_pct"), zero
    return name, found, zero if zero.n == found.n else rows_data.NO_ERRORS


def _running(content: Content) -> Table | None:
    """Logged counts of running requests, which belong between the simulated mean over time and the peak."""
    rows = [row for row in content["rows"] if RUNNING in row["metrics"]]
    if not rows:
        return None
    values = [row["metrics"][RUNNING] for row in rows]
    group = (
        column("concur-\nrency", [text(row.get("concurrency")) for row in rows]),
        column("logged", [count(known(value.get("measured"))) for value in values]),
        column("mean", [_number(value.get("predicted_mean")) for value in values]),
        column("peak", [count(known(value.get("predicted_peak", value.get("predicted")))) for value in values]),
        column("within", [plain(value.get("within")) for value in values]),
    )
    notes = (
        f"{count(sum(bool(value.get('within')) for value in values))} of {_rows_text(len(rows))} within: a log shows "
        "moments, so its largest count belongs between a little below the simulated mean over time and the peak.",
    )
    names = tuple(str(row["id"]) for row in rows)
    return Table("Requests running at once", "running, row", names, (group,), notes, folded=len(rows) > MAX_RUNNING)


def _sheet(title_: str, head: str, lines: Sequence[Line], zeros: bool) -> Table:
    groups: list[tuple[Column, ...]] = [(column("n", [count(found.n) for _, found, _ in lines]),)]
    for name, key, show in (("MAPE", "mape", size), ("bias", "bias", error), ("worst", "worst", error)):
        group = [column(name, [show(getattr(found, key)) for _, found, _ in lines])]
        if zeros:
            group.append(column(f"{name}\n{ZERO}", [show(getattr(zero, key)) for _, _, zero in lines]))
        groups.append(tuple(group))
    return Table(title_, head, tuple(name for name, _, _ in lines), tuple(groups))


def size(value: Any) -> str:
    """The mean size of errors in per cent, without a sign."""
    found = known(value)
    return MISSING if found is None else f"{found:.1f} %"


def _groups(content: Content) -> list[Section]:
    """A table for each group with more than one value."""
    sheets = []
    for group, name in GROUPS.items():
        values = content["errors"].get(group) or {}
        if len(values) < 2:
            continue
        lines = [
            _line(f"{metric_name(metric)}, {value}", rows_data.of_group(content, group, value), metric, by_metric)
            for metric in rows_data.metrics(content)
            for value, by_metric in values.items()
            if metric in by_metric
        ]
        sheets.append(_sheet(f"By {name}", name, lines, rows_data.has_zero(content)))
    text_ = f"Over the {rows_data.judged_name(content)}."
    return [Section("groups", "Errors by group", (text_,), tuple(sheets))] if sheets else []


# --- what was fitted, left out, assumed -------------------------------------------------------------------------------
def _fit(content: Content) -> Section:
    fits = rows_data.fits(content)
    if not fits:
        return Section("fit", "What was fitted", ("Nothing: no number was fitted to these rows.",))
    number = sum(len(fit["fitted"]) for fit in fits)
    if not number:
        return Section("fit", "What was fitted", ("Nothing could be fitted: host work is hidden behind the GPU.",))
    words = "number was" if number == 1 else "numbers were"
    chosen, test = ([name for fit in fits for name in fit[key]] for key in ("rows", "test_rows"))
    text_ = (
        f"{count(number)} {words} fitted, on {_rows_text(len(chosen))}, and tested on {count(len(test))} others. "
        "The rest stays as it was."
    )
    limits = (f"{fit['engine']}: {text}." for fit in fits for text in fit.get("limits") or ())
    items = (f"Fitted on: {_some(chosen)}.", f"Tested on: {_some(test)}.", *limits)
    return Section("fit", "What was fitted", (text_,), tuple(_terms(fit) for fit in fits if fit["fitted"]), items)


def _terms(fit: Json) -> Table:
    """The host terms of an engine."""
    idle = fit.get("idle") or ()
    told = {**dict.fromkeys(fit["fitted"], "yes"), **dict.fromkeys(idle, "no: changes nothing")}
    group = (
        column("time [us]", [plain(known(value)) for value in fit["terms"].values()]),
        column("fitted", [told.get(term, "no") for term in fit["terms"]], words=True),
    )
    of = f" of {fit['engine']}" if fit.get("engine") else ""
    to = f" fitted to {metric_name(fit['metric'])}" if fit.get("metric") else ""
    return Table(
        f"Host terms{of}{to}", f"host term{of}", tuple(TERMS.get(term, term) for term in fit["terms"]), (group,)
    )


def _some(ids: Sequence[Any]) -> str:
    """Names of rows; of many only the first, as the tables of rows say of each what it is for."""
    if len(ids) <= MAX_IDS:
        return ", ".join(map(str, ids)) or "none"
    return f"{', '.join(map(str, ids[:MAX_IDS]))} and {count(len(ids) - MAX_IDS)} more, which rows.json names"


def _skipped(content: Content) -> Section | None:
    skipped = content.get("skipped") or {}
    if not skipped:
        return None
    rows, lines = content.get("skipped_rows") or {}, content.get("skipped_lines") or {}
    items = tuple(f"{_rows_text(number)}: {reason}{_named(reason, rows, lines)}" for reason, number in skipped.items())
    return Section("skipped", "Rows left out, and why", (), (), items)


def _named(reason: str, rows: Mapping[str, str], lines: Mapping[str, int]) -> str:
    """The first of the rows that were left out for a reason."""
    names = [name for name, why in rows.items() if why == reason]
    shown = [f"{name} in line {lines[name]}" if name in lines else name for name in names[:MAX_NAMED]]
    more = f" and {count(len(names) - MAX_NAMED)} more" if len(names) > MAX_NAMED else ""
    return f" ({', '.join(shown)}{more})" if names else ""


def _assumptions(content: Content) -> Section | None:
    items = tuple(str(line) for line in content.get("assumptions") or ())
    text_ = "What the rows do not say, and what was taken instead."
    return Section("assumptions", "Assumptions", (text_,), (), items) if items else None


def _rows(content: Content) -> Section:
    """Every row, a folded table a metric."""
    tables = tuple(_row_sheet(content, metric) for metric in rows_data.metrics(content))
    text_ = "A table for each metric; the numbers are also in rows.json."
    return Section("rows", "Every row", (text_,), tables, brief=())


def _row_sheet(content: Content, metric: str) -> Table:
    rows = [row for row in content["rows"] if metric in row["metrics"]]
    settings = tuple(
        column(head, [text(row.get(key)) for row in rows], words=head in ("engine", "GPU", "model", "role"))
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
    notes = (column("note", [str(row.get("note") or "") for row in rows], words=True),)
    unit = f" [{metric_unit(metric)}]" if metric_unit(metric) else ""
    names = tuple(str(row["id"]) for row in rows)
    groups = (settings, numbers, *((notes,) if any(notes[0].cells) else ()))
    return Table(f"{metric_name(metric)}{unit}, {count(len(rows))} rows", "row", names, groups, (), folded=True)


def _number(value: Any) -> str:
    return plain(known(value))


def _provenance(content: Content) -> Provenance:
    """Names and counts."""
    number = content["num_rows"]
    return Provenance(
        "Every number of this page comes from rows.json beside it: from these rows and this study.",
        (
            Facts(
                (
                    ("name", str(content["name"])),
                    ("rows from", str(content["source"])),
                    ("rows read", count(number["read"])),
                    ("rows simulated", count(number["simulated"])),
                    ("rows left out", count(number["skipped"])),
                    ("numbers fitted", count(sum(len(fit["fitted"]) for fit in rows_data.fits(content)))),
                )
            ),
        ),
    )
