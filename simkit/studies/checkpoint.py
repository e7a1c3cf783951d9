"""Finished work of a study on disk, so that a study that was interrupted can go on.

Owns the folder of what is kept: one subfolder a piece of work, named by a key that stands for everything its result
depends on, with files and the digests of all of them. A piece appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from simkit.engine.build import Setup
from simkit.files import new_directory
from simkit.logs.read.text import resolve, sha256_of
from simkit.metrics.measured import ComparedLatencies, ComparedLatency
from simkit.metrics.summary import Summary
from simkit.metrics.window import Warmup
from simkit.plain import Json, canonical_json, typed
from simkit.runs.manifest import run_id
from simkit.runs.replication import ReplicationResult

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("requests", "steps", "slots")
DIGESTS = "digests.json"
_NAME = re.compile(r"[0-9a-f]{64}(-\d+)?")
_HALF_WRITTEN = re.compile(r"\.[0-9a-f]+\.\w+-.*")

Files = Mapping[str, bytes]
Kept = TypeVar("Kept")

OnNote = Callable[[str], None]
"""Called with each remark for the user."""


def ignore(note: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Key:
    """The folder of a result, and a hash of those of its `inputs` that the folder's name only names."""

    folder: str
    inputs: str = ""


@dataclass(frozen=True, slots=True)
class Form(Generic[Kept]):
    """How a result becomes files and these a result again, and what one and all of them are called in a remark.

    Both get the inputs of the key; `read` gives None for a result of others, and raises what it will for files that
    `write` did not make.
    """

    one: str
    all: str
    write: Callable[[Kept, str], Files]
    read: Callable[[Files, str], Kept | None]


class Checkpoint(Generic[Kept]):
    """The results of one study that are kept in a folder. Does nothing without one.

    `on_note` is told what cannot be used or kept, which costs the chance to go on and nothing else.
    """

    def __init__(self, folder: Path | None, form: Form[Kept], on_note: OnNote) -> None:
        self.folder = folder
        self._form = form
        self._on_note = on_note

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to go on from."""
        return self.folder is None or not any(
            map(_NAME.fullmatch, os.listdir(self.folder) if self.folder.is_dir() else ())
        )

    def has(self, key: Key) -> bool:
        """Whether something is kept under `key`; `load` says whether it can be used."""
        return self.folder is not None and (self.folder / key.folder).is_dir()

    def load(self, key: Key) -> Kept | None:
        """The result that is kept under `key`; a damaged one is as good as none."""
        if self.folder is None or not self.has(key):
            return None
        place = self.folder / key.folder
        try:
            return self._form.read(_checked(place), key.inputs)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._on_note(f"note: a kept {self._form.one} is damaged and is made anew: {place}")
            return None

    def save(self, key: Key, result: Kept) -> bool:
        """Keep a result, in place of an older one. Whether it is kept."""
        if self.folder is None:
            return False
        try:
            _save(self.folder / key.folder, self._form.write(result, key.inputs))
        except OSError as error:
            self._on_note(f"note: {self._form.all} cannot be kept in {self.folder}: {error.strerror or error}")
            self.folder = None
        return self.folder is not None


def _save(place: Path, files: Files) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    with new_directory(place) as directory:
        for name, content in {**files, DIGESTS: canonical_json(digests)}.items():
            (directory / name).write_bytes(content)


def _checked(place: Path) -> dict[str, bytes]:
    """The files of a result, each as it was written. Raises ValueError when one is not."""
    digests = json.loads((place / DIGESTS).read_bytes())
    found = {path.name: path.read_bytes() for path in place.iterdir() if path.name != DIGESTS}
    if digests != {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}:
        raise ValueError("the digests differ")
    return found


def clear(folder: Path, but: Iterable[Key] = ()) -> None:
    """Remove what is kept, the keys of `but` excepted, and the folder when nothing is left in it."""
    stay = {key.folder for key in but}
    with suppress(OSError):
        for place in list(folder.iterdir()):
            if (_NAME.fullmatch(place.name) and place.name not in stay) or _HALF_WRITTEN.fullmatch(place.name):
                shutil.rmtree(place, ignore_errors=True)
        folder.rmdir()


def keys(setups: Iterable[Setup]) -> list[Key]:
    """The keys of all replications of all runs, in order."""
    found: list[Key] = []
    digests: dict[Path, str | None] = {}
    for setup in setups:
        scenario, workload = setup.scenario, setup.scenario.workload
        files = [resolve(path, scenario.base_dir) for path in workload.files]
        if workload.servegen is not None:
            folder = resolve(workload.servegen.path, scenario.base_dir)
            files += sorted(folder.glob("chunk-*"))
        digests |= {path: sha256_of(path) for path in files if path not in digests}
        content = {
            "model": setup.model,
            "gpu": setup.gpu,
            "memory": setup.memory,
            "files": [digests[path] for path in files],
        }
        inputs = hashlib.sha256(canonical_json(content)).hexdigest()
        whole = run_id(scenario.to_dict(), setup.latency.source, scenario.seed)
        found += [Key(f"{whole}-{replication}", inputs) for replication in range(scenario.replications)]
    return found


# --- the parts of a study ---------------------------------------------------------------------------------------------
def _part_files(part: ReplicationResult, inputs: str) -> Files:
    """Facts as JSON, tables as parquet."""
    facts = {
        "inputs": inputs,
        "replication": part.replication,
        "summary": part.summary,
        "warmup": part.warmup,
        "notes": part.notes,
        "counters": part.counters,
        "turned_away": part.turned_away,
        "measured": part.measured,
        "erring": part.erring,
    }
    tables = {f"{name}.parquet": getattr(part, name) for name in TABLES}
    return {
        "facts.json": canonical_json(facts),
        **{name: _parquet(table) for name, table in tables.items() if table is not None},
    }


def _part_of(files: Files, inputs: str) -> ReplicationResult | None:
    facts = json.loads(files["facts.json"])
    if facts.pop("inputs") != inputs:
        return None
    tables = {name: _table(files.get(f"{name}.parquet")) for name in TABLES}
    values = {
        "summary": typed(Summary, facts["summary"]),
        "warmup": typed(Warmup, facts["warmup"]),
        "notes": tuple(facts["notes"]),
        "measured": _measured(facts["measured"]),
        "erring": None if facts["erring"] is None else typed(Summary, facts["erring"]),
    }
    return ReplicationResult(**{**facts, **tables, **values})


def _measured(data: Json | None) -> ComparedLatencies | None:
    return None if data is None else {metric: typed(ComparedLatency, item) for metric, item in data.items()}


def _parquet(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(table, content)
    return content.getvalue()


def _table(content: bytes | None) -> pa.Table | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return None if content is None else pq.read_table(pa.BufferReader(content))


PARTS = Form("simulation", "finished simulations", _part_files, _part_of)
