"""Mooncake JSONL: timestamp in ms, input_length, output_length, hash_ids of 512 tokens each, prefix-chained.

Source of the format: kvcache-ai/Mooncake, FAST25-release/traces. Imports its siblings only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simkit.workload.traces.fields import block_ids, time, tokens
from simkit.workload.traces.format import Format, Head, Source
from simkit.workload.traces.objects import read_objects
from simkit.workload.traces.record import Columns, Record

NEEDS = ("timestamp", "input_length", "output_length")


def matches(head: Head) -> str | None:
    """By its three fields."""
    if head.kind != "json" or not set(NEEDS) <= head.keys:
        return None
    return f"fields {', '.join(NEEDS)}" + (" and hash_ids" if "hash_ids" in head.keys else "")


def record(line: int, row: dict[str, Any], source: Source) -> Record:
    """One row."""
    unit = "ms" if source.spec.time_unit == "auto" else source.spec.time_unit
    return Record(
        line=line,
        time_ns=time(row, "timestamp", unit),
        prompt_tokens=tokens(row, "input_length"),
        output_tokens=tokens(row, "output_length"),
        block_ids=block_ids(row, "hash_ids"),
    )


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    return read_objects(source, record)


FORMAT = Format("mooncake", "Mooncake JSONL", matches, read, NEEDS, hash_block_tokens=512)
