"""What each effect of the latency contributes: the scenario once more for every effect, with that one switched off.

Owns which arms there are; what they are simulated for is the caller's affair. Simulates nothing.
"""

from __future__ import annotations

from simkit.engine.build import set_up
from simkit.latency.effects import EFFECTS, OFF
from simkit.scenario import Scenario, apply_sets


def arms(scenario: Scenario) -> dict[str, Scenario]:
    """Effect to the scenario without it, for each effect that the set-up has, in the order of `EFFECTS`.

    What the scenario itself switches off stays off in every arm. Raises InputError as `set_up` does.
    """
    sources = set_up(scenario).effects
    off = list(scenario.latency.without)
    return {
        effect: apply_sets(scenario, {"latency.without": [*off, effect]}, label="ablation")
        for effect in EFFECTS
        if sources.get(effect, OFF).is_on
    }
