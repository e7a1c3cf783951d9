"""The files of ServeGen clients: windows with a rate, and histograms of lengths written as text.

Owns what is refused in them, with file and line.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from simkit import scenario
from simkit.errors import InputError, about
from simkit.logs.read.record import MAX_TOKENS
from simkit.logs.read.text import open_text, reading, resolve
from simkit.types import Floats, Ints

WINDOW_S = 600.0
MAX_JSON_BYTES = 64 << 20
MAX_HISTOGRAM_CHARACTERS = 4 << 20
MAX_CELL_CHARACTERS = 100
MAX_WINDOWS = 1_000_000
PATTERNS = ("Gamma", "Weibull")
RANGES = {"cv": (0.01, 100.0), "shape": (0.05, 100.0)}

_TRACE = re.compile(r"chunk-(\d{1,9})-trace\.csv")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Token counts, rising, and the running sum of their weights."""

    tokens: Ints
    cumulative: Floats


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of constant rate: gaps are `pattern` of coefficient of variation `cv` (Weibull: of `shape`)."""

    start_s: float
    end_s: float
    rate_per_s: float
    cv: float
    pattern: str
    shape: float
    prompt_tokens: Histogram | None
    output_tokens: Histogram | None

    @property
    def expected(self) -> float:
        """Requests to expect."""
        return self.rate_per_s * (self.end_s - self.start_s)

    def clipped(self, start_s: float, end_s: float, rate_scale: float) -> Window:
        """The part from `start_s` to `end_s`, counted from `start_s`."""
        return replace(
            self,
            start_s=max(self.start_s, start_s) - start_s,
            end_s=min(self.end_s, end_s) - start_s,
            rate_per_s=self.rate_per_s * rate_scale,
        )


@dataclass(frozen=True, slots=True)
class Client:
    """One client: its number in the folder, its windows in order of time, and what was left out."""

    name: str
    windows: tuple[Window, ...]
    notes: tuple[str, ...]


@about("workload.servegen.path")
def read_clients(spec: scenario.ServeGen, base_dir: Path | None) -> list[Client]:
    """All clients of `spec.path`, in the order of their numbers, with the windows that touch start_s .. end_s."""
    folder = resolve(spec.path, base_dir)
    where = spec.path
    with reading(where):
        if not folder.is_dir():
            raise InputError(f"{where}: expected a folder of chunk-N-trace.csv and chunk-N-dataset.json")
        numbers = sorted(int(found[1]) for path in folder.iterdir() if (found := _TRACE.fullmatch(path.name)))
    if not numbers:
        raise InputError(f"{where}: no chunk-N-trace.csv in the folder")
    clients = [_read_client(folder, number, spec) for number in numbers]
    active = [window for client in clients for window in client.windows if window.rate_per_s]
    end_s = math.inf if spec.end_s is None else spec.end_s
    if not any(window.end_s > spec.start_s and window.start_s < end_s for window in active):
        raise InputError(f"{where}: no window with requests from {spec.start_s:g} s to {end_s:g} s")
    return clients


def _read_client(folder: Path, number: int, spec: scenario.ServeGen) -> Client:
    trace, dataset = f"chunk-{number}-trace.csv", f"chunk-{number}-dataset.json"
    where = f"{spec.path}/"
    notes: list[str] = []
    periods = _Periods(folder / dataset, where + dataset, f"servegen {spec.path}/{dataset}", notes)
    with reading(where + trace), open_text(folder / trace) as text:
        rows = [(line, _row(cells, f"{where}{trace}:{line}")) for line, cells in _lines(text)]
    if not rows or len(rows) > MAX_WINDOWS:
        raise InputError(f"{where}{trace}: expected 1 to {MAX_WINDOWS} windows, got {len(rows)}")
    windows = []
    for at, (line, window) in enumerate(rows):
        here = f"{where}{trace}:{line}"
        if at and window.start_s <= rows[at - 1][1].start_s:
            raise InputError(f"{here}: window start {window.start_s:g}, expected one after {rows[at - 1][1].start_s:g}")
        if at + 1 < len(rows):
            window = replace(window, end_s=max(window.start_s, min(window.end_s, rows[at + 1][1].start_s)))
        if window.rate_per_s:
            prompts, outputs = periods.at(window.start_s, here)
            window = replace(window, prompt_tokens=prompts, output_tokens=outputs)
        windows.append(window)
    return Client(str(number), tuple(windows), tuple(notes))


def _lines(text: IO[str]) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader(text)
    for cells in rows:
        if cells:
            yield rows.line_num, cells


def _row(cells: list[str], where: str) -> Window:
    """One window, without its lengths."""
    if len(cells) != 6:
        raise InputError(f"{where}: {len(cells)} cells, expected 6: start, rate, cv, Gamma or Weibull, 2 parameters")
    start_s = _number(cells[0], f"{where}: window start", 0, 1e9)
    rate = _number(cells[1], f"{where}: rate", 0, 1e6)
    if not rate:
        return Window(start_s, start_s + WINDOW_S, 0.0, 0.0, "", 0.0, None, None)
    pattern = cells[3].strip()
    if pattern not in PATTERNS:
        raise InputError(f"{where}: pattern {pattern[:40]!r}, expected {' or '.join(PATTERNS)} where the rate is not 0")
    cv = shape = 0.0
    if pattern == "Gamma":
        cv = _number(cells[2], f"{where}: cv", *RANGES["cv"])
    else:
        shape = _number(cells[4], f"{where}: Weibull shape", *RANGES["shape"])
    return Window(start_s, start_s + WINDOW_S, rate, cv, pattern, shape, None, None)


def _number(cell: str, where: str, low: float, high: float) -> float:
    try:
        value = float(cell) if len(cell) <= MAX_CELL_CHARACTERS else math.nan
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InputError(f"{where} {cell[:40]!r}, expected a number from {low:g} to {high:g}")
    return value


class _Periods:
    """The histograms of a dataset file, by the second at which each period begins; read once, parsed when needed."""

    def __init__(self, path: Path, where: str, shown: str, notes: list[str]) -> None:
        self._where, self._shown, self._notes = where, shown, notes
        with reading(where):
            if path.stat().st_size > MAX_JSON_BYTES:
                raise InputError(f"{where}: expected at most {MAX_JSON_BYTES >> 20} MiB")
            raw = path.read_bytes()
        try:
            data = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: no JSON: {str(error)[:200]}") from None
        if not isinstance(data, dict) or not data:
            raise InputError(f"{where}: expected an object of periods")
        self._texts: dict[float, Any] = {}
        for key, value in data.items():
            self._texts[_number(key, f"{where}: period", 0, 1e9)] = value
        self._starts = np.array(sorted(self._texts))
        self._known: dict[float, tuple[Histogram, Histogram]] = {}

    def at(self, time_s: float, window: str) -> tuple[Histogram, Histogram]:
        """Histograms of prompts and of outputs of the period that `time_s` is in."""
        index = int(np.searchsorted(self._starts, time_s, side="right")) - 1
        if index < 0:
            raise InputError(f"{window}: rate > 0, but {self._shown} has no lengths before {self._starts[0]:g} s")
        start = float(self._starts[index])
        if start not in self._known:
            period = self._texts[start]
            if not isinstance(period, dict):
                raise InputError(f"{self._where}: period {start:g}: expected an object")
            self._known[start] = (
                self._parse(period, start, "input_tokens"),
                self._parse(period, start, "output_tokens"),
            )
        return self._known[start]

    def _parse(self, period: Mapping[str, object], start: float, key: str) -> Histogram:
        where = f"{self._where}: period {start:g}: {key}"
        text = period.get(key)
        if not isinstance(text, str) or len(text) > MAX_HISTOGRAM_CHARACTERS:
            most = f"at most {MAX_HISTOGRAM_CHARACTERS} characters"
            raise InputError(f"{where}: expected a text like '{{45: 0.01, 46: 0.02}}' of {most}")
        try:
            found = ast.literal_eval(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            found = None
        if not isinstance(found, dict) or not all(_is_weight(value, weight) for value, weight in found.items()):
            raise InputError(f"{where}: expected a text like '{{45: 0.01, 46: 0.02}}' of tokens and weights")
        total = math.fsum(found.values())
        kept = sorted((int(value), float(weight)) for value, weight in found.items() if value and weight)
        if not kept:
            raise InputError(f"{where}: no lengths > 0, but a window of the period has requests")
        if found.get(0):
            left_out = f"left out lengths of 0, {100 * found[0] / total:.3g} % of {key} from {start:g} s on"
            self._notes.append(f"{self._shown}: {left_out}")
        tokens, weights = zip(*kept, strict=True)
        return Histogram(np.array(tokens, dtype=np.int64), np.cumsum(np.array(weights, dtype=np.float64)))


def _is_weight(value: object, weight: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TOKENS:
        return False
    if value != int(value) or isinstance(weight, bool):
        return False
    return isinstance(weight, int | float) and 0 <= weight <= 1e12
