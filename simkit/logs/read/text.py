"""Opening text files that users name: compression and encoding by content, every failure one line, memory bounded."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import stat
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
LINE_BYTES = 64
"""A line counts for at least so many of them: blank ones cost time too."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a zstd frame that holds no data; byte 0 is 0x50 to 0x5f."""

_BUFFER_BYTES = 2**17

_PACKED = {
    GZIP_MAGIC: "a gzip file",
    ZSTD_MAGIC: "a zstd file",
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"BZh91AY&SY": "a bzip2 file",
    b"\xfd7zXZ\x00": "an xz file",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x04\x22\x4d\x18": "an lz4 file",
}
"""What is not unpacked here, by its first bytes; gzip and zstd only inside another packing."""
_TABLES = {
    b"PAR1": "a parquet file",
    b"ARROW1\x00": "an Arrow file",
    b"Obj\x01": "an Avro file",
    b"SQLite format 3\x00": "a SQLite database",
}
_TAR_AT, _TAR_MAGIC = 257, b"ustar"

_KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


class Refusal(Exception):
    """Content that is refused while it is read; the text says where in the file and why, without the file's name."""


def resolve(path: str, base_dir: Path | None) -> Path:
    """The path a scenario names: `~` expanded, relative ones from `base_dir` (None: the working directory)."""
    full = Path(path).expanduser()
    return full if full.is_absolute() or base_dir is None else base_dir / full


def sha256_of(path: Path) -> str | None:
    """What identifies the content of a file; None for one that cannot be read, as whoever reads it will say."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


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


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether these are the first bytes of a file. OSError, and Refusal of a path that no file can have."""
    _check_path(path)
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _check_path(path: Path) -> None:
    if "\0" in str(path):
        raise Refusal("expected a path without NUL characters")


def check_regular(path: Path) -> None:
    """Refusal of what is no file: a pipe can be read only once, and opening one without a writer never ends."""
    _check_path(path)
    if str(path) == "-" and not path.exists():
        raise Refusal("standard input is not read: write it to a file first")
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        what = next((what for is_kind, what in _KINDS if is_kind(mode)), "a device")
        advice = "" if stat.S_ISDIR(mode) else "; write what it gives to a file first"
        raise Refusal(f"this is {what}, expected a file{advice}")


def _check_text(begin: bytes, packing: str | None) -> None:
    """Refusal of what is known by its first bytes to be no text."""
    inside = f" inside a {packing} file" if packing else ""
    packed = "a tar archive" if begin[_TAR_AT:].startswith(_TAR_MAGIC) else _kind(begin, _PACKED)
    if packed is not None:
        raise Refusal(f"this is {packed}{inside}: unpack it first")
    if (table := _kind(begin, _TABLES)) is not None:
        advice = "unpack it first" if packing and begin.startswith(b"PAR1") else "write it as CSV or JSON lines first"
        raise Refusal(f"this is {table}{inside}: {advice}")


def _kind(begin: bytes, kinds: dict[bytes, str]) -> str | None:
    return next((what for magic, what in kinds.items() if begin.startswith(magic)), None)


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """The file as text, newlines untouched; gzip, zstd and UTF-16 are recognised by content, never by suffix.

    Can be wound back to its beginning (`seek(0)`). `Refusal` for what is no file or no text, when a line is longer than
    MAX_LINE_BYTES, and for packed files that are broken or unpack to far more than they are.
    """
    check_regular(path)
    with path.open("rb") as raw, io.BufferedReader(unpacked := _Unpacked(raw), _BUFFER_BYTES) as plain:
        _check_text(plain.peek(_TAR_AT + len(_TAR_MAGIC)), unpacked.packing)
        encoding = "utf-16" if plain.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with io.TextIOWrapper(plain, encoding=encoding, newline="") as text:
            yield text


class _Unpacked(io.RawIOBase):
    """The bytes of a file, unpacked when it is packed, watched for lines without end and for bombs."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        magic = raw.read(4)
        self.packing = None
        if magic[:2] == GZIP_MAGIC:
            self.packing = "gzip"
        elif magic == ZSTD_MAGIC or (magic[1:] == SKIPPABLE_MAGIC and 0x50 <= magic[0] <= 0x5F):
            self.packing = "zstd"
        self._rewind()

    def _rewind(self) -> None:
        self._raw.seek(0)
        self._source: Any = self._raw
        if self.packing == "gzip":
            self._source = gzip.GzipFile(fileobj=self._raw)
        elif self.packing == "zstd":
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
            if self.packing != "zstd":
                raise
            raise Refusal("not a complete zstd file") from error
        buffer[: len(chunk)] = chunk
        self._watch(chunk)
        return len(chunk)

    def _watch(self, chunk: bytes) -> None:
        self._num_bytes += len(chunk)
        given = max(self._num_bytes, LINE_BYTES * self._num_lines)
        if self.packing and given > BOMB_BYTES and given > BOMB_RATIO * self._raw.tell():
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
