"""The KV pool of a run whose model has layers with windows: blocks of one table, for sequences like the workload's.

Knows no clock.
"""

from __future__ import annotations

from itertools import islice

from simkit.memory.one_table import one_table, windows
from simkit.memory.sizing import MemorySettings
from simkit.scenario import Scenario
from simkit.workload.build import build_workload

HELD_OF = 1000
"""Requests whose lengths decide how many sequences the pool holds."""


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
