"""One serving engine: asks its batcher for passes, lets their steps take time, hands the outputs back.

Owns the steps in flight and the customers of one replica. Between two changes it asks for many equal steps at once
(macro-stepping) and, woken earlier, keeps those whose end has been reached. Imports clock, batching, metrics.record.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simkit.batching.continuous import ContinuousBatcher
from simkit.batching.plan import Batcher, Hold, StepPlan
from simkit.engine import clock as ranks
from simkit.engine.clock import Clock
from simkit.engine.customer import Customer
from simkit.engine.kv_split import KVState
from simkit.engine.work_meter import WorkMeter
from simkit.errors import CheckError
from simkit.metrics import record as rec
from simkit.metrics.record import Record, StepFacts
from simkit.sequence import Phase, Sequence
from simkit.types import Ints, KVAllocator, LatencyModel, StepShapes

MAX_RUN_STEPS = 4096
"""Steps priced at once at most; bounds the arrays, not the result."""

MAX_IDLE_PASSES = 10_000
"""Non-empty passes without a token or a new high-water mark of computed tokens after which a run is a livelock."""


class Surroundings(Protocol):
    """What a replica asks of the system around it."""

    def no_arrival_pending(self) -> bool:
        """Whether no further request can reach any replica before one of those in the system ends."""

    def left(self, customer: Customer, now_ns: int) -> None:
        """A customer has left, served or not."""


@dataclass(slots=True)
class _Run:
    """Equal steps in flight: of those priced the first `steps` will be kept, and `done` are over."""

    plan: StepPlan
    shapes: StepShapes
    start_ns: int
    durations_ns: Ints
    ends_ns: Ints
    steps: int
    kv: KVState | None
    external_tokens: int
    waiting: int
    num_live: int
    done: int = 0

    @property
    def end_ns(self) -> int:
        """When the last step to be kept ends."""
        return int(self.ends_ns[self.steps - 1]) if self.steps else self.start_ns


class Replica:
    """A batcher, a KV allocator and a latency model that share simulated time. Implements `Outcome` for the batcher."""

    def __init__(
        self,
        index: int,
        clock: Clock,
        kv: KVAllocator,
        latency: LatencyModel,
        make_batcher: Callable[[Replica], Batcher],
        record: Record,
        surroundings: Surroundings,
        *,
        settings: str,
        stream: bool,
        async_scheduling: bool,
        single_step: bool,
    ) -> None:
        self.index = index
        self.kv = kv
        self.customers: dict[Sequence, Customer] = {}
        self.num_outstanding = 0
        self.batcher = make_batcher(self)
        self._clock = clock
        self._latency = latency
        self._record = record
        self._meter = WorkMeter(latency)
        self._surroundings = surroundings
        self._settings = settings
        self._stream = stream
        self._depth = 2 if async_scheduling else 1
        self._single_step = single_step
        self._grows = isinstance(self.batcher, ContinuousBatcher) and kv.num_gpu_blocks is not None
        self._block_size = kv.capacity_tokens // (kv.num_gpu_blocks - 1) if kv.num_gpu_blocks else 1
        self._in_flight: deque[_Run] = deque()
        self._pass_booked = False
        self._holding = False
        self._wake = 0
        self._device_free_ns = 0
        self._leaving: list[Sequence] = []
        self._first_end_ns = 0
        self._gaps: Counter[int] = Counter()
        self._measured_gaps = 0
        self._tokens_now = 0
        self._commit_ns = 0
        self._idle_passes = 0
        self._last_members: tuple[object, ...] | None = None

    # --- customers come and go ---------------------------------------------------------------------------------------

    def arrive(self, customers: list[Customer]) -> None:
        """A request joins this replica now; `customers` are its samples, the first of them the lead."""
        lead = customers[0]
        for customer, seq in zip(customers, lead.sequences, strict=True):
            self.customers[seq] = customer
        self.num_outstanding += 1
        if self.batcher.add(lead.sequences[0]):
            self._cut_run()
        if not self._in_flight:
            self._book_pass()

    def abandon(self, customer: Customer) -> None:
        """The client gives up: what waits leaves now, what runs when the step in progress ends."""
        unborn = customer.sequences[0].siblings
        alive = [seq for seq in customer.sequences if seq.phase is not Phase.FINISHED and seq not in unborn]
        if not alive:
            return
        customer.abandoned = True
        for seq in alive:
            if seq.phase is Phase.RUNNING or seq.num_stale_tokens or seq.num_in_flight_tokens:
                self._leaving.append(seq)
            elif seq.phase is not Phase.FINISHED:
                self.batcher.abort(seq)
        self._cut_run()
        if not self._in_flight:
            self._book_pass()

    def close(self) -> None:
        """The run is over: check the memory and hand over the sums of work."""
        self.kv.check_integrity()
        self._meter.flush()
        self._record.totals.add_work(self._meter.gpu_ns, self._meter.flops, self._meter.moved_bytes)

    # --- passes and steps --------------------------------------------------------------------------------------------

    def arrivals_ended(self) -> None:
        """No arrival is pending any more: a held batch may launch."""
        if self._holding:
            self._book_pass()

    def _book_pass(self) -> None:
        if not self._pass_booked:
            self._pass_booked = True
            self._clock.at(self._clock.now_ns, ranks.PLAN + self.index, self._pass)

    def _pass(self) -> None:
        self._pass_booked = False
        if len(self._in_flight) >= self._depth:
            return
        self._holding = False
        plan = self.batcher.plan(closed=self._surroundings.no_arrival_pending())
        if isinstance(plan, Hold):
            plan = self._hold(plan)
        if plan is not None:
            self._launch(plan)
            if len(self._in_flight) < self._depth and (plan.num_scheduled or self.batcher.has_work()):
                self._book_pass()
                return
        if self._in_flight:
            self._book_step_end()
        elif self.batcher.num_waiting and not self._holding:
            raise CheckError(
                f"broken invariant: replica {self.index} is idle at {self._clock.now_ns} ns while "
                f"{self.batcher.head()!r} waits"
            )

    def _hold(self, hold: Hold) -> StepPlan | None:
        self._holding = True
        if hold.max_wait_ns is None:
            return None
        deadline = hold.oldest_arrival_ns + hold.max_wait_ns
        if self._clock.now_ns >= deadline:
            self._holding = False
            plan = self.batcher.plan(expired=True)
            assert isinstance(plan, StepPlan), "an expired hold launches"
            return plan
        self._clock.at(deadline, ranks.PLAN + self.index, self._hold_expired)
        return None

    def _hold_expired(self) -> None:
        if self._holding:
            self._book_pass()

    def _launch(self, plan: StepPlan) -> None:
        now = self._clock.now_ns
        self._note_preemptions(plan, now)
        if not plan.num_scheduled:
            assert self._depth > 1, f"replica {self.index}: a pass at {now} ns with work scheduled nothing"
            empty = np.zeros(0, dtype=np.int64)
            self._in_flight.append(_Run(plan, plan.shapes(1), now, empty, empty, 0, None, 0, 0, 0))
            return
        start = max(now, self._device_free_ns)
        shapes = plan.shapes(self._run_length(plan))
        durations = self._latency.step_ns(shapes)
        ends = start + np.cumsum(durations)
        run = _Run(
            plan=plan,
            shapes=shapes,
            start_ns=start,
            durations_ns=durations,
            ends_ns=ends,
            steps=len(durations),
            kv=self._kv_state(plan),
            external_tokens=self._external_tokens(),
            waiting=self.batcher.num_waiting,
            num_live=plan.num_scheduled - plan.dead_slots,
        )
        self._note_admissions(plan, start)
        self._in_flight.append(run)
        self._device_free_ns = run.end_ns

    def _run_length(self, plan: StepPlan) -> int:
        """Steps until the first finish, memory shortfall or change of mind, whichever comes first.

        Asynchronously the pass after a run is made one step before the run ends, and a run can only follow a step of
        the same sequences, whose outputs then bring no first and no last token.
        """
        if self._single_step or not plan.stable:
            return 1
        ahead = self._depth - 1
        if ahead and not self._follows_its_like(plan):
            return 1
        customers = self.customers
        limit = min(customers[s].true_output_tokens - s.num_output_tokens for s in plan.decodes) - ahead
        limit = min(limit, MAX_RUN_STEPS)
        if limit > 1 and self._grows:
            limit = 1 + self.kv.steps_until_full(plan.decodes, limit - 1)
        return max(1, limit)

    def _follows_its_like(self, plan: StepPlan) -> bool:
        if len(self._in_flight) != 1:
            return False
        before = self._in_flight[0].plan
        return before.stable and before.decodes == plan.decodes

    def _book_step_end(self) -> None:
        """Wake when the next pass is due: at the end of the oldest step, or of the last but one of a run."""
        self._wake += 1
        wake = self._wake
        run = self._in_flight[-1]
        end = self._in_flight[0].end_ns
        if len(self._in_flight) > 1 and run.steps > 1:
            end = int(run.ends_ns[run.steps - 2])
        self._clock.at(max(self._clock.now_ns, end), ranks.STEP_END, lambda: self._step_end(wake))

    def _cut_run(self) -> None:
        """Something happened that the next pass must see: keep the step in progress and what is scheduled already."""
        if not self._in_flight or self._in_flight[-1].steps - self._in_flight[-1].done <= 1:
            return
        run, now = self._in_flight[-1], self._clock.now_ns
        in_progress = int(np.searchsorted(run.ends_ns, now, side="left"))
        if self._depth == 1:
            steps = in_progress + 1
        else:
            steps = 1 if now <= self._in_flight[0].end_ns else in_progress + 2
        if steps < run.steps:
            run.steps = steps
            self._device_free_ns = run.end_ns
            self._book_step_end()

    def _step_end(self, wake: int) -> None:
        if wake != self._wake:
            return
        oldest = self._in_flight.popleft()
        if oldest.steps:
            self._commit(oldest, oldest.steps)
        else:
            self.batcher.commit(oldest.plan, 0)
        if self._in_flight and self._in_flight[0].steps > 1:
            self._commit(self._in_flight[0], self._in_flight[0].steps - 1)
        leaving, self._leaving = self._leaving, []
        for seq in leaving:
            if seq.phase is not Phase.FINISHED:
                self.batcher.abort(seq)
        self._book_pass()

    def _commit(self, run: _Run, upto: int) -> None:
        """Record the steps from `run.done` up to `upto`, then process their outputs (`token`, `released` call back)."""
        first, run_ends = run.done, run.ends_ns
        self._record_steps(run, first, upto)
        run.done = upto
        self._first_end_ns, self._commit_ns = int(run_ends[first]), int(run_ends[upto - 1])
        self._tokens_now = self._measured_gaps = 0
        self.batcher.commit(run.plan, upto - first, run.steps - upto)
        for gap in self._gaps:
            self._record.itl.add(gap, self._gaps[gap])
        self._gaps.clear()
        if upto - first > 1 and self._measured_gaps:
            self._record.itl.add_many(run.durations_ns[first + 1 : upto], self._measured_gaps)
        self._watch_progress(run.plan)

    # --- facts -------------------------------------------------------------------------------------------------------

    def token(self, seq: Sequence, ends: bool) -> bool:
        """A token of `seq` exists: stamp it, and say whether the true length is reached."""
        now = self._commit_ns
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
        now = self._clock.now_ns
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
        self._surroundings.left(lead, now)

    def _note_admissions(self, plan: StepPlan, start_ns: int) -> None:
        for chunk in plan.chunks:
            if chunk.kind == "C":
                continue
            customer = self.customers[chunk.seq]
            customer.admitted_ns = start_ns
            customer.prefill_end_ns = customer.held_last_ns = -1
            if customer.first_scheduled_ns < 0:
                customer.first_scheduled_ns = start_ns
                customer.cached_tokens = chunk.num_computed_tokens

    def _note_preemptions(self, plan: StepPlan, now_ns: int) -> None:
        for preemption in plan.preemptions:
            self._residency(self.customers[preemption.seq], now_ns, 1)

    def _residency(self, customer: Customer, now_ns: int, end: int) -> None:
        self._record.residency(
            (
                self.index,
                customer.request.id,
                customer.admitted_ns,
                customer.prefill_end_ns,
                customer.held_last_ns,
                now_ns,
                end,
            )
        )
        customer.admitted_ns = customer.prefill_end_ns = customer.held_last_ns = -1

    def _kv_state(self, plan: StepPlan) -> KVState:
        members = self.batcher.members()
        customers = self.customers
        kv = self.kv
        allocated = np.array([kv.allocated_of(s) for s in members], dtype=np.int64)
        usage = kv.usage()
        if usage.allocated_tokens + usage.free_tokens != usage.capacity_tokens:
            raise CheckError(
                f"broken invariant: replica {self.index} at {self._clock.now_ns} ns: {usage.allocated_tokens} KV "
                f"tokens allocated and {usage.free_tokens} free in a pool of {usage.capacity_tokens}"
            )
        return KVState(
            computed=np.array([s.num_computed_tokens for s in members], dtype=np.int64),
            final=np.array([customers[s].final_tokens for s in members], dtype=np.int64),
            allocated=allocated,
            num_growing=len(plan.decodes),
            block_size=self._block_size if self._grows else None,
            shared_tokens=int(allocated.sum()) - usage.allocated_tokens,
        )

    def _external_tokens(self) -> int:
        head = self.batcher.head()
        if head is None or self.kv.num_gpu_blocks is not None:
            return 0
        return self.kv.external_tokens(max(head.reserve_tokens, head.num_known_tokens))

    def _record_steps(self, run: _Run, first: int, upto: int) -> None:
        plan, part = run.plan, slice(first, upto)
        assert run.kv is not None
        split = run.kv.over(upto)
        self._meter.add(run.shapes, first, upto)
        members = (tuple(seq.id for seq in plan.decodes), plan.dead_slots)
        continues = plan.stable and members == self._last_members
        self._last_members = members if plan.stable else None
        self._record.steps(
            StepFacts(
                replica=self.index,
                start_ns=run.start_ns if first == 0 else int(run.ends_ns[first - 1]),
                durations_ns=run.durations_ns[part],
                num_decode=plan.num_decode,
                prefill_tokens=plan.prefill_tokens,
                padded_tokens=plan.padded_tokens,
                context_tokens=plan.context_tokens,
                live_slots=run.num_live,
                held_slots=plan.held_slots,
                dead_slots=plan.dead_slots,
                waiting=run.waiting,
                num_preemptions=len(plan.preemptions),
                kv_capacity_tokens=self.kv.capacity_tokens,
                kv_allocated=split.allocated_tokens[part],
                kv_used=split.used_tokens[part],
                kv_internal=split.internal_tokens[part],
                kv_external_tokens=run.external_tokens,
                continues=continues,
            )
        )

    def _watch_progress(self, plan: StepPlan) -> None:
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
            stuck = ", ".join(str(seq.id) for seq in self.batcher.members()[:8])
            raise CheckError(
                f"no progress: replica {self.index} made {MAX_IDLE_PASSES} passes without a token or a newly computed "
                f"token (now {self._clock.now_ns} ns); {self.batcher.num_running} running (requests {stuck}), "
                f"{self.batcher.num_waiting} waiting; settings: {self._settings}"
            )
