"""The table of public benchmarks and the sets of its rows that the page judges or shows. Runs nothing."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from simkit.validation.rows.read import Row, Table, read_rows, select

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETS = HERE / "sets.yaml"

Spec = Mapping[str, Any]
"""A set of rows as sets.yaml has it."""


@functools.cache
def chosen() -> Mapping[str, Any]:
    """What sets.yaml says."""
    found: dict[str, Any] = yaml.safe_load(SETS.read_text(encoding="utf-8"))
    return found


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
    return str(chosen()["tables"]["shared" if _is_shared(spec) else "kept"])


def source_of(rows: Sequence[Row], spec: Spec) -> str:
    """Whose the rows are: as they say themselves, else the name of their table."""
    told = sorted({row.text("source") for row in rows} - {""})
    return told[0] if len(told) == 1 else Path(table_of(spec)).name


def _is_shared(spec: Spec) -> bool:
    return bool(spec.get("table") == "shared")


@functools.cache
def _table(path: Path) -> Table:
    return read_rows(path)
