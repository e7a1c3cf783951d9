"""What the evidence page reads beside the product: sets of rows of public benchmarks, and modules of the tests."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from simkit.validation.rows.read import Row, Table, read_rows, select

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
ROOT = TESTS.parent
SETS = HERE / "sets.yaml"

Spec = Mapping[str, Any]
"""A set of rows, or the run, as sets.yaml has it."""


@functools.cache
def chosen() -> Spec:
    """What sets.yaml says."""
    found: Spec = yaml.safe_load(SETS.read_text(encoding="utf-8"))
    return found


def run() -> Spec:
    """The run with a record for each request."""
    found: Spec = chosen()["run"]
    return found


def table() -> str:
    """The table of all public rows, below `shared`."""
    return str(chosen()["tables"]["shared"])


def specs() -> list[Spec]:
    """All sets, in the order of the file."""
    return list(chosen()["sets"])


def is_judged(spec: Spec) -> bool:
    """Whether a set has a bar."""
    return "bar_pct" in spec


def is_here(shared: Path, spec: Spec) -> bool:
    """Whether the table of a set is there."""
    return not _is_shared(spec) or (shared / table_of(spec)).exists()


def rows_of(shared: Path, spec: Spec) -> list[Row]:
    """The rows of a set, in the order of the table. Raises InputError when there is none."""
    return select(_table((shared if _is_shared(spec) else ROOT) / table_of(spec)), spec["select"])


def table_of(spec: Spec) -> str:
    """The table of a set, below `shared` or the repository."""
    return table() if _is_shared(spec) else str(chosen()["tables"]["kept"])


def source_of(rows: Sequence[Row], spec: Spec) -> str:
    """Whose the rows are: as they say themselves, else the name of their table."""
    told = sorted({row.text("source") for row in rows} - {""})
    return told[0] if len(told) == 1 else Path(table_of(spec)).name


def _is_shared(spec: Spec) -> bool:
    return bool(spec.get("table") == "shared")


@functools.cache
def _table(path: Path) -> Table:
    return read_rows(path)


def module_of(path: str) -> ModuleType:
    """The module in a file below ``tests`` that computes figures: what is judged there is what the page prints.

    It is loaded once: it is the one that a test has loaded already, where it has.
    """
    file, name = str(TESTS / path), "simkit_tests_" + path.removesuffix(".py").replace("/", "_")
    for module in [sys.modules.get(name), *sys.modules.values()]:
        if getattr(module, "__file__", None) == file:
            assert module is not None
            return module
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is made
    spec.loader.exec_module(module)
    return module
