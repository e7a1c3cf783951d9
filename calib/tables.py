"""The files that one profile is fitted from: kernel tables, and a table of decodes of unequal length.

Owns which of the two a file is, the form of the second, and how several become one table. No shape stands in two files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calib import CalibrationError
from calib.fit.launches import Launches
from calib.table import (
    COLUMNS,
    LARGEST_SIZE,
    LONGEST_US,
    Floats,
    Rows,
    Table,
    equal_shape,
    frame_of,
    joined,
    table_of,
)
from simkit.latency.profile import Heads

if TYPE_CHECKING:
    from pandas import DataFrame

UNEQUAL = ("n", "nb", "kv_big", "kvs", "pc", "kp", "t_skew_us", "t_mean_us", "t_max_us")
"""Columns of a table of unequal decodes, a launch a row: `n` decodes, `nb` of `kv_big` tokens and the others of `kvs`,
beside a chunk of `pc` tokens over `kp` cached ones (0: none); its time, and that of as many equal decodes of mean and
of maximal length. Further columns are not read."""

LAYERS, HEADS = 3, Heads(32, 8, 128, 2.0)
"""Its times are of so many layers of Llama-3.1-8B in 16 bits, the form in which LLMServingSim has them."""


@dataclass(frozen=True, slots=True)
class KernelFile:
    """A kernel table that was read, and the file."""

    path: Path
    table: Table


@dataclass(frozen=True, slots=True)
class UnequalFile:
    """(launches with a chunk, decodes alone) of a table of unequal decodes; `unusable`: why rows were left out."""

    path: Path
    launches: tuple[Launches, Launches]
    unusable: tuple[str, ...]
    sha256: str

    @property
    def text(self) -> str:
        """What it is taken for, which the file does not say."""
        return (
            f"{self.path}: decodes of unequal length, times of {LAYERS} layers with {HEADS.num_heads} heads, "
            f"{HEADS.num_kv_heads} KV heads and head_dim {HEADS.head_dim}"
        )


@dataclass(frozen=True, slots=True)
class Tables:
    """What a profile is fitted from: kernel tables as one, and launches that none can hold; `files`: name and hash;
    `experts`: the file that has rows of routed experts."""

    table: Table
    unequal: UnequalFile | None
    files: tuple[tuple[str, str], ...]
    experts: Path | None = None

    @property
    def launches(self) -> tuple[Launches, ...]:
        """Launches of unlike sequences beside those of the kernel tables."""
        return () if self.unequal is None else self.unequal.launches


def read_tables(paths: Seq[Path]) -> Tables:
    """Read kernel tables and at most one table of unequal decodes, in any order.

    Raises CalibrationError for a file that is neither or is not usable, a shape of an op that two files hold, a second
    table of unequal decodes, and no kernel table at all.
    """
    kernels: list[KernelFile] = []
    unequal: UnequalFile | None = None
    experts: Path | None = None
    for path in paths:
        found, has_experts = _read(path)
        if has_experts:
            if experts is not None:
                raise CalibrationError(f"{path}: {experts} has rows of moe as well: expected experts in one file")
            experts = path
        if found is None:
            continue
        if isinstance(found, KernelFile):
            kernels.append(found)
        elif unequal is None:
            unequal = found
        else:
            raise CalibrationError(f"{path}: {unequal.path} is a table of unequal decodes as well: expected one")
    if not kernels:
        alone = "routed experts" if experts is not None else "unequal decodes"
        raise CalibrationError(f"{paths[0]}: a table of {alone} alone: expected a kernel table beside it")
    table = _joined(kernels)
    if unequal is not None:
        owner = next((file.path for file in kernels if any(op == "attention_skew" for op, _ in file.table.rows)), None)
        if owner is not None:
            raise CalibrationError(
                f"{unequal.path}: {owner} has attention_skew as well: expected unequal decodes in one file"
            )
        table = replace(table, unusable=(*table.unusable, *unequal.unusable))
    files = [(file.path.name, file.table.sha256) for file in kernels]
    if experts is not None and all(experts != file.path for file in kernels):
        files.append((experts.name, hashlib.sha256(frame_of(experts)[0]).hexdigest()))
    return Tables(table, unequal, (*files, *([(unequal.path.name, unequal.sha256)] if unequal else [])), experts)


def _read(path: Path) -> tuple[KernelFile | UnequalFile | None, bool]:
    """A file as what its columns say that it is, and whether it has rows of experts; None where it has no others."""
    content, frame = frame_of(path)
    if "t_skew_us" in frame.columns:
        return _unequal(path, content, frame), False
    if not {"op", "dtype", "latency_us"} & set(frame.columns):
        raise CalibrationError(
            f"{path}:1: expected the columns of a kernel table ({', '.join(COLUMNS)}) or of a table of unequal decodes "
            f"({', '.join(UNEQUAL)})"
        )
    of_experts = frame["op"] == "moe" if "op" in frame.columns else np.zeros(len(frame), dtype=bool)
    if not of_experts.any():
        return KernelFile(path, table_of(path, content, frame)), False
    rest = frame[~of_experts]
    return (KernelFile(path, table_of(path, content, rest)) if len(rest) else None), True


def _joined(files: Seq[KernelFile]) -> Table:
    """The tables as one, with the hash of the first."""
    owners: dict[tuple[str, str], Path] = {}
    found: dict[tuple[str, str], Rows] = {}
    for file in files:
        for key, rows in file.table.rows.items():
            if key in found:
                twice = equal_shape(found[key], rows)
                if twice is not None:
                    shape, other = twice.partition(":")[0], owners[key]
                    raise CalibrationError(f"{file.path}: {other} has {shape} as well: expected a shape in one file")
            found[key] = rows if key not in found else joined(found[key], rows)
            owners[key] = file.path
    tables = [file.table for file in files]
    return Table(
        rows=found,
        unusable=tuple(line for table in tables for line in table.unusable),
        sources=tuple(sorted({source for table in tables for source in table.sources})),
        sha256=tables[0].sha256,
        num_rows=sum(table.num_rows for table in tables),
    )


# --- decodes of unequal length ----------------------------------------------------------------------------------------
def _unequal(path: Path, content: bytes, frame: DataFrame) -> UnequalFile:
    import pandas as pd

    missing = [name for name in UNEQUAL if name not in frame.columns]
    if missing:
        raise CalibrationError(f"{path}:1: missing column {missing[0]}, which a table of unequal decodes needs")
    column = {name: pd.to_numeric(frame[name], errors="coerce").to_numpy(np.float64) for name in UNEQUAL}
    good = {name: _within(name, column) for name in UNEQUAL}
    usable = np.all(list(good.values()), axis=0)
    unusable = tuple(
        f"{path.name}:{row + 2}: {next(name for name in UNEQUAL if not good[name][row])} is missing or out of range"
        for row in np.flatnonzero(~usable).tolist()
    )
    if not usable.any():
        raise CalibrationError(f"{path}: no usable row" + (f"; {unusable[0]}" if unusable else ""))
    beside = column["pc"] > 0
    parts = (_launches({name: column[name][usable & kind] for name in UNEQUAL}) for kind in (beside, ~beside))
    return UnequalFile(path, (next(parts), next(parts)), unusable, hashlib.sha256(content).hexdigest())


def _within(name: str, column: dict[str, Floats]) -> Any:
    """Which values of a column can be true."""
    values = column[name]
    with np.errstate(invalid="ignore"):
        if name.endswith("_us"):
            return (values > 0) & (values <= LONGEST_US * LAYERS)
        least = column["kvs"] if name == "kv_big" else float(name not in ("pc", "kp"))
        most = column["n"] if name == "nb" else LARGEST_SIZE
        return (values >= least) & (values <= most) & (values == np.floor(values))


def _launches(column: dict[str, Floats]) -> Launches:
    return Launches(
        heads=HEADS,
        q=column["pc"],
        before=column["kp"],
        seqs=column["n"],
        context=column["nb"] * column["kv_big"] + (column["n"] - column["nb"]) * column["kvs"],
        longest=column["kv_big"],
        us=column["t_skew_us"] / LAYERS,
        # Lengths are multiples of 128, so that a decode has just begun a block.
        decode_edge=np.ones(len(column["n"])),
        unequal=True,
        mean_us=column["t_mean_us"] / LAYERS,
        longest_us=column["t_max_us"] / LAYERS,
    )
