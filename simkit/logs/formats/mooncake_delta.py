"""Mooncake fields where a later turn's input_length is only what it adds: named by the user, nothing in the file tells.

Source of the format: ai-dynamo/dynamo, the mocker's MooncakeDelta (each output and the next addition accumulate a
session).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simkit.logs.formats.mooncake import USED, check_unit, refuse_text, request
from simkit.logs.read.fields import MAX_TOKENS, note_unused, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import Columns, Record


def matches(head: Head) -> str | None:
    """Never: it looks like any other Mooncake file with sessions."""
    return None


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order, with whole prompts; the context of every session is kept."""
    require(source, "mooncake-delta", ())
    refuse_text(source)
    check_unit(source)
    note_unused(source, USED)
    source.log.remark(
        "input_length is read as what a turn adds to the prompt and output of the turn before; hash_ids stand for the "
        "additions and are not used, so the prefix hit rate is unknown"
    )
    context: dict[str, int] = {}

    def record(line: int, row: dict[str, Any], source: Source) -> Record | None:
        found = request(line, row, source, "ms")
        if found is None:
            return None
        whole = found.prompt_tokens
        if found.session is not None:
            whole += context.get(found.session, 0)
            if whole + found.output_tokens > MAX_TOKENS:
                raise BadCell("input_length", found.prompt_tokens, f"at most {MAX_TOKENS} tokens in a session")
            context[found.session] = whole + found.output_tokens
        return found._replace(prompt_tokens=whole, block_ids=None)

    return read_objects(source, record)


FORMAT = Format(
    "mooncake-delta", "Mooncake JSONL with additions a turn", matches, read, ("input_length", "output_length")
)
