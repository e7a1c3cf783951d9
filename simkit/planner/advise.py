"""What follows from capacities: the knee, GPUs for a target, money, and the command line of the engine.

Owns rules of choice and words. Simulates nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simkit.batching.policies import POLICIES
from simkit.planner.points import SLOTS
from simkit.planner.result import PlanResult, PointResult
from simkit.planner.sensitivity import num_replicas
from simkit.specs.dtypes import engine_word
from simkit.studies.study import Settings

KNEE_GAIN = 1.1
"""Beyond the knee doubling max_num_seqs brings less than 10 % more capacity."""

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Cost:
    """Money per million tokens, for GPUs that are all paid for, at one rate. Currency is that of the price."""

    rate_per_s: float
    gpus: int
    per_million_output_tokens: float
    per_million_total_tokens: float


def knee(found: Sequence[PointResult], others: Settings) -> PointResult | None:
    """The smallest max_num_seqs from which twice as many carry less than 10 % more, among the points whose further
    settings are `others`. None where the grid does not reach that far."""
    line = sorted(
        (item for item in found if item.capacity is not None and further(item) == dict(others)),
        key=lambda item: item.point.slots,
    )
    for item in line:
        doubled = next((other for other in line if other.point.slots >= 2 * item.point.slots), None)
        if doubled is None:
            return None
        assert item.capacity is not None
        assert doubled.capacity is not None
        if doubled.capacity.estimate_per_s < KNEE_GAIN * item.capacity.estimate_per_s:
            return item
    return None


def further(item: PointResult) -> Settings:
    """The settings of a point besides max_num_seqs."""
    return {key: value for key, value in item.point.settings.items() if key != SLOTS}


@dataclass(frozen=True, slots=True)
class Fleet:
    """GPUs for a rate: replicas that carry it at the lower end of the capacity's interval, and spare ones."""

    target_per_s: float
    replicas: int
    spare: int
    gpus_per_replica: int
    carries_per_s: float

    @property
    def gpus(self) -> int:
        """All of them."""
        return (self.replicas + self.spare) * self.gpus_per_replica


def fleet(result: PlanResult, chosen: PointResult) -> Fleet | None:
    """The fleet for the target rate; None without one."""
    if result.target_per_s is None or chosen.capacity is None:
        return None
    count = num_replicas(result.target_per_s, chosen)
    each = chosen.capacity.carried_per_s / chosen.point.scenario.replicas
    return Fleet(
        target_per_s=result.target_per_s,
        replicas=count,
        spare=result.spare,
        gpus_per_replica=chosen.point.scenario.hardware.tensor_parallel_size,
        carries_per_s=count * each,
    )


def cost(item: PointResult, rate_per_s: float, gpus: int) -> Cost | None:
    """Cost of the tokens that a point delivers at a rate with so many GPUs; None without a price.

    Tokens a request are those of the runs at the capacity, where a request that is turned away brings none.
    """
    price = item.point.scenario.hardware.price_per_gpu_hour
    sent = item.mean_at_capacity("num_requests.arrived")
    served = item.mean_at_capacity("num_requests.finished") / sent if sent else 0.0
    done = item.mean_at_capacity("throughput.requests_per_s")
    if price is None or rate_per_s <= 0 or not served or not done:
        return None
    output = item.mean_at_capacity("throughput.output_tokens_per_s") / done * served
    total = item.mean_at_capacity("throughput.total_tokens_per_s") / done * served
    per_request = price * gpus / SECONDS_PER_HOUR / rate_per_s
    return Cost(rate_per_s, gpus, per_request / output * 1e6, per_request / total * 1e6)


def command(chosen: PointResult) -> tuple[str | None, tuple[str, ...]]:
    """(command line of vLLM for a point, what of it the real engine does not have).

    Flags are those of vLLM 0.33 and are written out even where they equal the defaults, so that the engine runs what
    was planned. None for batching that the engine does not do.
    """
    setup = chosen.point.setup
    engine, hardware = setup.scenario.engine, setup.scenario.hardware
    if engine.batching != "continuous" or engine.kv_allocator != "paged":
        return None, (f"{engine.batching} batching with {engine.kv_allocator} memory is not what vLLM does",)
    flags: list[tuple[str, Any]] = [
        ("--max-num-seqs", engine.max_num_seqs),
        ("--max-num-batched-tokens", engine.max_num_batched_tokens),
        ("--max-model-len", engine.max_model_len),
        ("--gpu-memory-utilization", f"{engine.gpu_memory_utilization:g}"),
        ("--tensor-parallel-size", hardware.tensor_parallel_size),
        ("--block-size", engine.block_size),
        ("--dtype", engine.dtype),
        ("--kv-cache-dtype", engine.kv_cache_dtype),
    ]
    if engine.weight_format is not None and engine.weight_format != setup.model.quantization:
        flags.append(("--quantization", engine_word(engine.weight_format)))
    if engine.num_gpu_blocks is not None:
        flags.append(("--num-gpu-blocks-override", engine.num_gpu_blocks))
    if engine.long_prefill_token_threshold:
        flags.append(("--long-prefill-token-threshold", engine.long_prefill_token_threshold))
    switches = [
        _switch("enable-prefix-caching", engine.enable_prefix_caching),
        _switch("enable-chunked-prefill", engine.enable_chunked_prefill),
        _switch("async-scheduling", bool(engine.async_scheduling)),
    ]
    missing = []
    if POLICIES[engine.policy].in_vllm:
        flags.append(("--scheduling-policy", engine.policy))
    else:
        missing.append(f"policy {engine.policy} has no flag")
    if engine.preemption != "recompute":
        missing.append(f"preemption {engine.preemption} has no flag: the engine recomputes")
    unnamed = ("watermark", "prefill_schedule_interval", "prefill_first", "scheduler_reserve_full_isl",
               "capacity_scheduler_policy", "long_prefill_token_threshold_adaptive")  # fmt: skip
    for key in unnamed:
        if getattr(engine, key) != type(engine).model_fields[key].default:
            missing.append(f"engine.{key} is {getattr(engine, key)} here: see your engine for the flag")
    words = ["vllm", "serve", setup.model.hf_id or setup.model.name]
    words += [word for flag, value in flags for word in (flag, str(value))]
    return " ".join(map(shlex.quote, [*words, *switches])), tuple(missing)


def _switch(name: str, on: bool) -> str:
    return f"--{name}" if on else f"--no-{name}"
