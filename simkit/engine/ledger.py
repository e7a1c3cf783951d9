"""The books of one replica: who is inside, when tokens came, who sat in which slot, how much memory is never filled.

Implements `Outcome` for the batcher and turns what happens into facts for the record. Owns no time and no decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol

from simkit.batching.ends import Ends
from simkit.batching.ordering import head_of
from simkit.batching.plan import Batcher, StepPlan
from simkit.engine.customer import Customer
from simkit.engine.kv_split import block_size_of
from simkit.engine.step_log import StepLog
from simkit.errors import CheckError
from simkit.metrics import record as rec
from simkit.metrics.record import Record
from simkit.sequence import Phase, Sequence
from simkit.types import KVAllocator

MAX_IDLE_PASSES = 10_000
"""Non-empty passes without a token or a new high-water mark of computed tokens after which a run is a livelock."""


class Launched(Protocol):
    """A run in flight, as far as gaps between tokens go."""

    plan: StepPlan
    num_gaps_last: int


class Ledger:
    """Customers of a replica and what happened to them. `left_system` is told when who leaves, `preempted`
    that somebody was.

    While outputs are committed `begin_commit` says when the steps ended; `token`, `tokens` and `released` are then
    called back. Steady sequences get no call for each token: their gaps are those between the ends of steps. Unless it
    `counts_memory`, somebody else tells the log about internal fragmentation.
    """

    def __init__(
        self,
        replica: int,
        record: Record,
        log: StepLog,
        kv: KVAllocator,
        left_system: Callable[[int, int], None],
        preempted: Callable[[], None],
        *,
        stream: bool,
        settings: str,
        counts_memory: bool = True,
    ) -> None:
        self.num_outstanding = 0
        self.num_steady_measured = 0
        self.num_stopped = 0
        self.ends = Ends()
        self.in_flight: Iterable[Launched] = ()
        self.grows = False
        """Whether sequences take further blocks while they decode."""
        self._replica = replica
        self._record = record
        self._log = log
        self._kv = kv
        self._block_size = block_size_of(kv)
        self._left_system = left_system
        self._preempted = preempted
        self._stream = stream
        self._counts_memory = counts_memory
        self._settings = settings
        self._end_ns = 0
        self._last_end_ns = 0
        self._number = 0
        self._committed = 0
        self._tokens_now = False
        self._idle_passes = 0
        self._preemptions_without_step = 0

    def enter(self) -> None:
        """A request comes in."""
        self.num_outstanding += 1

    def left_by_express(self) -> None:
        """A request that nobody else knew has left."""
        self.num_outstanding -= 1

    def resume(self, number: int, committed: int, last_end_ns: int) -> None:
        """Steps up to `number` are scheduled; those up to `committed` are over, since `last_end_ns`."""
        self._number, self._committed, self._last_end_ns = number, committed, last_end_ns

    def dismiss(self, seq: Sequence) -> None:
        """`seq`, steady, goes on elsewhere, with what is noted of its memory but for a block beyond its end."""
        customer: Customer = seq.owner
        self.ends.drop(seq)
        self.num_steady_measured -= self._stream and customer.measured
        if not -customer.final_tokens % (self._block_size or 1):
            self._forget_later(customer)
        self._begins_no_more(customer)

    @property
    def last_end_ns(self) -> int:
        """When the last step that is over ended."""
        return self._last_end_ns

    def has_untold_preemptions(self) -> bool:
        """Whether preemptions wait for a step to be told with."""
        return self._preemptions_without_step > 0

    # --- outcome -----------------------------------------------------------------------------------------------------

    def begin_commit(self, end_ns: int, number: int) -> None:
        """Outputs of step `number` follow, which ended at `end_ns`."""
        self._end_ns = self._last_end_ns = end_ns
        self._committed = number
        self._tokens_now = False

    def ran_ahead(self, end_ns: int, number: int) -> None:
        """Step `number` is scheduled, and the equal ones before it are over, the last of them since `end_ns`."""
        self._last_end_ns = end_ns
        self._number = number
        self._committed = number - 1

    def token(self, seq: Sequence, ends: bool) -> bool:
        """A token of `seq` exists: stamp it, and say whether the true length is reached."""
        now = self._end_ns
        customer: Customer = seq.owner
        self._tokens_now = True
        if customer.generated_first_ns < 0:
            customer.generated_first_ns = now
            if customer.admitted_ns < 0 and seq.phase is Phase.RUNNING:
                customer.admitted_ns = now  # a sample that starts from the prompt of another
                self._fill(seq, customer, self._number + 1)
        elif self._stream and customer.measured:
            self._record.itl.add(now - customer.generated_last_ns, 1)
        if customer.prefill_end_ns < 0:
            customer.prefill_end_ns = now
        customer.generated_last_ns = customer.held_last_ns = now
        return ends or seq.num_output_tokens >= customer.true_output_tokens

    def joined(self, seq: Sequence, commit: int) -> None:
        """`seq` gets a token with every commit after number `commit`."""
        customer: Customer = seq.owner
        self.ends.follow(seq, commit + customer.true_output_tokens - seq.num_output_tokens)
        if customer.measured and self._stream:
            self.num_steady_measured += 1
        self._fill_later(seq, customer)

    def stopped(self, seq: Sequence) -> None:
        """`seq` is scheduled no more; the gap before its last token is still one of the pooled ones."""
        customer: Customer = seq.owner
        self.num_stopped += 1
        customer.stopped = True
        self.num_steady_measured -= self._stream and customer.measured
        self._forget_later(customer)

    def left(self, seq: Sequence) -> None:
        """`seq` is steady no more, if it was: what it got so far it got with the last step."""
        if self.ends.drop(seq):
            self._part(seq)
            customer: Customer = seq.owner
            if self._committed > seq.last_step:
                customer.generated_last_ns = customer.held_last_ns = self._last_end_ns
            self._forget_later(customer)

    def tokens(self, commit: int) -> list[Sequence]:
        """Every steady sequence got a token: those for which it was the last one."""
        ending = self.ends.take(commit)
        for seq in ending:
            if seq.owner.stopped:
                self.num_stopped -= 1
            else:
                self._part(seq)
            if seq.last_step < commit:  # else it joined meanwhile, and its token will be told
                customer: Customer = seq.owner
                customer.generated_last_ns = customer.held_last_ns = self._end_ns
        return ending

    def _part(self, seq: Sequence) -> None:
        """The gap before an output that is still to come is not one of the pooled gaps."""
        customer: Customer = seq.owner
        if customer.stopped:
            customer.stopped = False
            self.num_stopped -= 1
            self.num_steady_measured += self._stream and customer.measured
        if self._stream and customer.measured:
            self.num_steady_measured -= 1
            for run in self.in_flight:
                if seq.last_step < run.plan.number <= seq.ticks.scheduled:
                    run.num_gaps_last -= 1

    def released(self, seq: Sequence) -> None:
        """`seq` left its slot, or the queue if its client gave up: deliver what is due and let the customer go."""
        now = self._end_ns
        customer: Customer = seq.owner
        lead = customer.lead
        self._free(customer, self._number + 1)
        if customer.admitted_ns >= 0:
            self._residency(customer, now, 2 if lead.abandoned else 0)
        lead.add_part(customer, seq, seq.num_output_tokens if self._stream or not lead.abandoned else 0)
        if lead.num_parts:
            return
        record = self._record
        record.num_tokens_delivered += lead.total_tokens
        record.leave(now, lead.arrival_ns)
        status = rec.ABORTED if lead.abandoned else rec.FINISHED
        record.requests.append(lead.row(status, 0, now, self._stream))
        lead.sequences = ()  # they know their customers: without this, they would wait for the garbage collector
        self.num_outstanding -= 1
        self._left_system(now, lead.request.id)

    def gives_up(self, customer: Customer) -> bool:
        """The client of `customer` gives up; False when it has everything already."""
        if not customer.num_parts:
            return False
        if self._stream and all(seq.phase is Phase.FINISHED for seq in customer.sequences):
            return False
        customer.abandoned = True
        return True

    def aborting(self, now_ns: int) -> None:
        """Clients give up at `now_ns`; `released` follows for each of their sequences."""
        self._end_ns = now_ns

    def lost(self, seq: Sequence) -> None:
        """The replica fails: `seq` is steady no more, and whatever was only scheduled for it never began."""
        self.left(seq)
        customer: Customer = seq.owner
        if customer.admitted_ns >= self._end_ns:
            customer.admitted_ns = -1
        if customer.first_scheduled_ns >= self._end_ns:
            customer.first_scheduled_ns, customer.cached_tokens = -1, 0

    def displaced(self, seq: Sequence) -> None:
        """`seq` goes on at another replica, without slot and memory."""
        customer: Customer = seq.owner
        self._free(customer, self._number + 1)
        if customer.admitted_ns >= 0:
            self._residency(customer, self._end_ns, 4)

    # --- slots and memory --------------------------------------------------------------------------------------------

    def planned(self, plan: StepPlan, now_ns: int, start_ns: int) -> int:
        """A pass made at `now_ns`, whose step starts at `start_ns`, preempted and admitted.

        Returns the preemptions to tell with its step: its own and those of passes before it that had no step.
        """
        if not (plan.explicit or plan.preemptions or self._preemptions_without_step):
            self._number = plan.number
            return 0
        first = plan.number if plan.num_scheduled else plan.number + 1
        if plan.preemptions:
            self._preempted()
        for preemption in plan.preemptions:
            customer: Customer = preemption.seq.owner
            self._residency(customer, now_ns, 1)
            self._free(customer, first)
        self._number = plan.number
        self._preemptions_without_step += len(plan.preemptions)
        for chunk in plan.explicit:
            customer = chunk.seq.owner
            self._fill(chunk.seq, customer, plan.number)
            if chunk.kind in "CD":
                continue
            customer.admitted_ns = start_ns
            customer.prefill_end_ns = customer.held_last_ns = -1
            if customer.first_scheduled_ns < 0:
                customer.first_scheduled_ns = start_ns
                customer.cached_tokens = chunk.num_computed_tokens
        if not plan.num_scheduled:
            return 0
        told, self._preemptions_without_step = self._preemptions_without_step, 0
        return told

    def _residency(self, customer: Customer, now_ns: int, end: int) -> None:
        self._record.residency(
            (
                self._replica,
                customer.request.id,
                customer.admitted_ns,
                customer.prefill_end_ns,
                customer.held_last_ns,
                now_ns,
                end,
            )
        )
        customer.admitted_ns = customer.prefill_end_ns = customer.held_last_ns = -1

    def _fill(self, seq: Sequence, customer: Customer, number: int) -> None:
        """What of the memory of `seq` is never filled, from step `number` on."""
        if not self._counts_memory:
            return
        final = customer.final_tokens
        internal = max(self._kv.allocated_of(seq) - final, 0)
        if internal != customer.internal_tokens:
            self._log.internal(number, internal - customer.internal_tokens)
            customer.internal_tokens = internal
        customer.internal_from = number

    def _fill_later(self, seq: Sequence, customer: Customer) -> None:
        """A steady sequence begins its last block; or, without slack in it, the block for a token beyond the end."""
        if self._block_size is None or not self.grows:
            return
        computed = seq.num_computed_tokens
        customer.begins = (self._number + 1 - computed) % self._block_size
        self._log.begins(self._number + 1, customer.begins, 1)
        if customer.internal_tokens:
            return
        final = customer.final_tokens
        slack = -final % self._block_size
        begins = final - self._block_size + slack + 1 if slack else final + 1
        customer.internal_tokens = slack or self._block_size
        customer.internal_from = self._number + begins - computed
        self._log.internal(customer.internal_from, customer.internal_tokens)

    def _forget_later(self, customer: Customer) -> None:
        """It takes no further block by itself."""
        self._begins_no_more(customer)
        if customer.internal_from > self._number:
            self._log.internal(customer.internal_from, -customer.internal_tokens)
            customer.internal_tokens = 0

    def _begins_no_more(self, customer: Customer) -> None:
        if customer.begins >= 0:
            self._log.begins(self._number + 1, customer.begins, -1)
            customer.begins = -1

    def _free(self, customer: Customer, number: int) -> None:
        """Its memory is free from step `number` on."""
        self._begins_no_more(customer)
        if customer.internal_tokens:
            self._log.internal(max(number, customer.internal_from), -customer.internal_tokens)
            customer.internal_tokens = 0

    # --- progress ----------------------------------------------------------------------------------------------------

    def watch_progress(self, plan: StepPlan, batcher: Batcher) -> None:
        """Raise CheckError when passes go on and on without a token or a new high-water mark of computed tokens."""
        if self._tokens_now or plan.num_decode:
            self._idle_passes = 0
            return
        self._idle_passes += 1
        for chunk in plan.explicit:
            customer: Customer = chunk.seq.owner
            reached = chunk.num_computed_tokens + chunk.num_tokens
            if chunk.seq.phase is not Phase.FINISHED and reached > customer.high_water_tokens:
                customer.high_water_tokens = reached
                self._idle_passes = 0
        if self._idle_passes >= MAX_IDLE_PASSES:
            self.no_progress(f"{MAX_IDLE_PASSES} passes in a row gave no token and computed none anew", batcher)

    def no_progress(self, what: str, batcher: Batcher) -> NoReturn:
        """Raise CheckError naming the sequences that are stuck and the settings that made them so."""
        members = batcher.members()
        running = ", ".join(str(seq.id) for seq in members[:8]) or "none"
        head = head_of(batcher.waiting)
        raise CheckError(
            f"no progress: replica {self._replica} at {self._end_ns} ns: {what}; {len(members)} running "
            f"(requests {running}), {len(batcher.waiting)} waiting "
            f"(first: {'none' if head is None else f'request {head.id}'}); settings: {self._settings}"
        )
