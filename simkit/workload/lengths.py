"""Length distributions: uniform draws to tokens.

Every random one is an inverse transform (a rising function of one draw), so request i is long in every arm or in none.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np

from simkit import scenario
from simkit.errors import InputError, about, nearest
from simkit.logs.read.record import MAX_TOKENS
from simkit.logs.read.tables import PARQUET_MAGIC
from simkit.logs.read.text import begins_with, open_text, reading, resolve
from simkit.types import Bools, Floats, Ints
from simkit.units import s_to_ns

Column = Literal["prompt_tokens", "output_tokens"]

NO_PROMPTS: Ints = np.zeros(0, dtype=np.int64)


Transform = Callable[[int, Floats, Ints], Floats]
"""(first request, draws, prompt tokens) to unrounded tokens of requests from the first on, one a draw."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A length distribution.

    `mean` and `cv` of a scenario are those of `transform`; rounding and clipping to `low`..`high` come after it.
    """

    transform: Transform
    low: int = 1
    high: int = MAX_TOKENS

    def tokens(self, first: int, u: Floats, prompt_tokens: Ints = NO_PROMPTS) -> tuple[Ints, Bools]:
        """(tokens, which of them were clipped) of requests `first` to ``first + len(u) - 1``, with these prompts."""
        raw = np.rint(self.transform(first, u, prompt_tokens))
        clipped = np.clip(raw, self.low, self.high)
        return clipped.astype(np.int64), clipped != raw


class BinnedQuantiles:
    """Quantiles for each bin of a key: up to ``ends[0]``, ``ends[1]`` ..., and beyond; `side`: of `searchsorted`."""

    def __init__(
        self,
        ends: Sequence[int | None],
        points: Sequence[Sequence[tuple[float, float]]],
        side: Literal["left", "right"] = "left",
    ) -> None:
        self._ends = np.array(ends, dtype=np.int64)
        self._points = [np.array(pairs, dtype=np.float64) for pairs in points]
        self._side = side

    def values(self, keys: Ints, u: Floats) -> Floats:
        """The value of each request, unrounded: a rising function of its draw."""
        at = np.searchsorted(self._ends, keys, side=self._side)
        found = np.empty(len(u))
        for index, points in enumerate(self._points):
            inside = at == index
            found[inside] = np.interp(u[inside], points[:, 0], points[:, 1])
        return found


class Drift:
    """Which lengths come when: turns the draws of requests into those of the period in which they arrive."""

    def __init__(self, periods: Sequence[scenario.Period], column: Column) -> None:
        ranks = [part.prompt_ranks if column == "prompt_tokens" else part.output_ranks for part in periods]
        ends_ns = [s_to_ns(part.until_s) for part in periods[:-1]]
        self._ranks = BinnedQuantiles(ends_ns, ranks, "right") if ranks else None

    def draws(self, arrival_ns: Ints, u: Floats) -> Floats:
        """Draws with the distribution of each request's period; a rising function of `u`. As they are without one."""
        return u if self._ranks is None else np.clip(self._ranks.values(arrival_ns, u), 2.0**-53, 1 - 2.0**-53)


def build_outputs(spec: scenario.OutputLength, base_dir: Path | None, notes: list[str]) -> Lengths:
    """The distribution of `workload.output_tokens`, as `build_lengths`."""
    if not isinstance(spec, scenario.ConditionalLength):
        return build_lengths(spec, "output_tokens", base_dir, notes)
    bins = BinnedQuantiles([part.upto_tokens for part in spec.bins[:-1]], [part.quantiles for part in spec.bins])
    return Lengths(lambda first, u, prompt_tokens: bins.values(prompt_tokens, u))


def build_lengths(spec: scenario.Length, column: Column, base_dir: Path | None, notes: list[str]) -> Lengths:
    """The distribution of `workload.<column>`; reading data may add to `notes`. InputError when data cannot be read."""
    match spec:
        case scenario.FixedLength():
            return Lengths(_constant(spec.value))
        case scenario.ListLength():
            return Lengths(_cycle(spec.values))
        case scenario.UniformLength():
            return Lengths(_uniform(spec.low, spec.high))
        case scenario.LognormalLength():
            return Lengths(_lognormal(spec.mean, spec.cv), spec.min, spec.max or MAX_TOKENS)
        case scenario.ExponentialLength():
            return Lengths(_exponential(spec.mean), spec.min, spec.max or MAX_TOKENS)
        case scenario.EmpiricalLength():
            return Lengths(_empirical(spec, column, base_dir, notes))


def _constant(value: int) -> Transform:
    return lambda first, u, _: np.full(len(u), float(value))


def _cycle(values: Iterable[int]) -> Transform:
    table = np.array(tuple(values), dtype=np.float64)
    return lambda first, u, _: table[np.arange(first, first + len(u)) % len(table)]


def _uniform(low: int, high: int) -> Transform:
    return lambda first, u, _: low + np.floor(u * (high - low + 1))


def _lognormal(mean: float, cv: float) -> Transform:
    """Parameters of log X from the moments of X: sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2."""
    from scipy.special import ndtri

    variance = math.log1p(cv * cv)
    mu, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
    return lambda first, u, _: np.exp(mu + sigma * np.asarray(ndtri(u), dtype=np.float64))


def _exponential(mean: float) -> Transform:
    return lambda first, u, _: -mean * np.log1p(-u)


def _empirical(spec: scenario.EmpiricalLength, column: Column, base_dir: Path | None, notes: list[str]) -> Transform:
    if spec.path is not None and spec.column is not None:
        sample = _read_sample(resolve(spec.path, base_dir), spec.column, column, notes)
        return lambda first, u, _: sample[(u * len(sample)).astype(np.int64)]
    points = spec.quantiles if spec.preset is None else _read_preset(spec.preset, column)
    table = np.array(points, dtype=np.float64)
    return lambda first, u, _: np.interp(u, table[:, 0], table[:, 1])


# --- data -------------------------------------------------------------------------------------------------------------
def list_presets() -> list[str]:
    """Names of the shipped quantile tables, sorted."""
    folder = files("simkit.workload").joinpath("presets")
    return sorted(entry.name.removesuffix(".csv") for entry in folder.iterdir() if entry.name.endswith(".csv"))


def _read_preset(name: str, column: Column) -> list[tuple[float, float]]:
    """[probability, tokens] pairs."""
    presets = list_presets()
    if name not in presets:
        raise InputError(
            f"expected one of {', '.join(presets)}, got {name!r}{nearest(name, presets)}",
            key=f"workload.{column}.preset",
        )
    text = files("simkit.workload").joinpath(f"presets/{name}.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return [(float(row["quantile"]), float(row[column])) for row in rows]


def _read_sample(path: Path, name: str, column: Column, notes: list[str]) -> Floats:
    """The sorted values >= 1 of one column of a CSV (plain or gzip) or parquet file."""
    where = str(path)
    with about(f"workload.{column}.path"), reading(where):
        is_parquet = begins_with(path, PARQUET_MAGIC)
        values = _parquet_column(path, name, where) if is_parquet else _csv_column(path, name, where)
        kept = np.sort(values[values > 0])
        if not kept.size:
            raise InputError(f"{where}: column {name!r} has no value > 0")
    if kept.size < values.size:
        # The file by its last name only: notes end in the manifest, which must not depend on where the scenario lies.
        left_out = f"skipped {values.size - kept.size} of {values.size} values that are 0"
        notes.append(f"workload.{column}: {path.name}, column {name!r}: {left_out}")
    return kept


def _csv_column(path: Path, name: str, where: str) -> Floats:
    with open_text(path) as text:
        rows = csv.reader(line for line in text if not line.startswith("#"))
        header = [cell.strip() for cell in next(rows, [])]
        at = _position(header, name, where)
        values = []
        for number, cells in enumerate(rows, start=1):
            if cells:
                values.append(_number(cells[at] if at < len(cells) else "", f"{where}: {name}, data row {number}"))
    return np.array(values, dtype=np.float64)


def _parquet_column(path: Path, name: str, where: str) -> Floats:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        _position(file.schema_arrow.names, name, where)
        cells = file.read(columns=[name]).column(name).to_pylist()
    except pyarrow.ArrowException as error:
        raise InputError(f"{where}: not readable as parquet: {str(error).splitlines()[0]}") from error
    values = [_number(cell, f"{where}: {name}, row {number}") for number, cell in enumerate(cells, start=1)]
    return np.array(values, dtype=np.float64)


def _position(header: list[str], name: str, where: str) -> int:
    if name not in header:
        raise InputError(f"{where}: no column {name!r} among {', '.join(header)}{nearest(name, header)}")
    return header.index(name)


def _number(cell: object, where: str) -> float:
    try:
        value = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value <= MAX_TOKENS:
        raise InputError(f"{where}: expected a number of tokens >= 0, got {cell!r}")
    return value
