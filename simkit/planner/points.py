"""The points of a plan: every combination of settings that is tried, and the automatic grid of max_num_seqs.

Owns which points there are and which fail before they are tried, and what memory and arithmetic allow before anything
is simulated: the sequences that fit, and a rate to begin with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from simkit.engine.build import Setup, set_up
from simkit.errors import InputError
from simkit.scenario import Scenario, apply_sets
from simkit.studies.offered_load import Lengths, for_trials, lengths
from simkit.studies.study import Failure, Settings, point_names
from simkit.types import StepShapes
from simkit.units import NS_PER_S, ns_to_ms

GRID_DOUBLINGS = 5
"""The automatic grid reaches down to a 32nd of the physical bound."""

BUSY_TAIL = 2.3
"""Standard deviations of a Poisson number of sequences beyond which 1 % lies: slots that a guess sets aside."""


@dataclass(frozen=True, slots=True)
class Physical:
    """How many sequences one replica can hold. `memory_seqs` at the mean tokens that a sequence holds while it runs
    (prompt and half of the answer), `longest_seqs` at max_model_len each, `budget_seqs` decodes a step has tokens for.
    """

    kv_tokens: int
    num_gpu_blocks: int
    held_tokens: float
    memory_seqs: int
    longest_seqs: int
    budget_seqs: int

    @property
    def bound(self) -> int:
        """The most sequences that can run at once."""
        return max(1, min(self.memory_seqs, self.budget_seqs))


def physical(setup: Setup, lengths: Lengths) -> Physical:
    """The bounds of a set-up. Memory is handed out in whole blocks."""
    block_size = setup.scenario.engine.block_size
    held = math.ceil(lengths.held_tokens / block_size) * block_size
    longest = math.ceil(setup.max_model_len / block_size) * block_size
    budget = setup.scenario.engine.max_num_batched_tokens
    continuous = setup.scenario.engine.batching == "continuous"
    assert budget is not None, "a resolved scenario has a budget"
    return Physical(
        kv_tokens=setup.capacity_tokens,
        num_gpu_blocks=setup.num_gpu_blocks,
        held_tokens=lengths.held_tokens,
        memory_seqs=setup.capacity_tokens // held,
        longest_seqs=setup.capacity_tokens // longest,
        budget_seqs=budget if continuous else setup.capacity_tokens // held,
    )


def slot_grid(bound: int) -> list[int]:
    """Powers and half-powers of two (rounded) from a 32nd of the bound up to the first that reaches it."""
    last = math.ceil(2 * math.log2(max(1, bound)))
    first = max(0, last - 2 * GRID_DOUBLINGS)
    return sorted({round(2 ** (half / 2)) for half in range(first, last + 1)})


def guess_rate(setup: Setup, lengths: Lengths) -> float:
    """A rate near the capacity of a set-up, all replicas together: a fluid model, in which every step holds the mean
    number of decodes and the prompt tokens that arrive meanwhile. Only a place to begin the search.
    """
    slo = setup.scenario.slo
    targets = [] if slo is None or slo.tpot_ms is None else list(slo.tpot_ms.values())
    tpot_ms = min(targets, default=math.inf)
    if ns_to_ms(_step_s(setup, lengths, 1, 0) * NS_PER_S) > tpot_ms:
        tpot_ms = math.inf  # a request alone is too slow: no rate is low enough, and any will show it
    low, high = 1e-6, 1e6
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _holds(setup, lengths, middle, tpot_ms) else (low, middle)
    return low * setup.scenario.replicas


def _holds(setup: Setup, lengths: Lengths, rate_per_s: float, tpot_ms: float) -> bool:
    """Whether a steady state with this rate has room for everybody and makes tokens fast enough."""
    step_s, seqs = 0.0, 0.0
    slots = min(setup.max_num_active_seqs, setup.capacity_tokens / lengths.held_tokens)
    for _ in range(50):
        before = step_s
        step_s = _step_s(setup, lengths, seqs, rate_per_s * before * lengths.prompt_tokens)
        seqs = rate_per_s * step_s * lengths.output_tokens
        prefill = rate_per_s * step_s * lengths.prompt_tokens
        budget = setup.scenario.engine.max_num_batched_tokens or math.inf
        if ns_to_ms(step_s * NS_PER_S) > tpot_ms or seqs + prefill > budget:
            return False
        if seqs + BUSY_TAIL * math.sqrt(seqs) > max(slots, 1.0):
            # A single slot is shared by nobody: half of its time must stay free.
            return slots < 4 and seqs <= slots / 2
        if abs(step_s - before) < 1e-3 * step_s:
            break
    return True


def _step_s(setup: Setup, lengths: Lengths, seqs: float, prefill_tokens: float) -> float:
    decodes = max(1, round(seqs))
    prefill = round(prefill_tokens)
    context = round(lengths.held_tokens)
    shapes = StepShapes.of(
        1,
        decode_seqs=decodes,
        decode_context_sum=decodes * context,
        decode_context_max=context,
        prefill_tokens=prefill,
        prefill_pairs=prefill * (prefill + 1) // 2 if prefill <= lengths.prompt_tokens else
        round(prefill * lengths.prompt_tokens / 2),
        sampled_seqs=decodes,
    )  # fmt: skip
    return int(setup.latency.step_ns(shapes)[0]) / NS_PER_S


# --- points
SLOTS = "engine.max_num_seqs"


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One combination of settings, ready to be tried."""

    name: str
    settings: Settings
    scenario: Scenario
    setup: Setup
    physical: Physical

    @property
    def slots(self) -> int:
        """max_num_seqs."""
        return self.setup.max_num_seqs

    @property
    def gpus(self) -> int:
        """GPUs of all its replicas."""
        return self.scenario.replicas * self.scenario.hardware.tensor_parallel_size


def make_points(
    scenario: Scenario, axes: dict[str, Sequence[Any]]
) -> tuple[list[PlanPoint], dict[str, Failure], list[str], dict[str, list[Any]]]:
    """(points, failed ones, notes, the axes with the values of max_num_seqs).

    Without `engine.max_num_seqs` among the `axes` its grid is automatic. Raises InputError when no point can be set up.
    """
    name_of = point_names([SLOTS, *(key for key in axes if key != SLOTS)])
    combinations, failed = _combinations(scenario, {key: axes[key] for key in axes if key != SLOTS}, name_of)
    automatic = SLOTS not in axes
    slots = _automatic(scenario, combinations, failed, name_of) if automatic else list(axes[SLOTS])
    points: list[PlanPoint] = []
    for settings, changed in combinations:
        if name_of(settings) in failed:
            continue  # it does not start with a single slot
        for count in slots:
            whole = {SLOTS: count, **settings}
            try:
                ready = apply_sets(changed, {SLOTS: count}, label="--axis")
                points.append(make_point(name_of(whole), whole, ready, scenario))
            except InputError as error:
                failed[name_of(whole)] = Failure.of(error, whole)
    if not points:
        name, failure = next(iter(failed.items()))
        raise InputError(f"point {name}: {failure.message}")
    notes: list[str] = []
    if automatic:
        slots = _starting(slots, points, failed, notes)
    grid = {SLOTS: slots, **{key: list(values) for key, values in axes.items() if key != SLOTS}}
    return points, failed, notes, grid


def _starting(slots: list[int], points: list[PlanPoint], failed: dict[str, Failure], notes: list[str]) -> list[int]:
    """Of an automatic grid what the engine starts with, somewhere; nobody asked for the rest, so it did not fail."""
    starting = [count for count in slots if any(point.settings[SLOTS] == count for point in points)]
    left_out = [count for count in slots if count not in starting]
    for name in [name for name, failure in failed.items() if failure.settings.get(SLOTS) in left_out]:
        del failed[name]
    if left_out:
        notes.append(f"max_num_seqs {', '.join(map(str, left_out))}: left out, the engine does not start with them")
    return starting


def _combinations(
    scenario: Scenario, axes: Mapping[str, Sequence[Any]], name_of: Callable[[Settings], str]
) -> tuple[list[tuple[Settings, Scenario]], dict[str, Failure]]:
    found: list[tuple[Settings, Scenario]] = []
    failed: dict[str, Failure] = {}
    for values in product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        try:
            found.append((settings, apply_sets(scenario, settings, label="--axis")))
        except InputError as error:
            failed[name_of(settings)] = Failure.of(error, settings)
    return found, failed


def make_point(name: str, settings: Settings, scenario: Scenario, base: Scenario) -> PlanPoint:
    """A combination of settings made ready. Raises InputError for what the engine would refuse."""
    ready = for_trials(scenario, base.replicas)
    setup = set_up(ready)
    return PlanPoint(name, settings, ready, setup, physical(setup, lengths(ready, setup.max_model_len)))


def _automatic(
    scenario: Scenario,
    combinations: Sequence[tuple[Settings, Scenario]],
    failed: dict[str, Failure],
    name_of: Callable[[Settings], str],
) -> list[int]:
    """Powers and half-powers of two up to the physical bound, and the scenario's own value."""
    slots: set[int] = set()
    for settings, changed in combinations:
        try:
            one = make_point("", settings, apply_sets(changed, {SLOTS: 1}, label="plan"), scenario)
        except InputError as error:
            failed[name_of(settings) or scenario.name] = Failure.of(error, settings)
            continue
        slots.update(slot_grid(one.physical.bound))
    if not slots:
        name, failure = next(iter(failed.items()))
        raise InputError(failure.message if name == scenario.name else f"point {name}: {failure.message}")
    given = scenario.engine.max_num_seqs
    return sorted(slots if given is None else slots | {given})
