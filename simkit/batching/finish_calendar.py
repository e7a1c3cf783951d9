"""A calendar of who gets the last token with which step.

Whoever listens to a batcher keeps one: it knows how many tokens are left, the batcher does not.
"""

from __future__ import annotations

from heapq import heappop, heappush

from simkit.sequence import Sequence

NEVER = 1 << 62


class FinishCalendar:
    """Grouped sequences by the number of the commit that brings their last token."""

    __slots__ = ("_numbers", "_when", "at")

    def __init__(self) -> None:
        self.at: dict[int, dict[Sequence, None]] = {}
        """Who ends, by the number of the commit."""
        self._numbers: list[int] = []
        self._when: dict[Sequence, int] = {}

    def follow(self, seq: Sequence, commit: int) -> None:
        """The last token of `seq` comes with commit number `commit`, unless it is dropped before."""
        self._when[seq] = commit
        there = self.at.get(commit)
        if there is None:
            self.at[commit] = {seq: None}
            heappush(self._numbers, commit)
        else:
            there[seq] = None

    def drop(self, seq: Sequence) -> bool:
        """Forget `seq`; False when it was not followed."""
        commit = self._when.pop(seq, None)
        if commit is None:
            return False
        there = self.at[commit]
        del there[seq]
        if not there:
            del self.at[commit]
        return True

    def take(self, commit: int) -> list[Sequence]:
        """Who ends with commit number `commit`; they are forgotten."""
        ending = self.at.pop(commit, None)
        if ending is None:
            return []
        for seq in ending:
            del self._when[seq]
        return list(ending)

    def next(self) -> int:
        """Number of the next commit that ends somebody, `NEVER` when nobody is followed."""
        numbers, at = self._numbers, self.at
        while numbers and numbers[0] not in at:
            heappop(numbers)
        return numbers[0] if numbers else NEVER
