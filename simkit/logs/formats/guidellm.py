"""GuideLLM trace files: the fields of Mooncake with times in seconds, and a conversation column.

Source of the format: vllm-project/guidellm, trace_synthetic and mooncake datasets (blocks of 512 tokens). Nothing but
the unit sets it apart from Mooncake, so that it must be named, unless conversation_id is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from simkit.logs.formats.mooncake import BLOCK_TOKENS, USED, check_blocks, refuse_text, request
from simkit.logs.read.fields import note_unused, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.record import Columns

NEEDS = ("timestamp", "input_length", "output_length")


def matches(head: Head) -> str | None:
    """By conversation_id beside the fields of Mooncake."""
    fits = head.kind == "json" and {*NEEDS, "conversation_id"} <= head.keys
    return f"fields {', '.join(NEEDS)} and conversation_id" if fits else None


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, "guidellm", NEEDS)
    refuse_text(source)
    check_blocks(source)
    note_unused(source, USED)
    return read_objects(source, partial(request, default_unit="s"))


FORMAT = Format("guidellm", "GuideLLM JSONL", matches, read, NEEDS, hash_block_tokens=BLOCK_TOKENS)
