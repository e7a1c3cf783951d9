"""The journal of a measurement: each finished point is appended, so that an interrupted one can go on.

A file beside the table: one comment line with a JSON header (what was asked, of which device and software), then CSV
rows of the kernel table with the spread and the way of timing.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TextIO

from calib import CalibrationError
from calib.measure.shapes import Point, point_of
from calib.measure.timing import Timing
from calib.table import COLUMNS

_TIMING = ("p10_us", "p90_us", "samples", "calls_per_sample", "method", "way", "note")
_COLUMNS = (*COLUMNS, *_TIMING)
_MARK = "# simkit calibrate journal "


@dataclass(frozen=True, slots=True)
class Entry:
    """A measured point. `way` names the configuration that was fastest, where there were several."""

    point: Point
    dtype: str
    source: str
    timing: Timing
    way: str = ""


class Journal:
    """Open for appending. Use as a context manager: an interrupt leaves every finished point on disk."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self.path = path
        self._file = file

    def add(self, entry: Entry) -> None:
        """Append one point and hand it to the system."""
        self._file.write(_line(_cells(entry)))
        self._file.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def open_journal(path: Path, identity: Mapping[str, object], *, resume: bool) -> tuple[Journal, dict[Point, Entry]]:
    """The journal and what it holds already.

    With `resume` a journal of the same identity goes on and one of another is an error; without it starts anew.
    Raises CalibrationError.
    """
    entries: dict[Point, Entry] = {}
    try:
        if resume and path.exists():
            found, entries = read_journal(path)
            _check_same(path, found, identity)
        # Written anew beside it, so that a torn last line is gone before the next one is appended.
        draft = path.with_name(path.name + ".tmp")
        lines = [_MARK + json.dumps(identity, sort_keys=True) + "\n", ",".join(_COLUMNS) + "\n"]
        draft.write_text("".join(lines + [_line(_cells(entry)) for entry in entries.values()]), encoding="utf-8")
        draft.replace(path)
        file = path.open("a", encoding="utf-8", newline="")
    except OSError as error:
        raise CalibrationError(f"{path}: {error.strerror or error}") from None
    return Journal(path, file), entries


def read_journal(path: Path) -> tuple[dict[str, object], dict[Point, Entry]]:
    """Header and points. A last line that a crash tore is left out; anything else that is wrong is an error."""
    text = path.read_text(encoding="utf-8", errors="replace")
    header, _, body = text.partition("\n")
    if not header.startswith(_MARK) or not body:
        raise _unreadable(path, 1)
    try:
        identity = json.loads(header.removeprefix(_MARK))
    except ValueError:
        raise _unreadable(path, 1) from None
    complete = body[: body.rfind("\n") + 1]
    reader = csv.DictReader(io.StringIO(complete))
    entries: dict[Point, Entry] = {}
    for row in reader:
        try:
            entry = _entry(row)
        except (KeyError, ValueError, TypeError):
            raise _unreadable(path, reader.line_num + 1) from None
        entries[entry.point] = entry
    return identity, entries


def _unreadable(path: Path, line: int) -> CalibrationError:
    return CalibrationError(f"{path}:{line}: not a calibration journal; delete it, or start anew with --restart")


def _check_same(path: Path, found: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    for key in sorted({*found, *wanted}):
        if found.get(key) != wanted.get(key):
            raise CalibrationError(
                f"{path}: an unfinished measurement with {key} {found.get(key)!r}, now {wanted.get(key)!r}:"
                " start anew with --restart, or give another --out"
            )


def _line(cells: Mapping[str, str]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, _COLUMNS, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cells(entry: Entry) -> dict[str, str]:
    timing = entry.timing
    return {
        **entry.point.cells(),
        "dtype": entry.dtype,
        "latency_us": repr(timing.median_us),
        "source": entry.source,
        "p10_us": repr(timing.p10_us),
        "p90_us": repr(timing.p90_us),
        "samples": str(timing.samples),
        "calls_per_sample": str(timing.calls_per_sample),
        "method": timing.method,
        "way": _one_line(entry.way),
        "note": _one_line(timing.note),
    }


def _one_line(text: str) -> str:
    """A journal is read line by line, so no cell holds a line break."""
    return " ".join(text.split())


def _entry(row: Mapping[str, str]) -> Entry:
    timing = Timing(
        median_us=float(row["latency_us"]),
        p10_us=float(row["p10_us"]),
        p90_us=float(row["p90_us"]),
        samples=int(row["samples"]),
        calls_per_sample=int(row["calls_per_sample"]),
        method=row["method"],
        note=row["note"],
    )
    if not timing.median_us > 0:
        raise ValueError("no time")
    return Entry(point_of(row), row["dtype"], row["source"], timing, row["way"])
