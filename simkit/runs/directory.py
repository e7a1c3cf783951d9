"""Which directory a command may write, decided before it starts to work."""

from __future__ import annotations

import json
import os
from pathlib import Path

from simkit.errors import InputError
from simkit.runs.manifest import is_run_dir


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
    except OSError as error:
        raise unwritable(label, error) from None
    except ValueError as error:  # a NUL byte in the name
        raise InputError(f"{label}: cannot be written: {error}") from None
    return path, exists


def kept_dir(out_dir: Path) -> Path:
    """Where the finished simulations of an unfinished study are kept: a hidden sibling of its output directory."""
    return out_dir.parent / f".{out_dir.name}.kept"


def name_of(path: Path) -> str | None:
    """The name of the run that `path` holds, None when there is none."""
    if not is_run_dir(path):
        return None
    return str(json.loads((path / "manifest.json").read_bytes()).get("name", ""))


def unwritable(label: str, error: OSError) -> InputError:
    """The line for an output that could not be written."""
    return InputError(f"{label}: cannot be written: {error.strerror or error}")


def _check_writable(path: Path, label: str) -> None:
    # The run is written to a sibling and renamed, so it is the parent that must be writable.
    parent = path.absolute().parent
    while not os.path.lexists(parent) and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{label}: cannot be written: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{label}: cannot be written: no permission to write in {parent}")
