"""A pool of one block table that holds as many sequences as the engine's, whose groups of layers have a table each.

Runs count the blocks of one table. Where some layers keep a window only, a sequence holds fewer or more blocks than
that, depending on its length: the pool of a run is made so that it holds as many sequences of given lengths. What a
long chunk takes of a sliding group until it leaves the window is left out, and so is what prefix caches keep.
"""

from __future__ import annotations

from collections.abc import Sequence

from simkit.memory.sizing import MemorySettings, size


def one_table(settings: MemorySettings, num_gpu_blocks: int, held_tokens: Sequence[int]) -> int:
    """Blocks of the one table, the dummy block among them, and never fewer than the longest sequence takes.

    `num_gpu_blocks` are the engine's, `held_tokens` what sequences like those to come hold while they run.
    """
    sizing = size(settings)
    if sizing.is_counted or not held_tokens:
        return num_gpu_blocks
    counted = [-(-max(1, tokens) // settings.block_size) for tokens in held_tokens]
    held = [sizing.settled_blocks_of(max(1, tokens)) for tokens in held_tokens]
    usable = (num_gpu_blocks - sizing.num_dummy_blocks) * sum(counted) // sum(held)
    longest = -(-(settings.max_model_len or 1) // settings.block_size)
    return max(usable, longest) + sizing.num_dummy_blocks


def windows(settings: MemorySettings) -> str | None:
    """What a run says of layers with windows; None where every layer keeps everything."""
    model = settings.model
    if size(settings).is_counted:
        return None
    return (
        f"memory: {model.num_sliding_layers} of {model.num_layers} layers keep a window of {model.sliding_window:,} "
        "tokens; blocks are counted in one table, to hold as many sequences of this workload's lengths"
    )
