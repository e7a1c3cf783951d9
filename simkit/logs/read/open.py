"""From a file to the requests it holds, part by part: what kind it is by content, which format, who was not served.

Memory does not grow with the file unless whoever takes the parts keeps them, or a format says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from simkit import scenario
from simkit.errors import InputError, nearest
from simkit.logs.formats import FORMATS
from simkit.logs.formats.canonical import meta_of
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.json import JsonRow, begins_json, head_and_objects
from simkit.logs.read.log import RowLog, listed
from simkit.logs.read.record import Columns
from simkit.logs.read.tables import PARQUET_MAGIC, CsvRows, ParquetRows, open_parquet
from simkit.logs.read.text import begins_with, check_regular, open_text, reading, resolve

GENERIC = "generic"
HEAD_CHARACTERS = 4096


class Opened(NamedTuple):
    """An open file: its beginning, and its rows, (line, object) of JSON or a table of CSV or parquet."""

    head: Head
    rows: Iterator[tuple[int, JsonRow]] = iter(())
    table: CsvRows | ParquetRows | None = None


@contextmanager
def opened(path: Path, log: RowLog) -> Iterator[Opened]:
    """A file and what is in it; rows that cannot be told apart go to `log`, whose `line` follows them."""
    with reading(f"trace {path}"):
        check_regular(path)
        if begins_with(path, PARQUET_MAGIC):
            with open_parquet(path) as rows:
                meta = meta_of(path)
                block_tokens = None if meta is None else meta.hash_block_tokens
                yield Opened(Head("parquet", columns=rows.names, hash_block_tokens=block_tokens), table=rows)
            return
        with open_text(path) as text:
            yield _opened(text, log)


def _opened(text: IO[str], log: RowLog) -> Opened:
    first = _first_text(text)
    if not first:
        raise log.nothing(())
    if begins_json(first):
        found, objects = head_and_objects(text, log)
        if not found:
            raise log.nothing(log.finish())
        return Opened(Head("json", objects=found, text=first), objects)
    rows = CsvRows(text)
    if not rows.looks_like_one:
        return Opened(Head("text", text=first))
    return Opened(Head("csv", columns=rows.header, text=first), table=rows)


def _first_text(text: IO[str]) -> str:
    """The first characters that are not blank; "" where there are none."""
    start = ""
    while not start and (chunk := text.read(HEAD_CHARACTERS)):
        start = chunk.lstrip()
    text.seek(0)
    return start


@dataclass(frozen=True, slots=True)
class Scan:
    """A pass over a log, whose `parts` are taken once and to the end; `log` then knows what was left out.

    Parts hold the requests in file order and on the log's own clock. Requests that were not served are not in them
    (`failed: skip`), or have 0 output tokens (`failed: prefill`). `why` says by what the format was recognised.
    """

    format: Format
    why: str
    log: RowLog
    parts: Iterator[Columns]

    def notes(self) -> list[str]:
        """What was left out and decided. InputError when too many rows cannot be read."""
        return self.log.finish()


@contextmanager
def scanning(spec: scenario.Trace, base_dir: Path | None = None) -> Iterator[Scan]:
    """Open `spec.path` (relative to `base_dir`) and recognise it. InputError, one line, for what cannot be read."""
    path = resolve(spec.path, base_dir)
    # As the scenario writes it: notes end in the manifest, which must not depend on where the scenario lies.
    log = RowLog(f"trace {spec.path}", spec.allow_bad)
    with opened(path, log) as file:
        head = file.head
        found, why = recognise(head, spec.format, log.where, mapped=bool(spec.map))
        if found.read is None:
            raise InputError(f"{log.where}: {found.title}: {found.advice}")
        if head.hash_block_tokens is not None:
            found = replace(found, hash_block_tokens=head.hash_block_tokens)
        assert found.read is not None
        parts = found.read(Source(*file, spec, log, path, found))
        yield Scan(found, why, log, (_served(part, spec.failed, log) for part in parts))


def recognise(head: Head, wanted: str, where: str, mapped: bool = False) -> tuple[Format, str]:
    """(format, by what it was recognised). InputError when nothing fits, or `wanted` is no format.

    `mapped`: the user says which column holds what, and so that it is none of the known formats.
    """
    if wanted != "auto" and wanted not in FORMATS:
        known = ("auto", *FORMATS)
        text = f"{where}: format {wanted!r} is not one of {', '.join(known)}{nearest(wanted, known)}"
        raise InputError(text, key="workload.trace.format", says_key=False)
    if mapped and wanted not in ("auto", GENERIC):
        raise InputError(f"{where}: map is for format {GENERIC}, and format is {wanted!r}: expected one of the two")
    if mapped or wanted == GENERIC:
        return FORMATS[GENERIC], "as the map says" if mapped else "as the format says"
    if wanted != "auto":
        return _titled(FORMATS[wanted], head), "as the format says"
    for found in FORMATS.values():
        why = found.matches(head)
        if why is not None:
            return _titled(found, head), why
    raise InputError(f"{where}: format not recognised: {_unknown(head)}")


def _titled(found: Format, head: Head) -> Format:
    return found if found.title_of is None else replace(found, title=found.title_of(head))


def _unknown(head: Head) -> str:
    """What a file has, and what it would need."""
    if head.kind == "text":
        begin = listed([head.text[:80].splitlines()[0] if head.text else ""])
        return f"it begins with {begin!r}, which is no CSV header and no JSON; expected one row a request"
    names = head.columns or tuple(sorted(head.keys))
    if not names:
        return "its objects have no fields; expected one object a request"
    what = "header was" if head.kind == "csv" else "columns are" if head.kind == "parquet" else "fields are"
    text = f"{what} {listed(names)!r}"
    if head.kind == "csv" and any(_is_number(name) for name in names):
        text += " (a header line with column names is missing)"
    near = max(FORMATS.values(), key=lambda found: _likeness(found, head))
    if _likeness(near, head) >= 0.5:
        missing = [name for name in near.needs if name not in head.keys]
        also = f"which also needs {listed(missing)}" if missing else "which is another kind of file"
        text += f"; nearest is {near.title}, {also}"
    readable = ", ".join(name for name in FORMATS if FORMATS[name].read is not None and name != GENERIC)
    return (
        f"{text}; expected arrival, prompt tokens and output tokens of each request. This version reads {readable}, "
        "and any other table with map (--map prompt=COLUMN,output=COLUMN,time=COLUMN)"
    )


def _likeness(found: Format, head: Head) -> float:
    """The share of the fields that a format needs which are there."""
    return sum(name in head.keys for name in found.needs) / len(found.needs) if found.needs else 0.0


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _served(part: Columns, failed: str, log: RowLog) -> Columns:
    """The requests of a part that were served, or that are kept for their prompt."""
    no_prompt, no_output = part.prompt_tokens == 0, part.output_tokens == 0
    has_reason = np.zeros(len(part), dtype=np.bool_)
    if part.failed is not None:
        has_reason = np.array([reason is not None for reason in part.failed], dtype=np.bool_)
    lost = no_prompt | no_output | has_reason
    if not lost.any():
        return replace(part, failed=None)
    # Without a prompt there is nothing to prefill either.
    left_out = no_prompt if failed == "prefill" else lost
    rows_of: dict[str, list[int]] = {
        "zero prompt and output": np.flatnonzero(left_out & ~has_reason & no_prompt & no_output).tolist(),
        "zero prompt": np.flatnonzero(left_out & ~has_reason & no_prompt & ~no_output).tolist(),
        "zero output": np.flatnonzero(left_out & ~has_reason & ~no_prompt & no_output).tolist(),
    }
    for row in np.flatnonzero(left_out & has_reason).tolist():
        assert part.failed is not None
        rows_of.setdefault(part.failed[row] or "", []).append(row)
    found = [(part.line[np.array(rows, dtype=np.int64)].tolist(), reason) for reason, rows in rows_of.items()]
    if failed == "error":
        line, reason = min((lines[0], reason) for lines, reason in found if lines)
        expected = "expected requests that were served (failed: skip leaves the others out)"
        raise InputError(f"{log.where}: line {line}: {listed([reason])}; {expected}")
    for lines, reason in found:
        if lines:
            log.add_skipped(reason, *lines)
    if failed != "prefill":
        return replace(part.take(np.flatnonzero(~lost)), failed=None)
    log.num_prefills += int(np.count_nonzero(lost & ~no_prompt))
    return replace(part, output_tokens=np.where(lost, 0, part.output_tokens)).take(np.flatnonzero(~no_prompt))
