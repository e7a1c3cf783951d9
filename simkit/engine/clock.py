"""Simulated time on SimPy: an int of nanoseconds, and the order of things that happen at one instant.

Owns the SimPy environment.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import Event

ARRIVAL = 0
"""Rank of open-loop arrivals and of clients that give up."""
STEP_END = 1
"""Rank of step ends, so that an arrival at the same instant is already there."""
OUTAGE = 2
"""Rank of replicas that fail or come back: a step that ends at that instant is over, whoever arrived is there."""
CAUSED_ARRIVAL = 3
"""Rank of arrivals that a step end caused (closed loop)."""
PLAN = 4
"""Rank of scheduling passes; replica i uses PLAN + i."""


class _At(Event):
    """An event that happens by itself at a given time, with a rank among those of one instant."""

    _value, _ok, _defused = None, True, False

    def __init__(self, env: simpy.Environment, delay_ns: int, rank: int, happens: Callable[[Event], None]) -> None:
        self.env = env
        self.callbacks = [happens]
        env.schedule(self, priority=rank, delay=delay_ns)  # type: ignore[arg-type]


class Clock:
    """Int-nanosecond clock; `at` books an action, `run` lets time pass until nothing is booked.

    Whoever acts may go on to a later instant by itself as long as nothing is booked before (`advance`): the same as to
    book that instant and return, without the booking.
    """

    def __init__(self) -> None:
        self._env = simpy.Environment(initial_time=0)
        self.now_ns = 0
        """Simulated time."""

    def at(self, time_ns: int, rank: int, action: Callable[[], None]) -> None:
        """Do `action` at `time_ns`, after everything of a lower rank at that instant, else in order of booking."""
        assert time_ns >= self.now_ns, f"{time_ns} ns lies before {self.now_ns} ns"

        def happens(_event: Event) -> None:
            self.now_ns = time_ns
            action()

        _At(self._env, time_ns - self._env.now, rank, happens)  # type: ignore[arg-type]

    def advance(self, time_ns: int) -> bool:
        """Go on to `time_ns`; False, and nothing is done, when something is booked until then."""
        if self._env.peek() <= time_ns:
            return False
        self.now_ns = time_ns
        return True

    def nothing_else_now(self) -> bool:
        """Whether nothing more is booked for this instant."""
        return self._env.peek() > self.now_ns

    def run(self) -> None:
        """Let time pass until nothing is booked any more."""
        self._env.run()
