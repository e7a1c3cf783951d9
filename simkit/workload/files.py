"""Opening text files that users name: compression and encoding by content, every failure one line.

Imports `errors` only.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from simkit.errors import InputError


def resolve(path: str, base_dir: Path | None) -> Path:
    """The path a scenario names: `~` expanded, relative ones from `base_dir` (None: the working directory)."""
    full = Path(path).expanduser()
    return full if full.is_absolute() or base_dir is None else base_dir / full


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what opening, unpacking, decoding and CSV parsing raise into an InputError that begins with `where`."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{where}: not a complete gzip file") from error
    except OSError as error:
        raise InputError(f"{where}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise InputError(f"{where}: not a text file in UTF-8 or UTF-16") from error
    except csv.Error as error:
        raise InputError(f"{where}: not readable as CSV: {error}") from error


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """The file as text, newlines untouched; gzip and UTF-16 are recognised by content, never by suffix."""
    with path.open("rb") as raw:
        magic = raw.read(2)
        raw.seek(0)
        plain = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if magic == b"\x1f\x8b" else raw
        head = plain.read(2)
        plain.seek(0)
        encoding = "utf-16" if head in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with io.TextIOWrapper(plain, encoding=encoding, newline="") as text:
            yield text
