"""The engine's state of a request. Knows no clock and no true output length.

Counters keep vLLM's names. *known* = prompt + generated tokens; a sequence always tries to bring
`num_computed_tokens` up to known, and decoding is the case where one token is missing.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from simkit.types import Request


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class StepCounter:
    """Steps that a batcher has scheduled and committed: what its grouped sequences count by."""

    __slots__ = ("committed", "scheduled")

    def __init__(self) -> None:
        self.scheduled = 0
        self.committed = 0


class StoppedCounter:
    """Of whoever is scheduled no more, but whose last token is to come."""

    __slots__ = ("_counter", "scheduled")

    def __init__(self, counter: StepCounter) -> None:
        self._counter = counter
        self.scheduled = counter.scheduled

    @property
    def committed(self) -> int:
        """Steps committed so far."""
        return self._counter.committed


_STILL = StepCounter()
"""The counter of whoever is counted one by one; it never moves."""


class Sequence:
    """Mutable state of one request inside a replica.

    `arrival_ns` and `id` only order queues, `number` is the place in the order of admission. `reserve_tokens` is what a
    contiguous allocator sets aside at admission, handed over by the engine. `kv` belongs to the allocator, `owner` to
    the engine. `num_outstanding_tokens` counts sampled but unseen tokens and `num_in_flight_tokens` scheduled tokens
    whose output was not processed (both 0 without async scheduling); `num_stale_tokens` is what was in flight when the
    sequence was preempted, `num_tokens_at_admission` what was generated when it got its slot. `in_prefill` tells
    whether the last pass left known tokens uncomputed, `last_step` is the number of the last step that sampled a token
    of it while it was not grouped. `forks` are further samples of the prompt, which fork off when it is computed.

    A *grouped* sequence takes part in every step with one token. It counts by the counter of its batcher, so that a
    step moves the counters of the whole group at once.
    """

    __slots__ = (
        "_computed",
        "_in_flight",
        "_output",
        "_outstanding",
        "arrival_ns",
        "counter",
        "forks",
        "id",
        "in_prefill",
        "kv",
        "last_step",
        "max_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_stale_tokens",
        "num_tokens_at_admission",
        "number",
        "owner",
        "phase",
        "prefix_group",
        "prefix_tokens",
        "priority",
        "reserve_tokens",
        "samples",
        "tenant",
        "tokens",
    )

    def __init__(self, request: Request, reserve_tokens: int = 0, tokens: Any = None, owner: Any = None) -> None:
        (
            self.id,
            self.arrival_ns,
            self.num_prompt_tokens,
            _secret,
            self.max_tokens,
            self.priority,
            self.tenant,
            self.prefix_group,
            self.prefix_tokens,
            self.samples,
            _shared,
        ) = request
        self.forks: tuple[Sequence, ...] = ()
        self.reserve_tokens = reserve_tokens
        self.tokens = tokens
        self.owner = owner
        self.kv: Any = None
        self.in_prefill = True
        self.counter: StepCounter | StoppedCounter = _STILL
        self.number = self.last_step = -1
        self._computed = self._output = self._outstanding = self._in_flight = 0
        self.num_stale_tokens = self.num_preemptions = self.num_tokens_at_admission = 0
        self.phase = Phase.WAITING

    def join_group(self, counter: StepCounter) -> None:
        """Join a group: from now on each scheduled step computes a token and each committed one delivers it."""
        self._computed -= counter.scheduled
        self._output -= counter.committed
        ahead = counter.scheduled - counter.committed
        self._in_flight -= ahead
        self._outstanding -= ahead
        self.counter = counter

    def stop(self) -> None:
        """Be scheduled no more; the tokens under way still come."""
        assert isinstance(self.counter, StepCounter), f"{self!r} stopped before"
        self.counter = StoppedCounter(self.counter)

    def leave_group(self) -> None:
        """Leave the group; the counters stay what they are."""
        counter = self.counter
        self._computed += counter.scheduled
        self._output += counter.committed
        ahead = counter.scheduled - counter.committed
        self._in_flight += ahead
        self._outstanding += ahead
        self.counter = _STILL

    def start_again(self) -> None:
        """Nothing of it is computed or under way any more, and it runs nowhere; its known tokens stay known."""
        assert not self.is_grouped, f"{self!r} counts by a batcher"
        self._computed = self._outstanding = self._in_flight = self.num_stale_tokens = 0
        self.kv = None
        self.in_prefill = True
        self.number = self.last_step = -1
        self.phase = Phase.PREEMPTED if self._output else Phase.WAITING

    @property
    def is_grouped(self) -> bool:
        """Whether it counts by the counter of a batcher."""
        return self.counter is not _STILL

    def schedule(self, num_tokens: int) -> bool:
        """`num_tokens` of it are scheduled; whether these reach the last known token, so that one is sampled."""
        self._computed += num_tokens
        self._in_flight += num_tokens
        self.in_prefill = self.num_computed_tokens < self.num_known_tokens + self.num_outstanding_tokens
        if self.in_prefill:
            return False
        self._outstanding += 1
        return True

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV is there once the steps scheduled so far are over."""
        return self._computed + self.counter.scheduled

    @num_computed_tokens.setter
    def num_computed_tokens(self, value: int) -> None:
        self._computed = value - self.counter.scheduled

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens that have been seen."""
        return self._output + self.counter.committed

    @num_output_tokens.setter
    def num_output_tokens(self, value: int) -> None:
        self._output = value - self.counter.committed

    @property
    def num_outstanding_tokens(self) -> int:
        """Sampled tokens that have not been seen."""
        return self._outstanding + self.counter.scheduled - self.counter.committed

    @num_outstanding_tokens.setter
    def num_outstanding_tokens(self, value: int) -> None:
        self._outstanding = value - self.counter.scheduled + self.counter.committed

    @property
    def num_in_flight_tokens(self) -> int:
        """Scheduled tokens whose output was not processed."""
        return self._in_flight + self.counter.scheduled - self.counter.committed

    @num_in_flight_tokens.setter
    def num_in_flight_tokens(self, value: int) -> None:
        self._in_flight = value - self.counter.scheduled + self.counter.committed

    @property
    def num_known_tokens(self) -> int:
        """Prompt plus generated tokens."""
        return self.num_prompt_tokens + self._output + self.counter.committed

    def __repr__(self) -> str:
        return (
            f"Sequence({self.id}, {self.phase.value}, computed {self.num_computed_tokens} of {self.num_known_tokens} "
            f"tokens, {self.num_output_tokens} generated, preempted {self.num_preemptions} times)"
        )
