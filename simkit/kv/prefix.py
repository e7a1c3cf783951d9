"""Prefix cache: which content a block holds, who uses it, and the order in which idle blocks are evicted.

Owns the two-ended free queue, user counts and content keys of a paged pool. A key stands for a whole prefix, so equal
keys mean equal content. Imports nothing of simkit. Rules: scheduler specification, section 5.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Seq
from typing import Protocol


class TokenIdentity(Protocol):
    """What a sequence's tokens are, as far as sharing goes."""

    def block_key(self, index: int) -> Hashable:
        """Key of block `index`: equal for two sequences exactly when all tokens up to its end are equal."""


class PrefixCache:
    """Free queue with content. A block with 0 users is in the queue, possibly still with a key: that is the cache."""

    __slots__ = ("_holders", "_keys", "_queue", "_users")

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self._users = [0] * num_gpu_blocks
        self._keys: list[Hashable | None] = [None] * num_gpu_blocks
        self._holders: dict[Hashable, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def hits(self, tokens: TokenIdentity, max_blocks: int) -> list[int]:
        """Leading blocks whose keys are held, at most `max_blocks`; of several holders the one entered first."""
        found: list[int] = []
        holders = self._holders
        while len(found) < max_blocks:
            blocks = holders.get(tokens.block_key(len(found)))
            if not blocks:
                break
            found.append(next(iter(blocks)))
        return found

    def count_idle(self, blocks: list[int]) -> int:
        """How many of `blocks` lie in the free queue."""
        users = self._users
        return sum(1 for block in blocks if users[block] == 0)

    def touch(self, blocks: list[int]) -> None:
        """Add a user to each block; those in the free queue leave it."""
        for block in blocks:
            if self._users[block] == 0:
                del self._queue[block]
            self._users[block] += 1

    def is_shared(self, block: int) -> bool:
        """Whether more than one table holds `block`."""
        return self._users[block] > 1

    def may_write(self, block: int) -> bool:
        """Whether one table alone holds `block` and nobody can find it by its content."""
        return not self.is_shared(block) and self._keys[block] is None

    def take(self, count: int) -> list[int]:
        """Remove `count` blocks from the front of the queue; their content is forgotten."""
        taken = [self._queue.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._users[block] = 1
            key = self._keys[block]
            if key is not None:
                self._keys[block] = None
                holders = self._holders[key]
                del holders[block]
                if not holders:
                    del self._holders[key]
        return taken

    def enter(self, block: int, key: Hashable) -> None:
        """Make `block` a holder of `key`, behind those that hold it already."""
        assert self._keys[block] is None, f"block {block} already has content"
        self._keys[block] = key
        self._holders.setdefault(key, {})[block] = None

    def release(self, blocks: list[int]) -> None:
        """Drop one user of each block, last to first: idle ones without key go to the front, with a key to the back."""
        front: list[int] = []
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                if self._keys[block] is None:
                    front.append(block)
                else:
                    self._queue[block] = None
        for block in reversed(front):
            self._queue[block] = None
            self._queue.move_to_end(block, last=False)

    def check(self, tables: Seq[list[int]], num_gpu_blocks: int) -> None:
        """Raise AssertionError unless user counts equal table occurrences and idle blocks are exactly the queue."""
        counts = [0] * num_gpu_blocks
        for table in tables:
            assert len(set(table)) == len(table), "a block stands twice in one table"
            for block in table:
                counts[block] += 1
        assert counts == self._users, "user counts differ from table occurrences"
        assert counts[0] == 0, "the dummy block was handed out"
        idle = {block for block in range(1, num_gpu_blocks) if counts[block] == 0}
        assert idle == set(self._queue), "idle blocks are not the free queue"
        for key, holders in self._holders.items():
            assert holders, "a key without holder"
            assert all(self._keys[block] == key for block in holders), "holder and key disagree"
        for block, block_key in enumerate(self._keys):
            assert block_key is None or block in self._holders[block_key], "a keyed block is not among the holders"


class GroupedTokens:
    """Identity of a synthetic request: the first `prefix_tokens` of its prompt are those of `group` (-1 = none).

    The rest of the prompt belongs to the request `own`, and what is generated to its sample number `sample`.
    """

    __slots__ = ("_group", "_num_prompt_blocks", "_num_shared_blocks", "_own", "_sample")

    def __init__(
        self, own: int, group: int, prefix_tokens: int, prompt_tokens: int, block_size: int, sample: int = 0
    ) -> None:
        self._own = own
        self._sample = sample
        self._group = group
        self._num_shared_blocks = prefix_tokens // block_size if group >= 0 else 0
        self._num_prompt_blocks = prompt_tokens // block_size

    def block_key(self, index: int) -> Hashable:
        """(stream, index), with the sample where a block holds generated tokens of one that is not the first."""
        if index < self._num_shared_blocks:
            return (-1 - self._group, index)
        if self._sample and index >= self._num_prompt_blocks:
            return (self._own, index, self._sample)
        return (self._own, index)
