"""Where allocated KV tokens go: used, reserved, internal. The engine makes this split because it knows true lengths.

Pure numpy. For a sequence with c tokens computed, a of memory and F tokens when it ends (its last token is never
computed): used = min(c, F), reserved = min(a, F) - used, internal = a - min(a, F).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simkit.types import Ints


@dataclass(frozen=True, slots=True)
class KVSplit:
    """Sums over all sequences for k steps, int64[k] each; shared blocks are counted once."""

    allocated_tokens: Ints
    used_tokens: Ints
    internal_tokens: Ints

    @property
    def reserved_tokens(self) -> Ints:
        """Slots that a sequence will fill before it ends."""
        return self.allocated_tokens - self.used_tokens - self.internal_tokens

    def part(self, first: int, upto: int) -> KVSplit:
        """Steps `first` (counted from 0) up to `upto` (not included)."""
        steps = slice(first, upto)
        return KVSplit(self.allocated_tokens[steps], self.used_tokens[steps], self.internal_tokens[steps])


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


@dataclass(frozen=True, slots=True)
class KVState:
    """Memory of all sequences that hold some, as after the first step of a run, one entry a sequence.

    `grows` tells which of them compute a token in each further step; `block_size` is None where growth takes no memory
    (reserved at admission). `shared_tokens` is what equal prefixes save: sum of tables - distinct blocks. All of these
    blocks are full but for `tails`; a run of several steps has none, since who takes part in it owns what it writes.
    """

    computed: Ints
    final: Ints
    allocated: Ints
    num_growing: int
    block_size: int | None
    shared_tokens: int
    tails: tuple[Tail, ...] = ()

    def over(self, num_steps: int) -> KVSplit:
        """The split at each of `num_steps` steps; nobody ends before the last of them."""
        ahead = np.arange(num_steps, dtype=np.int64)
        shared_used, shared_internal = self.shared_tokens, 0
        if self.tails and self.block_size is not None:
            num_more = len(self.tails) - len({tail.block for tail in self.tails})
            tail_used, shared_internal = counted_twice(self.tails, self.block_size)
            shared_used += tail_used - num_more * self.block_size
        used = int(np.minimum(self.computed, self.final).sum()) - shared_used + self.num_growing * ahead
        if num_steps == 1 or self.block_size is None:
            allocated = np.full(num_steps, int(self.allocated.sum()) - self.shared_tokens)
            internal = np.full(num_steps, int(np.maximum(self.allocated - self.final, 0).sum()) - shared_internal)
            return KVSplit(allocated, used, internal)
        assert not shared_internal, "a run of steps starts from blocks that are their sequences' own"
        allocated = self._allocated_while_growing(self.block_size, num_steps)
        return KVSplit(allocated, used, self._internal_while_growing(self.block_size, num_steps))

    def _allocated_while_growing(self, block_size: int, num_steps: int) -> Ints:
        """Every table is its computed tokens rounded up to blocks; the slack has period `block_size`."""
        slack_counts = np.bincount((-self.computed) % block_size, minlength=block_size)
        phases = np.arange(min(num_steps, block_size))
        slack_sum = ((np.arange(block_size)[None, :] - phases[:, None]) % block_size * slack_counts).sum(axis=1)
        ahead = np.arange(num_steps, dtype=np.int64)
        computed = int(self.computed.sum()) + len(self.computed) * ahead
        return computed + slack_sum[ahead % block_size] - self.shared_tokens  # type: ignore[no-any-return]

    def _internal_while_growing(self, block_size: int, num_steps: int) -> Ints:
        """The last block of a sequence has slack that is never filled, from the step that begins the block."""
        last_end = -(-self.final // block_size) * block_size
        begins = np.maximum(last_end - block_size - self.computed + 1, 0)
        reached = begins < num_steps
        added = np.zeros(num_steps, dtype=np.int64)
        np.add.at(added, begins[reached], (last_end - self.final)[reached])
        return np.cumsum(added)
