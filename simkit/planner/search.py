"""The search for the capacity of one setting: which rates are tried, with which replications.

Owns the grid of rates and when to stop. What trials mean is decided in `capacity`, how one is made in `trial`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from simkit.planner.capacity import crossing, crossings_without, curves, pooled_crossing
from simkit.planner.trial import SloTerm, Trial
from simkit.runs import run_length

STEPS_A_DOUBLING = 32
"""Rates lie on a grid, the same for all settings, in steps of 2 ** (1 / 32), that is 2.2 %."""

FIRST_STRIDE, NEXT_STRIDE = 8, 2
"""Steps that the first replication takes at first (19 %), and the others, who know where it ended."""

DOUBLINGS_DOWN, DOUBLINGS_UP = 14, 5
"""How far from the guess rates are tried: 16,000 times less, or 32 times more."""

MAX_ROUNDS = 6
"""How often the neighbourhood of the estimate is filled; it settles in two or three."""

REACH_STRIDE, MAX_REACHES = 4, 10
"""Grid steps further out, and how often, for parts of a run whose crossing lies outside the rates tried."""

WIDE = 0.02
"""Where more than this share of requests may miss, those that pass with ease make up for others, and are looked at."""

Try = Callable[[float, int], Trial]
"""(rate, replication) to a trial."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What is spent on a setting: replications, the grid steps that may lie between tried rates, and whether what
    fills the system must be seen to have levelled off."""

    replications: int
    gap: int
    levels: bool = False

    @property
    def resolution(self) -> float:
        """The ratio of neighbouring rates."""
        return float(2.0 ** (self.gap / STEPS_A_DOUBLING))


COARSE = Effort(replications=5, gap=2)
FINE = Effort(replications=10, gap=1, levels=True)


def step_of(rate_per_s: float) -> int:
    """The grid step nearest to a rate."""
    return round(STEPS_A_DOUBLING * math.log2(rate_per_s))


def rate_of(step: int) -> float:
    """The rate of a grid step, to four digits, so that it can be typed in."""
    return float(f"{2.0 ** (step / STEPS_A_DOUBLING):.4g}")


def rate_text(per_s: float) -> str:
    """A rate, or a ratio of rates, to three digits, more where the number has more before the point."""
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.3g}"


class Search:
    """Trials of one setting, each made at most once."""

    def __init__(self, attempt: Try, terms: Sequence[SloTerm], known: Iterable[Trial] = ()) -> None:
        self._attempt = attempt
        self._terms = terms
        self._is_wide = max((term.allowed or 0.0 for term in terms), default=0.0) > WIDE
        self._trials = {(trial.replication, trial.rate_per_s): trial for trial in known}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials so far, by replication and rate."""
        return tuple(self._trials[key] for key in sorted(self._trials))

    @property
    def crossings_per_s(self) -> tuple[float, ...]:
        """The crossing of each replication so far; empty unless all are known."""
        found = tuple(crossing(curve, self._terms) for curve in curves(self._trials.values()))
        return found if all(0 < rate < math.inf for rate in found) else ()

    def trial(self, rate_per_s: float, replication: int) -> Trial:
        """One trial, made now or before."""
        key = (replication, rate_per_s)
        if key not in self._trials:
            self._trials[key] = self._attempt(rate_per_s, replication)
        return self._trials[key]

    def run(self, guesses_per_s: Sequence[float], effort: Effort, *, grows: bool = False) -> float:
        """Bracket the crossing of each replication, then fill the neighbourhood of the crossing of all together.

        A guess is of the crossing of each replication in turn, where a similar setting has shown it, or the only one
        is of the capacity. Ends early when the first replication passes, or fails, as far from the guess as rates are
        tried.

        Gives the factor by which runs must become longer before what they show counts, 1 where they last long enough.
        With `grows` it is asked for as early as it is known, and the search ends there.
        """
        guesses = [step_of(rate) for rate in guesses_per_s]
        floor = guesses[0] - DOUBLINGS_DOWN * STEPS_A_DOUBLING
        ceiling = guesses[0] + DOUBLINGS_UP * STEPS_A_DOUBLING
        for replication in range(effort.replications):
            known = len(guesses) > 1 and replication < len(guesses)
            guess = guesses[replication] if replication < len(guesses) else self._middle()
            stride = FIRST_STRIDE if replication == 0 and not known else NEXT_STRIDE
            if self._bracket(replication, guess, stride, effort.gap, floor, ceiling) is None:
                return self.missing_factor()
            if grows and replication == 0 and self.missing_factor() > 1:
                return self.missing_factor()
        for _ in range(MAX_ROUNDS):
            if not self._fill(effort.gap):
                break
        if effort.replications == 1:
            self._reach()
        if self.missing_factor() > 1:
            return self.missing_factor()
        return run_length.LONGER if effort.levels and self.rising() else 1.0

    def missing_factor(self) -> float:
        """By how much runs are too short for the time that long requests stay, at the highest rate that each
        replication meets, or the lowest tried; the largest of them."""
        return max(
            (
                run_length.missing_factor(trial.span_s, (trial.numbers.get("e2e_ms.p99") or 0.0) / 1000)
                for trial in self._highest_met()
            ),
            default=1.0,
        )

    def rising(self) -> str | None:
        """What of the system is still filling at the highest rates that replications meet."""
        return run_length.rising([trial.levels for trial in self._highest_met() if trial.levels])

    def _highest_met(self) -> list[Trial]:
        found = []
        for curve in curves(self._trials.values()):
            met = [trial for trial in curve if trial.passes]
            if met:
                found.append(met[-1])
        return found

    def _reach(self) -> None:
        """Try rates further out until the crossing of a run is seen without each part of it, as far as that goes."""
        for _ in range(MAX_REACHES):
            (curve,) = curves(self._trials.values())
            found = crossings_without(curve, self._terms)
            steps = [step_of(trial.rate_per_s) for trial in curve]
            if any(rate == math.inf for rate in found):
                self.trial(rate_of(steps[-1] + REACH_STRIDE), curve[0].replication)
            elif any(rate == 0 for rate in found):
                self.trial(rate_of(steps[0] - REACH_STRIDE), curve[0].replication)
            else:
                return

    def _passes(self, step: int, replication: int) -> bool:
        return self.trial(rate_of(step), replication).passes

    def _bracket(
        self, replication: int, guess: int, stride: int, gap: int, floor: int, ceiling: int
    ) -> tuple[int, int] | None:
        """Steps at most `gap` apart of which a replication passes the lower one only; None where there are none."""
        if self._passes(guess, replication):
            low, high = guess, guess + stride
            while self._passes(high, replication):
                if high >= ceiling:
                    return None
                stride *= 2
                low, high = high, high + stride
        else:
            low, high = guess - stride, guess
            while not self._passes(low, replication):
                if low <= floor:
                    return None
                stride *= 2
                low, high = low - stride, low
        while high - low > gap:
            middle = (low + high) // 2
            low, high = (middle, high) if self._passes(middle, replication) else (low, middle)
        return low, high

    def _middle(self) -> int:
        """The grid step of the median crossing so far."""
        found = sorted(crossing(curve, self._terms) for curve in curves(self._trials.values()))
        known = [rate for rate in found if 0 < rate < math.inf]
        return step_of(known[len(known) // 2])

    def _fill(self, gap: int) -> bool:
        """Try the estimate's neighbours with those replications that miss something there and were not tried near.

        Whether anything was tried.
        """
        found = curves(self._trials.values())
        rate, _ = pooled_crossing(found, self._terms)
        if not 0 < rate < math.inf:
            return False
        exact = STEPS_A_DOUBLING * math.log2(rate)
        before = len(self._trials)
        for curve in found:
            steps = [STEPS_A_DOUBLING * math.log2(trial.rate_per_s) for trial in curve]
            above = [at for at, step in enumerate(steps) if step >= exact]
            if above and curve[above[0]].passes:
                if self._is_wide and above[0] == 0:
                    self.trial(rate_of(math.floor(exact + 0.01)), curve[0].replication)
                continue  # it passes beyond the estimate: what it misses there is little
            if not above or steps[above[0]] - exact > gap + 0.01:
                self.trial(rate_of(math.ceil(exact - 0.01)), curve[0].replication)
            below = [step for step in steps if step < exact]
            if below and exact - below[-1] > gap + 0.01:
                self.trial(rate_of(math.floor(exact + 0.01)), curve[0].replication)
        return len(self._trials) > before
