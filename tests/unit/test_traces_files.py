"""Files that are no logs: what they are is said, and neither a pipe nor a bomb keeps a reader busy."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from simkit import scenario
from simkit.errors import InputError
from simkit.logs.play.load import load_log
from simkit.logs.read import text as files

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
CSV = HEADER + b"2023-11-16 18:15:46.25,374,44\n"


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_log(scenario.Trace(path=str(path)))
    message = str(caught.value)
    assert message.startswith(f"trace {path}: ")
    assert "\n" not in message
    return message.removeprefix(f"trace {path}: ")


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("log.csv", CSV)
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("log.csv")
        entry.size = len(CSV)
        archive.addfile(entry, io.BytesIO(CSV))
    return buffer.getvalue()


def parquet() -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"a": [1]}), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(gzip.compress(CSV)), "a gzip file inside a gzip file: unpack it first"),
        (gzip.compress(parquet()), "a parquet file inside a gzip file: unpack it first"),
        (gzip.compress(tarred()), "a tar archive inside a gzip file: unpack it first"),
        (tarred(), "a tar archive: unpack it first"),
        (zipped(), "a zip archive (or a spreadsheet): unpack it first"),
        (bz2.compress(CSV), "a bzip2 file: unpack it first"),
        (lzma.compress(CSV), "an xz file: unpack it first"),
        (b"SQLite format 3\x00" + bytes(100), "a SQLite database: write it as CSV or JSON lines first"),
    ],
)
def test_what_is_packed_otherwise_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "log").write_bytes(content)
    assert refusal(tmp_path / "log") == f"this is {said}"


def test_only_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer for ever
    to_file = "expected a file; write what it gives to a file first"
    assert refusal(tmp_path / "pipe") == f"this is a pipe, {to_file}"
    assert refusal(Path("/dev/null")) == f"this is a device, {to_file}"
    assert refusal(tmp_path) == "this is a directory, expected a file"


def test_standard_input_is_not_read_but_a_file_of_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(Path("-")) == "standard input is not read: write it to a file first"
    Path("-").write_bytes(CSV)
    assert len(load_log(scenario.Trace(path="-"))) == 1


def test_blank_lines_count_as_what_a_bomb_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BOMB_BYTES", 2**23)
    (tmp_path / "blank").write_bytes(gzip.compress(CSV + b"\n" * 2**20))
    assert refusal(tmp_path / "blank").startswith("unpacks to more than 200 times its size")
    (tmp_path / "fair").write_bytes(gzip.compress(CSV + b"\n" * 2**16))
    log = load_log(scenario.Trace(path=str(tmp_path / "fair")))
    assert len(log) == 1


def test_blank_lines_are_counted_as_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(CSV + b"\n" * 2**19 + b"\r\n" * 2**19 + CSV.splitlines()[1] + b"\n")
    assert load_log(scenario.Trace(path=str(tmp_path / "log"))).columns.line.tolist() == [2, 3 + 2**20]


def test_json_without_a_request_says_why(tmp_path: Path) -> None:
    for content, said in (
        ('{"timestamp": 0, "a": ' + "[" * 100_000, "nested too deeply"),
        ("[]", "no requests"),
        ("{}\n{}\n", "format not recognised: its objects have no fields; expected one object a request"),
    ):
        (tmp_path / "log").write_text(content, encoding="utf-8")
        assert said in refusal(tmp_path / "log")
