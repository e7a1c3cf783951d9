"""How much of a log's prompts an unlimited prefix cache would hold."""

from __future__ import annotations

import numpy as np

from simkit.logs.read.blocks import walk
from simkit.logs.read.record import Columns


def unlimited_hits(columns: Columns, block_tokens: int) -> tuple[float, float] | None:
    """(share of the prompt blocks, share of the prompt tokens) that an unlimited cache, empty at first, already holds.

    A hit is a block that an earlier request of `columns` has behind the same blocks; hits never count more tokens than
    the prompt has. Requests without identities are left out; None when there are no others.
    """
    if columns.blocks is None:
        return None
    counts = np.diff(columns.blocks.offsets)
    with_ids = counts > 0
    num_tokens = int(columns.prompt_tokens[with_ids].sum())
    if not num_tokens:
        return None
    known, _ = walk(columns.blocks, columns.prompt_tokens, block_tokens)
    hit_tokens = np.minimum(known * block_tokens, columns.prompt_tokens)
    return float(known.sum() / counts.sum()), float(hit_tokens.sum() / num_tokens)
