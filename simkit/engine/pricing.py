"""What a step costs: which latency model prices a scenario, when the steps of a plan end, and the steps in flight."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from simkit.batching.plan import StepPlan
from simkit.engine.step_log import StepRun
from simkit.errors import InputError
from simkit.latency import error
from simkit.latency.calibrated import Calibrated
from simkit.latency.deployment import Deployment, capture_sizes
from simkit.latency.effects import OFF, PREFIX_REHITS, RULES, Source, check_known, nothing
from simkit.latency.error import Sizes
from simkit.latency.host import ALL_CAPTURED, VLLM, LaunchCost, Version, host_of, launch_cost, parse_engine
from simkit.latency.link import StatedLink, spread
from simkit.latency.profile import NotMeasured, Profile, is_shipped, load_profile
from simkit.latency.protocol import LatencyModel, ScalarLatency, Unit
from simkit.latency.roofline import Roofline
from simkit.latency.routing import BALANCED, SUM_TOLERANCE, PowerLaw, Routing, read_shares
from simkit.memory.rules import parse_version
from simkit.scenario import Scenario
from simkit.scenario.engine import PowerLawRouting
from simkit.specs.hardware import GpuSpec
from simkit.specs.model_spec import ModelSpec
from simkit.streams import Streams
from simkit.types import Ints

FIRST_OF_TABLES = (0, 8)
"""Since then vLLM runs kernels such as those of the tables that ship."""

MAX_RUN_STEPS = 4096
"""Steps priced at once at most; bounds the arrays, not the result."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A latency model, and the name and the hash of what its times come from."""

    latency: LatencyModel
    profile: str
    profile_hash: str
    first_token_ns: int = 0
    effects: Mapping[str, Source] = field(default_factory=dict)
    """Effect to where it comes from (`simkit.latency.effects`)."""


def step_times(
    scenario: Scenario, model: ModelSpec, gpu: GpuSpec, profile_path: str, erring: int | None = None
) -> StepTimes:
    """The latency model of a scenario; `profile_path` is its profile as seen from here, where it is a file. `erring`:
    the replication whose error it has.

    `auto` is the shipped profile of the GPU if it has what the model needs, else the roofline, which says so.
    Raises InputError.
    """
    name = scenario.latency.profile
    if name == "unit":
        _refuse_for_unit(scenario)
        return StepTimes(Unit(), name, Unit.source, effects=_rehits(scenario))
    if name == "roofline" or (name == "auto" and not is_shipped(scenario.hardware.gpu)):
        return _on_roofline(scenario, model, gpu, erring)
    profile = load_profile(gpu.name if name == "auto" else profile_path)
    try:
        calibrated = Calibrated(_deployment(scenario, model, gpu, profile, erring), profile)
    except NotMeasured as lacking:
        if name != "auto":
            raise
        return _on_roofline(scenario, model, gpu, erring, lacking.lacks)
    effects = {**calibrated.effects, **_rehits(scenario)}
    return StepTimes(calibrated, profile.name, profile.content, calibrated.host.first_token_ns, effects)


def _on_roofline(
    scenario: Scenario, model: ModelSpec, gpu: GpuSpec, erring: int | None, why_not: str = ""
) -> StepTimes:
    """By the data sheet; `why_not`: why a shipped profile cannot be used."""
    roofline = Roofline(_deployment(scenario, model, gpu, None, erring), why_not)
    effects = {**roofline.effects, **_rehits(scenario)}
    return StepTimes(roofline, "roofline", roofline.source, roofline.host.first_token_ns, effects)


def _rehits(scenario: Scenario) -> dict[str, Source]:
    """The effect that lies in the engine and in no latency model."""
    engine = scenario.engine
    able = engine.enable_prefix_caching and engine.batching == "continuous" and engine.kv_allocator == "paged"
    source = RULES if able else nothing("no prefix cache")
    return {PREFIX_REHITS: OFF if PREFIX_REHITS in scenario.latency.without else source}


def _graph_sizes(scenario: Scenario, gpu: GpuSpec) -> tuple[int, ...]:
    """Batches that the engine captures; those of a resolved scenario."""
    engine = scenario.engine
    if engine.enforce_eager:
        return ()
    assert engine.max_num_seqs is not None
    assert engine.max_num_batched_tokens is not None
    version = parse_version(engine.version)
    return capture_sizes(engine.max_num_seqs, engine.max_num_batched_tokens, version, gpu.compute_capability)


def _launch(scenario: Scenario, graph_sizes: Seq[int]) -> LaunchCost:
    """What a launch outside CUDA graphs takes, where there is one."""
    engine, host = scenario.engine, scenario.latency.host
    budget = engine.max_num_batched_tokens
    assert budget is not None
    if graph_sizes and engine.batching == "continuous" and budget <= graph_sizes[-1]:
        return ALL_CAPTURED
    return launch_cost(None if host is None else host.launch_us, eager=engine.enforce_eager)


def _deployment(
    scenario: Scenario, model: ModelSpec, gpu: GpuSpec, profile: Profile | None, erring: int | None
) -> Deployment:
    engine, link, graph_sizes = scenario.engine, scenario.hardware.link, _graph_sizes(scenario, gpu)
    deployment = Deployment(
        model,
        gpu,
        tensor_parallel_size=scenario.hardware.tensor_parallel_size,
        interconnect=scenario.hardware.interconnect,
        dtype=engine.dtype,
        quantization=engine.weight_format,
        kv_cache_dtype=engine.kv_cache_dtype,
        async_scheduling=bool(engine.async_scheduling),
        host=host_of(given_terms(scenario), profile, engine.version, host_engine(scenario)),
        without=tuple(scenario.latency.without),
        graph_sizes=graph_sizes,
        launch=_launch(scenario, graph_sizes),
        link=None if link is None else StatedLink(link.latency_us, link.gb_per_s),
        engine=_engine(scenario),
        routing=_routing(scenario, model),
        expert_parallel=scenario.hardware.expert_parallel and scenario.hardware.tensor_parallel_size > 1,
    )
    if erring is None:
        return deployment
    name, version = deployment.engine
    own_kernels = name == VLLM and (version or parse_version(scenario.engine.version)) >= FIRST_OF_TABLES
    sizes = _error_sizes(deployment, profile, own_kernels=own_kernels)
    return replace(deployment, errors=error.draw(sizes, coins(scenario.seed, erring)))


def _routing(scenario: Scenario, model: ModelSpec) -> Routing:
    """Which experts tokens go to."""
    asked = scenario.engine.moe_routing
    if asked is None or asked == BALANCED:
        return None
    if not model.is_moe:
        raise InputError(f"{model.name} has no experts to route to", key="engine.moe_routing")
    if isinstance(asked, PowerLawRouting):
        return PowerLaw(asked.power_law)
    beside = Path() if scenario.base_dir is None else scenario.base_dir
    path = beside / Path(asked).expanduser()
    found = read_shares(str(path if path.exists() else asked), model.num_experts, model.name)
    largest, most = max(found.of), 1.0 / model.experts_per_token
    if largest > most * (1.0 + SUM_TOLERANCE):
        raise InputError(
            f"{asked}: expected shares of at most 1/{model.experts_per_token}, since a token goes to so many different "
            f"experts of {model.name}, got {largest:.4g}",
            key="engine.moe_routing",
        )
    return found


def coins(seed: int, replication: int) -> list[bool]:
    """What a replication tosses for its error: the opposite of the one before it where its number is odd."""
    pair, second = divmod(replication, 2)
    tossed = Streams(seed, pair)("error of step times").uniforms(len(error.CLASSES))
    return [(value < 0.5) != bool(second) for value in tossed.tolist()]


def _error_sizes(deployment: Deployment, profile: Profile | None, *, own_kernels: bool) -> Sizes:
    """How wrong the step times may be."""
    host, links = deployment.host.error, spread(deployment.interconnect, deployment.tensor_parallel_size)
    if profile is None:
        return error.of_data_sheet(link=links, host=host)
    gpu, dtype, quantization = deployment.gpu, deployment.dtype, deployment.quantization
    return error.of_profile(
        profile,
        gpu,
        dtype,
        quantization,
        link=links,
        host=host,
        own_kernels=own_kernels,
        routed=deployment.model.is_moe,
    )


def given_terms(scenario: Scenario) -> dict[str, float]:
    """Host terms that the scenario sets."""
    host = scenario.latency.host
    return {} if host is None else host.model_dump(exclude_none=True, exclude={"engine", "launch_us"})


def host_engine(scenario: Scenario) -> str | None:
    """The engine whose host terms hold, where the scenario names one."""
    return None if scenario.latency.host is None else scenario.latency.host.engine


def _engine(scenario: Scenario) -> tuple[str, Version | None]:
    """Whose kernels run."""
    named = host_engine(scenario)
    return (VLLM, None) if named is None else parse_engine(named)


def _refuse_for_unit(scenario: Scenario) -> None:
    """Steps of one unit are made of nothing that could be left out or replaced."""
    check_known(scenario.latency.without, (PREFIX_REHITS,), "latency.profile: unit")
    if scenario.engine.enforce_eager:
        raise InputError("has no effect with latency.profile: unit", key="engine.enforce_eager")
    host = scenario.latency.host
    for name in {} if host is None else host.model_dump(exclude_none=True):
        raise InputError("has no effect with latency.profile: unit", key=f"latency.host.{name}")


class Pricer:
    """Prices plans by the scalar methods of a latency model where it has them, else by arrays."""

    def __init__(self, latency: LatencyModel) -> None:
        self.latency = latency
        self._scalar = latency if isinstance(latency, ScalarLatency) else None
        self._last_ns = 1

    def ends_ns(self, plan: StepPlan, start_ns: int, num_steps: int, until_ns: int | None) -> list[int] | Ints:
        """When the next steps of `plan` end, at least one and at most `num_steps` of them.

        Steps that are likely to start well after `until_ns` are not priced.
        """
        if num_steps > 1 and until_ns is not None:
            likely = 2 + (until_ns - start_ns) // self._last_ns
            if likely < num_steps:
                num_steps = likely if likely > 2 else 2
        if num_steps == 1:
            if self._scalar is not None:
                self._last_ns = duration = self._scalar.one_ns(plan)
            else:
                self._last_ns = duration = int(self.latency.step_ns(plan.shapes(1))[0])
            return [start_ns + duration]
        durations: list[int] | Ints
        if self._scalar is not None:
            durations = self._scalar.decode_ns(plan, num_steps)
        else:
            durations = self.latency.step_ns(plan.shapes(num_steps))
        self._last_ns = int(durations[-1])
        if isinstance(durations, np.ndarray):
            return np.cumsum(durations) + start_ns
        durations[0] += start_ns
        return list(accumulate(durations))


class Run:
    """Equal steps in flight: of those priced the first `steps` will be kept, and `done` are over.

    `facts` hold when its first step begins; None for a pass without a step.
    """

    __slots__ = ("done", "ends_ns", "facts", "plan", "start_ns", "steps")

    def __init__(self, plan: StepPlan, start_ns: int, ends_ns: list[int] | Ints) -> None:
        self.plan = plan
        self.start_ns = start_ns
        self.ends_ns = ends_ns
        self.steps = len(ends_ns)
        self.done = 0
        self.facts: StepRun | None = None

    def end_ns(self, before: int = 1) -> int:
        """When the last step to be kept ends, or one `before` it (2: the last but one)."""
        return int(self.ends_ns[self.steps - before]) if self.steps else self.start_ns
