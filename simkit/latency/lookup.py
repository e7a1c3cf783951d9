"""Tabulated times, looked up: of passes by their rows, of attention by its sizes; the last slope beyond.

Knots lie close enough that a straight line between them is the fitted curve. A lookup prices arrays of launches and
single ones by the same operations in the same order, so that both give the same bits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from simkit.latency.profile.residuals import Bools
from simkit.types import Floats, Ints

Row = tuple[list[float], list[float]]


@dataclass(frozen=True, slots=True)
class RowTable:
    """ns of everything that depends on a number of rows, and of that what is extrapolated, by name."""

    ns: Floats
    tagged: dict[str, Floats]

    def at(self, rows: Ints) -> RowTable:
        """The same with the row `rows[i]` in place of row i."""
        return RowTable(self.ns[rows], {name: ns[rows] for name, ns in self.tagged.items()})

    def with_all_of(self, other: RowTable) -> RowTable:
        """Both, of as many rows each."""
        tagged = dict(self.tagged)
        for name, ns in other.tagged.items():
            tagged[name] = tagged.get(name, 0.0) + ns
        return RowTable(self.ns + other.ns, tagged)


class RowLookup:
    """A `RowTable` looked up; beyond its end the slope of its second half goes on, and no less than `least_ns`."""

    def __init__(self, table: RowTable, least_ns: float) -> None:
        self._ns = table.ns
        self._shares = {name: ns / np.maximum(table.ns, 1.0) for name, ns in table.tagged.items()}
        self._list: list[float] = table.ns.tolist()
        self._last = len(table.ns) - 1
        half = self._last // 2
        self._slope = max((self._list[-1] - self._list[half]) / (self._last - half), least_ns)

    def at(self, rows: Ints) -> Floats:
        """ns of passes of so many rows."""
        inside = np.minimum(rows, self._last)
        ns: Floats = self._ns[inside]
        if len(rows) and rows.max() > self._last:
            ns = ns + (rows - inside) * self._slope
        return ns

    def one(self, rows: int) -> float:
        """`at` of one pass."""
        if rows <= self._last:
            return self._list[rows]
        ns: float = self._list[self._last] + (rows - self._last) * self._slope
        return ns

    def extrapolated(self, rows: Ints, ns: Floats) -> Iterator[tuple[str, Floats]]:
        """What of `ns`, the time of passes of so many rows, is extrapolated, by name."""
        for name, share in self._shares.items():
            yield name, ns * share[np.minimum(rows, self._last)]


class DecodeLookup:
    """us of a layer by (sequences, tokens of context a sequence). `times` has a row for 0, 1, ... sequences, and
    `outside` says which of its knots are extrapolated."""

    def __init__(self, tokens: Seq[float], times: Floats, outside: Bools) -> None:
        self._outside = outside
        self._knots = np.asarray(tokens, np.float64)
        self._knot_list: list[float] = self._knots.tolist()
        self.times = times
        self._slopes = np.diff(times, axis=1) / np.diff(self._knots)
        self._last = len(times) - 1
        self._rows: dict[int, Row] = {}

    def at(self, seqs: Ints, tokens: Floats) -> Floats:
        """Time of each launch; beyond the last row in proportion to the sequences."""
        row = np.minimum(seqs, self._last)
        knot = np.clip(np.searchsorted(self._knots, tokens, side="right") - 1, 0, len(self._knots) - 2)
        us: Floats = self.times[row, knot] + (tokens - self._knots[knot]) * self._slopes[row, knot]
        return us * (seqs / np.maximum(row, 1))

    def one(self, seqs: int, tokens: float) -> float:
        """`at` of one launch."""
        # Written out: a run asks for the price of every step.
        knots = self._knot_list
        knot = bisect_right(knots, tokens) - 1
        if knot < 0:
            knot = 0
        elif knot > len(knots) - 2:
            knot = len(knots) - 2
        if 0 < seqs <= self._last:
            times, slopes = self._rows.get(seqs) or self.row(seqs)
            return times[knot] + (tokens - knots[knot]) * slopes[knot]
        row = min(seqs, self._last)
        times, slopes = self.row(row)
        return (times[knot] + (tokens - knots[knot]) * slopes[knot]) * (seqs / max(row, 1))

    def is_extrapolated(self, seqs: Ints, tokens: Floats) -> Bools:
        """Whether the price of each launch rests on an extrapolated knot; beyond the rows it does."""
        row = np.minimum(seqs, self._last)
        knot = np.clip(np.searchsorted(self._knots, tokens, side="right") - 1, 0, len(self._knots) - 2)
        above = self._outside[row, knot + 1] & (tokens > self._knots[knot])
        marked: Bools = (seqs > 0) & (self._outside[row, knot] | above | (seqs > self._last))
        return marked

    def row(self, seqs: int) -> Row:
        """(times at the knots, slopes after them) for one number of sequences, as Python floats."""
        found = self._rows.get(seqs)
        if found is None:
            found = self._rows[seqs] = (self.times[seqs].tolist(), self._slopes[seqs].tolist())
        return found


class ChunkLookup:
    """us of a layer by (chunks, new tokens a chunk, cached tokens before each); trilinear."""

    def __init__(self, axes: Seq[Seq[float]], times: Floats) -> None:
        self._axes = [np.asarray(axis, np.float64) for axis in axes]
        self._lists: list[list[float]] = [axis.tolist() for axis in self._axes]
        self.times = times
        self._shape = times.shape
        self._flat: list[float] | None = None

    def at(self, chunks: Floats, tokens: Floats, before: Floats) -> Floats:
        """Time of each launch."""
        (i, u), (j, v), (k, w) = (
            _place(axis, sizes) for axis, sizes in zip(self._axes, (chunks, tokens, before), strict=True)
        )
        times = self.times
        near = _blend(
            _blend(times[i, j, k], times[i, j, k + 1], w), _blend(times[i, j + 1, k], times[i, j + 1, k + 1], w), v
        )
        i = i + 1
        far = _blend(
            _blend(times[i, j, k], times[i, j, k + 1], w), _blend(times[i, j + 1, k], times[i, j + 1, k + 1], w), v
        )
        us: Floats = _blend(near, far, u)
        return us

    def one(self, chunks: float, tokens: float, before: float) -> float:
        """`at` of one launch."""
        if self._flat is None:
            self._flat = self.times.ravel().tolist()
        flat, (_, rows, columns) = self._flat, self._shape
        (i, u), (j, v), (k, w) = (
            _place_one(axis, size) for axis, size in zip(self._lists, (chunks, tokens, before), strict=True)
        )
        at = (i * rows + j) * columns + k
        near = _blend(_blend(flat[at], flat[at + 1], w), _blend(flat[at + columns], flat[at + columns + 1], w), v)
        at += rows * columns
        far = _blend(_blend(flat[at], flat[at + 1], w), _blend(flat[at + columns], flat[at + columns + 1], w), v)
        us: float = _blend(near, far, u)
        return us


def _blend(low: Any, high: Any, share: Any) -> Any:
    return low + (high - low) * share


def _place(axis: Floats, sizes: Floats) -> tuple[Ints, Floats]:
    low = np.clip(np.searchsorted(axis, sizes, side="right") - 1, 0, len(axis) - 2)
    return low, (sizes - axis[low]) / (axis[low + 1] - axis[low])


def _place_one(axis: list[float], size: float) -> tuple[int, float]:
    low = min(max(bisect_right(axis, size) - 1, 0), len(axis) - 2)
    return low, (size - axis[low]) / (axis[low + 1] - axis[low])
