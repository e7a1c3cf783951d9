"""The tables that several sections read: rows of public benchmarks and the sets of them. Reads files, runs nothing."""

from __future__ import annotations

import csv
import functools
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETS = HERE / "sets.yaml"

Row = Mapping[str, str]


@functools.cache
def chosen() -> dict[str, Any]:
    """What sets.yaml says."""
    found: dict[str, Any] = yaml.safe_load(SETS.read_text(encoding="utf-8"))
    return found


@functools.cache
def read_rows(shared: Path) -> tuple[Row, ...]:
    """All rows of the table of benchmarks, in its order."""
    with gzip.open(shared / chosen()["table"], "rt", encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def rows_of(rows: tuple[Row, ...], select: Mapping[str, Any]) -> list[Row]:
    """The rows that meet every condition of a `select` (see sets.yaml)."""
    return [row for row in rows if all(_meets(row[column].strip(), wanted) for column, wanted in select.items())]


def _meets(value: str, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return value in wanted
    if not isinstance(wanted, dict):
        return bool(value == str(wanted))
    tests = {
        "prefix": value.startswith,
        "contains": lambda part: part.lower() in value.lower(),
        "from": lambda low: value >= low,
        "to": lambda high: value <= high,
    }
    return all(tests[kind](part) for kind, part in wanted.items())


def mean_output(row: Row) -> float:
    """Mean output tokens of the requests of a row: as stated, else from the total that was generated."""
    if "generated " in row["other_config"]:
        generated = int(row["other_config"].split("generated ")[1].split(";")[0])
        return generated / int(row["num_prompts"])
    return float(row["output_len"] or row["input_len"])
