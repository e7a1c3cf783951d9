"""What decides the memory of a scenario, and the KV pool of its runs: blocks of one table, for sequences like its own.

Knows no clock.
"""

from __future__ import annotations

from itertools import islice

from simkit.memory.one_table import one_table, windows
from simkit.memory.sizing import MemorySettings
from simkit.scenario import Scenario
from simkit.specs.hardware import GpuSpec
from simkit.specs.model_spec import ModelSpec
from simkit.workload.build import build_workload

HELD_OF = 1000
"""Requests whose lengths decide how many sequences the pool holds."""


def memory_settings(scenario: Scenario, model: ModelSpec, gpu: GpuSpec) -> MemorySettings:
    """What decides the memory of a resolved scenario. Its scheduler sets a dummy block aside whatever the version."""
    engine = scenario.engine
    return MemorySettings(
        model=model,
        gpu=gpu,
        max_num_seqs=_known(engine.max_num_seqs),
        max_num_batched_tokens=_known(engine.max_num_batched_tokens),
        max_model_len=_known(engine.max_model_len),
        tensor_parallel_size=scenario.hardware.tensor_parallel_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        block_size=engine.block_size,
        dtype=engine.dtype,
        kv_cache_dtype=engine.kv_cache_dtype,
        quantization=engine.weight_format,
        engine_version=engine.version,
        enforce_eager=engine.enforce_eager,
        num_gpu_blocks=engine.num_gpu_blocks,
        num_dummy_blocks=1,
        async_scheduling=engine.async_scheduling,
        enable_prefix_caching=engine.enable_prefix_caching,
        # Left out, it follows the version: an engine before 0.8 chunks on request only.
        enable_chunked_prefill=(
            engine.enable_chunked_prefill if "enable_chunked_prefill" in engine.model_fields_set else None
        ),
    )


def windowed_pool(scenario: Scenario, settings: MemorySettings, num_gpu_blocks: int) -> tuple[int, str | None]:
    """Blocks of a run for those of the engine, and what to say of it; the same and None without windows."""
    said = windows(settings)
    if said is None:
        return num_gpu_blocks, None
    return one_table(settings, num_gpu_blocks, _held_tokens(scenario, settings.max_model_len or 1)), said


def _held_tokens(scenario: Scenario, longest: int) -> list[int]:
    """Tokens that the first requests hold while they run: the prompt and half of the answer."""
    workload = build_workload(
        scenario.workload, seed=scenario.seed, replication=0, max_model_len=longest, base_dir=scenario.base_dir
    )
    requests = islice(workload.everyone(), HELD_OF)
    return [min(request.prompt_tokens + request.output_tokens // 2, longest) for request in requests]


def _known(value: int | None) -> int:
    assert value is not None, "a resolved scenario has every value"
    return value
