"""An answer is served again before it is told: at the lower end of its interval, much longer, with fresh customers.

Owns how often, how long, and where the answer moves when it does not hold. Runs of the search can end before a memory
or a queue has filled that fills once in many; a rate that a user will serve for days must not rest on that.
"""

from __future__ import annotations

import math
from dataclasses import replace

from simkit import run_length
from simkit.planner.asking import Asking
from simkit.planner.capacity import Capacity
from simkit.planner.plan_values import Confirmation, Found, Served
from simkit.planner.quest import Quest
from simkit.planner.search import STEPS_A_DOUBLING
from simkit.planner.study import Failure

TIMES = 10.0
"""How much longer than the runs of the search."""

RUNS = 4

FRESH = 1000
"""The first replication of fresh customers; the search uses those from 0 on."""

LARGEST_GAP = 2
"""Grid steps that may lie between a rate that held and one that did not."""

MAX_SERVED = 12


def confirm(item: Found, asking: Asking, share: float) -> Found:
    """The point with its capacity as long runs leave it; without one where no rate holds.

    When the lower end of the interval does not hold, lower rates are served, each twice as far away, until one does,
    then rates between the two. The interval then begins at the rate that held. It ends, and the estimate lies, no
    higher than where all long runs together miss an objective.
    """
    before = item.capacity
    assert before is not None
    times = TIMES if run_length.can_grow(item.point.scenario) else 1.0
    served: list[Served] = []
    rate, stride = _typed(before.low_per_s), 1
    held: float | None = None
    missed: float | None = None
    while len(served) < MAX_SERVED:
        found = _serve(item, rate, times, asking, share if not served else 0.0)
        if isinstance(found, Failure):
            break
        served.append(found)
        if found.held:
            held = rate
        else:
            missed = rate
        if held is None:
            rate, stride = _typed(rate * 2 ** (-stride / STEPS_A_DOUBLING)), 2 * stride
        elif missed is None or STEPS_A_DOUBLING * math.log2(missed / held) <= LARGEST_GAP + 0.1:
            break
        else:
            rate = _typed(math.sqrt(held * missed))
    if not served:
        return item
    capacity = None if held is None else _moved(before, held, served)
    return replace(item, capacity=capacity, confirmation=Confirmation(times, before, tuple(served)))


def _serve(item: Found, rate_per_s: float, times: float, asking: Asking, share: float) -> Served | Failure:
    """Long runs at a rate, each a question of its own, so that they are made side by side."""
    scenario = item.longer(times)
    count = 1 if run_length.is_same_every_time(scenario) else RUNS
    quests = [
        Quest(
            f"{item.point.name} at {rate_per_s:g}/s for long",
            scenario,
            asking.base_per_s,
            rates_per_s=(rate_per_s,),
            replications=1,
            first=FRESH + index,
        )
        for index in range(count)
    ]
    answers = asking.ask(quests, share, f"serving {rate_per_s:.3g}/s again, {times:g} times as long")
    failed = next((answer for answer in answers if isinstance(answer, Failure)), None)
    if failed is not None:
        return failed
    return Served(rate_per_s, tuple(answer.trials[0] for answer in answers if not isinstance(answer, Failure)))


def _moved(before: Capacity, held_per_s: float, served: list[Served]) -> Capacity:
    """The capacity of which `held_per_s` held."""
    if len(served) == 1:
        return before
    too_much = min((one.rate_per_s for one in served if not one.together), default=math.inf)
    estimate = min(before.estimate_per_s, max(held_per_s, math.sqrt(held_per_s * too_much)))
    return replace(
        before,
        low_per_s=held_per_s,
        estimate_per_s=estimate,
        high_per_s=max(estimate, min(before.high_per_s, too_much)),
    )


def _typed(rate_per_s: float) -> float:
    """A rate to four digits, not above it, so that it can be typed in."""
    digits = 10.0 ** (math.floor(math.log10(rate_per_s)) - 3)
    return float(f"{math.floor(rate_per_s / digits + 1e-9) * digits:.4g}")
