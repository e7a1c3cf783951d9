"""Bailian (Qwen) JSONL: the fields of Mooncake with times in float seconds, blocks of 16 tokens, and chats.

Source of the format: alibaba-edu/qwen-bailian-usagetraces-anon. A follow-up names its parent chat (-1: none) and its
prompt is whole, history included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simkit.logs.read.fields import block_ids, count, note_unused, read_objects, require, text, time, tokens
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import Columns, Record

NEEDS = ("chat_id", "timestamp", "input_length", "output_length")
USED = (*NEEDS, "parent_chat_id", "turn", "hash_ids")
NO_PARENT = "-1"


def matches(head: Head) -> str | None:
    """By chat_id beside the fields of Mooncake."""
    return f"fields {', '.join(NEEDS)}" if head.kind == "json" and set(NEEDS) <= head.keys else None


def record(line: int, row: dict[str, Any], source: Source) -> Record:
    """One row."""
    unit = "s" if source.spec.time_unit == "auto" else source.spec.time_unit
    chat, parent = text(row, "chat_id"), text(row, "parent_chat_id")
    if chat is None:
        raise BadCell("chat_id", None, "an id")
    return Record(
        line=line,
        time_ns=time(row, "timestamp", unit),
        prompt_tokens=tokens(row, "input_length"),
        output_tokens=tokens(row, "output_length"),
        id=chat,
        turn=count(row, "turn"),
        parent=None if parent == NO_PARENT else parent,
        block_ids=block_ids(row, "hash_ids"),
    )


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, "bailian", NEEDS)
    note_unused(source, USED)
    return read_objects(source, record)


FORMAT = Format("bailian", "Bailian JSONL", matches, read, NEEDS, hash_block_tokens=16)
