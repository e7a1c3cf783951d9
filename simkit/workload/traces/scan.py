"""Reading a log to its end, part by part: detection, and what happens to requests that were not served.

Memory does not grow with the file unless whoever takes the parts keeps them. Imports `errors`, `scenario` (schema),
`workload.files` and its own siblings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simkit import scenario
from simkit.errors import InputError, nearest
from simkit.types import Ints
from simkit.workload.files import resolve
from simkit.workload.traces.format import Format, Head, Source
from simkit.workload.traces.formats import FORMATS
from simkit.workload.traces.log import RowLog
from simkit.workload.traces.opening import opened
from simkit.workload.traces.record import Columns


@dataclass(frozen=True, slots=True)
class Scan:
    """A pass over a log, whose `parts` are taken once and to the end; `log` then knows what was left out.

    Parts hold the requests in file order and on the log's own clock. Requests that were not served are not in them
    (`failed: skip`), or have 0 output tokens (`failed: prefill`). `why` says by what the format was recognised.
    """

    format: Format
    why: str
    log: RowLog
    parts: Iterator[Columns]

    def notes(self) -> list[str]:
        """What was left out and decided. InputError when too many rows cannot be read."""
        return self.log.finish(self.log.line)


@contextmanager
def scanning(spec: scenario.Trace, base_dir: Path | None = None) -> Iterator[Scan]:
    """Open `spec.path` (relative to `base_dir`) and recognise it. InputError, one line, for what cannot be read."""
    path = resolve(spec.path, base_dir)
    # As the scenario writes it: notes end in the manifest, which must not depend on where the scenario lies.
    log = RowLog(f"trace {spec.path}", spec.allow_bad)
    with opened(path, log) as (head, rows):
        found, why = recognise(head, spec.format, log.where)
        if found.read is None:
            raise InputError(f"{log.where}: {found.title}: {found.advice}")
        if head.hash_block_tokens is not None:
            found = replace(found, hash_block_tokens=head.hash_block_tokens)
        assert found.read is not None
        parts = found.read(Source(head, rows, spec, log, path))
        yield Scan(found, why, log, (_served(part, spec.failed, log) for part in parts))


def recognise(head: Head, wanted: str, where: str) -> tuple[Format, str]:
    """(format, by what it was recognised). InputError when nothing fits, or `wanted` is no format."""
    if wanted != "auto":
        if wanted not in FORMATS:
            known = ("auto", *FORMATS)
            raise InputError(f"{where}: format {wanted!r} is not one of {', '.join(known)}{nearest(wanted, known)}")
        return FORMATS[wanted], "as the format says"
    for found in FORMATS.values():
        why = found.matches(head)
        if why is not None:
            return found, why
    shown = ",".join(head.columns)
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    readable = ", ".join(found.title for found in FORMATS.values())
    raise InputError(f"{where}: format not recognised, header was {shown!r}; this version reads {readable}")


def _served(part: Columns, failed: str, log: RowLog) -> Columns:
    """The requests of a part that were served, or that are kept for their prompt."""
    lost: Ints = np.flatnonzero((part.prompt_tokens == 0) | (part.output_tokens == 0))
    if not lost.size and part.failed is None:
        return part
    keep = np.ones(len(part), dtype=np.bool_)
    for row in range(len(part)):
        reason = part.failed[row] if part.failed is not None else None
        if part.prompt_tokens[row] == 0:
            reason = reason or "0 prompt tokens"
        elif part.output_tokens[row] == 0:
            reason = reason or "0 output tokens"
        if reason is not None:
            keep[row] = False
            log.add_skipped(int(part.line[row]), reason)
    return part.take(np.flatnonzero(keep))
