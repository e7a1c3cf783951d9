"""How much KV memory a replica holds, and where it goes: used, reserved, internal.

The engine makes this split because it knows true lengths. For a sequence with c tokens computed, a of memory and F
tokens when it ends (its last token is never computed): used = min(c, F), reserved = min(a, F) - used, internal = a -
min(a, F). A replica keeps the sums up to date as things change; single steps look at every sequence, to check them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from simkit.batching.plan import StepPlan
from simkit.batching.protocol import Batcher
from simkit.engine.step_log import StepLog
from simkit.engine.tracker import RequestTracker
from simkit.kv.protocol import KVPool, SharesBlocks
from simkit.sequence import Sequence


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


def counted_twice(tails: Seq[Tail], block_size: int) -> tuple[int, int]:
    """(used, internal) tokens that the sums over sequences count beyond the first for each shared tail."""
    together: dict[int, list[Tail]] = {}
    for tail in tails:
        together.setdefault(tail.block, []).append(tail)
    used = internal = 0
    for sharing in together.values():
        used += sum(t.used for t in sharing) - max(t.used for t in sharing)
        internal += sum(block_size - t.final for t in sharing) - (block_size - max(t.final for t in sharing))
    return used, internal


def unshare(split: KVSplit, shared_tokens: int, tails: Seq[Tail], block_size: int) -> KVSplit:
    """From sums over sequences to what is held: `shared_tokens` is sum of tables - distinct blocks.

    All shared blocks are full but for `tails`.
    """
    used, internal = shared_tokens, 0
    if tails:
        num_more = len(tails) - len({tail.block for tail in tails})
        tail_used, internal = counted_twice(tails, block_size)
        used += tail_used - num_more * block_size
    return KVSplit(split.allocated - shared_tokens, split.used - used, split.internal - internal)


def add_up(holdings: Seq[Holding]) -> KVSplit:
    """The split summed over sequences."""
    return KVSplit(
        sum(h.allocated for h in holdings),
        sum(min(h.computed, h.final) for h in holdings),
        sum(max(h.allocated - h.final, 0) for h in holdings),
    )


class KVAccounting:
    """`now` tells (allocated, used) tokens; with `look` by looking, which also notes in the log what is internal."""

    def __init__(self, kv: KVPool, batcher: Batcher, tracker: RequestTracker, log: StepLog, *, look: bool) -> None:
        self._kv = kv
        self._sharing = kv if isinstance(kv, SharesBlocks) else None
        self._batcher = batcher
        self._tracker = tracker
        self._log = log
        self._look = look
        self._block_size = kv.block_size or 1
        self.has_samples = False
        """Whether requests have several samples, which may share blocks that are not full."""
        self._internal = 0
        self._internal_shared = 0

    def now(self, plan: StepPlan) -> tuple[int, int]:
        """As after the pass that made `plan`."""
        if self._look:
            return self._by_looking(plan)
        allocated = self._kv.allocated_tokens
        shared = 0 if self._sharing is None else self._sharing.shared_tokens
        used = self._batcher.num_computed_tokens
        if plan.explicit or plan.number - 1 in self._tracker.calendar.at:
            used -= self._num_beyond_the_end(plan)
        if not (shared or self._internal_shared):
            return allocated, used
        split = unshare(KVSplit(allocated + shared, used, 0), shared, self._tails(), self._block_size)
        if split.internal + self._internal_shared:
            self._note_shared(plan, -split.internal)
        return split.allocated, split.used

    def _note_shared(self, plan: StepPlan, internal_shared: int) -> None:
        self._log.internal(plan.number, self._internal_shared - internal_shared)
        self._internal_shared = internal_shared

    def _num_beyond_the_end(self, plan: StepPlan) -> int:
        """Tokens that asynchronous scheduling computes for sequences that end with the step before: one each."""
        beyond = len(self._tracker.calendar.at.get(plan.number - 1, ())) - self._tracker.num_stopped
        for chunk in plan.explicit:
            seq = chunk.seq
            if not seq.is_grouped and seq.num_computed_tokens > seq.owner.final_tokens:
                beyond += 1
        return beyond

    def _by_looking(self, plan: StepPlan) -> tuple[int, int]:
        kv, members = self._kv, self._batcher.members()
        split = add_up([Holding(s.num_computed_tokens, s.owner.final_tokens, kv.allocated_of(s)) for s in members])
        shared = split.allocated - kv.allocated_tokens
        split = unshare(split, shared, self._tails(), self._block_size)
        self._log.internal(plan.number, split.internal - self._internal)
        self._internal = split.internal
        return split.allocated, split.used

    def _tails(self) -> tuple[Tail, ...]:
        """Blocks that several samples of a prompt share and have not filled."""
        if not self.has_samples or self._sharing is None:
            return ()
        tails = [tail for tail in map(self._tail, self._batcher.members()) if tail is not None]
        counts = Counter(tail.block for tail in tails)
        return tuple(tail for tail in tails if counts[tail.block] > 1)

    def _tail(self, seq: Sequence) -> Tail | None:
        start = seq.num_prompt_tokens // self._block_size * self._block_size
        if start == seq.num_prompt_tokens or seq.num_computed_tokens < seq.num_prompt_tokens:
            return None
        assert self._sharing is not None
        block = self._sharing.block_at(seq, start)
        if block is None:
            return None
        final = seq.owner.final_tokens
        filled = [min(tokens - start, self._block_size) for tokens in (seq.num_computed_tokens, final)]
        return Tail(block, min(filled), filled[1])
