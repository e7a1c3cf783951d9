"""The evidence page, as Markdown and as HTML, from the content of validation.json alone. Draws by `charts`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, FileSystemLoader

from evidence import charts, wrong
from evidence.line import HIT, MISSED
from simkit.report.document import Figure
from simkit.report.render.html import environment
from simkit.report.render.markdown import escaped
from simkit.report.words import MISSING

HERE = Path(__file__).resolve().parent
TITLE = "Predicted against measured"
COMMAND = "python tests/evidence/build.py"
ROWS = "Aggregate rows"
MANY = 12
"""Rows from which those that are not judged are folded away."""

FOLDS = {
    "All public rows": (4, "groups of rows, each of one set, engine and GPU"),
    "Ablation": (0, "lines, each of a set without one effect"),
}
"""A section where nothing is judged: how many of its first lines sum it up and stay open, and what the rest is."""

OPEN = 3
"""How many stay open of one that is not named there."""

PICTURES = {
    "Memory": ("memory",),
    "Kernels": ("kernels",),
    "End-to-end runs": ("run",),
    ROWS: ("scatter", "errors"),
    "Ablation": ("ablation",),
}
"""Section to its pictures."""

PROFILES = (
    "Step times come from the profile of a GPU: kernels that were timed one by one, and a fit to these timings. The "
    "runs, rows, papers and logs below had no part in it; what else was fitted, and on which of them, stands here."
)

Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Ready text: `right` are the columns of numbers; `folded` says what is behind the fold, "" for nothing."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int]
    folded: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A section: words, tables, lists under a title each, and the keys of its pictures."""

    key: str
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    lists: tuple[tuple[str, tuple[str, ...]], ...] = ()
    pictures: tuple[str, ...] = ()


def parts(content: Content) -> list[Part]:
    """Everything under the title, in order."""
    sections = list(dict.fromkeys(line["section"] for line in content["lines"]))
    return [_fitted(content), _summary(content), *(_section(name, content) for name in sections), _wrong(content)]


def markdown(content: Content, drawn: Mapping[str, Figure]) -> str:
    """The page for a code host; pictures are the files in figures/."""
    lines = [f"# {TITLE}", "", _answer(content), "", "Rebuild this page, its data and its pictures:", ""]
    lines += ["```sh", COMMAND, "```", "", _needs()]
    for part in parts(content):
        lines += ["", f"## {part.title}", *_blocks(part, drawn)]
    return "\n".join(lines) + "\n"


def html(content: Content, drawn: Mapping[str, Figure]) -> str:
    """The page as one file without network access."""
    pages = environment()
    assert pages.loader is not None
    pages.loader = ChoiceLoader([FileSystemLoader(HERE), pages.loader])
    return pages.get_template("evidence.html.j2").render(
        title=TITLE, answer=_answer(content), command=COMMAND, needs=_needs(), parts=parts(content), drawn=drawn
    )


def pictures(drawn: Mapping[str, Figure]) -> dict[str, str]:
    """File name to content of every picture, for the Markdown page."""
    return {f"{key}.svg": charts.standalone(figure.svg) for key, figure in drawn.items()}


def _answer(content: Content) -> str:
    """Bars hit of bars judged, by count."""
    judged = [line for line in content["lines"] if line["verdict"] in (HIT, MISSED)]
    hit = sum(line["verdict"] == HIT for line in judged)
    failed = len(judged) - hit
    told = "none missed" if not failed else f"{failed} missed and named below"
    by = [
        f"{section} {sum(line['verdict'] == HIT for line in lines)} of {len(lines)}"
        for section in dict.fromkeys(line["section"] for line in judged)
        if (lines := [line for line in judged if line["section"] == section])
    ]
    return f"{hit} of {len(judged)} bars are met, {told}: {', '.join(by)}."


def _needs() -> str:
    return (
        "It reads the profiles, scenarios and recorded traces of this repository, and the logs and benchmark tables of "
        "../shared beside it. Where those are missing it says which sections it cannot rebuild, exits 2 and changes "
        "nothing. The same input gives the same bytes. Positive errors: predicted larger than measured; MAPE: mean of "
        "the sizes of the errors."
    )


def _fitted(content: Content) -> Part:
    """What was fitted, by what it was fitted on, and what rests on nothing that was."""
    judged = [line for line in content["lines"] if line["judged"]]
    given = dict.fromkeys(line["fitted"] for line in judged if not _is_none(line["fitted"]))
    items = [f"{fitted}. Behind: {'; '.join(_users(judged, fitted))}." for fitted in given]
    free: dict[str, list[str]] = {}
    for line in judged:
        if _is_none(line["fitted"]):
            free.setdefault(line["section"], []).append(line["evidence"])
    none = [f"{section}: {'; '.join(dict.fromkeys(evidence))}." for section, evidence in free.items()]
    lists = [("Rests on numbers that were fitted, and on which", tuple(items)), ("Nothing was fitted for", tuple(none))]
    rows = tuple((name, rows) for name, rows in lists if rows)
    return Part("fitted", "What is fitted and what is not", text=(PROFILES,), lists=rows)


def _users(judged: Sequence[Mapping[str, Any]], fitted: str) -> list[str]:
    return list(dict.fromkeys(line["evidence"] for line in judged if line["fitted"] == fitted))


def _is_none(fitted: str) -> bool:
    return fitted == "none" or fitted.startswith("none ")


def _summary(content: Content) -> Part:
    headers = ("evidence", "n", "metric", "error", "bar", "result", "best peer on the same data")
    rows = [
        (
            line["evidence"],
            _count(line),
            line["metric"],
            _error(line),
            _bar(line),
            _verdict(line),
            line["peer"] or MISSING,
        )
        for line in content["lines"]
        if line["judged"]
    ]
    return Part("summary", "All that is judged", tables=(Table(headers, tuple(rows), frozenset((1, 3, 4))),))


def _section(name: str, content: Content) -> Part:
    lines = [line for line in content["lines"] if line["section"] == name]
    judged, shown = [line for line in lines if line["judged"]], [line for line in lines if not line["judged"]]
    num_open, others = FOLDS.get(name, (OPEN, "further rows")) if not judged else (0, "further rows")
    kept_open, folded = ([*judged, *shown[:num_open]], shown[num_open:]) if len(shown) >= MANY else (lines, [])
    tables = [_table(kept_open, ""), _table(folded, f"{len(folded)} {others}")]
    key = name.lower().replace(" ", "-")
    charts = [key for key, chart in (content["curves"].get("charts") or {}).items() if chart["section"] == name]
    pictures = (*PICTURES.get(name, ()), *charts)
    if name == ROWS:
        tables += [_rows(set_name, found) for set_name, found in (content["curves"].get("sets") or {}).items()]
    intro = (content.get("intros") or {}).get(name)
    text = () if intro is None else (intro,)
    return Part(key, name, text=text, tables=tuple(t for t in tables if t.rows), pictures=pictures)


def _rows(name: str, found: Mapping[str, Any]) -> Table:
    """Every row of a set, with the host terms that hold and with none."""
    headers = ("row", found["by"], "rows of the", "measured", "predicted", "error", "host terms at 0", "error")
    rows = [
        (
            point["row"], f"{point['by']:,}", "test" if point["test"] else "fit", f"{point['measured']:.5g}",
            f"{point['predicted']:.5g}", f"{wrong.off_pct(point['predicted'], point['measured']):+.1f} %",
            f"{point['at_zero']:.5g}", f"{wrong.off_pct(point['at_zero'], point['measured']):+.1f} %",
        )
        for point in found["points"]
    ]  # fmt: skip
    return Table(headers, tuple(rows), frozenset((1, 3, 4, 5, 6, 7)), f"{name}: {len(rows)} rows, {found['unit']}")


def _table(lines: Sequence[Mapping[str, Any]], folded: str) -> Table:
    headers = ("evidence", "n", "metric", "error", "bar", "result", "found", "fitted", "source")
    rows = [
        (
            line["evidence"], _count(line), line["metric"], _error(line), _bar(line), _verdict(line),
            "; ".join(text for text in (line["text"], line["note"]) if text) or MISSING,
            line["fitted"] or MISSING, line["source"],
        )
        for line in lines
    ]  # fmt: skip
    return Table(headers, tuple(rows), frozenset((1, 3, 4)), folded)


def _wrong(content: Content) -> Part:
    curves = content["curves"]
    found = wrong.missed(content["lines"])
    lists = [
        ("Bars that are missed", tuple(found or ["none"])),
        ("Shown without a bar, and furthest off", tuple(wrong.furthest(content["lines"]))),
        ("The groups of rows that are furthest off", tuple(wrong.worst_groups(curves))),
        (wrong.PUBLIC_TITLE, tuple(wrong.worst_public(curves))),
        (f"Biases of {wrong.AS_FAR_OFF_PCT:g} % or more (mean error with its sign)", tuple(wrong.biases(curves))),
        ("Known gaps", tuple(content["gaps"])),
    ]
    return Part("wrong", "Where simkit is wrong", lists=tuple((title, items) for title, items in lists if items))


def _count(line: Mapping[str, Any]) -> str:
    return f"{line['n']:,}"


def _error(line: Mapping[str, Any]) -> str:
    error = line["error_pct"]
    if error is None:
        return MISSING
    return f"{error:.0f} %" if error == 0 else f"{error:.1f} %" if abs(error) >= 1 else f"{error:.2f} %"


def _bar(line: Mapping[str, Any]) -> str:
    return MISSING if line["bar_pct"] is None else f"{line['bar_pct']:.3g} %"


def _verdict(line: Mapping[str, Any]) -> str:
    return "MISSED" if line["verdict"] == MISSED else str(line["verdict"])


def _blocks(part: Part, drawn: Mapping[str, Figure]) -> Iterator[str]:
    for text in part.text:
        yield from ("", escaped(text))
    for key in part.pictures:
        if key in drawn:
            yield from ("", f"![{key}](figures/{key}.svg)", "", f"*{escaped(drawn[key].caption)}*")
    for table in part.tables:
        yield from _markdown_table(table)
    for title, items in part.lists:
        yield from ("", f"### {escaped(title)}", "", *(f"- {escaped(item)}" for item in items))


def _markdown_table(table: Table) -> Iterator[str]:
    if table.folded:
        yield from ("", "<details>", f"<summary>{table.folded}</summary>")
    yield ""
    yield f"| {' | '.join(table.headers)} |"
    yield f"| {' | '.join('---:' if i in table.right else '---' for i in range(len(table.headers)))} |"
    for row in table.rows:
        yield f"| {' | '.join(escaped(cell) if cell != 'MISSED' else '**MISSED**' for cell in row)} |"
    if table.folded:
        yield from ("", "</details>")
