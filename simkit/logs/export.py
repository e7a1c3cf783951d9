"""Writing a clean log: as canonical parquet or as Mooncake JSONL, whole or a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simkit import scenario
from simkit.errors import InputError, unwritable
from simkit.files import new_file
from simkit.logs.describe import OnProgress, Stats, Survey, own_times, survey
from simkit.logs.formats import canonical
from simkit.logs.formats.canonical import CanonicalWriter, Meta
from simkit.logs.formats.mooncake import MooncakeWriter
from simkit.logs.play.load import Log, load_log
from simkit.logs.play.window import cut
from simkit.logs.read.record import NO_TIME, Columns
from simkit.logs.read.text import resolve
from simkit.streams import Streams
from simkit.types import Ints
from simkit.units import ns_to_s

SUFFIXES = (".parquet", ".jsonl")


Writer = CanonicalWriter | MooncakeWriter
"""Takes requests in arrival order, whose `time_ns` count from the first of them."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: how many requests over what time, and notes on everything detected, decided and left out."""

    num_requests: int
    span_s: float
    notes: tuple[str, ...]


def convert(
    spec: scenario.Trace,
    out: Path,
    base_dir: Path | None = None,
    *,
    force: bool = False,
    report: OnProgress | None = None,
) -> Exported:
    """Write all requests that a log holds to `out`; ``.parquet`` or ``.jsonl`` says how.

    In memory that does not grow with the log when it is in order and its requests do not depend on each other. `force`
    replaces a file that simkit did not write. InputError for anything unreadable, no requests, and what is in the way.
    """
    path = _check(out, resolve(spec.path, base_dir), force)
    with _replacing(path) as partial:
        with _writer(path, partial) as writer:
            first = survey(spec, base_dir, report, lambda part, stats: _hand_on(part, stats, writer))
            if first.stats.streams and first.stats.num_requests:
                return _finish(writer, _meta(spec, base_dir, first, first.notes), first.stats)
        log = load_log(spec, base_dir)
        return _write(path, partial, spec, base_dir, first, log, np.arange(len(log)), [])


def sample(
    spec: scenario.Trace,
    out: Path,
    seed: int = 0,
    base_dir: Path | None = None,
    *,
    force: bool = False,
    report: OnProgress | None = None,
) -> Exported:
    """Write what `spec` plays of a log as `convert` does: its window, a share of its sessions, its first requests.

    A replay with the same keys and seed serves the same requests. Times count from the first that is kept.
    """
    path = _check(out, resolve(spec.path, base_dir), force)
    first = survey(spec, base_dir, report)
    log = load_log(spec, base_dir)
    notes: list[str] = []
    rows = cut(log, log.columns.time_ns, spec, Streams(seed, 0), None, notes).rows
    with _replacing(path) as partial:
        return _write(path, partial, spec, base_dir, first, log, rows, notes)


def _hand_on(part: Columns, stats: Stats, writer: Writer) -> None:
    """Write a part as it comes, as long as all came in such a way that this is right."""
    if stats.streams:
        assert stats.first_ns is not None
        writer.add(replace(part, time_ns=part.time_ns - stats.first_ns))


def _write(
    path: Path,
    partial: Path,
    spec: scenario.Trace,
    base_dir: Path | None,
    first: Survey,
    log: Log,
    rows: Ints,
    notes: list[str],
) -> Exported:
    """Write some rows of a log that was read whole."""
    columns = replace(log.columns, time_ns=own_times(log)).take(rows)
    timed = columns.time_ns[columns.time_ns != NO_TIME]
    shift = int(timed[0]) if timed.size else 0
    columns = replace(columns, time_ns=np.where(columns.time_ns == NO_TIME, NO_TIME, columns.time_ns - shift))
    # The first note says what the file was read as.
    meta = _meta(spec, base_dir, first, (*log.notes[1:], *notes), shift, log.hash_block_tokens)
    stats = Stats()
    with _writer(path, partial) as writer:
        writer.add(columns)
        stats.add(columns)
        return _finish(writer, meta, stats)


def _meta(
    spec: scenario.Trace,
    base_dir: Path | None,
    first: Survey,
    notes: tuple[str, ...],
    shift_ns: int = 0,
    hash_block_tokens: int | None = None,
) -> Meta:
    """Where the requests come from; a canonical file hands on what it says of itself."""
    start = first.stats.first_ns if spec.on_restart == "append" else first.stats.least_ns
    meta = Meta(first.format.name, first.format.title)
    if first.format.name == "canonical":
        meta = canonical.meta_of(resolve(spec.path, base_dir)) or meta
    return replace(
        meta,
        start_ns=(start or 0) + shift_ns,
        hash_block_tokens=hash_block_tokens,
        # What is told of every reading is not told twice: a copy of a copy has the same bytes.
        notes=(*meta.notes, *(note for note in notes if note not in meta.notes)),
    )


def _finish(writer: Writer, meta: Meta, stats: Stats) -> Exported:
    lost = writer.notes(meta) if isinstance(writer, MooncakeWriter) else []
    writer.close(meta)
    span_s = ns_to_s(stats.times.last_ns - stats.times.first_ns)
    return Exported(stats.num_requests, span_s, (*meta.notes, *lost))


# --- files ------------------------------------------------------------------------------------------------------------
def _check(out: Path, source: Path, force: bool) -> Path:
    """The file to write. InputError for another suffix and for a file in the way."""
    label = f"--out {out}"
    if out.suffix not in SUFFIXES:
        raise InputError(f"{label}: expected a name that ends in {' or '.join(SUFFIXES)}")
    try:
        if out.is_dir():
            raise InputError(f"{label}: expected a file, got a directory")
        if out.exists():
            if source.exists() and out.samefile(source):
                raise InputError(f"{label}: expected another file than the log itself")
            if not force and not _ours(out):
                raise InputError(f"{label}: already there and not a canonical file of simkit; --force replaces it")
    except (OSError, ValueError) as error:
        raise unwritable(label, error) from None
    return out


def _ours(out: Path) -> bool:
    try:
        return out.suffix == ".parquet" and canonical.meta_of(out) is not None
    except InputError:
        return False


@contextmanager
def _writer(path: Path, partial: Path) -> Iterator[Writer]:
    writer = CanonicalWriter(partial) if path.suffix == ".parquet" else MooncakeWriter(partial)
    try:
        yield writer
    finally:
        writer.abandon()


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A new file in place of `out`; InputError where it cannot be written."""
    try:
        with new_file(out) as partial:
            yield partial
    except OSError as error:
        raise unwritable(f"--out {out}", error) from None
