"""One serving engine: asks its batcher for passes, lets their steps take time, hands the outputs back.

Owns the steps in flight of one replica. Between two changes it asks for many equal steps at once (macro-stepping) and,
woken earlier, keeps those that were scheduled by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Protocol

from simkit.batching.continuous import ContinuousBatcher
from simkit.batching.plan import Hold, StepPlan
from simkit.batching.protocol import Batcher, OutputListener, head_of
from simkit.engine import clock as ranks
from simkit.engine.clock import Clock
from simkit.engine.kv_accounting import KVAccounting
from simkit.engine.pricing import MAX_RUN_STEPS, Pricer, Run
from simkit.engine.request import RequestState
from simkit.engine.step_log import StepLog, StepRun
from simkit.engine.tracker import RequestTracker
from simkit.errors import CheckError
from simkit.kv.protocol import HasHoles, KVPool
from simkit.latency.protocol import LatencyModel
from simkit.metrics.record import Record
from simkit.sequence import Phase, Sequence

MAX_EMPTY_PASSES = 1000
"""Passes in a row that may schedule nothing while there is work; each but the last few preempts somebody."""


class System(Protocol):
    """What a replica asks of the system around it."""

    @property
    def next_arrival_ns(self) -> int | None:
        """When the next request comes, as far as that is known: a hint, which changes no result."""

    def no_arrival_pending(self) -> bool:
        """Whether no further request can reach any replica before one of those in the system ends."""

    def left(self, now_ns: int, request: int) -> None:
        """Request number `request` has left, served or not."""

    def preempted(self) -> None:
        """Somebody was preempted."""


class Replica:
    """A batcher, a KV allocator and a latency model that share simulated time."""

    def __init__(
        self,
        index: int,
        clock: Clock,
        kv: KVPool,
        latency: LatencyModel,
        make_batcher: Callable[[OutputListener], Batcher],
        record: Record,
        system: System,
        *,
        max_slots: int,
        settings: str,
        stream: bool,
        async_scheduling: bool,
        single_step: bool,
    ) -> None:
        self.index = index
        self.kv = kv
        self._log = StepLog(index, record, latency, kv.capacity_tokens, kv.block_size or 1)
        self._in_flight: deque[Run] = deque()
        self.tracker = RequestTracker(
            index, record, self._log, kv, system.left, system.preempted, stream=stream,
            settings=settings, counts_memory=not single_step,
        )  # fmt: skip
        self.tracker.in_flight = self._in_flight
        self.batcher = make_batcher(self.tracker)
        self._accounting = KVAccounting(kv, self.batcher, self.tracker, self._log, look=single_step)
        self._clock = clock
        self._record = record
        self._stream = stream
        self._pricer = Pricer(latency)
        self._system = system
        self._max_slots = max_slots
        self._depth = 2 if async_scheduling else 1
        self._single_step = single_step
        self._holes = kv if isinstance(kv, HasHoles) else None
        self._grows = self.tracker.grows = isinstance(self.batcher, ContinuousBatcher)
        self._pass_booked = False
        self._holding = False
        self._wake = 0
        self._device_free_ns = 0
        self._last_version = -1
        self._leaving: list[Sequence] = []
        self._num_empty_passes = 0

    # --- requests come and go ----------------------------------------------------------------------------------------

    @property
    def num_outstanding(self) -> int:
        """Requests here that have not left."""
        return self.tracker.num_outstanding

    def arrive(self, seq: Sequence) -> None:
        """A request joins this replica now; the owner of `seq` is its state, which knows its further samples."""
        self.tracker.num_outstanding += 1
        self._join(seq)

    def _join(self, seq: Sequence) -> None:
        self._accounting.has_samples = seq.samples > 1
        # External fragmentation is measured by what the head wants, so a new head begins a new run as well.
        if self.batcher.add(seq) or (self._holes is not None and head_of(self.batcher.waiting) is seq):
            self._cut_run()
        if not self._in_flight:
            self._book_pass()

    def abandon(self, state: RequestState) -> None:
        """The client gives up: what waits leaves now, what runs when the step in progress ends."""
        alive = state.alive()
        if not self.tracker.gives_up(state) or not alive:
            return
        self.tracker.aborting(self._clock.now_ns)
        for seq in alive:
            if seq.phase is Phase.RUNNING or seq.num_stale_tokens or seq.num_in_flight_tokens:
                self._leaving.append(seq)
            else:
                self.batcher.abort(seq)
        self._cut_run()
        if not self._in_flight:
            self._book_pass()

    def close(self) -> None:
        """The run is over: check the memory and hand over what was noted."""
        self.kv.check_integrity()
        self._log.close()

    # --- passes ------------------------------------------------------------------------------------------------------

    def arrivals_ended(self) -> None:
        """No arrival is pending any more: a held batch may launch."""
        if self._holding:
            self._book_pass()

    def _book_pass(self) -> None:
        if not self._pass_booked:
            self._pass_booked = True
            self._clock.at(self._clock.now_ns, ranks.PLAN + self.index, self._pass_event)

    def _pass_event(self) -> None:
        self._pass_booked = False
        if len(self._in_flight) < self._depth and self._make_passes():
            self._go_on()

    def _make_passes(self) -> bool:
        """Plan until nothing more can be in flight; whether a step is going to end."""
        in_flight, batcher = self._in_flight, self.batcher
        self._holding = False
        while True:
            plan = batcher.plan() if self._grows else batcher.plan(closed=self._system.no_arrival_pending())
            if isinstance(plan, Hold):
                plan = self._hold(plan)
            if plan is None:
                break
            self._launch(plan)
            if len(in_flight) >= self._depth or not (plan.num_scheduled or batcher.has_work()):
                break
        if not in_flight and len(batcher.waiting) and not self._holding:
            raise CheckError(
                f"broken invariant: replica {self.index} is idle at {self._clock.now_ns} ns while "
                f"{batcher.waiting.peek()!r} waits"
            )
        return bool(in_flight)

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
            self.tracker.planned(plan, now, now)
            self._in_flight.append(Run(plan, now, []))
            return
        self._num_empty_passes = 0
        start = self._device_free_ns
        if start < now:
            start = now
        num_preemptions = self.tracker.planned(plan, now, start)
        num_steps = self._run_length(plan) if plan.stable else 1
        run = Run(plan, start, self._pricer.ends_ns(plan, start, num_steps, self._system.next_arrival_ns))
        self._device_free_ns = run.end_ns()
        self._note(run, num_preemptions)
        self._in_flight.append(run)

    def _note(self, run: Run, num_preemptions: int) -> None:
        """What holds when the first step of `run` begins."""
        plan, gaps = run.plan, self.tracker.num_grouped_measured
        continues = plan.stable and plan.version == self._last_version and not num_preemptions
        self._last_version = plan.version if plan.stable else -1
        allocated, used = self._accounting.now(plan)
        external = 0 if self._holes is None else self._external_tokens(self._holes)
        waiting = len(self.batcher.waiting)
        run.facts = StepRun(
            plan, plan.number, run.start_ns, continues, plan.held_slots, waiting, allocated, used, gaps
        )  # fmt: skip
        if plan.explicit or external or num_preemptions or plan.swap_out_bytes:
            run.facts.detail = (
                plan.prefill_tokens,
                plan.prefill_context_tokens,
                plan.prefill_pairs,
                plan.num_sampled - plan.num_decode,
                plan.num_scheduled - plan.num_decode,
                plan.padded_tokens,
                plan.swap_in_bytes,
                plan.swap_out_bytes,
                num_preemptions,
                external,
            )

    def _watch_empty_passes(self) -> None:
        self._num_empty_passes += 1
        if self._num_empty_passes >= MAX_EMPTY_PASSES:
            self.tracker.no_progress(f"{MAX_EMPTY_PASSES} passes in a row scheduled nothing", self.batcher)

    def _run_length(self, plan: StepPlan) -> int:
        """Steps of a stable plan until the first finish or memory shortfall, whichever comes first.

        Asynchronously the pass after a run is made one step before the run ends, and nobody may end with the step that
        is in flight before it.
        """
        if self._single_step or plan.outputs or len(self._in_flight) < self._depth - 1:
            return 1
        limit = self.tracker.calendar.next() - plan.number + 1  # commits are numbered as plans are
        if limit <= 1:
            return 1
        if limit > MAX_RUN_STEPS:
            limit = MAX_RUN_STEPS
        return 1 + self.kv.steps_until_full(limit - 1) if self._grows else limit

    # --- steps -------------------------------------------------------------------------------------------------------

    def _due_ns(self) -> int:
        """When the next pass is due: at the end of the oldest step, or of the last but one of a run."""
        run = self._in_flight[-1]
        due = run.end_ns(2) if self._depth > 1 and run.steps > 1 else self._in_flight[0].end_ns()
        return max(self._clock.now_ns, due)

    def _book_step_end(self) -> None:
        self._wake += 1
        wake = self._wake
        self._clock.at(self._due_ns(), ranks.STEP_END, lambda: self._step_event(wake))

    def _step_event(self, wake: int) -> None:
        if wake == self._wake:
            self._end_step()
            self._go_on(pass_is_due=True)

    def _go_on(self, pass_is_due: bool = False) -> None:
        """Step after step for as long as nothing else is booked; then book what comes next."""
        clock = self._clock
        while True:
            if pass_is_due:
                if not clock.nothing_else_now():
                    self._book_pass()
                    return
                if not self._make_passes():
                    return
            if not clock.advance(self._due_ns()):
                self._book_step_end()
                return
            self._end_step()
            pass_is_due = True

    def _cut_run(self) -> None:
        """Something happened that the next pass must see: keep the steps that are scheduled already."""
        in_flight = self._in_flight
        if not in_flight or in_flight[-1].steps - in_flight[-1].done <= 1:
            return
        run = in_flight[-1]
        # Number of steps that began before now; asynchronously one more is scheduled when a step begins.
        now = self._clock.now_ns
        begun = 1 + bisect_left(run.ends_ns, now, 0, run.steps) if run.start_ns < now else 0
        steps = max(1, begun + self._depth - 1)
        if steps < run.steps:
            run.steps = steps
            self._device_free_ns = run.end_ns()
            self._book_step_end()

    def _end_step(self) -> None:
        in_flight = self._in_flight
        oldest = in_flight.popleft()
        if oldest.steps:
            self._commit(oldest)
        else:
            self.batcher.commit(oldest.plan)
        if in_flight and in_flight[0].steps > 1:
            self._run_ahead(in_flight[0])
        if self._leaving:
            self._let_leave()

    def _commit(self, run: Run) -> None:
        """The last step of `run` is over: process its outputs (`token`, `released` call back)."""
        self._log_run(run)
        steps, plan, tracker = run.steps, run.plan, self.tracker
        if steps - run.done > 1:
            self._run_ahead(run)
        tracker.begin_commit(run.end_ns(), plan.number + steps - 1)
        self.batcher.commit(plan)
        tracker.watch_progress(plan, self.batcher)

    def _run_ahead(self, run: Run) -> None:
        """All steps of `run` but the last are over, and all of them are scheduled; nobody ended."""
        ahead = run.steps - 1 - run.done
        run.done += ahead
        self.tracker.ran_ahead(run.end_ns(2), run.plan.number + run.done)
        self.batcher.run_ahead(ahead)

    def _let_leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        self.tracker.aborting(self._clock.now_ns)
        for seq in leaving:
            if seq.phase is not Phase.FINISHED:
                self.batcher.abort(seq)

    def _log_run(self, run: Run) -> None:
        facts = run.facts
        assert facts is not None, "a run with steps"
        facts.num_steps = run.steps
        self._log.add(facts, run.ends_ns[: run.steps])

    def _external_tokens(self, holes: HasHoles) -> int:
        head = head_of(self.batcher.waiting)
        if head is None or self.batcher.num_members() >= self._max_slots:
            return 0
        return holes.external_tokens(max(head.reserve_tokens, head.num_known_tokens))
