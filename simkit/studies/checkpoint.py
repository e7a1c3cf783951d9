"""Finished parts of a study on disk, so that a study that was interrupted can go on.

Owns the folder of kept parts: one subfolder a part, named by run_id and replication, with facts as JSON, tables as
parquet and the digests of both. A part appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simkit.engine.build import Setup
from simkit.logs.files import resolve
from simkit.metrics.measured import ComparedLatencies, ComparedLatency
from simkit.metrics.summary import Summary, Warmup
from simkit.plain import Json, canonical_json, typed
from simkit.runs.manifest import run_id
from simkit.runs.replication import Part

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("requests", "steps", "slots")
DIGESTS = "digests.json"
_NAME = re.compile(r"[0-9a-f]{64}-\d+")


class DamagedPart(Exception):
    """A kept part is there and cannot be used."""


@dataclass(frozen=True, slots=True)
class Key:
    """Which simulation a part is of. `inputs` is a hash of what a run_id only names: files, model and GPU."""

    run_id: str
    inputs: str
    replication: int

    @property
    def folder(self) -> str:
        """The name of the part's folder."""
        return f"{self.run_id}-{self.replication}"


def keys(setups: Iterable[Setup]) -> list[Key]:
    """The keys of all replications of all runs, in order."""
    found: list[Key] = []
    digests: dict[Path, str | None] = {}
    for setup in setups:
        scenario, workload = setup.scenario, setup.scenario.workload
        named = [
            getattr(part, "path", None) for part in (workload.trace, workload.prompt_tokens, workload.output_tokens)
        ]
        files = [resolve(path, scenario.base_dir) for path in named if path is not None]
        if workload.servegen is not None:
            folder = resolve(workload.servegen.path, scenario.base_dir)
            files += sorted(folder.glob("chunk-*"))
        digests |= {path: _file_digest(path) for path in files if path not in digests}
        content = {
            "model": setup.model,
            "gpu": setup.gpu,
            "memory": setup.memory,
            "files": [digests[path] for path in files],
        }
        inputs = hashlib.sha256(canonical_json(content)).hexdigest()
        whole = run_id(scenario.to_dict(), setup.latency.source, scenario.seed)
        found += [Key(whole, inputs, replication) for replication in range(scenario.replications)]
    return found


def _file_digest(path: Path) -> str | None:
    """None for a file that cannot be read; the simulation will say so."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def save(folder: Path, key: Key, part: Part) -> None:
    """Keep a part, in place of an older one. Raises OSError when it cannot be written."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
    try:
        facts = {
            "inputs": key.inputs,
            "replication": part.replication,
            "summary": part.summary,
            "warmup": part.warmup,
            "notes": part.notes,
            "counters": part.counters,
            "turned_away": part.turned_away,
            "measured": part.measured,
        }
        (partial / "facts.json").write_bytes(canonical_json(facts))
        for name in TABLES:
            table = getattr(part, name)
            if table is not None:
                pq.write_table(table, partial / f"{name}.parquet")
        digests = {path.name: _file_digest(path) for path in sorted(partial.iterdir())}
        (partial / DIGESTS).write_bytes(canonical_json(digests))
        shutil.rmtree(folder / key.folder, ignore_errors=True)
        partial.replace(folder / key.folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def exists(folder: Path, key: Key) -> bool:
    """Whether something is kept for this simulation; `load` says whether it can be used."""
    return (folder / key.folder).is_dir()


def load(folder: Path, key: Key) -> Part | None:
    """The part that was kept for `key`, None when there is none. Raises DamagedPart."""
    if not exists(folder, key):
        return None
    place = folder / key.folder
    try:
        files = _checked(place)
        facts = json.loads(files["facts.json"])
        if facts["inputs"] != key.inputs or facts["replication"] != key.replication:
            return None
        tables = {name: _table(files.get(f"{name}.parquet")) for name in TABLES}
        return Part(
            replication=facts["replication"],
            summary=typed(Summary, facts["summary"]),
            warmup=typed(Warmup, facts["warmup"]),
            requests=tables["requests"],
            steps=tables["steps"],
            slots=tables["slots"],
            notes=tuple(facts["notes"]),
            counters=facts["counters"],
            turned_away=facts["turned_away"],
            measured=_measured(facts["measured"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedPart(key.folder) from error


def _measured(data: Json | None) -> ComparedLatencies | None:
    return None if data is None else {metric: typed(ComparedLatency, item) for metric, item in data.items()}


def _checked(place: Path) -> dict[str, bytes]:
    """The files of a part, each as it was written. Raises ValueError when one is not."""
    digests = json.loads((place / DIGESTS).read_bytes())
    found = {path.name: path.read_bytes() for path in place.iterdir() if path.name != DIGESTS}
    if digests != {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}:
        raise ValueError("the digests differ")
    return found


def _table(content: bytes | None) -> pa.Table | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return None if content is None else pq.read_table(pa.BufferReader(content))


def clear(folder: Path, but: Iterable[Key] = ()) -> None:
    """Remove kept parts, those of `but` excepted, and the folder when nothing is left in it."""
    stay = {key.folder for key in but}
    with suppress(OSError):
        for place in list(folder.iterdir()):
            if (_NAME.fullmatch(place.name) and place.name not in stay) or place.name.startswith(".partial-"):
                shutil.rmtree(place, ignore_errors=True)
        folder.rmdir()
