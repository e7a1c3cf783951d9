"""Opening text files that users name: compression and encoding by content, every failure one line, memory bounded.

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
from typing import IO, Any, cast

from simkit.errors import InputError

MAX_LINE_BYTES = 64 * 2**20
MAX_LINE_MIB = MAX_LINE_BYTES // 2**20

BOMB_BYTES = 256 * 2**20
BOMB_RATIO = 200
"""A packed file is refused once it gave more than BOMB_BYTES, and more than BOMB_RATIO times what was read of it."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a zstd frame that holds no data; byte 0 is 0x50 to 0x5f."""

_BUFFER_BYTES = 2**17


class Refusal(Exception):
    """Content that is refused while it is read; the text says where in the file and why, without the file's name."""


def resolve(path: str, base_dir: Path | None) -> Path:
    """The path a scenario names: `~` expanded, relative ones from `base_dir` (None: the working directory)."""
    full = Path(path).expanduser()
    return full if full.is_absolute() or base_dir is None else base_dir / full


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what opening, unpacking, decoding and CSV parsing raise into an InputError that begins with `where`."""
    try:
        yield
    except Refusal as error:
        raise InputError(f"{where}: {error}") from error
    except OSError as error:
        raise InputError(f"{where}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise InputError(f"{where}: not a text file in UTF-8 or UTF-16") from error
    except csv.Error as error:
        raise InputError(f"{where}: not readable as CSV: {error}") from error
    except ValueError as error:
        # What `open` says of a path with a NUL in it.
        if "null byte" not in str(error):
            raise
        raise InputError(f"{where}: expected a path without NUL characters") from error


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """The file as text, newlines untouched; gzip, zstd and UTF-16 are recognised by content, never by suffix.

    Can be wound back to its beginning (`seek(0)`). `Refusal` when a line is longer than MAX_LINE_BYTES, and for packed
    files that are broken or unpack to far more than they are.
    """
    with path.open("rb") as raw, io.BufferedReader(_Unpacked(raw), _BUFFER_BYTES) as plain:
        encoding = "utf-16" if plain.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with io.TextIOWrapper(plain, encoding=encoding, newline="") as text:
            yield text


class _Unpacked(io.RawIOBase):
    """The bytes of a file, unpacked when it is packed, watched for lines without end and for bombs."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        magic = raw.read(4)
        self._packing = None
        if magic[:2] == GZIP_MAGIC:
            self._packing = "gzip"
        elif magic == ZSTD_MAGIC or (magic[1:] == SKIPPABLE_MAGIC and 0x50 <= magic[0] <= 0x5F):
            self._packing = "zstd"
        self._rewind()

    def _rewind(self) -> None:
        self._raw.seek(0)
        self._source: Any = self._raw
        if self._packing == "gzip":
            self._source = gzip.GzipFile(fileobj=self._raw)
        elif self._packing == "zstd":
            import pyarrow

            self._source = pyarrow.CompressedInputStream(pyarrow.PythonFile(_Borrowed(self._raw), mode="r"), "zstd")
        self._num_bytes = 0
        self._num_lines = 0
        self._line_bytes = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._num_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """To the beginning, or to where it is."""
        target = offset if whence == io.SEEK_SET else self._num_bytes + offset
        if whence == io.SEEK_END or target not in (0, self._num_bytes):
            raise io.UnsupportedOperation("only the beginning can be sought")
        if target != self._num_bytes:
            self._rewind()
        return target

    def readinto(self, buffer: Any) -> int:
        try:
            chunk = cast(bytes, self._source.read(len(buffer)))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Refusal("not a complete gzip file") from error
        except OSError as error:
            if self._packing != "zstd":
                raise
            raise Refusal("not a complete zstd file") from error
        buffer[: len(chunk)] = chunk
        self._watch(chunk)
        return len(chunk)

    def _watch(self, chunk: bytes) -> None:
        self._num_bytes += len(chunk)
        if self._packing and self._num_bytes > BOMB_BYTES and self._num_bytes > BOMB_RATIO * self._raw.tell():
            raise Refusal(
                f"unpacks to more than {BOMB_RATIO} times its size: not a log; unpack it yourself if you trust it"
            )
        last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        if last < 0:
            self._line_bytes += len(chunk)
        else:
            self._num_lines += chunk.count(b"\n") or chunk.count(b"\r")
            self._line_bytes = len(chunk) - last - 1
        if self._line_bytes > MAX_LINE_BYTES:
            raise Refusal(f"line {self._num_lines + 1}: longer than {MAX_LINE_MIB} MiB")


class _Borrowed:
    """A file that whoever reads it cannot close, and whose reads are short enough to see how far it is."""

    closed = False

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def read(self, size: int = -1) -> bytes:
        return self._raw.read(size)

    def close(self) -> None:
        pass
