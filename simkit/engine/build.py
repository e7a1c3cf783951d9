"""From a scenario to the objects of a run: defaults resolved, memory sized, start-up refusals, batcher and allocator.

Owns what the real engine does at start-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simkit.batching.continuous import ContinuousBatcher
from simkit.batching.plan import ContinuousSettings
from simkit.batching.policies import POLICIES, Fcfs
from simkit.batching.protocol import Batcher, OutputListener
from simkit.batching.static import DynamicBatcher, StaticBatcher
from simkit.engine.kv_pool import memory_settings, windowed_pool
from simkit.engine.names import names_read, stand_for
from simkit.engine.pricing import step_times
from simkit.engine.unused_settings import run_as_off, without_any_effect
from simkit.errors import InputError
from simkit.kv.contiguous import ContiguousAllocator
from simkit.kv.counted import CountedAllocator
from simkit.kv.paged import PagedAllocator
from simkit.kv.protocol import KVPool
from simkit.kv.swap import HostPool
from simkit.latency.effects import HOST, PREFIX_REHITS, Origin, Source
from simkit.latency.kernels import dtype_peak
from simkit.latency.protocol import LatencyModel
from simkit.memory.budget import MemoryBudget, default_limits, memory_budget
from simkit.memory.layers import FIRST_ASYNC
from simkit.memory.rules import check_blocks, check_kernels, parse_version
from simkit.scenario import Engine, Scenario, apply_sets
from simkit.sequence import Sequence
from simkit.specs.hardware import GpuSpec, load_gpu
from simkit.specs.model_spec import ModelSpec
from simkit.specs.models import load_model
from simkit.types import Request, StepShapes
from simkit.units import gib_to_bytes, s_to_ns

NEVER_EVICTS = "capacity_scheduler_policy: guaranteed_no_evict"


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a run needs that does not change while it runs; `scenario` has every default written in.

    `profile` names what step times come from (a profile, roofline, unit), `profile_hash` identifies its content.
    """

    scenario: Scenario
    model: ModelSpec
    gpu: GpuSpec
    memory: MemoryBudget
    num_gpu_blocks: int
    latency: LatencyModel
    profile: str
    profile_hash: str
    not_simulated: tuple[str, ...]
    without_effect: tuple[str, ...]
    first_token_ns: int = 0
    """Path of a request from its client to the engine's queue and back."""
    effects: Mapping[str, Source] = field(default_factory=dict)
    """What latencies are made of, and where each effect comes from."""
    windows: str | None = None
    """How layers with windows were counted, where there are any."""
    names_blocks: bool = True
    """False: nothing would ever be found in a prefix cache, so that blocks are merely counted."""

    names: tuple[str, ...] = ()
    """What names of the scenario were read as, where they are not those of the registry."""

    @property
    def max_num_seqs(self) -> int:
        """Slots of one replica."""
        return require(self.scenario.engine.max_num_seqs)

    @property
    def max_num_active_seqs(self) -> int:
        """Slots that may be used at once."""
        return require(self.scenario.engine.max_num_active_seqs)

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and answer together."""
        return require(self.scenario.engine.max_model_len)

    @property
    def stream(self) -> bool:
        """Whether tokens are delivered one by one."""
        return bool(self.scenario.engine.stream)

    @property
    def async_scheduling(self) -> bool:
        """Whether passes run ahead of outputs: only continuous batching decides every step."""
        engine = self.scenario.engine
        return bool(engine.async_scheduling) and engine.batching == "continuous"

    @property
    def prefix_caching(self) -> bool:
        """Whether blocks are shared by content."""
        engine = self.scenario.engine
        able = engine.batching == "continuous" and engine.kv_allocator == "paged"
        return engine.enable_prefix_caching and able and self.names_blocks

    @property
    def samples(self) -> int:
        """Answers sampled from each prompt; a batch that runs to completion makes one."""
        return self.scenario.workload.samples if self.scenario.engine.batching == "continuous" else 1

    @property
    def finds_again(self) -> bool:
        """Whether who was preempted looks for its blocks in the prefix cache."""
        return PREFIX_REHITS not in self.scenario.latency.without

    @property
    def hosts_of_others(self) -> str | None:
        """The source of the host terms where the profile has some, but of other versions of the engine only."""
        source = self.effects.get(HOST)
        return None if source is None or source.origin is not Origin.OTHER_VERSIONS else source.text

    @property
    def fitted_effects(self) -> tuple[str, ...]:
        """The effects that hold numbers which were fitted to a real run."""
        return tuple(name for name, source in self.effects.items() if source.is_fitted)

    @property
    def errs(self) -> bool:
        """Whether step times are a model's, whose error is drawn as well."""
        return self.scenario.latency.error == "drawn" and self.profile != "unit"

    @property
    def swaps(self) -> bool:
        """Whether a victim's memory can go to the host."""
        engine = self.scenario.engine
        return engine.preemption != "recompute" and engine.batching == "continuous"

    @property
    def capacity_tokens(self) -> int:
        """KV memory of one replica; the same for both allocators, so that arms compare alike."""
        return (self.num_gpu_blocks - 1) * self.scenario.engine.block_size


def set_up(scenario: Scenario) -> Setup:
    """Resolve a scenario. Raises InputError, with the place that is to blame, for what the real engine would refuse."""
    try:
        return _set_up(scenario)
    except InputError as error:
        raise scenario.blame(error) from None


def _set_up(scenario: Scenario) -> Setup:
    without_effect, given = without_any_effect(scenario), scenario
    scenario, model, gpu = resolve(scenario)
    if model.not_modelled:
        raise InputError(f"{model.name} cannot be simulated: {model.not_modelled}", key="model")
    check_kernels(scenario.engine.weight_format, gpu)
    hardware = scenario.hardware
    check_blocks(
        model, hardware.tensor_parallel_size, scenario.engine.weight_format, whole_experts=hardware.expert_parallel
    )
    settings = memory_settings(scenario, model, gpu)
    memory = memory_budget(settings)
    # Kernels for latents have a size of block of their own, which then is that of the whole engine.
    if settings.kernel_block_size != settings.block_size:
        scenario = apply_sets(scenario, {"engine.block_size": settings.kernel_block_size}, label="kernels")
    of_engine = scenario.engine.num_gpu_blocks or memory.num_gpu_blocks
    num_gpu_blocks, of_windows = windowed_pool(scenario, settings, of_engine)
    check_placement(scenario.engine, num_gpu_blocks)
    path, error = _from_scenario_folder(scenario, scenario.latency.profile), scenario.latency.error
    times = step_times(scenario, model, gpu, path, error if isinstance(error, int) else None)
    return Setup(
        scenario=scenario,
        model=model,
        gpu=gpu,
        memory=memory,
        num_gpu_blocks=num_gpu_blocks,
        windows=of_windows,
        latency=times.latency,
        profile=times.profile,
        profile_hash=times.profile_hash,
        not_simulated=run_as_off(scenario),
        without_effect=without_effect,
        first_token_ns=times.first_token_ns,
        effects=times.effects,
        names=names_read(given, model, gpu),
    )


def erring(setup: Setup, replication: int) -> Setup:
    """The set-up with step times that are wrong by the error which `replication` draws (`simkit.latency.error`)."""
    path = _from_scenario_folder(setup.scenario, setup.scenario.latency.profile)
    times = step_times(setup.scenario, setup.model, setup.gpu, path, replication)
    return replace(setup, latency=times.latency, first_token_ns=times.first_token_ns)


def resolve(scenario: Scenario) -> tuple[Scenario, ModelSpec, GpuSpec]:
    """The scenario with every default written in, its model and its GPU.

    Raises InputError, not yet with the place that is to blame, for what they refuse whatever the memory.
    """
    model = load_model(_from_scenario_folder(scenario, scenario.model))
    gpu = load_gpu(_from_scenario_folder(scenario, scenario.hardware.gpu))
    scenario = _resolve(scenario, model, gpu)
    dtype_peak(gpu, scenario.engine.dtype)  # the engine refuses a format that the GPU lacks, whatever the step times
    _check_samples(scenario)
    return scenario, model, gpu


def _from_scenario_folder(scenario: Scenario, name_or_path: str) -> str:
    """A relative path starts at the folder of the scenario file; a name that is no file there stays a name."""
    if scenario.base_dir is None:
        return name_or_path
    beside = scenario.base_dir / name_or_path
    return str(beside) if beside.exists() else name_or_path


def _resolve(scenario: Scenario, model: ModelSpec, gpu: GpuSpec) -> Scenario:
    """Write in what GPU, model and batching decide (scheduler specification, section 8)."""
    engine = scenario.engine
    max_model_len = engine.max_model_len or model.max_position
    if max_model_len > model.max_position:
        raise InputError(
            f"expected <= {model.max_position} (the longest context of {model.name}), got {max_model_len}",
            key="engine.max_model_len",
        )
    default_budget, default_seqs = default_limits(gpu, engine.version, max_model_len)
    budget, seqs = engine.max_num_batched_tokens, engine.max_num_seqs
    if budget is None:
        budget = default_budget
        if not engine.enable_chunked_prefill:
            budget = max(budget, max_model_len)
        budget = min(budget, (seqs or default_seqs) * max_model_len)
    if seqs is None:
        seqs = min(default_seqs, budget)
    defaults: dict[str, Any] = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len,
        "stream": engine.batching == "continuous",
        "max_num_active_seqs": seqs,
        "async_scheduling": parse_version(engine.version) >= FIRST_ASYNC,
    }
    missing = {f"engine.{key}": value for key, value in defaults.items() if getattr(engine, key) is None}
    missing |= stand_for(scenario, model, gpu)
    return apply_sets(scenario, missing, label="default")


def _check_samples(scenario: Scenario) -> None:
    engine, samples = scenario.engine, scenario.workload.samples
    slots = require(engine.max_num_active_seqs)
    if engine.batching == "continuous" and samples > slots:
        raise InputError(f"expected at most the {slots} slots of the engine, got {samples}", key="workload.samples")
    if samples > 1 and never_evicts(engine):
        raise InputError(f"expected 1 with {NEVER_EVICTS}, got {samples}", key="workload.samples")


def check_placement(engine: Engine, num_gpu_blocks: int) -> None:
    """One sequence of max_model_len must find a region where memory is contiguous, and blocks where nobody is ever
    preempted. Raises InputError."""
    max_model_len = require(engine.max_model_len)
    capacity = (num_gpu_blocks - 1) * engine.block_size
    if never_evicts(engine) and max_model_len > capacity:
        raise InputError(
            f"expected <= {capacity} (the tokens of the KV pool) with {NEVER_EVICTS}, got {max_model_len}",
            key="engine.max_model_len",
        )
    if engine.kv_allocator == "contiguous" and not ContiguousAllocator(capacity, engine.placement).fits_ever(
        max_model_len, max_model_len
    ):
        raise InputError(
            f"no region of {max_model_len} tokens can be placed in {capacity} tokens with "
            f"placement {engine.placement}: lower it or choose first_fit",
            key="engine.max_model_len",
        )


def describe(setup: Setup) -> str:
    """The settings that decide whether a run can get stuck, in one line."""
    engine = setup.scenario.engine
    names = (
        "batching", "policy", "preemption", "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold",
        "scheduler_reserve_full_isl", "enable_prefix_caching", "block_size",
    )  # fmt: skip
    listed = [f"{name} {_yaml(getattr(engine, name))}" for name in names]
    return ", ".join([*listed, f"num_gpu_blocks {setup.num_gpu_blocks}"])


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def reserve_tokens(engine: Engine, request: Request, max_model_len: int) -> int:
    """Tokens that contiguous memory sets aside for a request; `pow2` and `oracle` are what-if arms that know its end.

    Paged memory reserves prompt + max_tokens, and only where a batch runs to completion.
    """
    longest = min(request.prompt_tokens + request.max_tokens, max_model_len)
    if engine.kv_allocator == "paged":
        return longest
    if engine.reservation == "max":
        return max_model_len
    output_tokens = min(request.output_tokens, longest - request.prompt_tokens)
    if engine.reservation == "pow2":
        output_tokens = 1 << max(0, output_tokens - 1).bit_length()
    return min(request.prompt_tokens + output_tokens, max_model_len)


def make_kv(setup: Setup, *, count_blocks: bool = True) -> KVPool:
    """An empty KV pool of one replica; unless `count_blocks`, blocks have names even where nobody asks for them."""
    engine = setup.scenario.engine
    if engine.kv_allocator == "contiguous":
        return ContiguousAllocator(setup.capacity_tokens, engine.placement)
    if count_blocks and not setup.prefix_caching and setup.samples == 1:
        return CountedAllocator(setup.num_gpu_blocks, engine.block_size, engine.watermark)
    return PagedAllocator(
        setup.num_gpu_blocks, engine.block_size, engine.watermark, setup.prefix_caching, finds_again=setup.finds_again
    )


def never_evicts(engine: Engine) -> bool:
    """Whether only those are admitted who fit to the end; memory in one piece is reserved to the end anyway."""
    return engine.capacity_scheduler_policy == "guaranteed_no_evict" and engine.kv_allocator == "paged"


def may_ride(setup: Setup) -> bool:
    """Whether, while nobody waits, everything about a request is known when it is admitted (`engine.fast_path`)."""
    engine, workload = setup.scenario.engine, setup.scenario.workload
    plain = POLICIES[engine.policy] is Fcfs and not engine.prefill_first and engine.prefill_schedule_interval == 1
    whole_prompts = engine.long_prefill_token_threshold == 0
    counted = engine.kv_allocator == "paged" and not setup.prefix_caching and setup.samples == 1
    counted = counted and not never_evicts(engine)
    patient = workload.timeout_s is None and workload.queue_limit is None
    # Running ahead of outputs, the batcher schedules a step beyond an end that it cannot see.
    ends_are_seen = workload.stop == "length" or not setup.async_scheduling
    return engine.batching == "continuous" and plain and whole_prompts and counted and patient and ends_are_seen


def make_batcher(setup: Setup, kv: KVPool, listener: OutputListener, *, one_by_one: bool = False) -> Batcher:
    """The batcher of one replica; with `one_by_one` continuous batching looks at every sequence in every pass."""
    engine = setup.scenario.engine
    policy = engine.policy
    if POLICIES[policy].charges and engine.batching != "continuous":
        policy = "fcfs"
    if engine.batching == "static":
        wait_ns = None if engine.max_wait_s is None else s_to_ns(engine.max_wait_s)
        return StaticBatcher(setup.max_num_seqs, setup.max_model_len, wait_ns, kv, listener, policy)
    if engine.batching == "dynamic":
        delay_ns = s_to_ns(engine.max_queue_delay_s)
        return DynamicBatcher(setup.max_num_seqs, setup.max_model_len, delay_ns, kv, listener, policy)
    settings = ContinuousSettings(
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=require(engine.max_num_batched_tokens),
        max_model_len=setup.max_model_len,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        prefill_first=engine.prefill_first,
        policy=policy,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=engine.long_prefill_token_threshold_adaptive,
        scheduler_reserve_full_isl=engine.scheduler_reserve_full_isl,
        never_evicts=never_evicts(engine),
        prefill_schedule_interval=engine.prefill_schedule_interval,
        max_num_active_seqs=engine.max_num_active_seqs,
        async_scheduling=setup.async_scheduling,
    )
    if not setup.swaps:
        return ContinuousBatcher(settings, kv, listener, one_by_one=one_by_one)
    rule = _cheaper_to_swap(setup) if engine.preemption == "auto" else None
    return ContinuousBatcher(settings, kv, listener, _host_pool(setup), rule, one_by_one=one_by_one)


def _host_pool(setup: Setup) -> HostPool:
    bytes_per_token = setup.memory.kv_bytes_per_token * setup.scenario.hardware.tensor_parallel_size
    return HostPool(int(gib_to_bytes(setup.scenario.engine.host_pool_gib) // bytes_per_token), bytes_per_token)


def _cheaper_to_swap(setup: Setup) -> Callable[[Sequence, list[Sequence]], bool]:
    """`auto` preemption: compare what each action adds to the step of those that go on running.

    Recomputing rides along with a decode that is bound by memory, so its price depends on the batch.
    """
    step_ns = setup.latency.step_ns
    engine, bytes_per_token = setup.scenario.engine, _host_pool(setup).bytes_per_token

    def cheaper(victim: Sequence, others: list[Sequence]) -> bool:
        tokens, count = victim.num_computed_tokens, len(others)
        contexts = [seq.num_computed_tokens for seq in others]
        decoding = (count, sum(contexts), max(contexts, default=0))
        moved = -(-tokens // engine.block_size) * engine.block_size * bytes_per_token
        swap = StepShapes.single(*decoding, 0, 0, 0, count, 0, 0, moved, moved)
        pairs = tokens * (tokens + 1) // 2
        recompute = StepShapes.single(*decoding, tokens, 0, pairs, count, 0, 0, 0, 0)
        return int(step_ns(swap)[0]) < int(step_ns(recompute)[0])

    return cheaper


def require(value: int | None) -> int:
    """A value that a resolved scenario has."""
    assert value is not None, "a resolved scenario has every value"
    return value
