"""Who rides the express: requests of which all is known, counted together, and the blocks they hold.

Knows no time.
"""

from __future__ import annotations

from heapq import heappop, heappush

from simkit.batching.outputs import NEVER
from simkit.engine.request import RequestState
from simkit.engine.step_log import StepLog


class Rider:
    """A request that holds a slot. After step m it has computed `base` + m tokens; step `last` brings its last one.

    Its prompt is computed in step `first`, or was before. Step `internal_from` begins its last block, of which `slack`
    tokens will never be filled.
    """

    __slots__ = ("base", "first", "internal_from", "last", "num_preemptions", "slack", "state")

    def __init__(self, state: RequestState, first: int, base: int, block_size: int) -> None:
        final = state.request.prompt_tokens + state.true_output_tokens - 1
        self.state = state
        self.first = first
        self.base = base
        self.last = final - base
        self.slack = -final % block_size
        begins = final - block_size + self.slack + 1 - base
        self.internal_from = begins if begins > first else first
        self.num_preemptions = 0


class Riders:
    """All who hold a slot, in order of admission: those that decode, and those that linger.

    Who gets its last token with the last step planned lingers until that token is there: it decodes no more, and holds
    slot and memory. `free` blocks are left after the steps up to number `grown`.
    """

    def __init__(self, num_blocks: int, block_size: int, log: StepLog) -> None:
        self.on_board: dict[Rider, None] = {}
        self.count = 0
        """Decodes."""
        self.num_measured = 0
        """Decodes whose gaps count."""
        self.lingering_tokens = 0
        self.free = self._num_blocks = num_blocks
        self.grown = 0
        self.begins = [0] * (2 * block_size)
        """How many begin a block with a step, by its number modulo the block size; twice, so that a round of steps is a
        slice wherever it starts."""
        self.by_last: dict[int, list[Rider]] = {}
        self._block_size = block_size
        self._log = log
        self._base_sum = 0
        self._stopped_upto = self._lingering = 0
        self._lasts: list[int] = []
        self._longest: list[tuple[int, int, Rider]] = []
        self._num_pushed = 0

    @property
    def allocated_tokens(self) -> int:
        """Tokens of the blocks that somebody holds."""
        return (self._num_blocks - self.free) * self._block_size

    def contexts(self, number: int) -> tuple[int, int]:
        """Tokens that the decodes have computed after step `number`: (sum, maximum)."""
        longest = self._longest
        while longest and longest[0][2].last < number:
            heappop(longest)
        return self._base_sum + self.count * number, number - longest[0][0] if longest else 0

    def next_last(self) -> int:
        """Number of the step with which the first of the decodes ends."""
        lasts = self._lasts
        while lasts and (lasts[0] <= self._stopped_upto or lasts[0] not in self.by_last):
            heappop(lasts)
        return lasts[0] if lasts else NEVER

    def next_release(self, committed: int) -> int:
        """Number of the step after `committed` with which the first of all ends."""
        return self._lingering if self._lingering > committed else self.next_last()

    # --- coming and going --------------------------------------------------------------------------------------------

    def admit(self, rider: Rider, num_tokens: int) -> None:
        """`rider` takes a slot, and memory for `num_tokens`."""
        self.on_board[rider] = None
        self.free -= -(-num_tokens // self._block_size)

    def decode(self, rider: Rider, number: int) -> None:
        """`rider` decodes from step `number` on, unless it has its last token by then."""
        self.count += 1
        self._base_sum += rider.base
        self.num_measured += rider.state.measured
        self._count_begins(rider, number, 1)
        same_last = self.by_last.get(rider.last)
        if same_last is None:
            self.by_last[rider.last] = [rider]
            heappush(self._lasts, rider.last)
        else:
            same_last.append(rider)
        self._num_pushed += 1
        heappush(self._longest, (-rider.base, self._num_pushed, rider))

    def must_stop(self, scheduled: int) -> bool:
        """Whether somebody gets its last token with step `scheduled`, and decodes in it as yet."""
        return scheduled in self.by_last and scheduled > self._stopped_upto

    def stop(self, scheduled: int) -> None:
        """Whoever gets its last token with step `scheduled`, the last one planned, decodes no more."""
        self.grow(scheduled)
        self._stopped_upto = self._lingering = scheduled
        for rider in self.by_last[scheduled]:
            self.count -= 1
            self._base_sum -= rider.base
            self.num_measured -= rider.state.measured
            self._count_begins(rider, scheduled + 1, -1)
            self.lingering_tokens += rider.base + rider.last

    def release(self, number: int) -> list[Rider]:
        """Those whose last token came with step `number`: their slots and memory are free."""
        if number > self._stopped_upto:
            self.stop(number)
        riders = self.by_last.pop(number)
        for rider in riders:
            self.lingering_tokens -= rider.base + rider.last
            self.free += -(-(rider.base + rider.last) // self._block_size)
            del self.on_board[rider]
        return riders

    def dismiss(self, scheduled: int) -> None:
        """All go on elsewhere; `scheduled` is the last step planned."""
        for rider in self.on_board:
            if rider.last > self._stopped_upto:
                self._log.begins(scheduled + 1, (1 - rider.base) % self._block_size, -1)

    # --- memory ------------------------------------------------------------------------------------------------------

    def grow(self, upto: int) -> None:
        """Take the blocks that the decodes begin with the steps up to number `upto`."""
        num_steps = upto - self.grown
        if num_steps > 0:
            first = (self.grown + 1) % self._block_size
            rounds, rest = divmod(num_steps, self._block_size)
            self.free -= rounds * self.count + sum(self.begins[first : first + rest])
            self.grown = upto

    def num_fitting(self, number: int, limit: int) -> int:
        """How many steps from `number` on, the one after `grown`, find memory, at most `limit`."""
        if self.count * -(-limit // self._block_size) <= self.free:
            return limit
        free, steps = self.free, 0
        while steps < limit:
            free -= self.begins[(number + steps) % self._block_size]
            if free < 0:
                break
            steps += 1
        return steps

    def _count_begins(self, rider: Rider, number: int, change: int) -> None:
        residue = (1 - rider.base) % self._block_size
        self.begins[residue] += change
        self.begins[residue + self._block_size] += change
        self._log.begins(number, residue, change)
