"""The short way of a replica while nobody waits: every prompt is computed at once, in one chunk, in the next pass.

Then all that will happen to a request is known when it is admitted: its last token comes with a certain step, and until
then it takes a block every so many steps. So neither plans nor sequences are needed: a segment of equal steps lasts
until the next request ends or arrives. As soon as a request would have to wait (for budget, a slot, or memory), or
memory runs short, everybody is handed over to the batcher, and taken back when nobody waits any more. The decisions and
the facts are those of batcher, allocator and ledger together; only continuous batching, first come first served, over
blocks that are merely counted, is done here. Imports clock, batching.plan, metrics.record and the engine's values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from heapq import heappop, heappush

from simkit.batching.ends import NEVER
from simkit.batching.plan import StepPlan
from simkit.batching.settings import ContinuousSettings
from simkit.engine.customer import Newcomer
from simkit.engine.pricing import Pricer
from simkit.engine.step_log import RUN_COLUMNS, StepLog
from simkit.kv.counted import CountedAllocator
from simkit.metrics import record as rec
from simkit.metrics.record import Record
from simkit.types import Ints

MAX_RUN_STEPS = 4096
"""Steps priced at once at most; bounds the arrays, not the result."""


class Rider:
    """A request that holds a slot. After step m it has computed `base` + m tokens; step `last` brings its last one.

    Its prompt is computed in step `first`, or was before. Step `internal_from` begins its last block, of which `slack`
    tokens will never be filled. Stamps as in `Customer`.
    """

    __slots__ = (
        "admitted_ns", "base", "first", "first_scheduled_ns", "first_token_ns", "internal_from", "last", "newcomer",
        "num_preemptions", "prefill_end_ns", "slack",
    )  # fmt: skip

    def __init__(self, newcomer: Newcomer, first: int, base: int, block_size: int) -> None:
        final = newcomer.request.prompt_tokens + newcomer.true_output_tokens - 1
        self.newcomer = newcomer
        self.first = first
        self.base = base
        self.last = final - base
        self.slack = -final % block_size
        begins = final - block_size + self.slack + 1 - base
        self.internal_from = begins if begins > first else first
        self.admitted_ns = self.first_scheduled_ns = self.first_token_ns = self.prefill_end_ns = -1
        self.num_preemptions = 0


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
        left: Callable[[int], None],
        *,
        stream: bool,
    ) -> None:
        self.lag = 1 if settings.async_scheduling else 0
        self.scheduled = self.committed = 0
        self.waiting: list[Newcomer] = []
        self.riders: dict[Rider, None] = {}
        self.segments: list[Segment] = []
        self.detail: tuple[int, ...] | None = None
        self.row: list[int] = []
        """What holds from some step on, in the order of RUN_COLUMNS, and not noted yet; empty without any."""
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
        self._stopped_upto = self._split_at = 0
        self.clear()

    def start(self, scheduled: int, committed: int, last_end_ns: int, device_free_ns: int) -> None:
        """Go on after step `scheduled`; `take` follows for each rider."""
        self.scheduled = self._grown = scheduled
        self.committed = committed
        self.last_end_ns, self.device_free_ns = last_end_ns, device_free_ns

    def clear(self) -> None:
        """Nobody rides any more."""
        for rider in self.riders:
            if rider.last > self._stopped_upto:
                self._log.begins(self.scheduled + 1, (1 - rider.base) % self._block_size, -1)
        self.segments, self.row, self.detail = [], [], None
        self.riders = {}
        self._count = self._base_sum = self._num_measured = 0
        self._lingering_tokens = self._lingering = self._stopped_upto = 0
        self._grown = self.scheduled
        self._split_at = 0
        self._free = self._num_blocks
        # How many begin a block with a step, by its number modulo the block size.
        self._begins = [0] * (2 * self._block_size)  # twice, so that a round is a slice wherever it starts
        self._by_last: dict[int, list[Rider]] = {}
        self._lasts: list[int] = []
        self._longest: list[tuple[int, int, Rider]] = []
        self._num_pushed = 0

    # --- time --------------------------------------------------------------------------------------------------------

    def pass_is_due(self) -> bool:
        """Whether the next step has to be planned now, if there is anything to plan."""
        return self.committed >= self.scheduled - self.lag

    def is_idle(self) -> bool:
        """Whether no step is under way."""
        return self.committed == self.scheduled

    def has_more(self) -> bool:
        """Whether a further step has anything to hold."""
        if self.scheduled in self._by_last and self.scheduled > self._stopped_upto:
            self._let_stop()
        return self._count > 0 or bool(self.waiting)

    def due(self) -> tuple[int, int]:
        """(number, when it ends) of the next step whose outputs, or the pass behind it, have to be looked at."""
        number = self.scheduled - self.lag
        if number <= self.committed:
            number = self.scheduled
        last = self._lingering if self._lingering > self.committed else self._next_last()
        if last < number:
            number = last
        return number, self.end_ns(number)

    def cut(self, now_ns: int) -> bool:
        """A newcomer waits: keep the steps that are scheduled already; whether there were more."""
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
        number = self.scheduled + 1
        if self._split_at:
            self._split_row()
        if self._grown < self.scheduled:
            self.grow(self.scheduled)
        if self._count > self._budget or self._begins[number % self._block_size] > self._free:
            return False
        if self.waiting and not self._fits():
            return False
        self.close_row(self.scheduled)
        self._free -= self._begins[number % self._block_size]
        self._grown = number
        start_ns = max(now_ns, self.device_free_ns)
        if self.waiting:
            self._plan_prefill(number, start_ns)
        else:
            self._plan_decodes(number, start_ns, until_ns)
        self.device_free_ns = self.segments[-1].end_ns(self.scheduled)
        return True

    def _fits(self) -> bool:
        """Whether the next pass admits all who wait, each with its whole prompt."""
        block_size = self._block_size
        budget, held = self._budget - self._count, len(self.riders)
        free = self._free - self._begins[(self.scheduled + 1) % block_size]
        for newcomer in self.waiting:
            tokens = newcomer.request.prompt_tokens
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
        for newcomer in self.waiting:
            prompt = newcomer.request.prompt_tokens
            rider = Rider(newcomer, number, prompt - number, self._block_size)
            tokens += prompt
            pairs += prompt * (prompt + 1) // 2
            self._free -= -(-prompt // self._block_size)
            if rider.slack:
                self._log.internal(rider.internal_from, rider.slack)
            self.riders[rider] = None
            riders.append(rider)
        self.waiting = []
        shape.prefill_tokens, shape.prefill_pairs = tokens, pairs
        shape.num_sampled += len(riders)
        segment = Segment(number, start_ns, self._pricer.ends_ns(shape, start_ns, 1, None))
        shape.prefill_tokens = shape.prefill_pairs = 0
        end_ns = segment.end_ns(number)
        self.segments.append(segment)
        self.scheduled = number
        self._open_row(number, start_ns, shape, tokens)
        self.detail = (tokens, 0, pairs, len(riders), len(riders), 0, 0, 0, 0, 0)
        for rider in riders:
            rider.admitted_ns = rider.first_scheduled_ns = start_ns
            rider.first_token_ns = rider.prefill_end_ns = end_ns
            self.add(rider)

    def _plan_decodes(self, number: int, start_ns: int, until_ns: int | None) -> None:
        """Steps of all decodes until the first of them ends, or as many as memory, or interest, lasts for."""
        shape = self._describe(number)
        num_steps = min(self._next_last() - self.scheduled, MAX_RUN_STEPS)
        if self._count * -(-num_steps // self._block_size) > self._free:
            num_steps = 1 + self._num_fitting(number + 1, num_steps - 1)
        segment = Segment(number, start_ns, self._pricer.ends_ns(shape, start_ns, num_steps, until_ns))
        self.segments.append(segment)
        self.scheduled += segment.num_steps
        self._open_row(number, start_ns, shape, 0)

    def _describe(self, number: int) -> StepPlan:
        """The decodes of step `number`, for the latency model."""
        shape = self._shape
        shape.num_decode = shape.num_sampled = count = self._count
        shape.decode_context_sum = self._base_sum + count * number
        longest = self._longest
        while longest and longest[0][2].last < number:
            heappop(longest)
        shape.decode_context_max = number - longest[0][0] if longest else 0
        return shape

    def grow(self, upto: int) -> None:
        """Take the blocks that the decodes begin with the steps up to number `upto`."""
        first, num_steps = self._grown + 1, upto - self._grown
        if num_steps > 0:
            rounds, rest = divmod(num_steps, self._block_size)
            first %= self._block_size
            self._free -= rounds * self._count + sum(self._begins[first : first + rest])
            self._grown = upto

    def _num_fitting(self, number: int, limit: int) -> int:
        """How many steps from `number` on find memory, at most `limit`."""
        free, steps = self._free, 0
        while steps < limit:
            free -= self._begins[(number + steps) % self._block_size]
            if free < 0:
                break
            steps += 1
        return steps

    # --- riders ------------------------------------------------------------------------------------------------------

    def add(self, rider: Rider) -> None:
        """`rider` decodes from the next step on, unless it has its last token already."""
        self._count += 1
        self._base_sum += rider.base
        self._count_begins(rider, self.scheduled + 1, 1)
        self._num_measured += rider.newcomer.measured
        same_last = self._by_last.get(rider.last)
        if same_last is None:
            self._by_last[rider.last] = [rider]
            heappush(self._lasts, rider.last)
        else:
            same_last.append(rider)
        self._num_pushed += 1
        heappush(self._longest, (-rider.base, self._num_pushed, rider))

    def _count_begins(self, rider: Rider, number: int, change: int) -> None:
        residue = (1 - rider.base) % self._block_size
        self._begins[residue] += change
        self._begins[residue + self._block_size] += change
        self._log.begins(number, residue, change)

    def take(self, rider: Rider) -> None:
        """`rider` comes from the batcher, with its slot and memory."""
        self.riders[rider] = None
        self._free -= -(-(rider.base + self.scheduled) // self._block_size)
        self.add(rider)

    def _let_stop(self) -> None:
        """Whoever gets its last token with the last step planned is not scheduled any more."""
        self._split_row()
        self.grow(self.scheduled)
        self._stopped_upto = self._lingering = self.scheduled
        for rider in self._by_last[self.scheduled]:
            self._stop(rider)

    def _stop(self, rider: Rider) -> None:
        self._count -= 1
        self._base_sum -= rider.base
        self._count_begins(rider, self.scheduled + 1, -1)
        self._num_measured -= rider.newcomer.measured
        self._lingering_tokens += rider.base + rider.last

    def _next_last(self) -> int:
        """Number of the step with which the first of the decodes ends."""
        lasts = self._lasts
        while lasts and (lasts[0] <= self._stopped_upto or lasts[0] not in self._by_last):
            heappop(lasts)
        return lasts[0] if lasts else NEVER

    def commit(self, number: int, end_ns: int) -> None:
        """The outputs of all steps up to `number`, which ends now, are in: let those go whose last one it was."""
        self.committed = number
        self.last_end_ns = end_ns
        segments = self.segments
        while segments and segments[0].first + segments[0].num_steps <= number and len(segments) > 1:
            del segments[0]
        ending = self._by_last.pop(number, None)
        if ending is None:
            return
        if self._split_at:
            self._split_row()
        free_from = min(self.scheduled, number + self.lag) + 1
        if number > self._stopped_upto:
            self.grow(number)
            for rider in ending:
                self._stop(rider)
        for rider in ending:
            self._lingering_tokens -= rider.base + rider.last
            self._free += -(-(rider.base + rider.last) // self._block_size)
            if rider.slack:
                self._log.internal(free_from, -rider.slack)
            del self.riders[rider]
            self._let_go(rider, end_ns)
        self.goes_on = False
        if free_from <= self.scheduled:
            self._split_at = free_from

    def _let_go(self, rider: Rider, now_ns: int) -> None:
        record, newcomer = self._record, rider.newcomer
        request, first_ns = newcomer.request, rider.first_token_ns
        tokens = newcomer.true_output_tokens
        record.num_tokens_delivered += tokens
        record.leave(now_ns, newcomer.arrival_ns)
        record.residency((self._replica, request.id, rider.admitted_ns, rider.prefill_end_ns, now_ns, now_ns, 0))
        record.requests.append(
            (
                request.id,
                newcomer.arrival_ns,
                rider.first_scheduled_ns,
                first_ns if self._stream else now_ns,
                now_ns,
                first_ns,
                now_ns,
                request.prompt_tokens,
                tokens,
                request.output_tokens,
                1,
                rider.num_preemptions,
                0,
                rec.FINISHED,
                0,
                self._replica,
                request.tenant,
                request.priority,
                now_ns,
            )
        )
        self._left(now_ns)

    # --- the log -----------------------------------------------------------------------------------------------------

    def _open_row(self, number: int, start_ns: int, shape: StepPlan, prefill_tokens: int) -> None:
        """Steps from `number` on, which starts at `start_ns` and is described by `shape`; its blocks are taken."""
        stable = not (prefill_tokens or self._lingering_tokens)
        self.detail = None
        gaps = self._num_measured if self._stream else 0
        self.row = [
            start_ns,
            0,
            number,
            stable and self.goes_on,
            shape.num_decode,
            shape.decode_context_sum,
            shape.decode_context_max,
            0,
            len(self.riders),
            0,
            (self._num_blocks - self._free) * self._block_size,
            shape.decode_context_sum + prefill_tokens + self._lingering_tokens,
            gaps,
            gaps,
            -1,
        ]
        self.is_stable = self.goes_on = stable

    def _split_row(self) -> None:
        """Somebody has left meanwhile: from a step on that is planned already something else holds."""
        number, self._split_at = self._split_at, 0
        if number:
            self.close_row(number - 1)
            self.grow(number)
            self._open_row(number, self.end_ns(number - 1), self._describe(number), 0)

    def close_row(self, upto: int) -> None:
        """Note the steps of the open row up to number `upto`."""
        row, self.row = self.row, []
        if not row or row[_NUMBER] > upto:
            return
        row[_NUM_STEPS] = upto + 1 - row[_NUMBER]
        if self.detail is not None:
            row[_DETAIL] = self._log.detail(self.detail)
        for segment in reversed(self.segments):
            first = row[_NUMBER] - segment.first
            if first >= 0:
                self._log.add(row, segment.ends_ns[first : first + row[_NUM_STEPS]])
                return
        raise AssertionError(f"step {upto} was not planned")

    def close(self) -> None:
        """Note all that is planned."""
        self._split_row()
        self.close_row(self.scheduled)

    def last_step(self) -> list[int]:
        """The last step planned as a row of its own, which is not noted; those before it are."""
        self._split_row()
        number, row = self.scheduled, self.row
        ahead = number - row[_NUMBER]
        if not ahead:
            self.row = []
            return row
        (start, _, _, _, num_decode, context_sum, context_max, dead, held, waiting, _, used, gaps, gaps_last, _) = row
        self.close_row(number - 1)
        self.grow(number)
        start = self.end_ns(number - 1)
        allocated = (self._num_blocks - self._free) * self._block_size
        context_sum, context_max, used = (
            context_sum + num_decode * ahead,
            context_max + ahead,
            used + num_decode * ahead,
        )
        return [
            start, 0, number, 1, num_decode, context_sum, context_max, dead, held, waiting, allocated, used, gaps,
            gaps_last, -1,
        ]  # fmt: skip

    def end_ns(self, number: int) -> int:
        """When step `number` ends, of those planned lately."""
        for segment in self.segments:
            if number < segment.first + segment.num_steps:
                return segment.end_ns(number)
        raise AssertionError(f"step {number} was not planned")


_NUMBER, _NUM_STEPS, _DETAIL = (RUN_COLUMNS.index(name) for name in ("number", "num_steps", "detail"))
