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
from simkit.batching.ordering import head_of
from simkit.batching.plan import Batcher, Hold, Outcome, StepPlan
from simkit.engine import clock as ranks
from simkit.engine.clock import Clock
from simkit.engine.customer import Customer
from simkit.engine.kv_split import KVState, Tail
from simkit.engine.ledger import Ledger
from simkit.engine.work_meter import WorkMeter
from simkit.errors import CheckError
from simkit.metrics.record import Record
from simkit.sequence import Phase, Sequence
from simkit.types import Ints, KVAllocator, LatencyModel, StepShapes

MAX_EMPTY_PASSES = 1000
"""Passes in a row that may schedule nothing while there is work; each but the last few preempts somebody."""

MAX_RUN_STEPS = 4096
"""Steps priced at once at most; bounds the arrays, not the result."""


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
    num_preemptions: int
    done: int = 0

    @property
    def end_ns(self) -> int:
        """When the last step to be kept ends."""
        return int(self.ends_ns[self.steps - 1]) if self.steps else self.start_ns


class Replica:
    """A batcher, a KV allocator and a latency model that share simulated time."""

    def __init__(
        self,
        index: int,
        clock: Clock,
        kv: KVAllocator,
        latency: LatencyModel,
        make_batcher: Callable[[Outcome], Batcher],
        record: Record,
        surroundings: Surroundings,
        *,
        max_slots: int,
        settings: str,
        stream: bool,
        async_scheduling: bool,
        single_step: bool,
    ) -> None:
        self.index = index
        self.kv = kv
        self.ledger = Ledger(index, record, surroundings.left, stream=stream, settings=settings)
        self.batcher = make_batcher(self.ledger)
        self._clock = clock
        self._latency = latency
        self._record = record
        self._meter = WorkMeter(latency)
        self._surroundings = surroundings
        self._max_slots = max_slots
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
        self._num_empty_passes = 0

    # --- customers come and go ---------------------------------------------------------------------------------------

    @property
    def num_outstanding(self) -> int:
        """Requests here that have not left."""
        return self.ledger.num_outstanding

    def arrive(self, customers: list[Customer]) -> None:
        """A request joins this replica now; `customers` are its samples, the first of them the lead."""
        self.ledger.enter(customers)
        seq = customers[0].sequences[0]
        # External fragmentation is measured by what the head wants, so a new head begins a new run as well.
        if self.batcher.add(seq) or (self.kv.num_gpu_blocks is None and head_of(self.batcher.waiting) is seq):
            self._cut_run()
        if not self._in_flight:
            self._book_pass()

    def abandon(self, customer: Customer) -> None:
        """The client gives up: what waits leaves now, what runs when the step in progress ends."""
        unborn = customer.sequences[0].siblings
        alive = [seq for seq in customer.sequences if seq.phase is not Phase.FINISHED and seq not in unborn]
        if not self.ledger.gives_up(customer) or not alive:
            return
        self.ledger.aborting(self._clock.now_ns)
        for seq in alive:
            if seq.phase is Phase.RUNNING or seq.num_stale_tokens or seq.num_in_flight_tokens:
                self._leaving.append(seq)
            else:
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
        elif len(self.batcher.waiting) and not self._holding:
            raise CheckError(
                f"broken invariant: replica {self.index} is idle at {self._clock.now_ns} ns while "
                f"{self.batcher.waiting.peek()!r} waits"
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
        if not plan.num_scheduled:
            self._watch_empty_passes()
            empty = np.zeros(0, dtype=np.int64)
            self.ledger.planned(plan, now, now)
            self._in_flight.append(_Run(plan, plan.shapes(1), now, empty, empty, 0, None, 0, 0, 0))
            return
        self._num_empty_passes = 0
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
            waiting=len(self.batcher.waiting),
            num_preemptions=self.ledger.planned(plan, now, start),
        )
        self._in_flight.append(run)
        self._device_free_ns = run.end_ns

    def _watch_empty_passes(self) -> None:
        self._num_empty_passes += 1
        if self._num_empty_passes >= MAX_EMPTY_PASSES:
            self.ledger.no_progress(f"{MAX_EMPTY_PASSES} passes in a row scheduled nothing", self.batcher)

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
        customers = self.ledger.customers
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
        self.ledger.aborting(self._clock.now_ns)
        for seq in leaving:
            if seq.phase is not Phase.FINISHED:
                self.batcher.abort(seq)
        self._book_pass()

    def _commit(self, run: _Run, upto: int) -> None:
        """Record the steps from `run.done` up to `upto`, then process their outputs (`token`, `released` call back)."""
        first, part = run.done, slice(run.done, upto)
        assert run.kv is not None
        self._meter.add(run.shapes, first, upto)
        self.ledger.steps(
            run.plan,
            run.start_ns if first == 0 else int(run.ends_ns[first - 1]),
            run.durations_ns[part],
            run.kv.over(upto).part(first, upto),
            self.kv.capacity_tokens,
            run.external_tokens,
            run.waiting,
            run.num_preemptions if first == 0 else 0,
        )
        run.done = upto
        self.ledger.begin_commit(int(run.ends_ns[first]), int(run.ends_ns[upto - 1]))
        self.batcher.commit(run.plan, upto - first, run.steps - upto)
        self.ledger.end_commit(run.durations_ns[first + 1 : upto])
        self.ledger.watch_progress(run.plan, self.batcher)

    # --- memory ------------------------------------------------------------------------------------------------------

    def _kv_state(self, plan: StepPlan) -> KVState:
        members = self.batcher.members()
        customers = self.ledger.customers
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
            tails=self._shared_tails(members),
        )

    def _shared_tails(self, members: list[Sequence]) -> tuple[Tail, ...]:
        """Blocks that several samples of a prompt share and have not filled."""
        if not members or members[0].samples == 1:
            return ()
        tails = []
        for seq in members:
            start = seq.num_prompt_tokens // self._block_size * self._block_size
            if start == seq.num_prompt_tokens or seq.num_computed_tokens < seq.num_prompt_tokens:
                continue
            block = self.kv.block_at(seq, start)
            if block is not None:
                final = self.ledger.customers[seq].final_tokens
                filled = [min(tokens - start, self._block_size) for tokens in (seq.num_computed_tokens, final)]
                tails.append(Tail(block, min(filled), filled[1]))
        counts = Counter(tail.block for tail in tails)
        return tuple(tail for tail in tails if counts[tail.block] > 1)

    def _external_tokens(self) -> int:
        head = head_of(self.batcher.waiting)
        waits_for_memory = head is not None and len(self.batcher.members()) < self._max_slots
        if head is None or not waits_for_memory or self.kv.num_gpu_blocks is not None:
            return 0
        return self.kv.external_tokens(max(head.reserve_tokens, head.num_known_tokens))
