"""What others may ask of KV memory: what a batcher needs of an allocator, and what only some of them can do.

A further allocator is a module of this package that implements `KVPool`, and of the capabilities those it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from simkit.sequence import Sequence


@dataclass(frozen=True, slots=True)
class KVUsage:
    """State of the KV memory, in tokens; `largest_free_tokens` is the largest request that could be placed now."""

    capacity_tokens: int
    allocated_tokens: int
    used_tokens: int
    free_tokens: int
    largest_free_tokens: int


class KVAllocator(Protocol):
    """Who holds which memory. A False leaves no trace. Sequences own nothing but their `kv` slot, which is opaque."""

    def fits_ever(self, num_tokens: int, reserve_tokens: int) -> bool:
        """Whether a lone sequence of `num_tokens` (contiguous: that reserves `reserve_tokens`) can be held."""

    def lookup(self, seq: Sequence) -> int:
        """Tokens of `seq` whose KV is already cached and can be shared; 0 without prefix caching. Changes nothing."""

    def try_admit(self, seq: Sequence, num_tokens: int, gate_tokens: int, headroom: bool) -> bool:
        """Give a sequence without memory room for `num_tokens` (cached ones included).

        Refused unless also `gate_tokens` would fit (0 = no gate) and, with `headroom`, the watermark stays free.
        """

    def try_reserve(self, seq: Sequence, num_tokens: int) -> bool:
        """Give a sequence without memory exactly `num_tokens` (rounded up to what the pool hands out)."""

    def try_grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make room so that `seq` holds `num_tokens` in all."""

    def free(self, seq: Sequence) -> None:
        """Return everything `seq` holds."""

    def can_join(self, seq: Sequence) -> bool:
        """Whether what `seq` writes to next is its own, so that it may `join`."""

    def join(self, seq: Sequence) -> None:
        """From now on `seq` grows by a token with every `grow_all`."""

    def leave(self, seq: Sequence) -> None:
        """`seq` grows no more by `grow_all`."""

    def grow_all(self, num_steps: int, known: int) -> bool:
        """Memory for `num_steps` further one-token steps of all who joined, in (step, order of admission).

        `known` is how many of the tokens computed last can be entered in the prefix cache, since their value is known:
        1, or 0 when passes run ahead of outputs.
        """

    def steps_until_full(self, limit: int) -> int:
        """How many further steps `grow_all` is sure to find memory for, at most `limit`."""

    def allocated_of(self, seq: Sequence) -> int:
        """Tokens of memory that `seq` holds, used or not."""


class KVPool(KVAllocator, Protocol):
    """An allocator, and what a replica asks of its memory as a whole."""

    @property
    def capacity_tokens(self) -> int:
        """All tokens the pool can hold."""

    @property
    def block_size(self) -> int | None:
        """Tokens of a block of the pool; None where memory is contiguous."""

    @property
    def allocated_tokens(self) -> int:
        """Tokens of memory that are held, what is shared counted once, O(1)."""

    def usage(self) -> KVUsage:
        """Totals now."""

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not balance. O(pool); for tests and the end of a run."""


@runtime_checkable
class CountsBlocks(Protocol):
    """Memory in blocks of which nobody will ever ask which one it is."""

    counts_blocks: bool
    """Always true; names the capability."""


@runtime_checkable
class CanFork(Protocol):
    """Memory that several samples of a prompt can start from."""

    def try_fork(self, parent: Sequence, child: Sequence) -> bool:
        """Give `child` the memory of `parent`: shared with copy-on-write if paged, else a region of its own."""


@runtime_checkable
class SharesBlocks(Protocol):
    """Memory in blocks with names, which several sequences may hold together."""

    @property
    def caches(self) -> bool:
        """Whether there is a prefix cache, in which `enter` makes blocks known."""

    @property
    def shared_tokens(self) -> int:
        """Tokens of memory that sequences hold together beyond the first of them, O(1)."""

    def enter(self, seq: Sequence, num_tokens: int) -> None:
        """Make the first `num_tokens` of `seq` known to the prefix cache; nothing without prefix caching."""

    def block_at(self, seq: Sequence, token: int) -> int | None:
        """The block that holds token number `token` (from 0) of `seq`; None where there is no such block."""


@runtime_checkable
class HasHoles(Protocol):
    """Memory whose free part may lie in pieces that are too small."""

    def external_tokens(self, need_tokens: int) -> int:
        """External fragmentation for a request of `need_tokens`: free - sum over holes of floor(hole/need) x need."""


class CanSwap(Protocol):
    """Where swapped sequences wait: a finite pool, `bytes_per_token` of all GPUs of a replica together."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that cross the host link per token of KV."""

    def holds(self, seq: Sequence) -> bool:
        """Whether `seq` waits here."""

    def try_store(self, seq: Sequence, num_tokens: int) -> bool:
        """Set room aside for `seq`; False when the pool is too full."""

    def release(self, seq: Sequence) -> int:
        """Give back what `seq` holds; the number of tokens."""
