"""What others may ask of a batcher, what it asks of those that wait, and whom it calls with what comes of a pass.

A further batcher is a module of this package that implements `Batcher`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from simkit.batching.plan import Hold, StepPlan
from simkit.sequence import Sequence


class Batcher(Protocol):
    """Decides what a step holds and applies it to memory and queues."""

    @property
    def waiting(self) -> WaitingQueue:
        """The sequences that wait."""

    @property
    def num_computed_tokens(self) -> int:
        """Computed tokens of all members."""

    def add(self, seq: Sequence) -> bool:
        """A sequence arrives. True when the next pass may decide otherwise because of it."""

    def plan(self, *, closed: bool = False, expired: bool = False) -> StepPlan | Hold | None:
        """Make and apply one pass; None when there is nothing to do.

        `closed`: no further arrival is pending. `expired`: the oldest waiting sequence waited as long as `Hold` said.
        """

    def commit(self, plan: StepPlan) -> None:
        """Process the outputs of `plan`, the oldest one not committed; of a run of equal steps, those of the last."""

    def run_ahead(self, num_steps: int) -> None:
        """`num_steps` further steps are equal to that of the stable plan made last: apply them.

        The outputs of that plan and of all of them but the last are processed as well; they end nobody.
        """

    def abort(self, seq: Sequence) -> None:
        """The client left: remove `seq` and give back what it holds, between passes."""

    def has_work(self) -> bool:
        """Whether a pass could schedule something or must clear what has ended."""

    def members(self) -> list[Sequence]:
        """Sequences that hold a slot, in order of admission."""

    def num_members(self) -> int:
        """How many hold a slot."""


class OutputListener(Protocol):
    """Listens for the engine: called by `commit` in schedule order, each call before the next output is looked at."""

    def token(self, seq: Sequence, ends: bool) -> bool:
        """`seq` produced a token, its last one if `ends` (a limit that everybody sees); True when it ends here."""

    def joined(self, seq: Sequence, commit: int) -> None:
        """`seq` joined the group: a token comes with each commit from number `commit` + 1 on, until it leaves."""

    def stopped(self, seq: Sequence) -> None:
        """`seq`, grouped, is scheduled no more: its last token comes with the commit of the last plan made."""

    def left(self, seq: Sequence) -> None:
        """`seq` leaves the group; its tokens come by `token` again."""

    def tokens(self, commit: int) -> list[Sequence]:
        """Commit number `commit`: each grouped sequence got a token. Those for which it was the last, in any order."""

    def released(self, seq: Sequence) -> None:
        """`seq` gave back its slot and memory."""


class WaitingQueue(Protocol):
    """Sequences that wait, in the order in which they will be considered."""

    def __len__(self) -> int:
        """How many wait."""

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, the head first."""

    def push(self, seq: Sequence) -> None:
        """A new arrival joins."""

    def push_preempted(self, seq: Sequence) -> None:
        """A preempted sequence returns."""

    def peek(self) -> Sequence:
        """The head; there must be one."""

    def pop(self) -> Sequence:
        """Remove and return the head."""

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence from wherever it stands."""


def head_of(queue: WaitingQueue) -> Sequence | None:
    """The sequence that is considered first, None when nobody waits."""
    return queue.peek() if len(queue) else None
