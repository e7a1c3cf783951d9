"""Scenarios that each lack one effect of the latency model. Imports the engine's builder, latency and scenario."""

from __future__ import annotations

from simkit.engine.build import set_up
from simkit.latency.effects import OFF
from simkit.scenario import Scenario, apply_sets


def arms(scenario: Scenario) -> dict[str, Scenario]:
    """Effect to the scenario without it, for every effect that does something in `scenario`."""
    without = list(scenario.latency.without)
    acting = [name for name, source in set_up(scenario).effects.items() if not source.startswith((OFF, "none"))]
    return {
        name: apply_sets(scenario, {"latency.without": [*without, name]}, label=f"effect {name}") for name in acting
    }
