"""Which latency model prices the steps of a scenario. Imports scenario, specs and latency; knows no batcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simkit.hardware import GpuSpec
from simkit.latency.calibrated import Calibrated
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


def step_times(scenario: Scenario, model: ModelSpec, gpu: GpuSpec, profile_path: str) -> StepTimes:
    """The latency model of a scenario; `profile_path` is its profile as seen from here, where it is a file.

    `auto` is the shipped profile of the GPU if it has what the model needs, else the roofline, which says so.
    Raises InputError.
    """
    engine, name = scenario.engine, scenario.latency.profile
    if name == "unit":
        return StepTimes(Unit(), name, Unit.source)
    settings: dict[str, Any] = {
        "tensor_parallel_size": scenario.hardware.tensor_parallel_size,
        "interconnect": scenario.hardware.interconnect,
        "dtype": engine.dtype,
        "quantization": engine.quantization,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "async_scheduling": engine.async_scheduling,
    }
    why_not = ""
    if name != "roofline":
        if name == "auto" and not is_shipped(scenario.hardware.gpu):
            name = "roofline"
        else:
            profile = load_profile(gpu.name if name == "auto" else profile_path)
            try:
                return StepTimes(Calibrated(model, gpu, profile, **settings), profile.name, profile.content)
            except ProfileError as error:
                if name != "auto":
                    raise
                why_not = str(error).partition(": ")[2].partition(", which")[0]
    roofline = Roofline(model, gpu, **settings)
    if why_not:
        roofline.source = f"roofline (uncalibrated: {why_not})"
    return StepTimes(roofline, "roofline", roofline.source)
