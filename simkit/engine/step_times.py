"""Which latency model prices the steps of a scenario. Knows no batcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simkit.errors import InputError
from simkit.latency.calibrated import Calibrated
from simkit.latency.effects import HOST, PREFIX_REHITS, SPEC, Absent, check_known, is_on, source_of
from simkit.latency.graphs import capture_sizes
from simkit.latency.host import host_of
from simkit.latency.profile import NotMeasured, is_shipped, load_profile
from simkit.latency.roofline import Roofline
from simkit.latency.unit import Unit
from simkit.memory.rules import parse_version
from simkit.scenario import Scenario
from simkit.specs.hardware import GpuSpec
from simkit.specs.model_spec import ModelSpec
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
    hosts_of_others: str | None = None
    """The source of the host terms where the profile has some, but of other versions of the engine only."""


def step_times(scenario: Scenario, model: ModelSpec, gpu: GpuSpec, profile_path: str) -> StepTimes:
    """The latency model of a scenario; `profile_path` is its profile as seen from here, where it is a file.

    `auto` is the shipped profile of the GPU if it has what the model needs, else the roofline, which says so.
    Raises InputError.
    """
    name = scenario.latency.profile
    if name == "unit":
        _refuse_for_unit(scenario)
        return StepTimes(Unit(), name, Unit.source, effects=_rehits(scenario))
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
            graph_sizes=_graph_sizes(scenario, gpu),
        )
    except NotMeasured as error:
        if name != "auto":
            raise
        return _on_roofline(scenario, model, gpu, error.lacks)
    effects = {**calibrated.effects, **_rehits(scenario)}
    others = effects[HOST] if calibrated.host.of_other_versions and is_on(effects[HOST]) else None
    return StepTimes(calibrated, profile.name, profile.content, calibrated.host.first_token_ns, effects, others)


def _on_roofline(scenario: Scenario, model: ModelSpec, gpu: GpuSpec, why_not: str = "") -> StepTimes:
    """By the data sheet; `why_not`: why a shipped profile cannot be used."""
    host = host_of(_given(scenario), None, scenario.engine.version)
    roofline = Roofline(model, gpu, **_settings(scenario), host=host)
    if why_not:
        roofline.source = f"roofline (uncalibrated: {why_not})"
    effects = {**roofline.effects, **_rehits(scenario)}
    return StepTimes(roofline, "roofline", roofline.source, roofline.host.first_token_ns, effects)


def _rehits(scenario: Scenario) -> dict[str, str]:
    """The effect that lies in the engine and in no latency model."""
    engine = scenario.engine
    able = engine.enable_prefix_caching and engine.batching == "continuous" and engine.kv_allocator == "paged"
    source = SPEC if able else Absent("none: no prefix cache")
    return {PREFIX_REHITS: source_of(PREFIX_REHITS, source, scenario.latency.without)}


def _graph_sizes(scenario: Scenario, gpu: GpuSpec) -> tuple[int, ...]:
    """Batches that the engine captures; those of a resolved scenario."""
    engine = scenario.engine
    assert engine.max_num_seqs is not None
    assert engine.max_num_batched_tokens is not None
    version = parse_version(engine.version)
    return capture_sizes(engine.max_num_seqs, engine.max_num_batched_tokens, version, gpu.compute_capability)


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
    for name in _given(scenario):
        raise InputError("has no effect with latency.profile: unit", key=f"latency.host.{name}")
