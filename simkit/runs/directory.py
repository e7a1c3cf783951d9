"""The directory of a run: which one a command may write, what goes into it, and how it takes the place of an older one.

A command chooses its directory before it starts to work.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from simkit.errors import InputError, unwritable
from simkit.files import new_directory
from simkit.plain import canonical_json
from simkit.runs.manifest import is_run_dir

if TYPE_CHECKING:
    import pyarrow as pa

    from simkit.runs.replication import Result


def choose(out: Path | None, default_name: str) -> tuple[Path, bool]:
    """(directory to write, whether it replaces an older run of simkit).

    `out` is what the user gave, else ``./runs/DEFAULT_NAME``. Raises InputError for a directory that holds anything
    simkit did not write, for a file in the way and for a place that cannot be written.
    """
    label = f"--out {out}" if out is not None else f"runs/{default_name}"
    path = out if out is not None else Path("runs") / default_name
    try:
        if path.is_symlink() and path.exists():
            path = path.resolve()
        if Path.cwd().is_relative_to(path.resolve()):
            raise InputError(f"{label}: expected a directory of its own, got the current one or one above it")
        exists = os.path.lexists(path)
        if exists and not path.is_dir():
            raise InputError(f"{label}: expected a directory, got a file; choose another --out")
        if exists and any(path.iterdir()) and not is_run_dir(path):
            raise InputError(f"{label}: expected an empty directory or an earlier run of simkit, got other files")
        _check_writable(path, label)
    except (OSError, ValueError) as error:  # a NUL byte in the name is a ValueError
        raise unwritable(label, error) from None
    return path, exists


def kept_dir(out_dir: Path) -> Path:
    """Where the finished simulations of an unfinished study are kept: a hidden sibling of its output directory."""
    return out_dir.parent / f".{out_dir.name}.kept"


def name_of(path: Path) -> str | None:
    """The name of the run that `path` holds, None when there is none."""
    if not is_run_dir(path):
        return None
    return str(json.loads((path / "manifest.json").read_bytes()).get("name", ""))


def _check_writable(path: Path, label: str) -> None:
    # The run is written to a sibling and renamed, so it is the parent that must be writable.
    parent = path.absolute().parent
    while not os.path.lexists(parent) and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{label}: cannot be written: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{label}: cannot be written: no permission to write in {parent}")


# --- what is written --------------------------------------------------------------------------------------------------
MAX_FOLDER_BYTES = 200
"""Of a folder named after an arm or a point; file systems refuse names longer than 255."""

ROWS_A_GROUP = 1 << 20
"""Of a parquet file; what pyarrow takes by itself."""


def write_runs(results: Mapping[str, Result], directory: Path) -> dict[str, Path]:
    """A run directory for each; their folders by name."""
    folders = {}
    for name, result in results.items():
        folders[name] = directory / file_safe(name)
        folders[name].mkdir(parents=True)
        write_run(result, folders[name])
    return folders


def file_safe(name: str) -> str:
    """The name of an arm or a point as a folder name; different names stay different."""
    safe = "".join(c if c.isalnum() or c in "+-._@=," else f"%{ord(c):02x}" for c in name)
    if safe.startswith("."):
        safe = f"%2e{safe[1:]}"
    if len(safe.encode()) <= MAX_FOLDER_BYTES:
        return safe
    return safe.encode()[: MAX_FOLDER_BYTES // 2].decode(errors="ignore") + "~" + _digest(name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def write_run(result: Result, directory: Path) -> None:
    (directory / "manifest.json").write_bytes(canonical_json(result.manifest))
    (directory / "summary.json").write_bytes(canonical_json(result.summary))
    if result.measured is not None:
        (directory / "measured.json").write_bytes(canonical_json(result.measured))
    for name, table in result.tables.items():
        write_table(table, directory / f"{name}.parquet")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table a row group at a time; the bytes do not depend on how its rows are chunked in memory."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, table.schema) as writer:
        for first in range(0, table.num_rows, ROWS_A_GROUP) or (0,):
            rows = table.slice(first, ROWS_A_GROUP)
            writer.write_table(rows.combine_chunks(), row_group_size=ROWS_A_GROUP)


@contextmanager
def replacing(out_dir: Path, overwrite: bool) -> Iterator[Path]:
    """A new directory in place of `out_dir`, which may hold nothing, or with `overwrite` an earlier run."""
    if out_dir.exists():
        occupied = any(out_dir.iterdir()) if out_dir.is_dir() else True
        if occupied and not (overwrite and is_run_dir(out_dir)):
            raise InputError(f"{out_dir}: already there; expected a new directory or overwrite=True for an earlier run")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with new_directory(out_dir) as directory:
        yield directory
