"""Step functions over time from the spans of steps.parquet. numpy only; knows no figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simkit.report.read.run import Column, Run, Table, num_rows, select
from simkit.types import Floats

MAX_POINTS = 300


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, each holding from `times_ns[i]` to `times_ns[i + 1]`; len(times) = len(values) + 1.

    `thinned` says that each value is the time average of one of `MAX_POINTS` equal bins instead of a span's own.
    """

    times_ns: Floats
    values: dict[str, Floats]
    thinned: bool


def first_replication(run: Run) -> Table:
    """The spans of replication 0 in time order."""
    steps = select(run.steps, run.steps["replication"] == 0)
    return select(steps, np.argsort(steps["t_start_ns"], kind="stable"))


def end_ns(run: Run) -> float:
    """The last instant of replication 0 that the tables know, 0 when nothing happened."""
    ends = [0.0]
    steps = first_replication(run)
    if num_rows(steps):
        ends.append(float(steps["t_end_ns"].max()))
    last = run.requests["last_token_ns"][run.requests["replication"] == 0].astype(float)
    if np.isfinite(last).any():
        ends.append(float(np.nanmax(last)))
    return max(ends)


def over_time(steps: Table, columns: Sequence[str], held: Sequence[str] = ()) -> Series | None:
    """The sum over replicas of each column, None without spans.

    Between spans the engine does nothing: a column counts as 0 there, those named in `held` keep their last value.
    One replica with at most `MAX_POINTS` spans is shown as it is, anything else as averages over equal bins of time.
    """
    if not num_rows(steps):
        return None
    replicas = np.unique(steps["replica"])
    parts = [select(steps, steps["replica"] == replica) for replica in replicas]
    if len(parts) == 1 and num_rows(steps) <= MAX_POINTS:
        times, filled = _contiguous(parts[0], columns, held)
        return Series(times, filled, thinned=False)
    edges = np.linspace(float(steps["t_start_ns"].min()), float(steps["t_end_ns"].max()), MAX_POINTS + 1)
    totals = {column: np.zeros(MAX_POINTS) for column in columns}
    for part in parts:
        times, filled = _contiguous(part, columns, held)
        for column in columns:
            totals[column] += _bin_means(times, filled[column], edges)
    return Series(edges, totals, thinned=True)


def _contiguous(steps: Table, columns: Sequence[str], held: Sequence[str]) -> tuple[Floats, dict[str, Floats]]:
    """Span boundaries with the gaps between spans filled in."""
    starts, ends = steps["t_start_ns"].astype(float), steps["t_end_ns"].astype(float)
    gap_after = np.append(starts[1:] > ends[:-1], False)
    times = np.append(_interleave(starts, ends, gap_after), ends[-1])
    values = {}
    for column in columns:
        own = steps[column].astype(float)
        values[column] = _interleave(own, own if column in held else np.zeros_like(own), gap_after)
    return times, values


def _interleave(values: Column, after: Column, where: Column) -> Floats:
    """`values` with `after[i]` inserted behind each position i where `where[i]` is true."""
    positions = np.flatnonzero(where)
    return np.asarray(np.insert(values, positions + 1, after[positions]), dtype=np.float64)


def _bin_means(times: Floats, values: Floats, edges: Floats) -> Floats:
    """Time averages of a step function over the bins between `edges`; 0 outside of `times`."""
    integral = np.concatenate(([0.0], np.cumsum(values * np.diff(times))))
    return np.diff(np.interp(edges, times, integral)) / np.diff(edges)
