"""Files and directories that appear whole or not at all: written beside their place, and renamed when complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def new_directory(place: Path) -> Iterator[Path]:
    """A temporary sibling that takes the place of a directory when the block ends well, and vanishes when it does not.

    OSError passes through.
    """
    partial = Path(tempfile.mkdtemp(prefix=_prefix(place, "partial"), dir=place.parent))
    try:
        partial.chmod(0o755)
        yield partial
        _put_in_place(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def new_file(place: Path) -> Iterator[Path]:
    """The same of a file; the one that is there stays until then."""
    try:
        handle, name = tempfile.mkstemp(prefix=_prefix(place, "partial"), dir=place.parent)
    except ValueError as error:  # a NUL byte in the name
        raise OSError(str(error)) from None
    os.close(handle)
    partial = Path(name)
    try:
        partial.chmod(0o644)
        yield partial
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


def _prefix(place: Path, kind: str) -> str:
    """A hidden name that says whose it is, and is not too long for a file system with what follows."""
    return f".{place.name[:50]}.{kind}-"


def _put_in_place(partial: Path, place: Path) -> None:
    """Rename `partial` to `place`; whatever somebody else put there meanwhile makes way."""
    for last in (False, False, False, True):
        if place.exists():
            old = Path(tempfile.mkdtemp(prefix=_prefix(place, "old"), dir=place.parent))
            with suppress(FileNotFoundError):
                place.replace(old / "old")
            shutil.rmtree(old)
        try:
            partial.replace(place)
            return
        except OSError:
            if last:
                raise
