"""What names of a scenario stand for: of its model, its GPU and the format of its weights."""

from __future__ import annotations

from simkit.scenario import Scenario
from simkit.specs.dtypes import chosen
from simkit.specs.hardware import GpuSpec, is_alias
from simkit.specs.model_spec import ModelSpec


def names_read(scenario: Scenario, model: ModelSpec, gpu: GpuSpec) -> tuple[str, ...]:
    """A line for each name of a scenario, as it was given, that stands for another or for a format of weights."""
    found = [model.read_as] if model.read_as else []
    if not found and model.quantization is not None and scenario.engine.quantization is None:
        found = [f"model {scenario.model}: {model.quantization} weights, as it is published"]
    if is_alias(scenario.hardware.gpu):
        found.append(f"hardware.gpu {scenario.hardware.gpu}: read as {gpu.name}")
    return tuple(found)


def stand_for(scenario: Scenario, model: ModelSpec, gpu: GpuSpec) -> dict[str, str | None]:
    """Dotted keys whose value has another name in the registries, with that name. Raises InputError."""
    found: dict[str, str | None] = {}
    weights = chosen(scenario.engine.quantization, model.quantization)
    if weights != scenario.engine.quantization:
        found["engine.quantization"] = weights
    if is_alias(scenario.hardware.gpu):
        found["hardware.gpu"] = gpu.name
    return found
