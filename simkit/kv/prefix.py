"""Prefix cache: which content a block holds, who uses it, and the order in which idle blocks are evicted.

Owns the two-ended free queue, user counts and content keys of a paged pool. A key stands for a whole prefix, so equal
keys mean equal content. Rules: scheduler specification, section 5.
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


_INDEX_BITS = 32


class PrefixCache:
    """Free queue with content. A block with 0 users is in the queue, possibly still with a key: that is the cache.

    From front to back the queue is: `_front`, blocks that were used and have no key, the last of them first; then the
    blocks that nobody took so far, in order; then `_cached`, those with a key. Blocks never taken cost no memory.
    """

    __slots__ = ("_cached", "_front", "_holders", "_keys", "_num_gpu_blocks", "_users")

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        self._num_gpu_blocks = num_gpu_blocks
        self._front: list[int] = []
        self._cached: OrderedDict[int, None] = OrderedDict()
        # Of the blocks that were ever taken, which are the first ones; block 0 is the dummy.
        self._users = [0]
        self._keys: list[Hashable | None] = [None]
        # The one block that holds a key, or several in the order in which they were entered.
        self._holders: dict[Hashable, int | dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._front) + len(self._cached) + self._num_gpu_blocks - len(self._users)

    def hits(self, tokens: TokenIdentity, max_blocks: int) -> list[int]:
        """Leading blocks whose keys are held, at most `max_blocks`; of several holders the one entered first."""
        found: list[int] = []
        holders = self._holders
        while len(found) < max_blocks:
            holder = holders.get(tokens.block_key(len(found)))
            if holder is None:
                break
            found.append(holder if type(holder) is int else next(iter(holder)))  # type: ignore[arg-type]
        return found

    def count_idle(self, blocks: list[int]) -> int:
        """How many of `blocks` lie in the free queue."""
        users = self._users
        return sum(1 for block in blocks if users[block] == 0)

    def touch(self, blocks: list[int]) -> None:
        """Add a user to each block; those in the free queue leave it."""
        for block in blocks:
            if self._users[block] == 0:
                del self._cached[block]
            self._users[block] += 1

    def is_shared(self, block: int) -> bool:
        """Whether more than one table holds `block`."""
        return self._users[block] > 1

    def may_write(self, block: int) -> bool:
        """Whether one table alone holds `block` and nobody can find it by its content."""
        return not self.is_shared(block) and self._keys[block] is None

    def take(self, count: int) -> list[int]:
        """Remove `count` blocks from the front of the queue; their content is forgotten."""
        return [self.take_one() for _ in range(count)]

    def take_one(self) -> int:
        """Remove the block at the front of the queue."""
        users = self._users
        if self._front:
            block = self._front.pop()
        elif len(users) < self._num_gpu_blocks:
            users.append(1)
            self._keys.append(None)
            return len(users) - 1
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        users[block] = 1
        return block

    def _forget(self, block: int) -> None:
        """`block` holds its key no more."""
        key = self._keys[block]
        assert key is not None
        self._keys[block] = None
        holder = self._holders[key]
        if type(holder) is int:
            del self._holders[key]
            return
        del holder[block]  # type: ignore[union-attr]
        if len(holder) == 1:  # type: ignore[arg-type]
            self._holders[key] = next(iter(holder))  # type: ignore[arg-type]

    def enter(self, block: int, key: Hashable) -> None:
        """Make `block` a holder of `key`, behind those that hold it already."""
        assert self._keys[block] is None, f"block {block} already has content"
        self._keys[block] = key
        holder = self._holders.setdefault(key, block)
        if holder is not block:
            if type(holder) is int:
                self._holders[key] = {holder: None, block: None}
            else:
                holder[block] = None  # type: ignore[index]

    def release(self, blocks: list[int]) -> None:
        """Drop one user of each block, last to first: idle ones without key go to the front, with a key to the back."""
        front: list[int] = []
        users, keys, cached = self._users, self._keys, self._cached
        for block in reversed(blocks):
            users[block] = num_users = users[block] - 1
            if not num_users:
                if keys[block] is None:
                    front.append(block)
                else:
                    cached[block] = None
        self._front.extend(reversed(front))

    def check(self, tables: Seq[list[int]], num_gpu_blocks: int) -> None:
        """Raise AssertionError unless user counts equal table occurrences and idle blocks are exactly the queue."""
        counts = [0] * len(self._users)
        for table in tables:
            assert len(set(table)) == len(table), "a block stands twice in one table"
            for block in table:
                counts[block] += 1
        assert len(counts) <= num_gpu_blocks == self._num_gpu_blocks, "more blocks were taken than there are"
        assert counts == self._users, "user counts differ from table occurrences"
        assert counts[0] == 0, "the dummy block was handed out"
        idle = [block for block in range(1, len(counts)) if counts[block] == 0]
        assert idle == sorted([*self._front, *self._cached]), "idle blocks are not the free queue"
        assert all(self._keys[block] is None for block in self._front), "a keyed block would be taken first"
        assert all(self._keys[block] is not None for block in self._cached), "a block without a key is cached"
        for key, holder in self._holders.items():
            holders = [holder] if isinstance(holder, int) else list(holder)
            assert isinstance(holder, int) or len(holders) > 1, "a key with a list of holders that is too short"
            assert all(self._keys[block] == key for block in holders), "holder and key disagree"
        num_held = sum(1 if isinstance(holder, int) else len(holder) for holder in self._holders.values())
        assert num_held == sum(key is not None for key in self._keys), "a keyed block is not among the holders"


class PromptTokens:
    """Identity of a request's tokens, each of which belongs to whoever had the same tokens up to there first.

    The first `prefix_tokens` of the prompt are those of `group` (-1 = none). `shared` names earlier requests that the
    prompt begins as: pairs (request, upto_tokens) of rising `upto_tokens`, each request the first whose prompt is equal
    up to there. The rest of the prompt belongs to the request `own`, and what is generated to its sample number
    `sample`. A block belongs to the owner of its last token.
    """

    __slots__ = (
        "_group",
        "_num_group_blocks",
        "_num_prompt_blocks",
        "_num_shared_blocks",
        "_own",
        "_owners",
        "_sample",
    )

    def __init__(
        self,
        own: int,
        group: int,
        prefix_tokens: int,
        prompt_tokens: int,
        block_size: int,
        sample: int = 0,
        shared: Seq[tuple[int, int]] = (),
    ) -> None:
        self._own = own
        self._sample = sample
        # Prompts of different groups are not equal, whatever else they share.
        self._group = group + 1 << 2 * _INDEX_BITS
        self._num_group_blocks = prefix_tokens // block_size if group >= 0 else 0
        self._num_prompt_blocks = prompt_tokens // block_size
        # (blocks upto, owner) of what is shared, and how many blocks that is in all.
        self._owners = [(upto_tokens // block_size, owner) for owner, upto_tokens in shared]
        self._num_shared_blocks = self._owners[-1][0] if shared else 0

    def block_key(self, index: int) -> Hashable:
        """Group, owner and index in one int; with the sample too, where one that is not the first generated them."""
        if index < self._num_group_blocks:
            return index - self._group
        if index < self._num_shared_blocks:
            for upto, owner in self._owners:
                if index < upto:
                    return self._group + (owner << _INDEX_BITS) + index
        if self._sample and index >= self._num_prompt_blocks:
            return (self._own, index, self._sample)
        return self._group + (self._own << _INDEX_BITS) + index
