"""RAGPulse JSONL: times as text in seconds, and hash_ids that are ids of the prompt's components.

Source of the format: flashserve/RAGPulse. A component (system prompt, passage, history, user input) is of any length,
so that its ids say nothing about blocks of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from simkit.logs.read.fields import Row, note_unused, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.record import Columns, Record

NEEDS = ("timestamp", "input_length", "output_length", "hash_ids")


def matches(head: Head) -> str | None:
    """By hash_ids that is an object."""
    if head.kind != "json" or not any(isinstance(row.get("hash_ids"), dict) for row in head.objects):
        return None
    return "hash_ids is an object" if set(NEEDS) <= head.keys else None


def record(row: Row) -> Record:
    """One row."""
    return Record(
        line=row.line,
        time_ns=row.time("timestamp", row.source.unit("s")),
        prompt_tokens=row.tokens("input_length"),
        output_tokens=row.tokens("output_length"),
        session=row.text("session_id"),
    )


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, source.format.needs)
    note_unused(source, (*NEEDS, "session_id"))
    source.log.remark("hash_ids are of components of unknown length, not of blocks: the prefix hit rate is unknown")
    return read_objects(source, record)


FORMAT = Format("ragpulse", "RAGPulse JSONL", matches, read, NEEDS)
