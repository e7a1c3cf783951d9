"""Which latency model prices the steps of a scenario. Imports scenario, specs and latency; knows no batcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simkit.errors import InputError
from simkit.hardware import GpuSpec
from simkit.latency.calibrated import Calibrated
from simkit.latency.effects import PREFIX_REHITS, check_known
from simkit.latency.graphs import largest_graph
from simkit.latency.host import host_of
from simkit.latency.profile import ProfileError, is_shipped, load_profile
from simkit.latency.roofline import Roofline
from simkit.latency.unit import Unit
from simkit.model_spec import ModelSpec
from simkit.scenario import Scenario
from simkit.types import LatencyModel


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A latency model, and the name and the hash of what its times come from."""

    latency: LatencyModel
    profile: str
    profile_hash: str
    first_token_ns: int = 0
    effects: Mapping[str, str] = field(default_factory=dict)
    """Effect to where it comes from (`simkit.latency.effects`)."""


def step_times(scenario: Scenario, model: ModelSpec, gpu: GpuSpec, profile_path: str) -> StepTimes:
    """The latency model of a scenario; `profile_path` is its profile as seen from here, where it is a file.

    `auto` is the shipped profile of the GPU if it has what the model needs, else the roofline, which says so.
    Raises InputError.
    """
    name = scenario.latency.profile
    if name == "unit":
        _refuse_for_unit(scenario)
        return StepTimes(Unit(), name, Unit.source)
    if name == "roofline" or (name == "auto" and not is_shipped(scenario.hardware.gpu)):
        return _on_roofline(scenario, model, gpu)
    profile = load_profile(gpu.name if name == "auto" else profile_path)
    try:
        calibrated = Calibrated(
            model,
            gpu,
            profile,
            **_settings(scenario),
            host=host_of(_given(scenario), profile, scenario.engine.version),
            largest_graph=largest_graph(scenario.engine.max_num_seqs or 0),
        )
    except ProfileError as error:
        if name != "auto":
            raise
        return _on_roofline(scenario, model, gpu, str(error).partition(": ")[2].partition(", which")[0])
    first_token_ns = calibrated.host.first_token_ns
    return StepTimes(calibrated, profile.name, profile.content, first_token_ns, calibrated.effects)


def _on_roofline(scenario: Scenario, model: ModelSpec, gpu: GpuSpec, why_not: str = "") -> StepTimes:
    """By the data sheet; `why_not`: why a shipped profile cannot be used."""
    host = host_of(_given(scenario), None, scenario.engine.version)
    roofline = Roofline(model, gpu, **_settings(scenario), host=host)
    if why_not:
        roofline.source = f"roofline (uncalibrated: {why_not})"
    return StepTimes(roofline, "roofline", roofline.source, roofline.host.first_token_ns, roofline.effects)


def _settings(scenario: Scenario) -> dict[str, Any]:
    engine = scenario.engine
    return {
        "tensor_parallel_size": scenario.hardware.tensor_parallel_size,
        "interconnect": scenario.hardware.interconnect,
        "dtype": engine.dtype,
        "quantization": engine.quantization,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "async_scheduling": engine.async_scheduling,
        "without": tuple(scenario.latency.without),
    }


def _given(scenario: Scenario) -> dict[str, float]:
    """Host terms that the scenario sets."""
    host = scenario.latency.host
    return {} if host is None else host.model_dump(exclude_none=True)


def _refuse_for_unit(scenario: Scenario) -> None:
    """Steps of one unit are made of nothing that could be left out or replaced."""
    check_known(scenario.latency.without, (PREFIX_REHITS,), "latency.profile: unit")
    if _given(scenario):
        raise InputError("latency.host: has no effect with latency.profile: unit")
