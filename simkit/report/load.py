"""Run directories, read into plain values. Owns which files and columns a report needs; never imports the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simkit.errors import InputError

Column = npt.NDArray[Any]
Table = Mapping[str, Column]

REQUEST_COLUMNS = (
    "id",
    "replication",
    "arrival_ns",
    "first_scheduled_ns",
    "first_token_ns",
    "last_token_ns",
    "prompt_tokens",
    "output_tokens",
    "num_preemptions",
    "status",
    "measured",
)
STEP_COLUMNS = (
    "replication",
    "replica",
    "t_start_ns",
    "t_end_ns",
    "num_steps",
    "num_decode",
    "prefill_tokens",
    "running",
    "waiting",
    "dead_slots",
    "kv_used_tokens",
    "kv_reserved_tokens",
    "kv_internal_tokens",
    "kv_external_tokens",
    "kv_free_tokens",
)
SLOT_COLUMNS = ("replica", "id", "admitted_ns", "prefill_end_ns", "generated_last_ns", "released_ns", "end")


@dataclass(frozen=True, slots=True)
class Run:
    """One arm: its name in the comparison and what its run directory holds.

    Tables map a column to an array of equal length; integers with nulls are float64 with NaN (exact below 2**53 ns,
    104 days). `steps` and `requests` hold every replication, `slots` only the first.
    """

    name: str
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    requests: Table
    steps: Table
    slots: Table

    @property
    def scenario(self) -> Mapping[str, Any]:
        """The resolved scenario, every default written out."""
        found: Mapping[str, Any] = self.manifest.get("scenario") or {}
        return found

    @property
    def engine(self) -> Mapping[str, Any]:
        """The scenario's engine settings."""
        found: Mapping[str, Any] = self.scenario.get("engine") or {}
        return found

    @property
    def streams(self) -> bool:
        """Whether tokens are delivered as they come; static and dynamic batching deliver at batch end by default."""
        stream = self.engine.get("stream")
        if stream is None:
            return self.engine.get("batching") not in ("static", "dynamic")
        return bool(stream)

    def value(self, *path: str) -> Any:
        """A value of the summary by path; None where any part of the path is missing, null, or not a number's home."""
        found: Any = self.summary
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, float) and not np.isfinite(found):
            return None
        return found


def load_run(name: str, run_dir: Path) -> Run:
    """Read a finished run directory. Raises InputError naming a file that is missing, broken or lacks a column."""
    return Run(
        name=name,
        manifest=read_json(run_dir / "manifest.json"),
        summary=read_json(run_dir / "summary.json"),
        requests=_read_table(run_dir / "requests.parquet", REQUEST_COLUMNS),
        steps=_read_table(run_dir / "steps.parquet", STEP_COLUMNS),
        slots=_read_table(run_dir / "slots.parquet", SLOT_COLUMNS),
    )


def select(table: Table, mask: Column) -> Table:
    """The rows of `table` where `mask` is true."""
    return {key: column[mask] for key, column in table.items()}


def num_rows(table: Table) -> int:
    """Rows of a table."""
    return len(next(iter(table.values())))


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON file of a run directory. Raises InputError when it is missing, broken or no object."""
    try:
        found = json.loads(path.read_bytes().decode("utf-8", "surrogatepass"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); is this a finished run directory?") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a JSON object")
    return found


def _read_table(path: Path, columns: tuple[str, ...]) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        available = pq.read_schema(path).names
        missing = [column for column in columns if column not in available]
        if missing:
            raise InputError(f"{path}: column {missing[0]!r} is missing")
        table = pq.read_table(path, columns=list(columns))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); is this a finished run directory?"
        ) from None
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: not a parquet file ({str(error).splitlines()[0]})") from None
    return {column: np.asarray(table.column(column).to_numpy()) for column in columns}
