"""Runs commands as a user does, in this process, and turns what they print and write into fingerprints.

A fingerprint is one line, ``group/command what value``: the exit code as it is, of everything else the first digits of
a SHA-256. Nothing here knows a module of simkit but the entry point of its command line.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import io
import json
import os
import platform
import shutil
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import typer.main
from commands import GROUPS, Command
from corpus import FILES

from simkit.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("fingerprints.txt")
REWRITE = "python tests/bytes/rewrite.py"
ENVIRONMENT = {
    "COLUMNS": "100",
    "FORCE_COLOR": "",
    "NO_COLOR": "",
    "TTY_COMPATIBLE": "0",
    "TTY_INTERACTIVE": "0",
    "HF_HUB_OFFLINE": "1",
}
"""A terminal that is none, of a certain width."""
DIGITS = 16

NUMBERS = ("python", "machine", "arithmetic", "numpy", "scipy", "pandas")
LIBRARIES = {
    "exit": (),
    "stdout": (*NUMBERS, "rich", "typer", "pydantic"),
    "stderr": (*NUMBERS, "pyarrow", "pydantic", "pyyaml", "typer"),
    "data": (*NUMBERS, "pydantic", "pyyaml"),
    "figure": (*NUMBERS, "matplotlib", "pillow"),
    "page": (*NUMBERS, "jinja2", "matplotlib", "pydantic"),
}
"""By kind of output, whose versions its bytes depend on: with another version of one, the kind is not compared."""

_KINDS = {".html": "page", ".svg": "figure", ".png": "figure", ".pdf": "figure"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did: its exit code and what it printed and wrote, by name."""

    exit_code: int
    contents: Mapping[str, bytes]


def versions() -> dict[str, str]:
    """The versions of everything that any kind depends on."""
    names = sorted(
        {name for libraries in LIBRARIES.values() for name in libraries} - {"python", "machine", "arithmetic"}
    )
    own = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": f"{sys.platform}-{platform.machine()}",
        "arithmetic": arithmetic(),
    }
    return own | {name: version(name) for name in names}


def arithmetic() -> str:
    """What this processor makes of some numbers: numpy takes other instructions on another, and rounds otherwise."""
    numbers = np.linspace(1e-3, 50, 100_003)
    made = [np.exp(-numbers), np.log(numbers), np.log1p(numbers), np.expm1(-numbers), numbers**0.37, np.tanh(numbers)]
    parts = [
        each.tobytes() for each in (*made, numbers.sum(), np.cumsum(made[0]), np.dot(made[1], made[4]), made[4].var())
    ]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:DIGITS]


def kind_of(what: str) -> str:
    """The key of LIBRARIES for ``stdout`` or the name of a file."""
    return what if what in LIBRARIES else _KINDS.get(Path(what).suffix, "data")


def fingerprints_of(group: str, keep: Path) -> dict[str, str]:
    """Run a group in the new folder `keep`/work; what each command printed and wrote is kept in `keep`/its name."""
    found = {}
    for command, outcome in _outcomes(GROUPS[group], keep / "work"):
        name = f"{group}/{command.name}"
        found[f"{name} exit"] = str(outcome.exit_code)
        for what, content in sorted(outcome.contents.items()):
            _check_place(f"{name} {what}", content, keep)
            found[f"{name} {what}"] = hashlib.sha256(content).hexdigest()[:DIGITS]
            target = keep / command.name / what
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    shutil.rmtree(keep / "work")
    return found


def read_golden() -> tuple[dict[str, str], dict[str, str]]:
    """(versions that the fingerprints were made with, fingerprints)."""
    made_with, found = {}, {}
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        if line.startswith("# with "):
            made_with = dict(part.rsplit(" ", 1) for part in line.removeprefix("# with ").split(", "))
        elif line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = value
    return made_with, found


def write_golden(found: Mapping[str, str]) -> None:
    """Replace the file: the versions on top, then the fingerprints, group by group."""
    lines = [f"# Fingerprints of all that a user sees; `{REWRITE}` writes this file."]
    lines.append("# with " + ", ".join(f"{name} {number}" for name, number in versions().items()))
    for group in GROUPS:
        lines.append("")
        lines += [f"{name} {found[name]}" for name in sorted(found) if name.startswith(f"{group}/")]
    GOLDEN.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _outcomes(commands: tuple[Command, ...], work: Path) -> Iterator[tuple[Command, Outcome]]:
    work.mkdir(parents=True)
    for folder in ("scenarios", "tests/data", "tests/golden"):
        shutil.copytree(ROOT / folder, work / folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name, content in FILES.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    seen = _files(work)
    for command in commands:
        with contextlib.chdir(work):
            code, contents = _run(command.arguments)
        now = _files(work)
        for file in sorted(now):
            if seen.get(file) != now[file]:
                what, content = _shown(work, file)
                contents[what.removeprefix(f"out/{command.name}/")] = content
        seen = now
        yield command, Outcome(code, {what: content for what, content in contents.items() if content})


def _run(arguments: tuple[str, ...]) -> tuple[int, dict[str, bytes]]:
    out, err = io.BytesIO(), io.BytesIO()
    thresholds = gc.get_threshold()
    with (
        mock.patch.dict(os.environ, ENVIRONMENT),
        _modules({"__main__": types.ModuleType("__main__"), "torch": None}),
        mock.patch.object(sys, "argv", ["simkit", *arguments]),
        mock.patch.object(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8")) as stdout,
        mock.patch.object(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace")) as stderr,
        mock.patch.object(typer.main, "get_command", _built),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("default")
        for ignored in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", ignored)
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        finally:
            gc.set_threshold(*thresholds)
        stderr.writelines(f"{warning.category.__name__}: {warning.message}\n" for warning in warned)
        stdout.flush()
        stderr.flush()
        return code, {"stdout": out.getvalue(), "stderr": err.getvalue()}


@contextlib.contextmanager
def _modules(instead: dict[str, types.ModuleType | None]) -> Iterator[None]:
    """Hide who started this process, which help and usage errors would name, and torch, which few have installed."""
    modules: dict[str, types.ModuleType | None] = sys.modules  # type: ignore[assignment]
    before = {name: modules[name] for name in instead if name in modules}
    modules.update(instead)
    try:
        yield
    finally:
        for name in instead:
            del modules[name]
        modules.update(before)


_built = functools.cache(typer.main.get_command)
"""Building all commands anew takes longer than most of them."""


def _files(work: Path) -> dict[str, tuple[int, int]]:
    stats = ((path, path.stat()) for path in work.rglob("*") if path.is_file())
    return {path.relative_to(work).as_posix(): (stat.st_mtime_ns, stat.st_size) for path, stat in stats}


def _shown(work: Path, file: str) -> tuple[str, bytes]:
    """A file's name and bytes; of a table what it holds, as text, for how it is packed is up to pyarrow."""
    if not file.endswith(".parquet"):
        return file, (work / file).read_bytes()
    table = pq.read_table(work / file)
    own = {key: value for key, value in (table.schema.metadata or {}).items() if key != b"pandas"}
    lines = [f"{key.decode()} = {own[key].decode()}" for key in sorted(own)]
    for field, column in zip(table.schema, table.columns, strict=True):
        lines.append(f"{field.name} ({field.type}): {json.dumps(column.to_pylist(), default=str)}")
    return f"{file}.txt", ("\n".join(lines) + "\n").encode()


def _check_place(name: str, content: bytes, keep: Path) -> None:
    for place in (keep, ROOT):
        assert os.fsencode(place) not in content, f"{name} holds the path {place}, which is another one elsewhere"
