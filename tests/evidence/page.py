"""The evidence page, as Markdown and as HTML, from the content of validation.json alone. Draws by `charts`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, FileSystemLoader

from evidence import FITS, HIT, LEFT_OPEN, MISSED, Line, charts, off_pct, wrong
from simkit.report.document import Drawing, Figure, Section, Table, column
from simkit.report.render.html import environment
from simkit.report.render.markdown import escaped, table_lines
from simkit.report.words import MISSING

HERE = Path(__file__).resolve().parent
TITLE = "Predicted against measured"
COMMAND = "python tests/evidence/build.py"
ROWS = "Aggregate rows"
MANY = 12
"""Rows from which those that are not judged are folded away."""

FOLDS = {
    "All public rows": (LEFT_OPEN, "groups of rows, each of one set, engine and GPU"),
    "Ablation": ("", "lines, each of a set without one effect"),
}
"""A section where nothing is judged: the last of its first lines, which sum it up and stay open (none: no line does),
and what the rest is."""

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

NEEDS = (
    "It reads the profiles, scenarios and recorded traces of this repository, and the logs and benchmark tables of "
    "../shared beside it. Where those are missing it says which sections it cannot rebuild, exits 2 and changes "
    "nothing. The same input gives the same bytes. Positive errors: predicted larger than measured; MAPE: mean of "
    "the sizes of the errors."
)

Content = Mapping[str, Any]
"""What validation.json holds."""

WORDS = frozenset(("metric", "result", "best peer on the same data", "found", "fitted", "source", "rows of the"))
"""Headers of columns that hold no numbers."""


def parts(content: Content, drawn: Mapping[str, Figure]) -> list[Section]:
    """Everything under the title, in order."""
    lines = _lines(content)
    sections = list(dict.fromkeys(line.section for line in lines))
    shown = [_section(name, content, lines, drawn) for name in sections]
    return [_fitted(lines), _summary(lines), *shown, _wrong(content, lines)]


def files(content: Content) -> dict[str, str]:
    """Name to text of both pages, and of every picture for the Markdown page."""
    drawn = charts.drawn(content["curves"])
    pictures = {f"figures/{key}.svg": charts.standalone(figure.svg) for key, figure in drawn.items()}
    return {"README.md": markdown(content, drawn), "index.html": html(content, drawn), **pictures}


def markdown(content: Content, drawn: Mapping[str, Figure]) -> str:
    """The page for a code host; pictures are the files in figures/."""
    lines = [f"# {TITLE}", "", _answer(content), "", "Rebuild this page, its data and its pictures:", ""]
    lines += ["```sh", COMMAND, "```", "", NEEDS]
    keys = {figure: key for key, figure in drawn.items()}
    for part in parts(content, drawn):
        lines += ["", f"## {part.title}", *_blocks(part, keys)]
    return "\n".join(lines) + "\n"


def html(content: Content, drawn: Mapping[str, Figure]) -> str:
    """The page as one file without network access."""
    pages = environment()
    assert pages.loader is not None
    pages.loader = ChoiceLoader([FileSystemLoader(HERE), pages.loader])
    return pages.get_template("evidence.html.j2").render(
        title=TITLE, answer=_answer(content), command=COMMAND, needs=NEEDS, parts=parts(content, drawn)
    )


def _lines(content: Content) -> list[Line]:
    return [Line(**line) for line in content["lines"]]


def _answer(content: Content) -> str:
    """Bars hit of bars judged, by count."""
    judged = [line for line in _lines(content) if line.verdict in (HIT, MISSED)]
    by_section: dict[str, list[bool]] = {}
    for line in judged:
        by_section.setdefault(line.section, []).append(line.verdict == HIT)
    hit = sum(line.verdict == HIT for line in judged)
    failed = len(judged) - hit
    told = "none missed" if not failed else f"{failed} missed and named below"
    by = [f"{section} {sum(hits)} of {len(hits)}" for section, hits in by_section.items()]
    return f"{hit} of {len(judged)} bars are met, {told}: {', '.join(by)}."


def _fitted(lines: Sequence[Line]) -> Section:
    """What was fitted, by what it was fitted on, and what rests on nothing that was."""
    behind: dict[str, dict[str, None]] = {}
    free: dict[str, dict[str, None]] = {}
    for line in lines:
        if line.judged and line.rests_on != FITS:
            free.setdefault(line.section, {})[line.evidence] = None
        elif line.judged:
            behind.setdefault(line.fitted, {})[line.evidence] = None
    fits = [f"{fitted}. Behind: {'; '.join(users)}." for fitted, users in behind.items()]
    none = [f"{section}: {'; '.join(evidence)}." for section, evidence in free.items()]
    lists = _lists({"Rests on numbers that were fitted, and on which": fits, "Nothing was fitted for": none})
    return Section("fitted", "What is fitted and what is not", (PROFILES,), parts=lists)


def _lists(items_by_title: Mapping[str, Sequence[str]]) -> tuple[Section, ...]:
    """Those that have something."""
    return tuple(Section("", title, items=tuple(items)) for title, items in items_by_title.items() if items)


def _summary(lines: Sequence[Line]) -> Section:
    headers = ("evidence", "n", "metric", "error", "bar", "result", "best peer on the same data")
    rows = [
        (line.evidence, f"{line.n:,}", line.metric, _error(line), _bar(line), _verdict(line), line.peer or MISSING)
        for line in lines
        if line.judged
    ]
    return Section("summary", "All that is judged", tables=_tables(_table(headers, rows)))


def _section(name: str, content: Content, lines: Sequence[Line], drawn: Mapping[str, Figure]) -> Section:
    curves = content["curves"]
    mine = [line for line in lines if line.section == name]
    judged, shown = [line for line in mine if line.judged], [line for line in mine if not line.judged]
    num_open, others = _folded(name, shown) if not judged else (0, "further rows")
    kept_open, folded = ([*judged, *shown[:num_open]], shown[num_open:]) if len(shown) >= MANY else (mine, [])
    tables = [_evidence(kept_open, ""), _evidence(folded, f"{len(folded)} {others}")]
    if name == ROWS:
        tables += [_rows(set_name, found) for set_name, found in (curves.get("sets") or {}).items()]
    own = [key for key, chart in (curves.get("charts") or {}).items() if chart["section"] == name]
    keys = [key for key in (*PICTURES.get(name, ()), *own) if key in drawn]
    intro = (content.get("intros") or {}).get(name)
    return Section(
        name.lower().replace(" ", "-"),
        name,
        () if intro is None else (intro,),
        tables=_tables(*tables),
        figures=tuple(Drawing(partial(drawn.get, key)) for key in keys),
    )


def _folded(name: str, shown: Sequence[Line]) -> tuple[int, str]:
    """(how many lines of a section where nothing is judged stay open, what the others are)."""
    if name not in FOLDS:
        return OPEN, "further rows"
    last, others = FOLDS[name]
    return next((i for i, line in enumerate(shown, 1) if line.evidence == last), 0), others


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], folded: str = "") -> Table:
    """`folded` says what is behind the fold, "" for nothing."""
    names, *columns = zip(*rows, strict=True) if rows else [()] * len(headers)
    group = tuple(
        column(header, cells, words=header in WORDS) for header, cells in zip(headers[1:], columns, strict=True)
    )
    return Table(folded, headers[0], tuple(names), (group,), folded=bool(folded))


def _tables(*found: Table) -> tuple[Table, ...]:
    """Those that have rows."""
    return tuple(table for table in found if table.names)


def _rows(name: str, found: Content) -> Table:
    """Every row of a set, with the host terms that hold and with none."""
    headers = ("row", found["by"], "rows of the", "measured", "predicted", "error", "host terms at 0", "error")
    rows = [
        (
            point["row"], f"{point['by']:,}", "test" if point["test"] else "fit", f"{point['measured']:.5g}",
            f"{point['predicted']:.5g}", f"{off_pct(point['predicted'], point['measured']):+.1f} %",
            f"{point['at_zero']:.5g}", f"{off_pct(point['at_zero'], point['measured']):+.1f} %",
        )
        for point in found["points"]
    ]  # fmt: skip
    return _table(headers, rows, f"{name}: {len(rows)} rows, {found['unit']}")


def _evidence(lines: Sequence[Line], folded: str) -> Table:
    headers = ("evidence", "n", "metric", "error", "bar", "result", "found", "fitted", "source")
    rows = [
        (
            line.evidence, f"{line.n:,}", line.metric, _error(line), _bar(line), _verdict(line),
            "; ".join(text for text in (line.text, line.note) if text) or MISSING, line.fitted or MISSING, line.source,
        )
        for line in lines
    ]  # fmt: skip
    return _table(headers, rows, folded)


def _wrong(content: Content, lines: Sequence[Line]) -> Section:
    curves = content["curves"]
    lists = {
        "Bars that are missed": wrong.missed(lines) or ["none"],
        "Shown without a bar, and furthest off": wrong.furthest(lines),
        "The groups of rows that are furthest off": wrong.worst_groups(curves),
        wrong.PUBLIC_TITLE: wrong.worst_public(curves),
        f"Biases of {wrong.AS_FAR_OFF_PCT:g} % or more (mean error with its sign)": wrong.biases(curves),
        "Known gaps": content["gaps"],
    }
    return Section("wrong", "Where simkit is wrong", parts=_lists(lists))


def _error(line: Line) -> str:
    error = line.error_pct
    if error is None:
        return MISSING
    return f"{error:.0f} %" if error == 0 else f"{error:.1f} %" if abs(error) >= 1 else f"{error:.2f} %"


def _bar(line: Line) -> str:
    return MISSING if line.bar_pct is None else f"{line.bar_pct:.3g} %"


def _verdict(line: Line) -> str:
    return "MISSED" if line.verdict == MISSED else line.verdict


def _blocks(part: Section, keys: Mapping[Figure, str]) -> Iterator[str]:
    for said in part.says:
        yield from ("", escaped(said))
    for figure in (drawing.draw() for drawing in part.figures):
        if figure is not None:
            yield from ("", f"![{keys[figure]}](figures/{keys[figure]}.svg)", "", f"*{escaped(figure.caption)}*")
    for table in part.tables:
        if table.folded:
            yield from ("", "<details>", f"<summary>{table.title}</summary>")
        yield from (line.replace("| MISSED |", "| **MISSED** |") for line in table_lines(table))
        if table.folded:
            yield from ("", "</details>")
    for each in part.parts:
        yield from ("", f"### {escaped(each.title)}", "", *(f"- {escaped(item)}" for item in each.items))
