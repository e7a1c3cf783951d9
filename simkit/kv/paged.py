"""Paged KV memory: block tables, the free queue and the order in which blocks are taken and given back.

Owns which blocks a sequence holds. With a `PrefixCache` full blocks are shared by content; without one the free queue
is a stack. Block 0 is a dummy that is never handed out. Rules: the vLLM V1 block manager as described in the scheduler
specification, section 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from operator import attrgetter

from simkit.kv.prefix import PrefixCache, TokenIdentity
from simkit.kv.protocol import KVUsage
from simkit.sequence import Sequence


class BlockTable:
    """Blocks of one sequence in order; the first `num_entered` of them were offered to the prefix cache.

    `residue` tells when a sequence that joined needs its next block, -1 for others.
    """

    __slots__ = ("blocks", "num_entered", "residue")

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks
        self.num_entered = 0
        self.residue = -1


class FreeStack:
    """The free queue without prefix caching: what was freed last is taken first."""

    __slots__ = ("_more_users", "_stack")

    def __init__(self, num_gpu_blocks: int) -> None:
        self._stack = list(range(num_gpu_blocks - 1, 0, -1))
        self._more_users: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._stack)

    def take(self, count: int) -> list[int]:
        """Remove `count` blocks from the front of the queue."""
        if count == 0:
            return []
        taken = self._stack[: -count - 1 : -1]
        del self._stack[-count:]
        return taken

    def take_one(self) -> int:
        """Remove the block at the front of the queue."""
        return self._stack.pop()

    def release(self, blocks: list[int]) -> None:
        """Drop a user of each block: walked from last to first, the group of idle ones goes to the front."""
        if not self._more_users:
            self._stack.extend(blocks)
            return
        for block in blocks:
            more = self._more_users.pop(block, 0)
            if more > 1:
                self._more_users[block] = more - 1
            elif not more:
                self._stack.append(block)

    def touch(self, blocks: list[int]) -> None:
        """Add a user to each block; all of them are held."""
        for block in blocks:
            self._more_users[block] = self._more_users.get(block, 0) + 1

    def is_shared(self, block: int) -> bool:
        """Whether more than one table holds `block`."""
        return block in self._more_users

    def may_write(self, block: int) -> bool:
        """Whether one table alone holds `block`."""
        return not self.is_shared(block)

    def check(self, tables: Seq[list[int]], num_gpu_blocks: int) -> None:
        """Raise AssertionError unless free and held blocks are the pool and user counts equal table occurrences."""
        users = Counter(block for table in tables for block in table)
        assert sorted([*users, *self._stack]) == list(range(1, num_gpu_blocks)), "free + held blocks are not the pool"
        shared = {block: count - 1 for block, count in users.items() if count > 1}
        assert shared == self._more_users, "user counts differ from table occurrences"


_NUMBER = attrgetter("number")


class PagedAllocator:
    """`KVPool` over `num_gpu_blocks` blocks of `block_size` tokens (one block is the dummy).

    `watermark` is the fraction of all blocks that admission leaves free while something is running. Unless
    `finds_again`, who was preempted looks nothing up in the prefix cache.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        watermark: float = 0.0,
        enable_prefix_caching: bool = False,
        *,
        finds_again: bool = True,
    ) -> None:
        assert num_gpu_blocks >= 2, "a pool needs the dummy block and one more"
        self._num_gpu_blocks = num_gpu_blocks
        self.block_size = block_size
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.cache = PrefixCache(num_gpu_blocks, block_size) if enable_prefix_caching else None
        self._free: FreeStack | PrefixCache = self.cache or FreeStack(num_gpu_blocks)
        self._held: dict[Sequence, None] = {}
        self._num_entries = 0
        self._finds_again = finds_again
        self._forked = False
        self._num_grown = 0
        # Who joined, by the number of steps (modulo the block size) after which they begin a block.
        self._growing: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        self._hits: tuple[Sequence | None, list[int]] = (None, [])

    @property
    def capacity_tokens(self) -> int:
        """Usable blocks x block size."""
        return (self._num_gpu_blocks - 1) * self.block_size

    @property
    def caches(self) -> bool:
        """Whether blocks are shared by content."""
        return self.cache is not None

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be taken, cached ones included."""
        return len(self._free)

    def blocks_of(self, seq: Sequence) -> list[int]:
        """The block table of `seq`, empty when it holds nothing."""
        return seq.kv.blocks if seq.kv is not None else []

    def fits_ever(self, num_tokens: int, reserve_tokens: int) -> bool:
        """Whether `num_tokens` fit an empty pool; paged memory reserves nothing."""
        return -(-num_tokens // self.block_size) <= self._num_gpu_blocks - 1

    def remember(self, tokens: TokenIdentity, num_tokens: int) -> None:
        """Let the cache hold the whole blocks of `num_tokens` known tokens, as if a request with them had left.

        Of an empty pool: what is taken is what was remembered before, if anything.
        """
        assert self.cache is not None, "a pool that caches"
        blocks = self.cache.take(min(num_tokens // self.block_size, len(self._free)))
        for index, block in enumerate(blocks):
            self.cache.enter(block, tokens.block_key(index))
        self.cache.release(blocks)

    def lookup(self, seq: Sequence) -> int:
        """Tokens of the leading blocks that the cache holds; the last known token is never among them."""
        if self.cache is None or (seq.num_preemptions and not self._finds_again):
            self._hits = (seq, [])
            return 0
        hits = self.cache.hits(seq.tokens, (seq.num_known_tokens - 1) // self.block_size)
        self._hits = (seq, hits)
        return len(hits) * self.block_size

    def try_admit(self, seq: Sequence, num_tokens: int, gate_tokens: int, headroom: bool) -> bool:
        """Take blocks for `num_tokens`, sharing the hits of a `lookup` made just before for the same sequence."""
        hits: list[int] = []
        spare = len(self._free) - (self.watermark_blocks if headroom else 0)
        if self.cache is not None:
            looked_up, found = self._hits
            hits = found if looked_up is seq else []
            self._hits = (None, [])
            spare += len(hits) - self.cache.count_idle(hits)
        needed = -(-num_tokens // self.block_size)
        if needed > spare or -(-gate_tokens // self.block_size) > spare:
            return False
        self._give(seq, hits, needed, num_tokens)
        return True

    def try_reserve(self, seq: Sequence, num_tokens: int) -> bool:
        """Take blocks for `num_tokens` at once, sharing nothing (static and dynamic batching)."""
        needed = -(-num_tokens // self.block_size)
        if needed > len(self._free):
            return False
        self._give(seq, [], needed, 0)
        return True

    def _give(self, seq: Sequence, hits: list[int], needed: int, num_tokens: int) -> None:
        assert seq.kv is None, f"{seq!r} already holds memory"
        if self.cache is not None:
            self.cache.touch(hits)
        seq.kv = BlockTable(hits + self._free.take(needed - len(hits)))
        self._num_entries += needed
        seq.kv.num_entered = len(hits)
        self._held[seq] = None
        self.enter(seq, num_tokens)

    def try_grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Extend the table so that it holds `num_tokens`, the next of them in a block that is `seq`'s alone."""
        if self._forked:
            needed = -(-num_tokens // self.block_size) - len(seq.kv.blocks)
            if not self._own_last_block(seq, max(needed, 0)):
                return False
        return self._extend(seq, num_tokens)

    def _extend(self, seq: Sequence, num_tokens: int) -> bool:
        table = seq.kv.blocks
        needed = -(-num_tokens // self.block_size) - len(table)
        if needed > 0:
            if needed > len(self._free):
                return False
            table += self._free.take(needed)
            self._num_entries += needed
        if self.cache is not None:
            self.enter(seq, num_tokens)
        return True

    def try_fork(self, parent: Sequence, child: Sequence) -> bool:
        """Let `child` share the prompt's blocks; whoever writes to a block of several users gets a copy of it first."""
        assert child.kv is None, f"{child!r} already holds memory"
        # The parent may have gone on already: what it generated is not the child's.
        shared = parent.kv.blocks[: -(-parent.num_prompt_tokens // self.block_size)]
        self._free.touch(shared)
        child.kv = BlockTable(shared)
        self._num_entries += len(shared)
        child.kv.num_entered = min(parent.kv.num_entered, parent.num_prompt_tokens // self.block_size)
        self._held[child] = None
        self._forked = True
        return True

    def _own_last_block(self, seq: Sequence, num_more_blocks: int) -> bool:
        """Copy the block that the next token is written to if it is not `seq`'s alone; False when no block is free."""
        table = seq.kv.blocks
        index = seq.num_computed_tokens // self.block_size
        if index >= len(table) or self._free.may_write(table[index]):
            return True
        if 1 + num_more_blocks > len(self._free):
            return False
        shared = table[index]
        table[index] = self._free.take(1)[0]
        self._free.release([shared])
        return True

    def enter(self, seq: Sequence, num_tokens: int) -> None:
        """Enter the blocks that are full of known tokens among the first `num_tokens`, each once."""
        if self.cache is None:
            return
        table: BlockTable = seq.kv
        num_full = min(num_tokens, seq.num_known_tokens) // self.block_size
        if table.num_entered < num_full:
            enter, block_key, blocks = self.cache.enter, seq.tokens.block_key, table.blocks
            for index in range(table.num_entered, num_full):
                enter(blocks[index], block_key(index))
            table.num_entered = num_full

    def free(self, seq: Sequence) -> None:
        """Return the table of `seq`."""
        table: BlockTable = seq.kv
        if table.residue >= 0:
            self.leave(seq)
        self._num_entries -= len(table.blocks)
        self._free.release(table.blocks)
        del self._held[seq]
        seq.kv = None

    def can_join(self, seq: Sequence) -> bool:
        """Whether the block that `seq` writes to next is its own."""
        if not self._forked:
            return True
        blocks, index = seq.kv.blocks, seq.num_computed_tokens // self.block_size
        return index >= len(blocks) or self._free.may_write(blocks[index])

    def join(self, seq: Sequence) -> None:
        """`seq` grows with the others."""
        table: BlockTable = seq.kv
        table.residue = (self._num_grown - seq.num_computed_tokens) % self.block_size
        self._growing[table.residue][seq] = None

    def leave(self, seq: Sequence) -> None:
        """`seq` grows alone again."""
        table: BlockTable = seq.kv
        del self._growing[table.residue][seq]
        table.residue = -1

    def grow_all(self, num_steps: int, known: int) -> bool:
        """One more block for everybody who begins one, step by step, and the full ones entered in the cache."""
        block_size, growing, first = self.block_size, self._growing, self._num_grown
        steps = range(first, first + num_steps)
        if sum([len(growing[step % block_size]) for step in steps]) > len(self._free):
            return False
        self._num_grown = first + num_steps
        for step in steps:
            beginning = growing[step % block_size]
            if beginning:
                self._begin_blocks(beginning)
            if self.cache is not None:
                full = growing[(step + known) % block_size]
                if full:
                    self._enter_full(full, known)
        return True

    def _begin_blocks(self, beginning: dict[Sequence, None]) -> None:
        self._num_entries += len(beginning)
        if len(beginning) == 1:
            for seq in beginning:
                seq.kv.blocks.append(self._free.take_one())
            return
        # Joined later does not mean admitted later.
        for seq in sorted(beginning, key=_NUMBER):
            seq.kv.blocks.append(self._free.take_one())

    def _enter_full(self, full: dict[Sequence, None], known: int) -> None:
        cache = self.cache
        assert cache is not None
        for seq in full if len(full) == 1 else sorted(full, key=_NUMBER):
            table: BlockTable = seq.kv
            index = table.num_entered
            if known or index < len(table.blocks) - 1:
                cache.enter(table.blocks[index], seq.tokens.block_key(index))
                table.num_entered = index + 1

    def steps_until_full(self, limit: int) -> int:
        """Largest number of steps <= limit whose blocks are free."""
        free, growing, block_size = len(self._free), self._growing, self.block_size
        per_round = sum(map(len, growing))
        if per_round * -(-limit // block_size) <= free:
            return limit
        steps, free = free // per_round * block_size, free % per_round
        while steps < limit:
            free -= len(growing[(self._num_grown + steps) % block_size])
            if free < 0:
                break
            steps += 1
        return min(steps, limit)

    def block_at(self, seq: Sequence, token: int) -> int | None:
        """The block of token number `token` (from 0), None when the table ends before it."""
        blocks, index = self.blocks_of(seq), token // self.block_size
        return blocks[index] if index < len(blocks) else None

    def allocated_of(self, seq: Sequence) -> int:
        """Tokens of the blocks in the table of `seq`, shared ones included."""
        return len(seq.kv.blocks) * self.block_size if seq.kv is not None else 0

    def usage(self) -> KVUsage:
        """Totals; `used_tokens` equals allocated, since the allocator does not know how far a block is filled."""
        free = len(self._free) * self.block_size
        allocated = self.capacity_tokens - free
        return KVUsage(self.capacity_tokens, allocated, allocated, free, free)

    @property
    def allocated_tokens(self) -> int:
        """Tokens of the blocks that some table holds."""
        return (self._num_gpu_blocks - 1 - len(self._free)) * self.block_size

    @property
    def shared_tokens(self) -> int:
        """Tokens of table entries beyond the first of each block."""
        return self._num_entries * self.block_size - self.allocated_tokens

    def check_integrity(self) -> None:
        """Raise AssertionError when reference counts, tables and the free queue do not agree."""
        tables = [seq.kv.blocks for seq in self._held]
        self._free.check(tables, self._num_gpu_blocks)
        assert sum(map(len, tables)) == self._num_entries, "table entries were counted wrongly"
