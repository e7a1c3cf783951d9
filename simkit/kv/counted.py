"""Paged KV memory in which blocks are only counted: what is enough when nothing is shared and nobody asks which ones.

Decides as `PagedAllocator` without prefix caching does, for less.
"""

from __future__ import annotations

from dataclasses import dataclass

from simkit.kv.protocol import KVUsage
from simkit.sequence import Sequence


@dataclass(slots=True)
class _Held:
    """`blocks` of a sequence; for one that joined, `start` is its computed tokens less the steps grown, else None."""

    blocks: int
    start: int | None = None


class CountedAllocator:
    """`KVPool` over `num_gpu_blocks` blocks of `block_size` tokens (one block is the dummy).

    `watermark` is the fraction of all blocks that admission leaves free while something is running.
    """

    counts_blocks = True

    def __init__(self, num_gpu_blocks: int, block_size: int, watermark: float = 0.0) -> None:
        assert num_gpu_blocks >= 2, "a pool needs the dummy block and one more"
        self._num_gpu_blocks = num_gpu_blocks
        self.block_size = block_size
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.num_free_blocks = num_gpu_blocks - 1
        self._held: dict[Sequence, None] = {}
        self._num_grown = 0
        # How many joined, by the number of steps (modulo the block size) after which they begin a block.
        self._growing = [0] * block_size
        self._num_growing = 0

    @property
    def capacity_tokens(self) -> int:
        """Usable blocks x block size."""
        return (self._num_gpu_blocks - 1) * self.block_size

    @property
    def allocated_tokens(self) -> int:
        """Tokens of the blocks that somebody holds."""
        return (self._num_gpu_blocks - 1 - self.num_free_blocks) * self.block_size

    def fits_ever(self, num_tokens: int, reserve_tokens: int) -> bool:
        """Whether `num_tokens` fit an empty pool; paged memory reserves nothing."""
        return -(-num_tokens // self.block_size) <= self._num_gpu_blocks - 1

    def lookup(self, seq: Sequence) -> int:
        """Nothing is shared: 0."""
        return 0

    def try_admit(self, seq: Sequence, num_tokens: int, gate_tokens: int, headroom: bool) -> bool:
        """Take blocks for `num_tokens`."""
        spare = self.num_free_blocks - (self.watermark_blocks if headroom else 0)
        if -(-num_tokens // self.block_size) > spare or -(-gate_tokens // self.block_size) > spare:
            return False
        return self.try_reserve(seq, num_tokens)

    def try_reserve(self, seq: Sequence, num_tokens: int) -> bool:
        """Take blocks for `num_tokens`."""
        assert seq.kv is None, f"{seq!r} already holds memory"
        needed = -(-num_tokens // self.block_size)
        if needed > self.num_free_blocks:
            return False
        self.num_free_blocks -= needed
        seq.kv = _Held(needed)
        self._held[seq] = None
        return True

    def try_grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Hold blocks for `num_tokens` in all."""
        held: _Held = seq.kv
        needed = -(-num_tokens // self.block_size) - held.blocks
        if needed > 0:
            if needed > self.num_free_blocks:
                return False
            self.num_free_blocks -= needed
            held.blocks += needed
        return True

    def free(self, seq: Sequence) -> None:
        """Return everything `seq` holds."""
        if seq.kv.start is not None:
            self.leave(seq)
        self.num_free_blocks += seq.kv.blocks
        del self._held[seq]
        seq.kv = None

    def can_join(self, seq: Sequence) -> bool:
        """Nothing is shared: yes."""
        return True

    def join(self, seq: Sequence) -> None:
        """`seq` grows with the others."""
        seq.kv.start = start = seq.num_computed_tokens - self._num_grown
        self._growing[-start % self.block_size] += 1
        self._num_growing += 1

    def leave(self, seq: Sequence) -> None:
        """`seq` grows alone again."""
        held: _Held = seq.kv
        start = held.start
        assert start is not None, f"{seq!r} did not join"
        self._growing[-start % self.block_size] -= 1
        self._num_growing -= 1
        held.blocks = -(-(start + self._num_grown) // self.block_size)
        held.start = None

    def grow_all(self, num_steps: int, known: int) -> bool:
        """One more block for everybody who begins one, for `num_steps` steps."""
        block_size, first = self.block_size, self._num_grown
        if num_steps == 1:
            needed = self._growing[first % block_size]
        else:
            rounds, rest = divmod(num_steps, block_size)
            begin = first % block_size
            twice = self._growing * 2
            needed = rounds * self._num_growing + sum(twice[begin : begin + rest])
        if needed > self.num_free_blocks:
            return False
        self.num_free_blocks -= needed
        self._num_grown = first + num_steps
        return True

    def steps_until_full(self, limit: int) -> int:
        """Largest number of steps <= limit whose blocks are free."""
        free, block_size = self.num_free_blocks, self.block_size
        if self._num_growing * -(-limit // block_size) <= free:
            return limit
        steps, free = free // self._num_growing * block_size, free % self._num_growing
        while steps < limit:
            free -= self._growing[(self._num_grown + steps) % block_size]
            if free < 0:
                break
            steps += 1
        return min(steps, limit)

    def allocated_of(self, seq: Sequence) -> int:
        """Tokens of the blocks that `seq` holds."""
        held: _Held | None = seq.kv
        if held is None:
            return 0
        blocks = held.blocks if held.start is None else -(-(held.start + self._num_grown) // self.block_size)
        return blocks * self.block_size

    def usage(self) -> KVUsage:
        """Totals; `used_tokens` equals allocated, since the allocator does not know how far a block is filled."""
        free, allocated = self.num_free_blocks * self.block_size, self.allocated_tokens
        return KVUsage(self.capacity_tokens, allocated, allocated, free, free)

    def check_integrity(self) -> None:
        """Raise AssertionError when blocks were lost or counted twice."""
        held = sum(self.allocated_of(seq) for seq in self._held)
        assert held == self.allocated_tokens, "free + held blocks are not the pool"
        starts = [seq.kv.start for seq in self._held if seq.kv.start is not None]
        assert len(starts) == self._num_growing == sum(self._growing), "who joined was counted wrongly"
