"""Which block size prefix block identities fit: ceil(prompt tokens / block size) of them a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simkit.logs.read.fields import MAX_TOKENS


def fitting_block_tokens(
    rows: Iterable[Mapping[str, Any]], prompt: str, ids: str, wanted: int | None = None
) -> int | None:
    """The block size that all rows fit exactly: `wanted` if it does, else a power of two, else the least.

    None where none does, and where the rows say nothing (no ids, or never more than one).

    n ids for p tokens fit the sizes from p / n to below p / (n - 1).
    """
    least, below = 1, None
    for row in rows:
        tokens, blocks = row.get(prompt), row.get(ids)
        if type(tokens) is not int or not isinstance(blocks, list) or not 0 < tokens < MAX_TOKENS or not blocks:
            continue
        least = max(least, -(-tokens // len(blocks)))
        if len(blocks) > 1:
            end = -(-tokens // (len(blocks) - 1))
            below = end if below is None else min(below, end)
    if below is None or least >= below:
        return None
    if wanted is not None and least <= wanted < below:
        return wanted
    power = 1 << (least - 1).bit_length()
    return power if power < below else least
