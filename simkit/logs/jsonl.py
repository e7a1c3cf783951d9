"""Mooncake JSONL, written: times and delays in ms to the nanosecond, hash ids, sessions.

Format: kvcache-ai/Mooncake FAST25-release/traces, and what aiperf and dynamo add to it: request_id, session_id, delay,
wait_for (the request that one follows); turn and model are beside them for who reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise, repeat
from pathlib import Path
from typing import Any

from simkit.logs.canonical import Meta
from simkit.logs.read.record import EPOCH_NS, NO_TIME, UNKNOWN, Columns
from simkit.types import Ints
from simkit.units import NS_PER_MS

MOONCAKE_BLOCK_TOKENS = 512
"""What a reader of Mooncake files takes a hash id for, unless it is told otherwise."""

# What the format has no field for, in words.
_NOT_HELD = {
    "failed": "reasons of failure",
    "ttft_ns": "measured TTFT",
    "e2e_ns": "measured E2E",
    "cached_tokens": "measured cache hits",
    "gaps": "measured gaps between tokens",
}


class MooncakeWriter:
    """Writes requests in arrival order, whose `time_ns` count from the first of them."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")
        self._lost: set[str] = set()

    def add(self, columns: Columns) -> None:
        """Take the next requests."""
        self._lost.update(name for name in _NOT_HELD if getattr(columns, name) is not None)
        self._file.writelines(_lines(columns))

    def close(self, meta: Meta) -> None:
        """Write what is left."""
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def notes(self, meta: Meta) -> list[str]:
        """What the format cannot hold of what was written, and how to read it again."""
        lost = [text for name, text in _NOT_HELD.items() if name in self._lost]
        notes = [f"Mooncake JSONL has no place for {', '.join(lost)}: left out"] if lost else []
        if meta.start_ns > EPOCH_NS:
            notes.append("Mooncake JSONL counts times from the first request: when the log began is left out")
        tokens = meta.hash_block_tokens
        if tokens not in (None, MOONCAKE_BLOCK_TOKENS):
            notes.append(f"hash_ids stand for {tokens} tokens each: read it with --hash-block-tokens {tokens}")
        return notes


def _lines(columns: Columns) -> Iterator[str]:
    """One JSON object a request; what the log does not say is left out."""
    ids = [] if columns.blocks is None else columns.blocks.ids.tolist()
    ends = [0] * (len(columns) + 1) if columns.blocks is None else columns.blocks.offsets.tolist()
    cells = zip(
        _fields("request_id", columns.id, json.dumps),
        _fields("session_id", columns.session, json.dumps),
        _fields("turn", _known(columns.turn), str),
        _fields("wait_for", columns.parent, json.dumps),
        _fields("timestamp", _known(columns.time_ns, NO_TIME), _ms),
        _fields("delay", _known(columns.delay_ns), _ms),
        _fields("input_length", columns.prompt_tokens.tolist(), str),
        _fields("output_length", columns.output_tokens.tolist(), str),
        _fields("hash_ids", [ids[first:end] or None for first, end in pairwise(ends)], str),
        _fields("model", columns.model, json.dumps),
        strict=False,
    )
    for row in islice(cells, len(columns)):
        yield "{" + ", ".join(cell for cell in row if cell is not None) + "}\n"


def _known(column: Ints | None, missing: int = UNKNOWN) -> list[int | None] | None:
    return None if column is None else [None if value == missing else value for value in column.tolist()]


def _fields(name: str, values: Sequence[Any] | None, text: Callable[[Any], str]) -> Iterator[str | None]:
    """``"name": value`` of every row, None where it has none."""
    if values is None:
        return repeat(None)
    return (None if value is None else f'"{name}": {text(value)}' for value in values)


def _ms(time_ns: int) -> str:
    """Nanoseconds as milliseconds, all digits."""
    whole, rest = divmod(time_ns, NS_PER_MS)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)
