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
from simkit.metrics.catalogue import REQUIRED, shown, value
from simkit.plain import Json

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
    manifest: Json
    summary: Json
    requests: Table
    steps: Table
    slots: Table
    measured: Json | None = None
    """What a log measured beside this run, where it did."""

    @property
    def scenario(self) -> Json:
        """The resolved scenario, every default written out."""
        found: Json = self.manifest.get("scenario") or {}
        return found

    @property
    def engine(self) -> Json:
        """The scenario's engine settings."""
        found: Json = self.scenario.get("engine") or {}
        return found

    @property
    def streams(self) -> bool:
        """Whether tokens are delivered as they come; static and dynamic batching deliver at batch end by default."""
        stream = self.engine.get("stream")
        if stream is None:
            return self.engine.get("batching") not in ("static", "dynamic")
        return bool(stream)

    def value(self, key: str) -> Any:
        """A value of the summary by its dotted path; None where any part of it is missing or null, or not finite."""
        found = value(self.summary, key)
        if isinstance(found, float) and not np.isfinite(found):
            return None
        return found


def load_run(name: str, run_dir: Path) -> Run:
    """Read a finished run directory.

    Raises InputError naming a file that is missing or broken, that lacks a column or a key, or that holds another
    number of requests or replications than the summary and the manifest say.
    """
    manifest, summary = read_json(run_dir / "manifest.json"), read_json(run_dir / "summary.json")
    for metric in shown(REQUIRED):
        _check_key(summary, metric.key, run_dir / "summary.json")
    requests = _read_table(run_dir / "requests.parquet", REQUEST_COLUMNS)
    _check_requests(requests, manifest, summary, run_dir / "requests.parquet")
    return Run(
        name=name,
        manifest=manifest,
        summary=summary,
        requests=requests,
        steps=_read_table(run_dir / "steps.parquet", STEP_COLUMNS),
        slots=_read_table(run_dir / "slots.parquet", SLOT_COLUMNS),
        measured=read_json(run_dir / "measured.json") if (run_dir / "measured.json").exists() else None,
    )


def select(table: Table, mask: Column) -> Table:
    """The rows of `table` where `mask` is true."""
    return {key: column[mask] for key, column in table.items()}


def num_rows(table: Table) -> int:
    """Rows of a table."""
    return len(next(iter(table.values())))


def read_json(path: Path) -> Json:
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


def _check_key(data: Json, key: str, path: Path) -> None:
    """InputError where the key is missing; its value, or all of its group, may be null."""
    here: Any = data
    for part in key.split("."):
        if here is None:
            return
        if not isinstance(here, Mapping) or part not in here:
            raise InputError(f"{path}: key {key!r} is missing; is this a finished run directory?")
        here = here[part]


def _check_requests(requests: Table, manifest: Json, summary: Json, path: Path) -> None:
    """Every request that arrived has one row; `arrived` of the summary is the mean over replications."""
    arrived, replications = summary["num_requests"]["arrived"], manifest.get("replications", 1)
    for number, key in ((arrived, "summary.json: num_requests.arrived"), (replications, "manifest.json: replications")):
        if isinstance(number, bool) or not isinstance(number, int | float) or not np.isfinite(number):
            raise InputError(f"{path.parent / key}: expected a number, got {number!r}")
    rows, expected = num_rows(requests), round(arrived * replications)
    if rows != expected:
        raise InputError(f"{path}: expected {expected:,} requests (num_requests of summary.json), got {rows:,}")
    strange = np.setdiff1d(requests["replication"], np.arange(int(replications)))
    if len(strange):
        raise InputError(f"{path}: expected replications 0 to {int(replications) - 1}, got {strange[0]}")


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
