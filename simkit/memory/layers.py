"""What each layer of a model caches on one rank, and how engines of each version keep it.

Knows no GPU. Versions (vllm-project/vllm): pull requests 17996 (groups; that it came with 0.9.1 is from memory), 47728
(two batches under way; issue 49878 has logs of 0.25 and 0.26) and 40694 (tokens of the log; issue 40691 has an old line
of 0.19, and issue 43308 logs 55k tokens in 0.20.0 where 0.21.0 logs 525k of the same pool).
"""

from __future__ import annotations

import functools
from dataclasses import replace

from simkit.memory.groups import Group, Kind, LayerCache, group_layers
from simkit.memory.rules import FIRST_V1, Version
from simkit.specs.models import ModelSpec

FIRST_HYBRID: Version = (0, 9, 1)
"""Engines before it keep the layers with windows of a model that also has full ones as if they were full."""
FIRST_ASYNC: Version = (0, 14, 0)
"""Since then vLLM schedules ahead unless told otherwise (release notes of 0.14.0, pull request 27614)."""
FIRST_IN_FLIGHT: Version = (0, 26, 0)
"""Since then a window holds what two batches may have under way where the engine schedules ahead, before it one."""
FIRST_TOKENS_AT_LENGTH: Version = (0, 21, 0)
"""Since then the log's tokens are those of sequences of max_model_len, before it blocks / groups x block size."""


@functools.cache
def kv_groups(
    model: ModelSpec,
    tensor_parallel_size: int,
    block_size: int,
    element_bytes: float,
    version: Version,
    caches_prefixes: bool = True,
) -> tuple[Group, ...]:
    """The groups of a model on each of its TP ranks. Engines before 0.8 have one, with every layer in full.

    With prefixes cached a sequence has two states of each layer that keeps one, else one.
    """
    caches = layer_caches(model, tensor_parallel_size, element_bytes, 2 if caches_prefixes else 1)
    if version < FIRST_V1:
        caches = tuple(replace(cache, kind=Kind.FULL, window=0) if cache.window else cache for cache in caches)
    return group_layers(caches, block_size, hybrid=version >= FIRST_HYBRID)


def layer_caches(
    model: ModelSpec, tensor_parallel_size: int, element_bytes: float, states: int = 1
) -> tuple[LayerCache, ...]:
    """What each layer caches on one rank, in order.

    Where both kinds of layers are there, each full one follows its share of those with a window, as in gpt-oss.
    """
    token_bytes = model.kv_elements_per_layer(tensor_parallel_size) * element_bytes
    full = LayerCache(Kind.FULL, token_bytes)
    if model.num_stateful_layers:
        state = LayerCache(Kind.LINEAR, state_bytes=model.state_bytes // tensor_parallel_size, states=states)
        return _interleaved(full, state, model.num_layers, model.num_layers - model.num_stateful_layers)
    num_full = model.num_layers - model.num_sliding_layers
    if not model.sliding_window or num_full == model.num_layers:
        return (full,) * model.num_layers
    kind = Kind.CHUNKED if model.family == "llama4" else Kind.SLIDING
    return _interleaved(full, LayerCache(kind, token_bytes, model.sliding_window), model.num_layers, num_full)


def _interleaved(full: LayerCache, other: LayerCache, num_layers: int, num_full: int) -> tuple[LayerCache, ...]:
    if not num_full:
        return (other,) * num_layers
    every = num_layers // num_full
    at = {every * (count + 1) - 1 for count in range(num_full)}
    return tuple(full if layer in at else other for layer in range(num_layers))


def in_flight_tokens(max_num_batched_tokens: int, is_async: bool, version: Version) -> int:
    """Tokens of one sequence that the engine may have under way."""
    return max_num_batched_tokens * (2 if is_async and version >= FIRST_IN_FLIGHT else 1)
