"""Attention launches that hold unlike sequences: a prefill chunk beside decodes, and decodes of unequal length.

Owns the formulas; `calib.fit.launches` fits their constants. The same code prices arrays and single launches, so that
both give the same bits.

In a FlashAttention-2 kernel any chunk in the launch makes the longest query longer than 1, so that decodes lose the
packing of the query heads of a KV head and the split of long contexts. Each decode becomes one thread block (CTA)
for each query head, serial over KV blocks of 128 tokens, and the grid has as many CTAs for it as for the chunk, which
exit at once. Many decodes read K and V once for each query head instead of once a group as soon as those no longer fit
the L2 cache. FlashAttention-3 packs and splits in such launches too, so there the parts add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

ROWS_PER_CTA = 64.0
KV_BLOCK_TOKENS = 128.0

ARRAYS = SimpleNamespace(maximum=np.maximum, minimum=np.minimum, ceil=np.ceil)
SCALARS = SimpleNamespace(maximum=max, minimum=min, ceil=lambda value: float(math.ceil(value)))


@dataclass(frozen=True, slots=True)
class Varlen:
    """Constants of a launch of unlike sequences for head_dim 128, in microseconds unless the name says otherwise.

    `block_us`: a KV block of one CTA among many; `lone_block_us`: of one that runs alone. `cta_us`: a CTA that works,
    `empty_cta_us`: one that exits. `tail_share` of the longest chain runs after all others are done. `crowded_share`:
    how much slower decodes get when the K and V of one KV head come to 64 MB. Between `l2_from_mb` and `l2_to_mb` of
    them memory traffic grows to `reread_base + reread_per_64_seqs x n / 64` times theirs, at most the group size.
    """

    floor_us: float
    cta_us: float
    block_us: float
    lone_block_us: float
    empty_cta_us: float
    tail_share: float
    crowded_share: float
    reread_base: float
    reread_per_64_seqs: float
    l2_from_mb: float
    l2_to_mb: float
    slots: float
    bytes_per_us: float


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer on one GPU; `kv_element_bytes` as stored in the cache."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_element_bytes: float


def launch_us(
    varlen: Varlen, heads: Heads, chunks: Any, q: Any, before: Any, seqs: Any, context: Any, longest: Any, lib: Any,
    *, decode_edge: Any = 0.5, chunk_edge: Any = 0.5,
) -> Any:  # fmt: skip
    """Time of a launch of `chunks` chunks of `q` tokens over `before` cached ones and `seqs` decodes.

    `context` is the sum and `longest` the maximum of the decodes' context tokens; `lib` is ARRAYS or SCALARS. The edges
    are the mean part of a KV block that a sequence begins and does not fill: 0.5 for lengths of no special kind.
    """
    wide = heads.head_dim / 128.0
    block_us, kv_bytes = varlen.block_us * wide, 2.0 * heads.head_dim * heads.kv_element_bytes
    tiles = lib.ceil(q / ROWS_PER_CTA)
    chunk_blocks = tiles * (before / KV_BLOCK_TOKENS + (tiles + 1.0) / 4.0 + chunk_edge)
    set_mb = context * (kv_bytes * 1e-6)
    crowd = 1.0 + varlen.crowded_share * lib.minimum(set_mb / 64.0, 1.0)
    work = chunks * (tiles * varlen.cta_us + block_us * chunk_blocks)
    work = work + seqs * varlen.cta_us + block_us * (context / KV_BLOCK_TOKENS + decode_edge * seqs) * crowd
    work = work + seqs * (tiles - 1.0) * varlen.empty_cta_us
    chain = (varlen.lone_block_us * wide) * lib.maximum(
        (before + q) / KV_BLOCK_TOKENS + 2.0 * chunk_edge - 0.5, longest / KV_BLOCK_TOKENS + decode_edge
    )
    group = heads.num_heads / heads.num_kv_heads
    reads = varlen.reread_base + varlen.reread_per_64_seqs * seqs / 64.0
    reads = lib.minimum(lib.maximum(reads, 1.0), group)
    over = (set_mb - varlen.l2_from_mb) / (varlen.l2_to_mb - varlen.l2_from_mb)
    over = lib.minimum(lib.maximum(over, 0.0), 1.0)
    tokens = context * (1.0 + (reads - 1.0) * over) + chunks * (before + q)
    traffic = tokens * (kv_bytes * heads.num_kv_heads / varlen.bytes_per_us)
    busy = work * (heads.num_heads / varlen.slots) + varlen.tail_share * chain
    return varlen.floor_us + lib.maximum(chain, lib.maximum(busy, traffic))


@dataclass(frozen=True, slots=True)
class Skew:
    """What decodes of unequal length in one launch cost: `us_per_token` that the longest exceeds the mean.

    Only where the kernel no longer splits contexts: from `min_sequence_heads` sequences times KV heads. `heads` are the
    (num_heads, num_kv_heads, head_dim) at which it was measured.
    """

    us_per_token: float
    min_sequence_heads: float
    heads: frozenset[tuple[int, ...]] = frozenset()


def skewed(
    skew: Skew, num_kv_heads: int, seqs: Any, mean_us: Any, longest_us: Any, mean: Any, longest: Any, lib: Any
) -> Any:
    """Time of `seqs` decodes from that of as many equal ones of mean and of maximal length. `seqs` is one number or an
    array; at least `mean_us`, at most `longest_us`."""
    unsplit = 1.0 * (seqs * num_kv_heads >= skew.min_sequence_heads)
    return lib.minimum(lib.maximum(longest_us, mean_us), mean_us + unsplit * skew.us_per_token * (longest - mean))


def added(prefill_us: Any, decode_us: Any, floor_us: float, lib: Any) -> Any:
    """Time of a launch whose parts do not hinder each other: they add up, with one launch floor."""
    return lib.maximum(lib.maximum(prefill_us, decode_us), prefill_us + decode_us - floor_us)


def equal_chunks(tokens: Any, before_sum: Any, pairs: Any, lib: Any) -> tuple[Any, Any, Any]:
    """(number, new tokens each, cached tokens each) of equal chunks with these totals; exact for one chunk.

    From pairs = number x q x (before + (q + 1) / 2): q = (2 pairs - tokens) / (2 before_sum + tokens).
    """
    q = (2.0 * pairs - tokens) / (2.0 * before_sum + tokens)
    q = lib.minimum(lib.maximum(q, 1.0), 1.0 * tokens)
    chunks = tokens / q
    return chunks, q, before_sum / chunks


def windowed(chunks: Any, q: Any, before: Any, window: int, lib: Any) -> tuple[Any, Any, Any]:
    """Equal chunks with the (query, key) pairs of a sliding window: at most `window` keys a query.

    A chunk longer than the window is as many of its length; what lies before is cut to what the mean query sees.
    """
    short = lib.minimum(q, 1.0 * window)
    return chunks * (q / short), short, lib.minimum(before, window - short / 2.0)
