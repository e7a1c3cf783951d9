"""Keys of a scenario that do nothing in it: what is run as off, and what other choices leave nothing to do."""

from __future__ import annotations

from simkit.batching.policies import POLICIES
from simkit.latency.effects import FIRST_TOKEN, HOST, LAUNCHES
from simkit.scenario import Engine, Scenario


def run_as_off(scenario: Scenario) -> tuple[str, ...]:
    """Keys that were set, would matter, and are run as off: what only continuous batching with paged memory can do."""
    engine, workload = scenario.engine, scenario.workload
    continuous = engine.batching == "continuous"
    keys = []
    if (
        engine.enable_prefix_caching
        and (workload.prefix is not None or workload.reuse is not None)
        and not (continuous and engine.kv_allocator == "paged")
    ):
        keys.append("engine.enable_prefix_caching")
    if POLICIES[engine.policy].charges and not continuous:
        keys.append("engine.policy")
    if workload.samples > 1 and not continuous:
        keys.append("workload.samples")
    return tuple(keys)


def without_any_effect(scenario: Scenario) -> tuple[str, ...]:
    """Keys that were set and that other choices leave nothing to do, each with what it needs."""
    return (*_without_effect(scenario.engine), *_unlinked(scenario), *_switched_off(scenario))


def _without_effect(engine: Engine) -> tuple[str, ...]:
    """Keys that differ from their default although other choices leave them nothing to do, each with what it needs."""
    continuous, paged = engine.batching == "continuous", engine.kv_allocator == "paged"
    swaps = engine.preemption != "recompute"
    needs = {
        "max_wait_s": (engine.batching == "static", "batching: static"),
        "max_queue_delay_s": (engine.batching == "dynamic", "batching: dynamic"),
        "reservation": (not paged, "kv_allocator: contiguous"),
        "placement": (not paged, "kv_allocator: contiguous"),
        "preemption": (continuous and paged, "continuous batching with paged KV"),
        "host_pool_gib": (continuous and paged and swaps, "preemption: swap or auto"),
        "prefill_first": (continuous, "batching: continuous"),
        "long_prefill_token_threshold": (continuous, "batching: continuous"),
        "prefill_schedule_interval": (continuous, "batching: continuous"),
        "capacity_scheduler_policy": (continuous and paged, "continuous batching with paged KV"),
        "watermark": (continuous and paged, "continuous batching with paged KV"),
    }
    unused = [
        f"engine.{key} (needs {what})"
        for key, (useful, what) in needs.items()
        if getattr(engine, key) != Engine.model_fields[key].default and not useful
    ]
    if swaps and continuous and paged and not engine.host_pool_gib:
        unused.append("engine.preemption (host_pool_gib is 0, so every victim is recomputed)")
    return tuple(unused)


def _unlinked(scenario: Scenario) -> list[str]:
    """What is said of several GPUs where there is one."""
    hardware = scenario.hardware
    given = {"link": hardware.link is not None, "expert_parallel": hardware.expert_parallel}
    alone = hardware.tensor_parallel_size == 1
    return [
        f"hardware.{key} (needs tensor_parallel_size above 1)" for key, is_given in given.items() if is_given and alone
    ]


def _switched_off(scenario: Scenario) -> list[str]:
    """Host terms that are given although their effect is switched off."""
    given = scenario.latency.host.model_dump(exclude_none=True) if scenario.latency.host else {}
    effects = {name: {"first_token_us": FIRST_TOKEN, "launch_us": LAUNCHES}.get(name, HOST) for name in given}
    return [
        f"latency.host.{name} (latency.without has {effect})"
        for name, effect in effects.items()
        if effect in scenario.latency.without
    ]
