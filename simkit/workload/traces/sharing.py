"""What requests have in common at the beginning of their prompts. Imports `types` and its own siblings."""

from __future__ import annotations

from simkit.workload.traces.record import Columns


def unlimited_hits(columns: Columns, block_tokens: int) -> tuple[float, float] | None:
    """(share of the prompt blocks, share of the prompt tokens) that an unlimited cache, empty at first, already holds.

    A hit is the leading ids of a request that were seen in an earlier one, up to the first unseen, and never counts
    more than its prompt. Requests without ids are left out; None when there are no others.
    """
    blocks = columns.blocks
    if blocks is None or not len(blocks.ids):
        return None
    seen: set[int] = set()
    hit_blocks = hit_tokens = num_tokens = 0
    ids, offsets, prompts = blocks.ids.tolist(), blocks.offsets.tolist(), columns.prompt_tokens.tolist()
    for row, prompt in enumerate(prompts):
        mine = ids[offsets[row] : offsets[row + 1]]
        if not mine:
            continue
        held = next((at for at, block in enumerate(mine) if block not in seen), len(mine))
        seen.update(mine)
        hit_blocks += held
        hit_tokens += min(held * block_tokens, prompt)
        num_tokens += prompt
    return hit_blocks / len(ids), hit_tokens / max(1, num_tokens)
