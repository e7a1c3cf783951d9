"""Bailian (Qwen) JSONL: the fields of Mooncake with times in float seconds, blocks of 16 tokens, and chats.

Source of the format: alibaba-edu/qwen-bailian-usagetraces-anon. A follow-up names its parent chat (-1: none) and its
prompt is whole, history included.
"""

from __future__ import annotations

from collections.abc import Iterator

from simkit.logs.read.fields import Row, note_unused, read_objects, require
from simkit.logs.read.format import Format, Source, having
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import Columns, Record

NEEDS = ("chat_id", "timestamp", "input_length", "output_length")
USED = (*NEEDS, "parent_chat_id", "turn", "hash_ids")
NO_PARENT = "-1"


def record(row: Row) -> Record:
    """One row."""
    chat, parent = row.text("chat_id"), row.text("parent_chat_id")
    if chat is None:
        raise BadCell("chat_id", None, "an id")
    return Record(
        line=row.line,
        time_ns=row.time("timestamp", row.source.unit("s")),
        prompt_tokens=row.tokens("input_length"),
        output_tokens=row.tokens("output_length"),
        id=chat,
        turn=row.count("turn"),
        parent=None if parent == NO_PARENT else parent,
        block_ids=row.block_ids("hash_ids"),
    )


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, source.format.needs)
    note_unused(source, USED)
    return read_objects(source, record)


FORMAT = Format("bailian", "Bailian JSONL", having("json", *NEEDS), read, NEEDS, hash_block_tokens=16)
