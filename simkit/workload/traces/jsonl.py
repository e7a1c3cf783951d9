"""Mooncake JSONL, written: times and delays in ms to the nanosecond, hash ids, sessions. Imports `units`, siblings.

Format: kvcache-ai/Mooncake FAST25-release/traces, and the session fields that aiperf and dynamo add to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from simkit.units import NS_PER_MS
from simkit.workload.traces.canonical import Meta
from simkit.workload.traces.record import NO_TIME, Columns

MOONCAKE_BLOCK_TOKENS = 512
"""What a reader of Mooncake files takes a hash id for, unless it is told otherwise."""

# What the format has no field for, in words.
_NOT_HELD = {
    "turn": "turn numbers",
    "parent": "parents of requests",
    "model": "models",
    "failed": "reasons of failure",
    "ttft_ns": "measured TTFT",
    "e2e_ns": "measured E2E",
    "cached_tokens": "measured cache hits",
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
        tokens = meta.hash_block_tokens
        if tokens not in (None, MOONCAKE_BLOCK_TOKENS):
            notes.append(f"hash_ids stand for {tokens} tokens each: read it with --hash-block-tokens {tokens}")
        return notes


def _lines(columns: Columns) -> Iterator[str]:
    times, prompts, outputs = (
        column.tolist() for column in (columns.time_ns, columns.prompt_tokens, columns.output_tokens)
    )
    delays = columns.delay_ns.tolist() if columns.delay_ns is not None else None
    blocks = columns.blocks
    ids, offsets = (blocks.ids.tolist(), blocks.offsets.tolist()) if blocks is not None else ([], [])
    for row, time_ns in enumerate(times):
        parts = []
        if columns.id is not None and columns.id[row] is not None:
            parts.append(f'"request_id": {json.dumps(columns.id[row])}')
        if columns.session is not None and columns.session[row] is not None:
            parts.append(f'"session_id": {json.dumps(columns.session[row])}')
        if time_ns != NO_TIME:
            parts.append(f'"timestamp": {_ms(time_ns)}')
        if delays is not None and delays[row] >= 0:
            parts.append(f'"delay": {_ms(delays[row])}')
        parts += [f'"input_length": {prompts[row]}', f'"output_length": {outputs[row]}']
        if blocks is not None and offsets[row + 1] > offsets[row]:
            parts.append(f'"hash_ids": {ids[offsets[row] : offsets[row + 1]]}')
        yield "{" + ", ".join(parts) + "}\n"


def _ms(time_ns: int) -> str:
    """Nanoseconds as milliseconds, all digits."""
    whole, rest = divmod(time_ns, NS_PER_MS)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)
