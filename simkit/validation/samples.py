"""Samples of a real engine over time, and the simulated run sampled at the same times.

Owns the columns of a sample file (those of LLMServingSim's bench, timeseries.csv, a row a second) and what a step table
says of an instant.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simkit.errors import InputError, nearest
from simkit.logs.read.text import open_text, reading
from simkit.metrics.measured import Compared, compared
from simkit.types import Floats, Ints
from simkit.units import s_to_ns

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLED = {"running": "running", "waiting": "waiting", "kv_pct": "kv_cache_pct"}
"""What is compared, and its column in the file."""

TIME = "t"
MAX_SAMPLES = 1_000_000
MOST, MOST_PCT = 1e12, 100.0
"""Largest number of a cell, and of one in per cent."""

EPOCH_S = 10**8
"""Times from here on count from 1970, and not from the begin of a run."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of a sample file in order of time; `values` has those of `SAMPLED` that the file measured."""

    t_s: Floats
    values: dict[str, Floats]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """Measured and predicted at the same times, s from the begin of what is played; `errors` of mean and max."""

    t_s: Floats
    measured: dict[str, Floats]
    predicted: dict[str, Floats]
    notes: tuple[str, ...] = ()
    errors: dict[str, dict[str, Compared]] = field(init=False)

    def __post_init__(self) -> None:
        found = {}
        for name, measured in self.measured.items():
            both = [{"mean": float(v.mean()), "max": float(v.max())} for v in (measured, self.predicted[name])]
            found[name] = compared(("mean", "max"), *both)
        object.__setattr__(self, "errors", found)

    def to_json(self) -> dict[str, object]:
        """Plain data for validation.json."""
        return {
            "t_s": self.t_s.tolist(),
            "measured": {name: values.tolist() for name, values in self.measured.items()},
            "predicted": {name: values.tolist() for name, values in self.predicted.items()},
        }


def read_samples(path: Path) -> Samples:
    """Read a CSV with a header; columns that are not compared are left aside. InputError, one line, for all else.

    A memory column that is 0 while requests run was not recorded (older versions of vLLM): it is left out, with a note.
    """
    where = f"--series {path}"
    with reading(where), open_text(path) as text:
        rows = csv.reader(text, strict=True)
        header = [name.strip() for name in next(rows, [])]
        places = _places(header, where)
        some = itertools.islice((row for row in rows if any(row)), MAX_SAMPLES + 1)
        table = [_numbers(row, places, header, f"{where}: line {rows.line_num}") for row in some]
    if not table:
        raise InputError(f"{where}: no samples")
    if len(table) > MAX_SAMPLES:
        raise InputError(f"{where}: expected at most {MAX_SAMPLES:,} samples")
    columns = np.array(table, dtype=np.float64)
    notes = [] if (np.diff(columns[:, 0]) >= 0).all() else [f"{where}: not in the order of {TIME}: sorted"]
    columns = columns[np.argsort(columns[:, 0], kind="stable")]
    if columns[-1, 0] >= EPOCH_S:
        raise InputError(f"{where}: {TIME} {columns[-1, 0]:g}, expected s after the first arrival, not since 1970")
    values = {name: columns[:, at] for at, name in enumerate(places) if name != TIME}
    kv, running = values.get("kv_pct"), values.get("running")
    ignored = [name for at, name in enumerate(header) if at not in places.values()]
    if ignored:
        notes.append(f"{where}: columns that are not read: {', '.join(name or '(no name)' for name in ignored)}")
    if kv is not None and not kv.any() and running is not None and running.any():
        del values["kv_pct"]
        notes.append(f"{where}: {SAMPLED['kv_pct']} is 0 while requests run: not recorded, left out")
    return Samples(columns[:, 0], values, tuple(notes))


def _places(header: list[str], where: str) -> dict[str, int]:
    """Where the time and each column is, the time first. InputError without a time, or without any of the others."""
    wanted = {TIME: TIME, **SAMPLED}
    for column in wanted.values():
        if header.count(column) > 1:
            raise InputError(f"{where}: expected column {column} once, got it {header.count(column)} times")
    found = {name: header.index(column) for name, column in wanted.items() if column in header}
    if TIME not in found or len(found) == 1:
        lacking = [TIME] if TIME not in found else list(SAMPLED.values())
        expected = f"expected columns {TIME} and any of {', '.join(SAMPLED.values())}"
        shown = "".join(c if c.isprintable() else "?" for c in ",".join(header))[:120]
        raise InputError(f"{where}: {expected}, got {shown!r}{_advice(header, lacking)}")
    return found


def _advice(header: list[str], lacking: list[str]) -> str:
    """What a column of the file may have been meant to be of those that are lacking."""
    if len(header) == 1:
        return "; expected commas between the columns" if any(mark in header[0] for mark in ";\t|") else ""
    return next((close for name in header if name != TIME and (close := nearest(name, lacking))), "")


def _numbers(row: list[str], places: Mapping[str, int], header: list[str], where: str) -> list[float]:
    numbers = []
    if len(row) > len(header):
        raise InputError(f"{where}: expected {len(header)} cells as in the header, got {len(row)}")
    for name, at in places.items():
        cell = row[at] if at < len(row) else ""
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        most = MOST_PCT if name == "kv_pct" else MOST
        if not 0 <= number <= most:
            raise InputError(f"{where}: {header[at]} {cell[:40]!r}, expected a number from 0 to {most:g}")
        numbers.append(number)
    return numbers


def sample(
    samples: Samples,
    steps: pa.Table,
    *,
    capacity_tokens: int,
    begin_s: float = 0.0,
    end_s: float | None = None,
    last_s: float | None = None,
) -> Series:
    """The run whose step table (first replication) is `steps` at the times of `samples`.

    Times of the samples count from the log's first arrival, as the engine's own sampling begins with its first step;
    the window that is played is from `begin_s` to `end_s` of them (None: to the end). `last_s` is the last arrival that
    is played where the log has more: what is sampled behind it had others beside it. InputError when no sample lies in
    the window.
    """
    inside = (samples.t_s >= begin_s) & (samples.t_s < (math.inf if end_s is None else end_s))
    if last_s is not None:
        inside &= samples.t_s <= last_s
    if not inside.any():
        span = f"{samples.t_s[0]:g} to {samples.t_s[-1]:g} s"
        played = "" if last_s is None else f", whose last arrival is at {last_s:g} s (max_requests)"
        raise InputError(f"--series: expected samples in the window that is played{played}, got {span}")
    at_s = samples.t_s[inside] - begin_s
    at_ns = np.array([s_to_ns(value) for value in at_s.tolist()], dtype=np.int64)
    predicted = _at(steps, at_ns, capacity_tokens)
    num, total = int(inside.sum()), len(inside)
    count = f"{num} of {total} sample{'' if total == 1 else 's'} {'is' if num == 1 else 'are'} compared"
    until = "" if last_s is None else f", those up to the last arrival that is played ({last_s:g} s, max_requests)"
    notes = [*samples.notes, f"--series: {TIME} is taken for s after the first arrival; {count}{until}"]
    measured = {name: values[inside] for name, values in samples.values.items()}
    _in_per_cent(measured, predicted, notes)
    return Series(at_s, measured, {name: predicted[name] for name in measured}, tuple(notes))


def _in_per_cent(measured: dict[str, Floats], predicted: Mapping[str, Floats], notes: list[str]) -> None:
    """Memory in use that never exceeds 1 may be a fraction: it is one where its peak, as such, is nearer to the
    prediction's. Either reading is announced."""
    kv = measured.get("kv_pct")
    if kv is None or not 0 < kv.max() <= 1:
        return
    peak, expected = float(kv.max()), float(predicted["kv_pct"].max())
    is_fraction = expected > 10 * peak
    if is_fraction:
        measured["kv_pct"] = 100 * kv
    read = "a fraction, times 100" if is_fraction else "per cent"
    near = f"that is nearer to the {expected:.3g} % predicted"
    notes.append(f"--series: {SAMPLED['kv_pct']} is at most {peak:g} and taken for {read}: {near}")


def _at(steps: pa.Table, at_ns: Ints, capacity_tokens: int) -> dict[str, Floats]:
    """Running, waiting and memory in use at some times, over all replicas; 0 between steps and after the last.

    A row of the table is a span of equal steps with the memory of the first of them: a decode takes a token a step.
    """
    names = ("replica", "t_start_ns", "t_end_ns", "num_steps", "num_decode", "dead_slots", "running", "waiting")
    table = {name: steps.column(name).to_numpy() for name in (*names, "kv_allocated_tokens", "replication")}
    found = {name: np.zeros(len(at_ns)) for name in SAMPLED}
    replicas = np.unique(table["replica"])
    for replica in replicas.tolist():
        rows = np.flatnonzero((table["replica"] == replica) & (table["replication"] == 0))
        start, end = table["t_start_ns"][rows], table["t_end_ns"][rows]
        if not len(rows):
            continue
        at = np.maximum(np.searchsorted(start, at_ns, side="right") - 1, 0)
        # Under asynchronous scheduling a step begins before the one in front of it has ended.
        inside = (at_ns >= start[at]) & (at_ns < np.maximum.accumulate(end)[at])
        row = rows[at]
        share = np.clip((at_ns - start[at]) / np.maximum(end[at] - start[at], 1), 0, 1)
        done = np.floor(share * table["num_steps"][row])
        grown = (table["num_decode"][row] - table["dead_slots"][row]) * done
        kv = np.minimum(table["kv_allocated_tokens"][row] + grown, capacity_tokens)
        found["running"] += np.where(inside, table["running"][row], 0)
        found["waiting"] += np.where(inside, table["waiting"][row], 0)
        found["kv_pct"] += np.where(inside, 100 * kv / capacity_tokens, 0) / len(replicas)
    return found
