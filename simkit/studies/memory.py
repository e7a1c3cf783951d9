"""Where the memory of a scenario's GPUs goes, and how many of its requests fit at once.

Nothing is simulated: the engine's start-up is sized, and the scenario's requests are drawn for their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from simkit.engine.build import check_placement, resolve
from simkit.engine.kv_pool import memory_settings
from simkit.engine.names import names_read
from simkit.errors import InputError
from simkit.memory.account import MemoryAccount, account
from simkit.scenario import Scenario
from simkit.studies.offered_load import first_requests

MAX_DRAWN = 100_000
"""Requests that are drawn for their lengths; a closed loop with a duration has no end of its own."""


def scenario_account(
    scenario: Scenario,
    *,
    pipeline_parallel_size: int = 1,
    enforce_eager: bool = False,
    activation_gib: float | None = None,
    gpu_memory_used_gib: float = 0.0,
    lengths: Mapping[str, float] | None = None,
    simulated: bool = True,
) -> MemoryAccount:
    """The account of a scenario's memory; see `simkit.memory.account`.

    `pipeline_parallel_size`, `activation_gib` and `gpu_memory_used_gib` are settings that runs do not have;
    `enforce_eager` holds beside that of the scenario. `lengths` (name to tokens of a request) replaces those of the
    scenario's requests. Unless `simulated`, the dummy block follows the engine version. Raises InputError, with the
    place that is to blame, for wrong input; a start-up that would be refused is part of the result.
    """
    try:
        resolved, model, gpu = resolve(scenario)
        settings = replace(
            memory_settings(resolved, model, gpu),
            pipeline_parallel_size=pipeline_parallel_size,
            enforce_eager=enforce_eager or resolved.engine.enforce_eager,
            activation_gib=activation_gib,
            gpu_memory_used_gib=gpu_memory_used_gib,
        )
        if not simulated:
            settings = replace(settings, num_dummy_blocks=None)
        notes = list(names_read(scenario, model, gpu))
        if lengths is None:
            lengths = _drawn_lengths(resolved, notes)
        memory = account(settings, lengths)
        if memory.refusal is None:
            memory = _placed(memory, resolved)
    except InputError as error:
        if error.key == "pipeline_parallel_size":  # a setting that scenarios do not have
            raise InputError(error.text, where="--pipeline-parallel-size") from None
        raise scenario.blame(error) from None
    return replace(memory, notes=(*memory.notes, *notes))


def _placed(memory: MemoryAccount, scenario: Scenario) -> MemoryAccount:
    """With what a run would refuse beyond the engine: contiguous memory without a region for the longest sequence."""
    try:
        check_placement(scenario.engine, memory.num_gpu_blocks)
    except InputError as error:
        return replace(memory, refusal=error.text, refusal_kind="placement")
    return memory


def _drawn_lengths(scenario: Scenario, notes: list[str]) -> dict[str, float]:
    """Mean and p95 of prompt + output over the requests of replication 0 that the engine accepts, cut at its limit."""
    longest = scenario.engine.max_model_len
    assert longest is not None, "a resolved scenario has every value"
    requests = first_requests(scenario, MAX_DRAWN, longest)
    tokens = [min(r.prompt_tokens + r.output_tokens, longest) for r in requests if r.prompt_tokens < longest]
    if len(tokens) < len(requests):
        notes.append(
            f"{len(requests) - len(tokens):,} of {len(requests):,} requests are too long and would be rejected"
        )
    if not tokens:
        return {}
    notes.append(f"mean and p95 are of {len(tokens):,} requests of the scenario (seed {scenario.seed})")
    return {"mean": float(np.mean(tokens)), "p95": float(np.percentile(tokens, 95))}
