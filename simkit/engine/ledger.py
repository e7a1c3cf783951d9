"""The books of one replica: who is inside, when tokens came, who sat in which slot, what each step held.

Implements `Outcome` for the batcher and turns what happens into facts for the record. Owns no time and no decisions.
Imports batching.plan, metrics.record and the engine's values; never the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from simkit.batching.ordering import head_of
from simkit.batching.plan import Batcher, StepPlan
from simkit.engine.customer import Customer
from simkit.engine.kv_split import KVSplit
from simkit.errors import CheckError
from simkit.metrics import record as rec
from simkit.metrics.record import Record, StepFacts
from simkit.sequence import Phase, Sequence
from simkit.types import Ints

MAX_IDLE_PASSES = 10_000
"""Non-empty passes without a token or a new high-water mark of computed tokens after which a run is a livelock."""


class Ledger:
    """Customers of a replica and what happened to them. `left` is told of everybody who leaves.

    While outputs are committed `begin_commit` says when the steps ended; `token` and `released` are then called back.
    """

    def __init__(
        self, replica: int, record: Record, left: Callable[[Customer, int], None], *, stream: bool, settings: str
    ) -> None:
        self.customers: dict[Sequence, Customer] = {}
        self.num_outstanding = 0
        self._replica = replica
        self._record = record
        self._left = left
        self._stream = stream
        self._settings = settings
        self._first_end_ns = 0
        self._end_ns = 0
        self._gaps: Counter[int] = Counter()
        self._measured_gaps = 0
        self._tokens_now = 0
        self._idle_passes = 0
        self._preemptions_without_step = 0
        self._last_members: tuple[object, ...] | None = None

    def enter(self, customers: list[Customer]) -> None:
        """A request comes in; `customers` are its samples, the first of them the lead."""
        for customer, seq in zip(customers, customers[0].sequences, strict=True):
            self.customers[seq] = customer
        self.num_outstanding += 1

    # --- outcome -----------------------------------------------------------------------------------------------------

    def begin_commit(self, first_end_ns: int, end_ns: int) -> None:
        """Outputs of equal steps follow: the first of them ended at `first_end_ns`, the last at `end_ns`."""
        self._first_end_ns, self._end_ns = first_end_ns, end_ns
        self._tokens_now = self._measured_gaps = 0

    def end_commit(self, later_durations_ns: Ints) -> None:
        """All outputs are in. Whoever got a token in each step had gaps as long as the steps after the first."""
        for gap, count in self._gaps.items():
            self._record.itl.add(gap, count)
        self._gaps.clear()
        if len(later_durations_ns) and self._measured_gaps:
            self._record.itl.add_many(later_durations_ns, self._measured_gaps)

    def token(self, seq: Sequence, ends: bool) -> bool:
        """A token of `seq` exists: stamp it, and say whether the true length is reached."""
        now = self._end_ns
        customer = self.customers[seq]
        self._tokens_now += 1
        if customer.generated_first_ns < 0:
            customer.generated_first_ns = now
            if customer.admitted_ns < 0 and seq.phase is Phase.RUNNING:
                customer.admitted_ns = now  # a sample that starts from the prompt of another
        elif self._stream and customer.measured:
            self._gaps[self._first_end_ns - customer.generated_last_ns] += 1
            self._measured_gaps += 1
        if customer.prefill_end_ns < 0:
            customer.prefill_end_ns = now
        customer.generated_last_ns = customer.held_last_ns = now
        return ends or seq.num_output_tokens >= customer.true_output_tokens

    def released(self, seq: Sequence) -> None:
        """`seq` left its slot, or the queue if its client gave up: deliver what is due and let the customer go."""
        now = self._end_ns
        customer = self.customers.pop(seq)
        lead = customer.lead
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
        self.num_outstanding -= 1
        self._left(lead, now)

    def gives_up(self, customer: Customer) -> bool:
        """The client of `customer` gives up; False when it has everything already."""
        generated_all = all(seq.phase is Phase.FINISHED for seq in customer.sequences)
        if not customer.num_parts or (generated_all and self._stream):
            return False
        customer.abandoned = True
        return True

    def aborting(self, now_ns: int) -> None:
        """Clients give up at `now_ns`; `released` follows for each of their sequences."""
        self._end_ns = now_ns

    # --- slots -------------------------------------------------------------------------------------------------------

    def planned(self, plan: StepPlan, now_ns: int, start_ns: int) -> int:
        """A pass made at `now_ns`, whose step starts at `start_ns`, preempted and admitted.

        Returns the preemptions to tell with its step: its own and those of passes before it that had no step.
        """
        for preemption in plan.preemptions:
            self._residency(self.customers[preemption.seq], now_ns, 1)
        self._preemptions_without_step += len(plan.preemptions)
        for chunk in plan.chunks:
            if chunk.kind == "C":
                continue
            customer = self.customers[chunk.seq]
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

    # --- steps -------------------------------------------------------------------------------------------------------

    def steps(
        self,
        plan: StepPlan,
        start_ns: int,
        durations_ns: Ints,
        split: KVSplit,
        capacity_tokens: int,
        external_tokens: int,
        waiting: int,
        num_preemptions: int,
    ) -> None:
        """Equal steps were made; `split` has one entry a step."""
        members = (tuple(seq.id for seq in plan.decodes), plan.dead_slots)
        continues = plan.stable and members == self._last_members and not num_preemptions
        self._last_members = members if plan.stable else None
        self._record.steps(
            StepFacts(
                replica=self._replica,
                start_ns=start_ns,
                durations_ns=durations_ns,
                num_decode=plan.num_decode,
                prefill_tokens=plan.prefill_tokens,
                padded_tokens=plan.padded_tokens,
                context_tokens=plan.context_tokens,
                live_slots=plan.num_scheduled - plan.dead_slots,
                held_slots=plan.held_slots,
                dead_slots=plan.dead_slots,
                waiting=waiting,
                num_preemptions=num_preemptions,
                kv_capacity_tokens=capacity_tokens,
                kv_allocated=split.allocated_tokens,
                kv_used=split.used_tokens,
                kv_internal=split.internal_tokens,
                kv_external_tokens=external_tokens,
                continues=continues,
            )
        )

    def watch_progress(self, plan: StepPlan, batcher: Batcher) -> None:
        """Raise CheckError when passes go on and on without a token or a new high-water mark of computed tokens."""
        if self._tokens_now:
            self._idle_passes = 0
            return
        self._idle_passes += 1
        for chunk in plan.chunks:
            customer = self.customers.get(chunk.seq)
            reached = chunk.num_computed_tokens + chunk.num_tokens
            if customer is not None and reached > customer.high_water_tokens:
                customer.high_water_tokens = reached
                self._idle_passes = 0
        if self._idle_passes >= MAX_IDLE_PASSES:
            self.no_progress(f"{MAX_IDLE_PASSES} passes in a row gave no token and computed none anew", batcher)

    def no_progress(self, what: str, batcher: Batcher) -> NoReturn:
        """Raise CheckError naming the sequences that are stuck and the settings that made them so."""
        running = ", ".join(str(seq.id) for seq in batcher.members()[:8]) or "none"
        head = head_of(batcher.waiting)
        raise CheckError(
            f"no progress: replica {self._replica} at {self._end_ns} ns: {what}; {len(batcher.members())} running "
            f"(requests {running}), {len(batcher.waiting)} waiting "
            f"(first: {'none' if head is None else f'request {head.id}'}); settings: {self._settings}"
        )
