"""The kernel table: the neutral CSV in which measurements of GPU kernels travel. Owns its columns and its reading.

Nothing that is not believed goes unsaid: units, the physical limit, equal rows.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from calib import CalibrationError
from simkit.latency.profile import (
    AXES,
    DIMS,
    ELEMENT_BYTES,
    EXTRA,
    KEYS,
    MEMORY_BOUND_OPS,
    MODEL_DTYPES,
    OF_DEEPSEEK_V3,
    Limits,
    work_of,
)

if TYPE_CHECKING:
    from pandas import DataFrame


Floats = npt.NDArray[np.float64]

COLUMNS = (
    "op",
    "dtype",
    "m",
    "n",
    "k",
    "batch",
    "q_len",
    "kv_len",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "decode_batch",
    "decode_kv_len",
    "world_size",
    "bytes",
    "latency_us",
    "source",
)
"""In this order. Cells that do not apply to an op are empty; `latency_us` is one call in microseconds."""

FURTHER = (*DIMS, "window", "kv_dtype")
TEXTS = ("op", "dtype", "source", "kv_dtype")
"""Columns that a table may have besides: sizes of a model, and the format of the KV cache, 16 bits where it is left
out. Those of text."""

MIXED = ("q_len", "kv_len", "decode_batch", "decode_kv_len", "num_heads", "num_kv_heads", "head_dim")
SKEW = ("batch", "kv_len", "decode_batch", "decode_kv_len", "num_heads", "num_kv_heads", "head_dim")
LAUNCHES = {"attention_mixed": MIXED, "attention_skew": SKEW}
"""Ops of several kinds of sequences in one launch, and the sizes that tell them apart."""

_DEFAULTED: dict[str, dict[str, int]] = {
    **{op: {"num_heads": 32, "num_kv_heads": 8} for op in ("rotary_embedding", "rotary_kv_write")},
    **{op: {**OF_DEEPSEEK_V3} for op in ("mla_decode_module", "mla_prefill_module")},
}
"""Rotary rows that name no heads are of 32 heads and 8 KV heads, and modules of latent attention that name no sizes
are of DeepSeek-V3: the tables that leave them out are."""

LONGEST_US = 1e9
LARGEST_SIZE = 1e13

_MAY_BE_ZERO = {"kv_len", "q_len", "decode_batch", "decode_kv_len"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Measurements of one op on one format: sizes by column name and microseconds, arrays of one length."""

    op: str
    dtype: str
    sizes: Mapping[str, Floats]
    us: Floats

    def __len__(self) -> int:
        return len(self.us)

    def take(self, chosen: npt.NDArray[Any]) -> Rows:
        """The rows of a mask or of indices."""
        return Rows(self.op, self.dtype, {name: values[chosen] for name, values in self.sizes.items()}, self.us[chosen])

    def describe(self, index: int) -> str:
        """One row as text: ``gemm bfloat16 m=1 n=64 k=64: 2.1 us``."""
        sizes = " ".join(f"{name}={values[index]:g}" for name, values in self.sizes.items())
        return f"{self.op} {self.dtype} {sizes}: {self.us[index]:g} us"


@dataclass(frozen=True, slots=True)
class Table:
    """A kernel table by (op, dtype), what of it could not be read, and where it comes from."""

    rows: Mapping[tuple[str, str], Rows]
    unusable: tuple[str, ...]
    sources: tuple[str, ...]
    sha256: str
    num_rows: int


def size_names(op: str) -> tuple[str, ...]:
    """The columns that an op needs."""
    if op == "host_overhead":
        return ("m",)
    return LAUNCHES.get(op) or (*KEYS.get(op, ()), *AXES[op], *EXTRA.get(op, ()))


def read_table(path: Path) -> Table:
    """Read a CSV (or .csv.gz). Rows without a usable time or size are listed in `unusable`.

    Raises CalibrationError for a file that cannot be read, missing columns, or no usable row at all.
    """
    return table_of(path, *frame_of(path))


def table_of(path: Path, content: bytes, frame: Any) -> Table:
    """The same of the bytes of a file and its cells."""
    import pandas as pd

    missing = [name for name in ("op", "dtype", "latency_us") if name not in frame.columns]
    if missing:
        raise CalibrationError(f"{path}:1: missing column {missing[0]}; expected the columns {', '.join(COLUMNS)}")
    absent = set(COLUMNS) - set(frame.columns)
    frame = frame.reindex(columns=[*COLUMNS, *FURTHER])
    for name in frame.columns.difference(TEXTS):
        frame[name] = pd.to_numeric(frame[name], errors="coerce")
    frame["line"] = np.arange(len(frame)) + 2
    rows: dict[tuple[str, str], Rows] = {}
    unusable: list[str] = []
    _name_windows(frame)
    narrow = ~(frame["kv_dtype"].isna() | frame["kv_dtype"].isin(MODEL_DTYPES))
    for (op, dtype, kv), part in frame[narrow].groupby(["op", "dtype", "kv_dtype"], sort=True):
        line = part["line"].iloc[0]
        unusable.append(f"{path.name}:{line}: {len(part)} rows of {op} {dtype} over a KV cache of {kv}, ignored")
    frame = frame[~narrow]
    groups = [frame[name].map(lambda cell: "" if pd.isna(cell) else str(cell)) for name in ("op", "dtype")]
    for (op, dtype), part in frame.groupby(groups, sort=True):
        unknown = _unknown(op, dtype)
        if unknown:
            unusable.append(f"{path.name}:{part['line'].iloc[0]}: {len(part)} rows of {unknown}, ignored")
            continue
        needed = sorted(absent & set(size_names(op)) - set(_DEFAULTED.get(op, ())), key=COLUMNS.index)
        if needed:
            raise CalibrationError(f"{path}:1: missing column {needed[0]}, which rows of {op} need")
        for found in _rows(op, dtype, part, path.name, unusable):
            _append(rows, found)
    if not rows:
        raise CalibrationError(f"{path}: no usable row" + (f"; {unusable[0]}" if unusable else ""))
    sources = tuple(sorted({str(source) for source in frame["source"].dropna()}))
    return Table(rows, tuple(unusable), sources, hashlib.sha256(content).hexdigest(), len(frame))


def _name_windows(frame: Any) -> None:
    """Launches with a window that a sequence is longer than are ops of their own: a decode takes as long however much
    longer it is, and what lies within a window is attended to in full."""
    wide, longer = frame["window"] > 0, frame["kv_len"] > frame["window"]
    prompts = frame["kv_len"].fillna(0) + frame["q_len"] > frame["window"]
    frame.loc[wide & longer & (frame["op"] == "attention_decode_ext"), "op"] = "attention_decode_window"
    frame.loc[wide & prompts & (frame["op"] == "attention_prefill_ext"), "op"] = "attention_prefill_window"


def frame_of(path: Path) -> tuple[bytes, Any]:
    """The bytes of a CSV (or .csv.gz) and its cells. Raises CalibrationError for one that cannot be read."""
    import pandas as pd

    try:
        content = path.read_bytes()
        frame = pd.read_csv(io.BytesIO(content), compression="gzip" if content[:2] == b"\x1f\x8b" else None)
    except OSError as error:
        raise CalibrationError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, EOFError, zlib.error) as error:
        raise CalibrationError(f"{path}: not a CSV file: {' '.join(str(error).split())}") from None
    return content, frame


def _unknown(op: str, dtype: str) -> str:
    """What is not known of an op in a format, empty where both are."""
    if (op in AXES or op in LAUNCHES or op == "host_overhead") and dtype in ELEMENT_BYTES:
        return ""
    return f"{op} {dtype}: not known" if op and dtype else f"no {'dtype' if op else 'op'}"


def _rows(op: str, dtype: str, part: DataFrame, where: str, unusable: list[str]) -> list[Rows]:
    """The usable rows of one group; launches that hold only one kind of sequence count as that op."""
    names = size_names(op)
    part = part.assign(**{name: part[name].fillna(value) for name, value in _DEFAULTED.get(op, {}).items()})
    sizes = {name: part[name].to_numpy(np.float64) for name in names}
    us = part["latency_us"].to_numpy(np.float64)
    with np.errstate(invalid="ignore"):
        good = {"latency_us": (us > 0) & (us <= LONGEST_US)}
        for name, values in sizes.items():
            least = 0 if name in _MAY_BE_ZERO else 1
            good[name] = (values >= least) & (values <= LARGEST_SIZE) & (values == np.floor(values))
        if "num_kv_heads" in sizes:
            good["num_kv_heads"] &= sizes["num_kv_heads"] <= sizes["num_heads"]
    usable = np.all(list(good.values()), axis=0)
    for index in np.flatnonzero(~usable):
        bad = next(name for name in good if not good[name][index])
        unusable.append(f"{where}:{part['line'].iloc[index]}: {op} {dtype}: {bad} is missing or out of range")
    rows = Rows(op, dtype, sizes, us).take(usable)
    return _by_kind(rows) if op == "attention_mixed" else [rows]


def _by_kind(rows: Rows) -> list[Rows]:
    chunk, decodes = rows.sizes["q_len"] > 0, rows.sizes["decode_batch"] > 0
    heads = ("num_heads", "num_kv_heads", "head_dim")
    pure, alone = rows.take(chunk & ~decodes), rows.take(decodes & ~chunk)
    prefill = {name: pure.sizes[name] for name in heads} | {
        "batch": np.ones(len(pure)),
        "q_len": pure.sizes["q_len"],
        "kv_len": pure.sizes["kv_len"],
    }
    decode = {name: alone.sizes[name] for name in heads} | {
        "batch": alone.sizes["decode_batch"],
        "kv_len": alone.sizes["decode_kv_len"],
    }
    return [
        Rows("attention_prefill", rows.dtype, prefill, pure.us),
        Rows("attention_decode", rows.dtype, decode, alone.us),
        rows.take(chunk & decodes),
    ]


def _append(rows: dict[tuple[str, str], Rows], found: Rows) -> None:
    if not len(found):
        return
    key = (found.op, found.dtype)
    rows[key] = joined(rows[key], found) if key in rows else found


def joined(one: Rows, other: Rows) -> Rows:
    """The rows of both, of one op."""
    sizes = {name: np.concatenate([one.sizes[name], other.sizes[name]]) for name in one.sizes}
    return Rows(one.op, one.dtype, sizes, np.concatenate([one.us, other.us]))


def equal_shape(one: Rows, other: Rows) -> str | None:
    """A shape that both hold, in words; None where they have none in common."""
    keys = [np.unique(np.stack(list(rows.sizes.values()), axis=1), axis=0) for rows in (one, other)]
    distinct, counts = np.unique(np.concatenate(keys), axis=0, return_counts=True)
    twice = np.flatnonzero(counts > 1)
    if not len(twice):
        return None
    sizes = {name: distinct[twice[:1], index] for index, name in enumerate(one.sizes)}
    return Rows(one.op, one.dtype, sizes, np.ones(1)).describe(0)


FAR_APART = 1.25
"""Equal keys whose slowest time is more than this many times the fastest are a warning."""

UNITS_FACTOR = {"gemm": 100.0, "attention_decode": 300.0, "attention_prefill": 300.0}
"""A median of large calls this far from the physical limit is a matter of units, not of a slow kernel."""

BIG_US = 5.0
"""GEMMs for which the hardware needs this long are not dominated by launching them."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows with one row a key, and how many keys had several measurements, how far apart."""

    rows: Rows
    num_merged: int
    far_apart: tuple[str, ...]


def check_units(rows: Rows, limits: Limits) -> None:
    """Raise CalibrationError when the median large call is orders of magnitude from what the GPU can do."""
    fastest = limits.fastest_us(work_of(rows.op, rows.dtype, rows.sizes))
    big = fastest >= min(BIG_US, float(np.median(fastest)))
    ratio = float(np.median(rows.us[big] / fastest[big]))
    factor = UNITS_FACTOR[rows.op]
    if 1 / factor < ratio < factor:
        return
    unit = "milliseconds or seconds" if ratio < 1 else "nanoseconds"
    raise CalibrationError(
        f"latency_us: the median {rows.dtype} {rows.op} takes {ratio:.3g} x the physical limit of the GPU: expected "
        f"microseconds, these look like {unit} (or the table is of another GPU)"
    )


def split_by_limit(rows: Rows, limits: Limits) -> tuple[Rows, Rows]:
    """(rows that the hardware allows, rows that beat its bandwidth or FLOP/s although their operands are in memory)."""
    if rows.op not in MEMORY_BOUND_OPS:
        return rows, rows.take(np.zeros(len(rows), dtype=bool))
    allowed = rows.us >= limits.fastest_us(work_of(rows.op, rows.dtype, rows.sizes))
    return rows.take(allowed), rows.take(~allowed)


def merge_equal(rows: Rows) -> Merged:
    """Rows of equal sizes become their median. Rows come out sorted by size."""
    keys = np.stack(list(rows.sizes.values()), axis=1)
    distinct, inverse, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    order = np.lexsort((rows.us, inverse.reshape(-1)))
    sorted_us, starts = rows.us[order], np.concatenate([[0], np.cumsum(counts)[:-1]])
    low, high = (counts - 1) // 2, counts // 2
    us: Floats = (sorted_us[starts + low] + sorted_us[starts + high]) / 2.0
    merged = Rows(rows.op, rows.dtype, {name: distinct[:, i] for i, name in enumerate(rows.sizes)}, us)
    ratio = sorted_us[starts + counts - 1] / sorted_us[starts]
    far = tuple(
        f"{merged.describe(int(i))}: {counts[i]} measurements, slowest {ratio[i]:.2f} x fastest"
        for i in np.flatnonzero(ratio > FAR_APART)
    )
    return Merged(merged, int((counts > 1).sum()), far)
