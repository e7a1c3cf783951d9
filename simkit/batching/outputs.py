"""What a step brought: tokens, first and last ones, further samples that fork off, and who leaves.

Owns section 7 of the scheduler specification: outputs in schedule order, each finished with before the next is looked
at. Decides nothing about the next pass. Beside it, the calendar by which a listener knows who gets the last token when.
"""

from __future__ import annotations

from heapq import heappop, heappush
from operator import itemgetter

from simkit.batching.group import Roster
from simkit.batching.plan import ContinuousSettings, ScheduledChunk, StepPlan
from simkit.batching.protocol import OutputListener, WaitingQueue
from simkit.kv.protocol import CanFork, CanSwap, KVAllocator, SharesBlocks
from simkit.sequence import Phase, Sequence

NEVER = 1 << 62


class Outputs:
    """Processes the outputs of plans. `ended` tells that somebody left since it was last set to False."""

    def __init__(
        self,
        settings: ContinuousSettings,
        roster: Roster,
        waiting: WaitingQueue,
        kv: KVAllocator,
        listener: OutputListener,
        host: CanSwap | None,
    ) -> None:
        self.ended = False
        self._settings = settings
        self._roster = roster
        self._waiting = waiting
        self._listener = listener
        self._host = host
        self._cache = kv if settings.async_scheduling and isinstance(kv, SharesBlocks) and kv.caches else None
        self._forking = kv if isinstance(kv, CanFork) else None

    def commit(self, plan: StepPlan) -> None:
        """Whoever ends frees its blocks before the next output is looked at."""
        counter, open_plans = self._roster.counter, self._roster.open_plans
        counter.committed += 1
        ending = self._listener.tokens(counter.committed)
        assert open_plans[0] is plan, "plans are committed in order"
        del open_plans[0]
        if not (ending or plan.outputs):
            return
        if not plan.outputs and len(ending) == 1:
            self._enter(ending[0])
            self._end(ending[0])
            return
        outputs: list[tuple[int, int, Sequence, ScheduledChunk | None]]
        outputs = [(chunk.seq.number, 0, chunk.seq, chunk) for chunk in plan.outputs]
        for seq in ending:
            outputs.append((seq.number, 1, seq, None))
        if len(outputs) > 1:
            outputs.sort(key=_FIRST_TWO)
        for _, _, seq, chunk in outputs:
            if seq.phase is Phase.FINISHED:
                continue
            if chunk is not None:
                self._process(seq, chunk.num_tokens, chunk.samples)
            else:
                self._enter(seq)
                self._end(seq)

    def _process(self, seq: Sequence, num_tokens: int, samples: bool) -> None:
        stale = seq.num_stale_tokens > 0
        if stale:
            seq.num_stale_tokens -= num_tokens
        else:
            seq.num_in_flight_tokens -= num_tokens - seq.is_grouped
        if not samples:
            return
        if not seq.is_grouped:
            seq.num_output_tokens += 1
            if not stale:
                seq.num_outstanding_tokens -= 1
        if not stale:
            self._enter(seq)
        ends = (
            seq.num_output_tokens >= seq.max_tokens
            or seq.num_prompt_tokens + seq.num_output_tokens >= self._settings.max_model_len
        )
        if seq.forks:
            self._fork(seq, ends)
        if self._listener.token(seq, ends):
            self._end(seq)

    def _enter(self, seq: Sequence) -> None:
        """A token that was not known at allocation may complete a block, the last token of a sequence too."""
        if self._cache is not None and seq.kv is not None:
            self._cache.enter(seq, seq.num_computed_tokens - seq.num_in_flight_tokens)

    def _end(self, seq: Sequence) -> None:
        if seq.phase is Phase.RUNNING:
            self._roster.leave_slot(seq)
        else:
            self._waiting.remove(seq)
            if self._host is not None and self._host.holds(seq):
                self._host.release(seq)
        seq.phase = Phase.FINISHED
        self.ended = True
        self._listener.released(seq)

    def _fork(self, parent: Sequence, ends: bool) -> None:
        """The prompt is computed: its other samples share it and get their first token in the same step.

        A sample for which there is no memory starts like a preempted one.
        """
        assert self._forking is not None, "samples of one prompt need memory that can fork"
        forks, parent.forks = parent.forks, ()
        if parent.phase is Phase.RUNNING:
            self._roster.num_pending_forks -= len(forks)
        for child in forks:
            child.num_output_tokens = parent.num_output_tokens
            if parent.phase is Phase.RUNNING and self._forking.try_fork(parent, child):
                child.num_computed_tokens = parent.num_prompt_tokens
                child.in_prefill = False
                child.last_step = self._roster.counter.committed
                self._roster.take_slot(child)
            else:
                child.phase = Phase.PREEMPTED
                self._waiting.push_preempted(child)
            if self._listener.token(child, ends):
                self._end(child)

    def abort(self, seq: Sequence) -> None:
        """A client abort frees at once, from whichever queue."""
        self._listener.left(seq)
        self._end(seq)
        for pending in seq.forks:
            pending.phase = Phase.FINISHED
            self._listener.released(pending)


class FinishCalendar:
    """Grouped sequences by the number of the commit that brings their last token.

    Whoever listens to a batcher keeps one: it knows how many tokens are left, the batcher does not.
    """

    __slots__ = ("_numbers", "_when", "at")

    def __init__(self) -> None:
        self.at: dict[int, dict[Sequence, None]] = {}
        """Who ends, by the number of the commit."""
        self._numbers: list[int] = []
        self._when: dict[Sequence, int] = {}

    def follow(self, seq: Sequence, commit: int) -> None:
        """The last token of `seq` comes with commit number `commit`, unless it is dropped before."""
        self._when[seq] = commit
        there = self.at.get(commit)
        if there is None:
            self.at[commit] = {seq: None}
            heappush(self._numbers, commit)
        else:
            there[seq] = None

    def drop(self, seq: Sequence) -> bool:
        """Forget `seq`; False when it was not followed."""
        commit = self._when.pop(seq, None)
        if commit is None:
            return False
        there = self.at[commit]
        del there[seq]
        if not there:
            del self.at[commit]
        return True

    def take(self, commit: int) -> list[Sequence]:
        """Who ends with commit number `commit`; they are forgotten."""
        ending = self.at.pop(commit, None)
        if ending is None:
            return []
        for seq in ending:
            del self._when[seq]
        return list(ending)

    def next(self) -> int:
        """Number of the next commit that ends somebody, `NEVER` when nobody is followed."""
        numbers, at = self._numbers, self.at
        while numbers and numbers[0] not in at:
            heappop(numbers)
        return numbers[0] if numbers else NEVER


_FIRST_TWO = itemgetter(0, 1)
