"""Which requests of a log are not compared, counted by reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simkit.logs import PlayedLog
from simkit.metrics import record as rec
from simkit.types import Ints

MAX_SHARE = 0.01
"""Of the requests that are played: with more left out by the simulation, no band holds."""

CUT = "cut"
_WORDS = {
    "rejected": "rejected here",
    "refused": "refused here",
    "aborted": "aborted here",
    "unfinished": "not finished here",
    CUT: "cut here, with a shorter answer than they had (max_model_len, max_tokens)",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Of the `num_played` requests that are measured, how many the simulation did not serve whole, by reason.

    `num_warm_up` is how many of them the scenario's `warmup` leaves out: these are no failures.
    """

    num_played: int
    num_warm_up: int
    by_reason: Mapping[str, int]

    @property
    def total(self) -> int:
        """All that the simulation did not serve whole."""
        return sum(self.by_reason.values())

    @property
    def is_too_much(self) -> bool:
        """Whether an error over the others says little of the run."""
        return self.total > MAX_SHARE * (self.num_played - self.num_warm_up)

    @property
    def are(self) -> str:
        """The verb for what is played."""
        return _are(self.num_played)

    def too_much(self) -> str:
        """Why no band holds, where it is too much."""
        measured = self.num_played - self.num_warm_up
        return (
            f"{self.total} of {measured} requests ({100 * self.total / measured:.3g} %) {_are(self.total)} left out: "
            f"{', '.join(_reasons(self.by_reason))}; expected at most {100 * MAX_SHARE:g} %"
        )

    def words(self) -> str:
        """The reasons with their numbers."""
        warm = [f"{self.num_warm_up} warm-up (warmup)"] if self.num_warm_up else []
        return ", ".join([*warm, *_reasons(self.by_reason)])

    def notes(self) -> list[str]:
        """A sentence a reason."""
        of = f"of {self.num_played} request{'' if self.num_played == 1 else 's'} of the log"
        found = [
            f"{number} {of} {'was' if number == 1 else 'were'} {_WORDS[reason]}: not compared"
            for reason, number in self.by_reason.items()
        ]
        if self.num_warm_up:
            found.append(f"{self.num_warm_up} {of} {_are(self.num_warm_up)} warm-up (warmup): not compared")
        return found

    def to_json(self) -> dict[str, object]:
        """Plain data for validation.json."""
        return {
            "played": self.num_played,
            "warm_up": self.num_warm_up,
            "left_out": dict(self.by_reason),
            "enough_for_bands": not self.is_too_much,
        }


def _reasons(by_reason: Mapping[str, int]) -> list[str]:
    return [f"{number} {_WORDS[reason]}" for reason, number in by_reason.items()]


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def left_out(table: Mapping[str, Ints], trace: PlayedLog) -> LeftOut:
    """Count what is not compared of the requests behind those that warm the caches. `table` is that of `compare`."""
    played = table["id"] >= trace.num_warm
    counts = played & (table["measured"] != 0)
    by_reason = {
        name: int(np.count_nonzero(counts & (table["status"] == number)))
        for number, name in enumerate(rec.STATUS_NAMES)
        if number != rec.FINISHED
    }
    num_played = len(trace) - trace.num_warm
    by_reason["unfinished"] += num_played - int(np.count_nonzero(played))
    by_reason[CUT] = int(
        np.count_nonzero(counts & (table["status"] == rec.FINISHED) & (table["output_tokens"] < table["wanted_tokens"]))
    )
    num_warm_up = int(np.count_nonzero(played & ~counts))
    return LeftOut(num_played, num_warm_up, {reason: number for reason, number in by_reason.items() if number})
