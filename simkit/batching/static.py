"""Batches that run to completion: static and dynamic batching, which differ in when a batch launches.

Owns the batch that holds the engine, its padding and its dead slots. Knows no clock, no true output length.
"""

from __future__ import annotations

from operator import attrgetter

from simkit.batching.plan import Hold, ScheduledChunk, StepPlan
from simkit.batching.policies import POLICIES
from simkit.batching.protocol import OutputListener, WaitingQueue
from simkit.kv.protocol import KVAllocator
from simkit.sequence import Phase, Sequence, StepCounter


class StaticBatcher:
    """Launches when `max_num_seqs` wait, the oldest has waited `max_wait_ns`, or no arrival is pending.

    The batch is the longest prefix of the queue that has slots and memory. The padded prefill is one step that computes
    the prompts, of a request that was served before its tokens too, and samples the token after them; finished members
    keep slot and compute until the last one ends; everything leaves together.
    """

    launches_when_closed = True

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        max_wait_ns: int | None,
        kv: KVAllocator,
        listener: OutputListener,
        policy: str = "fcfs",
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.max_wait_ns = max_wait_ns
        self.kv = kv
        self.listener = listener
        self.waiting: WaitingQueue = POLICIES[policy]().waiting
        self.num_computed_tokens = 0
        self._batch: list[Sequence] = []
        self._live: dict[Sequence, None] = {}
        self._counter = StepCounter()
        self._version = 0
        self._padded_prompt_tokens = 0
        self._num_generated = 0

    def members(self) -> list[Sequence]:
        """The batch, dead members included."""
        return self._batch

    def num_members(self) -> int:
        """How many the batch holds, dead members included."""
        return len(self._batch)

    def add(self, seq: Sequence) -> bool:
        """Join the waiting queue; nobody joins a batch after its launch."""
        self.waiting.push(seq)
        return False

    def has_work(self) -> bool:
        """A batch runs or something waits."""
        return bool(self._batch) or len(self.waiting) > 0

    def plan(self, *, closed: bool = False, expired: bool = False) -> StepPlan | Hold | None:
        """The next step of the batch, the launch of one, or how long to hold."""
        if self._batch:
            return self._decode()
        if not len(self.waiting):
            return None
        if len(self.waiting) >= self.max_num_seqs or expired or (closed and self.launches_when_closed):
            return self._launch()
        return Hold(self.max_wait_ns, min(seq.arrival_ns for seq in self.waiting))

    def _launch(self) -> StepPlan:
        batch, padded = self._form()
        assert batch, "what can never fit is rejected on arrival"
        self._batch, self._padded_prompt_tokens, self._num_generated = batch, padded, 0
        self._live = dict.fromkeys(batch)
        plan = self._next_plan()
        plan.num_scheduled = plan.num_sampled = len(batch)
        for number, seq in enumerate(batch):
            seq.phase = Phase.RUNNING
            seq.in_prefill = False
            seq.number = number
            seq.num_computed_tokens = known = seq.num_known_tokens
            self.num_computed_tokens += known
            plan.padded_tokens += padded - known
        plan.explicit = plan.outputs = [ScheduledChunk(seq, "N", 0, seq.num_known_tokens, True) for seq in batch]
        plan.prefill_tokens = padded * len(batch)
        plan.prefill_pairs = len(batch) * (padded * (padded + 1) // 2)
        return plan

    def _next_plan(self) -> StepPlan:
        self._counter.scheduled += 1
        plan = StepPlan()
        plan.number, plan.version, plan.held_slots = self._counter.scheduled, self._version, len(self._batch)
        return plan

    def _form(self) -> tuple[list[Sequence], int]:
        """Move the longest prefix of the queue that fits into a batch; the longest prompt pads everybody."""
        batch: list[Sequence] = []
        padded = 0
        while len(self.waiting) and len(batch) < self.max_num_seqs:
            seq = self.waiting.peek()
            wider = max(padded, seq.num_known_tokens)
            if wider == padded:
                placed = self._reserve(seq, padded)
            else:
                placed = self._reserve_all([*batch, seq], wider)
                if not placed and batch:
                    restored = self._reserve_all(batch, padded)
                    assert restored, "an empty pool places the same batch again"
            if not placed:
                break
            padded = wider
            batch.append(self.waiting.pop())
        return batch, padded

    def _reserve(self, seq: Sequence, padded: int) -> bool:
        """Set aside the padded prompt and the answer; no policy reserves beyond what the model length allows."""
        wanted = padded - seq.num_known_tokens + seq.reserve_tokens
        return self.kv.try_reserve(seq, min(wanted, max(self.max_model_len, padded + seq.max_tokens)))

    def _reserve_all(self, batch: list[Sequence], padded: int) -> bool:
        for seq in batch:
            if seq.kv is not None:
                self.kv.free(seq)
        for seq in batch:
            if not self._reserve(seq, padded):
                for placed in batch:
                    if placed.kv is not None:
                        self.kv.free(placed)
                return False
        return True

    def _decode(self) -> StepPlan:
        count, live = len(self._batch), len(self._live)
        context = self._padded_prompt_tokens + self._num_generated
        plan = self._next_plan()
        plan.num_decode = plan.num_sampled = plan.num_scheduled = count
        plan.dead_slots = count - live
        plan.decode_context_sum = context * count
        plan.decode_context_max = context
        plan.stable = True
        self.num_computed_tokens += live
        return plan

    def commit(self, plan: StepPlan) -> None:
        """Everybody alive gets a token; when the last one has ended the whole batch leaves."""
        self._counter.committed += 1
        self._num_generated += 1
        if plan.outputs:
            self._commit_first_tokens(plan)
        else:
            for seq in sorted(self.listener.tokens(self._counter.committed), key=_NUMBER):
                self._die(seq)
        self._leave_together()

    def run_ahead(self, num_steps: int) -> None:
        """Everybody alive gets `num_steps` tokens, and is scheduled for as many further ones."""
        self._counter.committed += num_steps
        self._counter.scheduled += num_steps
        self._num_generated += num_steps
        self.num_computed_tokens += num_steps * len(self._live)

    def _commit_first_tokens(self, plan: StepPlan) -> None:
        """Whoever does not end at once is grouped from now on, since every step brings it a token."""
        for seq in [output.seq for output in plan.outputs]:
            if seq.phase is Phase.FINISHED:
                continue
            seq.num_output_tokens += 1
            ends = seq.num_output_tokens >= seq.max_tokens or seq.num_known_tokens >= self.max_model_len
            if self.listener.token(seq, ends):
                self._die(seq)
            else:
                seq.join_group(self._counter)
                self.listener.joined(seq, self._counter.committed)

    def _die(self, seq: Sequence) -> None:
        """`seq` has ended, and keeps slot and memory until the others have."""
        if seq.is_grouped:
            seq.leave_group()
        seq.phase = Phase.FINISHED
        del self._live[seq]
        self._version += 1

    def _leave_together(self) -> None:
        if self._live:
            return
        batch, self._batch = self._batch, []
        self.num_computed_tokens = 0
        self._version += 1
        for seq in batch:
            self.kv.free(seq)
            self.listener.released(seq)

    def abort(self, seq: Sequence) -> None:
        """A client left: a waiting sequence goes, a member of the batch turns into a dead slot."""
        if seq.phase is Phase.RUNNING:
            self.listener.left(seq)
            self._die(seq)
            self._leave_together()
        else:
            self.waiting.remove(seq)
            seq.phase = Phase.FINISHED
            self.listener.released(seq)


class DynamicBatcher(StaticBatcher):
    """Launches, engine free, when `max_num_seqs` wait or the oldest has waited `max_wait_ns` (0 = at once).

    Requests join while the batch is forming, nobody after launch; a pending arrival or its absence changes nothing.
    """

    launches_when_closed = False


_NUMBER = attrgetter("number")
