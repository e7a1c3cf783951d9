"""How much KV memory a replica holds and uses when a step begins.

The sums that the batcher and the allocator keep anyway are put together; or, to check them, every sequence is looked
at.
"""

from __future__ import annotations

from collections import Counter

from simkit.batching.plan import Batcher, StepPlan
from simkit.engine.kv_split import Holding, KVSplit, Tail, add_up, block_size_of, unshare
from simkit.engine.step_log import StepLog
from simkit.engine.tracker import RequestTracker
from simkit.sequence import Sequence
from simkit.types import KVAllocator


class KVAccounting:
    """`now` tells (allocated, used) tokens; with `look` by looking, which also notes in the log what is internal."""

    def __init__(self, kv: KVAllocator, batcher: Batcher, tracker: RequestTracker, log: StepLog, *, look: bool) -> None:
        self._kv = kv
        self._batcher = batcher
        self._tracker = tracker
        self._log = log
        self._look = look
        self._block_size = block_size_of(kv) or 1
        self.has_samples = False
        """Whether requests have several samples, which may share blocks that are not full."""
        self._internal = 0
        self._internal_shared = 0

    def now(self, plan: StepPlan) -> tuple[int, int]:
        """As after the pass that made `plan`."""
        if self._look:
            return self._by_looking(plan)
        kv = self._kv
        allocated, shared = kv.allocated_tokens, kv.shared_tokens
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
        shared = split.allocated - kv.usage().allocated_tokens
        split = unshare(split, shared, self._tails(), self._block_size)
        self._log.internal(plan.number, split.internal - self._internal)
        self._internal = split.internal
        return split.allocated, split.used

    def _tails(self) -> tuple[Tail, ...]:
        """Blocks that several samples of a prompt share and have not filled."""
        if not self.has_samples:
            return ()
        tails = [tail for tail in map(self._tail, self._batcher.members()) if tail is not None]
        counts = Counter(tail.block for tail in tails)
        return tuple(tail for tail in tails if counts[tail.block] > 1)

    def _tail(self, seq: Sequence) -> Tail | None:
        start = seq.num_prompt_tokens // self._block_size * self._block_size
        if start == seq.num_prompt_tokens or seq.num_computed_tokens < seq.num_prompt_tokens:
            return None
        block = self._kv.block_at(seq, start)
        if block is None:
            return None
        final = seq.owner.final_tokens
        filled = [min(tokens - start, self._block_size) for tokens in (seq.num_computed_tokens, final)]
        return Tail(block, min(filled), filled[1])
