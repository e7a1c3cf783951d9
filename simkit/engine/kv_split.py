"""Where allocated KV tokens go: used, reserved, internal. The engine makes this split because it knows true lengths.

For a sequence with c tokens computed, a of memory and F tokens when it ends (its last token is never computed):
used = min(c, F), reserved = min(a, F) - used, internal = a - min(a, F). A replica keeps the sums up to date as things
change; here they are taken by looking at every sequence, which is what single steps do.

Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simkit.types import KVAllocator


def block_size_of(kv: KVAllocator) -> int | None:
    """Tokens of a block of the pool; None where memory is contiguous."""
    return kv.capacity_tokens // (kv.num_gpu_blocks - 1) if kv.num_gpu_blocks else None


class Holding(NamedTuple):
    """Memory of one sequence, in tokens; `final` is what it holds when it ends."""

    computed: int
    final: int
    allocated: int


class KVSplit(NamedTuple):
    """Sums over all sequences, in tokens; shared blocks are counted once."""

    allocated: int
    used: int
    internal: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The block in which the prompt of a sequence ends, shared by several samples until each of them writes to it.

    `used` and `final` say how much of it this sequence fills now and at its end.
    """

    block: int
    used: int
    final: int


def counted_twice(tails: Sequence[Tail], block_size: int) -> tuple[int, int]:
    """(used, internal) tokens that the sums over sequences count beyond the first for each shared tail."""
    together: dict[int, list[Tail]] = {}
    for tail in tails:
        together.setdefault(tail.block, []).append(tail)
    used = internal = 0
    for sharing in together.values():
        used += sum(t.used for t in sharing) - max(t.used for t in sharing)
        internal += sum(block_size - t.final for t in sharing) - (block_size - max(t.final for t in sharing))
    return used, internal


def unshare(split: KVSplit, shared_tokens: int, tails: Sequence[Tail], block_size: int) -> KVSplit:
    """From sums over sequences to what is held: `shared_tokens` is sum of tables - distinct blocks.

    All shared blocks are full but for `tails`.
    """
    used, internal = shared_tokens, 0
    if tails:
        num_more = len(tails) - len({tail.block for tail in tails})
        tail_used, internal = counted_twice(tails, block_size)
        used += tail_used - num_more * block_size
    return KVSplit(split.allocated - shared_tokens, split.used - used, split.internal - internal)


def add_up(holdings: Sequence[Holding]) -> KVSplit:
    """The split summed over sequences."""
    return KVSplit(
        sum(h.allocated for h in holdings),
        sum(min(h.computed, h.final) for h in holdings),
        sum(max(h.allocated - h.final, 0) for h in holdings),
    )
