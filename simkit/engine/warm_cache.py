"""A prefix cache that holds the beginnings of prompts from the start, where the workload says so."""

from __future__ import annotations

import numpy as np

from simkit.engine.build import Setup
from simkit.kv.paged import PagedAllocator
from simkit.kv.prefix import PromptTokens
from simkit.kv.protocol import KVPool
from simkit.workload.prefixes import prefix_tokens


def warm(kv: KVPool, setup: Setup) -> None:
    """Let the cache of an empty pool hold what is shared, as far as it fits; of several groups the first stays longest.

    Nothing where the workload does not ask for it, or nothing is cached.
    """
    prefix = setup.scenario.workload.prefix
    if prefix is None or not prefix.warm or not isinstance(kv, PagedAllocator) or kv.cache is None:
        return
    tokens = min(setup.max_model_len, int(prefix_tokens(prefix, np.array([setup.max_model_len]))[0]))
    for group in reversed(range(min(prefix.groups, kv.num_free_blocks))):
        kv.remember(PromptTokens(-1, group, tokens, tokens, kv.block_size), tokens)
