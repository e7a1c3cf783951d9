"""The short way of a replica while nobody waits: every prompt is computed at once, in one chunk, in the next pass.

Then all that will happen to a request is known when it is admitted: its last token comes with a certain step, and until
then it takes a block every so many steps. So neither plans nor sequences are needed: a segment of equal steps lasts
until the next request ends or arrives. As soon as a request would have to wait (for budget, a slot, or memory), or
memory runs short, everybody is handed over to the batcher, and taken back when nobody waits any more. The decisions and
the facts are those of batcher, allocator and tracker together; only continuous batching, first come first served, over
blocks that are merely counted, is done here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from simkit.batching.plan import ContinuousSettings, StepPlan
from simkit.engine.fast_path.riders import Rider, Riders
from simkit.engine.pricing import MAX_RUN_STEPS, Pricer
from simkit.engine.request import RequestState
from simkit.engine.step_log import StepLog, StepRun
from simkit.kv.counted import CountedAllocator
from simkit.metrics import record as rec
from simkit.metrics.record import Record
from simkit.types import Ints


class Segment:
    """Equal steps: number `first` starts at `start_ns`, and they end at `ends_ns`; `num_steps` of them are kept."""

    __slots__ = ("ends_ns", "first", "num_steps", "start_ns")

    def __init__(self, first: int, start_ns: int, ends_ns: list[int] | Ints) -> None:
        self.first = first
        self.start_ns = start_ns
        self.ends_ns = ends_ns
        self.num_steps = len(ends_ns)

    def end_ns(self, number: int) -> int:
        """When step `number` ends."""
        return int(self.ends_ns[number - self.first])


class Express:
    """Riders of one replica, the steps planned for them, and what the steps hold.

    `scheduled` is the number of the last step planned, `committed` of the last one whose outputs are in; `lag` is how
    many steps are planned ahead of that (1 with asynchronous scheduling, else 0).
    """

    def __init__(
        self,
        replica: int,
        settings: ContinuousSettings,
        kv: CountedAllocator,
        pricer: Pricer,
        record: Record,
        log: StepLog,
        left: Callable[[int, int], None],
        *,
        stream: bool,
    ) -> None:
        self.lag = 1 if settings.async_scheduling else 0
        self.scheduled = self.committed = 0
        self.waiting: list[RequestState] = []
        self.riders = Riders(kv.num_free_blocks, kv.block_size, log)
        self.segments: list[Segment] = []
        self.row: StepRun | None = None
        """What holds from some step on, and is not noted yet."""
        self.device_free_ns = self.last_end_ns = 0
        self.is_stable = self.goes_on = False
        """Whether the last step planned was stable; and whether nobody took or left a slot since, either."""
        self._replica = replica
        self._max_running = settings.max_num_active_seqs or settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens
        self._num_blocks = kv.num_free_blocks
        self._block_size = kv.block_size
        self._watermark_blocks = kv.watermark_blocks
        self._pricer = pricer
        self._record = record
        self._log = log
        self._left = left
        self._stream = stream
        self._shape = StepPlan()
        self._split_at = 0

    def start(self, scheduled: int, committed: int, last_end_ns: int, device_free_ns: int) -> None:
        """Go on after step `scheduled`; `take` follows for each rider."""
        self.scheduled = self.riders.grown = scheduled
        self.committed = committed
        self.last_end_ns, self.device_free_ns = last_end_ns, device_free_ns

    def take(self, rider: Rider) -> None:
        """`rider` comes from the batcher, with its slot and memory."""
        self.riders.admit(rider, rider.base + self.scheduled)
        self.riders.decode(rider, self.scheduled + 1)

    def clear(self) -> None:
        """All go on elsewhere."""
        self.riders.dismiss(self.scheduled)
        self.riders = Riders(self._num_blocks, self._block_size, self._log)
        self.segments, self.row = [], None
        self._split_at = 0

    # --- time --------------------------------------------------------------------------------------------------------

    def pass_is_due(self) -> bool:
        """Whether the next step has to be planned now, if there is anything to plan."""
        return self.committed >= self.scheduled - self.lag

    def is_idle(self) -> bool:
        """Whether no step is under way."""
        return self.committed == self.scheduled

    def has_more(self) -> bool:
        """Whether a further step has anything to hold."""
        if self.riders.must_stop(self.scheduled):
            self._split_row()
            self.riders.stop(self.scheduled)
        return self.riders.count > 0 or bool(self.waiting)

    def due(self) -> tuple[int, int]:
        """(number, when it ends) of the next step whose outputs, or the pass behind it, have to be looked at."""
        number = self.scheduled - self.lag
        if number <= self.committed:
            number = self.scheduled
        last = self.riders.next_release(self.committed)
        if last < number:
            number = last
        return number, self.end_ns(number)

    def cut(self, now_ns: int) -> bool:
        """A request has arrived and waits: keep the steps that are scheduled already; whether there were more."""
        segment = self.segments[-1]
        begun = 0
        if segment.start_ns < now_ns:
            begun = 1 + bisect_left(segment.ends_ns, now_ns, 0, segment.num_steps)
        steps = max(1, begun + self.lag)
        if steps >= segment.num_steps:
            return False
        scheduled = segment.first + steps - 1
        segment.num_steps = steps
        self.scheduled = scheduled
        self.device_free_ns = segment.end_ns(scheduled)
        if self._split_at > scheduled:
            self._split_at = 0
        return True

    # --- the pass ----------------------------------------------------------------------------------------------------

    def plan(self, now_ns: int, until_ns: int | None) -> bool:
        """Plan the step after the last one, or a run of steps; False, and nothing is done, if the batcher has to."""
        number, riders = self.scheduled + 1, self.riders
        if self._split_at:
            self._split_row()
        riders.grow(self.scheduled)
        begun = riders.begins[number % self._block_size]
        if riders.count > self._budget or begun > riders.free or (self.waiting and not self._fits(begun)):
            return False
        self.close_row(self.scheduled)
        riders.free -= begun
        riders.grown = number
        start_ns = max(now_ns, self.device_free_ns)
        if self.waiting:
            self._plan_prefill(number, start_ns)
        else:
            self._plan_decodes(number, start_ns, until_ns)
        self.device_free_ns = self.segments[-1].end_ns(self.scheduled)
        return True

    def _fits(self, begun: int) -> bool:
        """Whether the next pass, with `begun` blocks, admits all who wait, each with its whole prompt."""
        block_size = self._block_size
        budget, held = self._budget - self.riders.count, len(self.riders.on_board)
        free = self.riders.free - begun
        for state in self.waiting:
            tokens = state.request.prompt_tokens
            blocks = -(-tokens // block_size)
            held += 1
            # While somebody runs, the watermark stays free.
            spare = free - self._watermark_blocks if held > 1 else free
            if tokens > budget or blocks > spare or held > self._max_running:
                return False
            budget -= tokens
            free -= blocks
        return True

    def _plan_prefill(self, number: int, start_ns: int) -> None:
        """A step of all decodes and the prompts of all who wait."""
        shape = self._describe(number)
        tokens = pairs = 0
        riders = []
        for state in self.waiting:
            prompt = state.request.prompt_tokens
            rider = Rider(state, number, prompt - number, self._block_size)
            tokens += prompt
            pairs += prompt * (prompt + 1) // 2
            self.riders.admit(rider, prompt)
            if rider.slack:
                self._log.internal(rider.internal_from, rider.slack)
            riders.append(rider)
        self.waiting = []
        shape.prefill_tokens, shape.prefill_pairs = tokens, pairs
        shape.num_sampled += len(riders)
        segment = Segment(number, start_ns, self._pricer.ends_ns(shape, start_ns, 1, None))
        shape.prefill_tokens = shape.prefill_pairs = 0
        end_ns = segment.end_ns(number)
        self.segments.append(segment)
        self.scheduled = number
        row = self._open_row(number, start_ns, shape, tokens)
        row.detail = (tokens, 0, pairs, len(riders), len(riders), 0, 0, 0, 0, 0)
        for rider in riders:
            state = rider.state
            state.admitted_ns = state.first_scheduled_ns = start_ns
            state.generated_first_ns = state.prefill_end_ns = end_ns
            self.riders.decode(rider, number + 1)

    def _plan_decodes(self, number: int, start_ns: int, until_ns: int | None) -> None:
        """Steps of all decodes until the first of them ends, or as many as memory, or interest, lasts for."""
        shape = self._describe(number)
        num_steps = min(self.riders.next_last() - self.scheduled, MAX_RUN_STEPS)
        num_steps = 1 + self.riders.num_fitting(number + 1, num_steps - 1)
        segment = Segment(number, start_ns, self._pricer.ends_ns(shape, start_ns, num_steps, until_ns))
        self.segments.append(segment)
        self.scheduled += segment.num_steps
        self._open_row(number, start_ns, shape, 0)

    def _describe(self, number: int) -> StepPlan:
        """The decodes of step `number`, for the latency model."""
        shape = self._shape
        shape.num_decode = shape.num_sampled = self.riders.count
        shape.decode_context_sum, shape.decode_context_max = self.riders.contexts(number)
        return shape

    # --- outputs -----------------------------------------------------------------------------------------------------

    def commit(self, number: int, end_ns: int) -> None:
        """The outputs of all steps up to `number`, which ends now, are in: let those go whose last one it was."""
        self.committed = number
        self.last_end_ns = end_ns
        segments = self.segments
        while segments and segments[0].first + segments[0].num_steps <= number and len(segments) > 1:
            del segments[0]
        if number not in self.riders.by_last:
            return
        if self._split_at:
            self._split_row()
        free_from = min(self.scheduled, number + self.lag) + 1
        for rider in self.riders.release(number):
            if rider.slack:
                self._log.internal(free_from, -rider.slack)
            self._let_go(rider, end_ns)
        self.goes_on = False
        if free_from <= self.scheduled:
            self._split_at = free_from

    def _let_go(self, rider: Rider, now_ns: int) -> None:
        state = rider.state
        state.total_first_ns, state.total_last_ns = state.generated_first_ns, now_ns
        state.total_tokens, state.total_preemptions = state.true_output_tokens, rider.num_preemptions
        state.held_last_ns = now_ns
        state.leave_slot(self._record, now_ns, 0)
        state.leave(self._record, rec.FINISHED, now_ns, stream=self._stream)
        self._left(now_ns, state.request.id)

    # --- the log -----------------------------------------------------------------------------------------------------

    def _open_row(self, number: int, start_ns: int, shape: StepPlan, prefill_tokens: int) -> StepRun:
        """Steps from `number` on, which starts at `start_ns` and is described by `shape`; its blocks are taken."""
        riders = self.riders
        stable = not (prefill_tokens or riders.lingering_tokens)
        continues, held = stable and self.goes_on, len(riders.on_board)
        used = shape.decode_context_sum + prefill_tokens + riders.lingering_tokens
        gaps = riders.num_measured if self._stream else 0
        self.row = row = StepRun(shape, number, start_ns, continues, held, 0, riders.allocated_tokens, used, gaps)
        self.is_stable = self.goes_on = stable
        return row

    def _split_row(self) -> None:
        """Somebody has left meanwhile: from a step on that is planned already something else holds."""
        number, self._split_at = self._split_at, 0
        if number:
            self.close_row(number - 1)
            self.riders.grow(number)
            self._open_row(number, self.end_ns(number - 1), self._describe(number), 0)

    def close_row(self, upto: int) -> None:
        """Note the steps of the open row up to number `upto`."""
        row, self.row = self.row, None
        if row is None or row.number > upto:
            return
        row.num_steps = upto + 1 - row.number
        for segment in reversed(self.segments):
            first = row.number - segment.first
            if first >= 0:
                self._log.add(row, segment.ends_ns[first : first + row.num_steps])
                return
        raise AssertionError(f"step {upto} was not planned")

    def close(self) -> None:
        """Note all that is planned."""
        self._split_row()
        self.close_row(self.scheduled)

    def last_step(self) -> StepRun:
        """The last step planned as a row of its own, which is not noted; those before it are."""
        self._split_row()
        number, row = self.scheduled, self.row
        assert row is not None, "a step is planned"
        ahead = number - row.number
        if not ahead:
            self.row = None
            return row
        self.close_row(number - 1)
        self.riders.grow(number)
        row.t_start_ns, row.number, row.continues = self.end_ns(number - 1), number, True
        row.context_sum += row.num_decode * ahead
        row.context_max += ahead
        row.kv_used_tokens += row.num_decode * ahead
        row.kv_allocated_tokens = self.riders.allocated_tokens
        return row

    def end_ns(self, number: int) -> int:
        """When step `number` ends, of those planned lately."""
        for segment in self.segments:
            if number < segment.first + segment.num_steps:
                return segment.end_ns(number)
        raise AssertionError(f"step {number} was not planned")
