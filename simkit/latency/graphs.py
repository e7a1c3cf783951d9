"""Which batch a captured CUDA graph runs for a number of tokens. Owns the capture sizes.

The rule is vLLM's own (`VllmConfig._set_cudagraph_sizes` and, before 0.11, `SchedulerConfig.cuda_graph_sizes`): sizes
1, 2, 4, multiples of 8 below 256 and of 16 from there on, up to twice max_num_seqs, 512 and the token budget.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from simkit.types import Ints

LARGEST_GRAPH = 512
"""Tokens of the largest graph that vLLM captures by itself."""

LARGEST_ON_BLACKWELL = 1024
"""The same on data-centre Blackwell (compute capability 10.x), since 0.28 (vLLM pull request 49390)."""

FIRST_V1 = (0, 8)
"""Before, graphs are of decodes alone, and go to the first size that holds all slots."""
FOLLOWS_SLOTS = (0, 10)
"""Since then the largest follows max_num_seqs (vLLM pull request 20628)."""
COARSE_STEPS = (0, 11, 1)
"""Since then every 16th size from 256 on; before, every 8th."""
CAPTURES_BUDGET = (0, 21)
"""Since then a token budget that fits is captured too, whatever its size (vLLM pull request 40734)."""
BLACKWELL_DOUBLED = (0, 28)


def capture_sizes(
    max_num_seqs: int, max_num_batched_tokens: int, version: Seq[int], compute_capability: str = ""
) -> tuple[int, ...]:
    """Batches, in tokens and ascending, that vLLM captures by itself, without speculative decoding.

    Sizes lie on a grid, so that the largest may be below the limit: 4 for 3 slots, as 6 is no size.
    """
    version = tuple(version)
    if version < FIRST_V1:
        fine = (1, 2, 4, *range(8, 8192 + 1, 8))
        largest = next((size for size in fine if size >= max_num_seqs), fine[-1])
        return tuple(size for size in fine if size <= largest)
    blackwell = version >= BLACKWELL_DOUBLED and compute_capability.startswith("10.")
    largest = LARGEST_ON_BLACKWELL if blackwell else LARGEST_GRAPH
    if version >= FOLLOWS_SLOTS:
        largest = min(largest, 2 * max_num_seqs)
    coarse_from = 256 if version >= COARSE_STEPS else largest + 1
    sizes = (1, 2, 4, *range(8, min(coarse_from, largest + 1), 8), *range(coarse_from, largest + 1, 16))
    found = {size for size in sizes if size <= min(largest, max_num_batched_tokens)}
    if version >= CAPTURES_BUDGET and max_num_batched_tokens <= largest:
        found.add(max_num_batched_tokens)
    return tuple(sorted(found))


def graph_rows(num_rows: int, sizes: Seq[int]) -> Ints:
    """Rows that run for 0, 1, ... `num_rows` rows: those of the next captured size, beyond the largest as they are.

    The same for steps that hold a prefill chunk, whose graphs leave attention out. A captured batch takes what its own
    size takes, also where fewer rows were measured to take longer (8-bit products of rows that are not aligned).
    """
    rows = np.arange(num_rows + 1, dtype=np.int64)
    if not sizes:
        return rows
    ascending = np.asarray(sizes, dtype=np.int64)
    place = np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)
    return np.where((rows > 0) & (rows <= ascending[-1]), ascending[place], rows)
