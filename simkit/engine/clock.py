"""Simulated time on SimPy: an int of nanoseconds, and the order of things that happen at one instant.

Owns the SimPy environment. Imports nothing of simkit.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import Event

ARRIVAL = 0
"""Rank of open-loop arrivals and of clients that give up."""
STEP_END = 1
"""Rank of step ends, so that an arrival at the same instant is already there."""
CAUSED_ARRIVAL = 2
"""Rank of arrivals that a step end caused (closed loop)."""
PLAN = 3
"""Rank of scheduling passes; replica i uses PLAN + i."""


class _At(Event):
    """An event that happens by itself at a given time, with a rank among those of one instant."""

    def __init__(self, env: simpy.Environment, delay_ns: int, rank: int, action: Callable[[], None]) -> None:
        self.env = env
        self.callbacks = [lambda _event: action()]
        self._value = None
        self._ok = True
        self._defused = False
        env.schedule(self, priority=rank, delay=delay_ns)  # type: ignore[arg-type]


class Clock:
    """Int-nanosecond clock; `at` books an action, `run` lets time pass until nothing is booked."""

    def __init__(self) -> None:
        self._env = simpy.Environment(initial_time=0)

    @property
    def now_ns(self) -> int:
        """Simulated time."""
        now: int = self._env.now  # type: ignore[assignment]
        return now

    def at(self, time_ns: int, rank: int, action: Callable[[], None]) -> None:
        """Do `action` at `time_ns`, after everything of a lower rank at that instant, else in order of booking."""
        now = self.now_ns
        assert time_ns >= now, f"{time_ns} ns lies before {now} ns"
        _At(self._env, time_ns - now, rank, action)

    def run(self) -> None:
        """Let time pass until nothing is booked any more."""
        self._env.run()
