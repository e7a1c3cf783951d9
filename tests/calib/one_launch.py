"""A launch of unlike sequences, thread block by thread block: what rules of few numbers are held against.

The grid of FlashAttention-2 has sequences before heads, and row tiles before sequences: every sequence of the batch in
its order for the first head, then for the next. An SM holds one block, since K and V of 128 tokens fill most of its
shared memory. The blocks that run share the bandwidth evenly, and none is faster than one that runs alone.

Unsplit decodes alone have a block for each KV head. Beside a chunk they have one for each query head, and as many that
exit at once as the chunk has further tiles.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from calib.table import Floats
from simkit.latency.physics import KV_BLOCK_TOKENS, ROWS_PER_CTA, Heads, Varlen

LONE_TOKENS_PER_US = 51.0
"""Of a block of decodes that runs alone; fitted to launches of two lengths on RTX PRO 6000, those not held out."""

Block = tuple[float, float]
"""What a thread block takes before its work, in microseconds, and its work."""


def until_empty_us(blocks: Iterable[Block], slots: int, shared: float, alone: float) -> float:
    """When the last block ends: `shared` work a microsecond is done by all together, at most `alone` by one."""
    following = iter(blocks)
    starting = [next(following, (0.0, 0.0)) for _ in range(slots)]
    heapq.heapify(starting)
    running: list[float] = []
    now = done = 0.0  # `done`: work of a block that runs since the beginning
    while starting or running:
        rate = min(alone, shared / len(running)) if running else 0.0
        ends = now + (running[0] - done) / rate if running else math.inf
        if starting and starting[0][0] <= ends:
            begins, work = heapq.heappop(starting)
            done, now = done + rate * (begins - now), begins
            if work > 0.0:
                heapq.heappush(running, done + work)
                continue
        else:
            done, now = heapq.heappop(running), ends
        block = next(following, None)
        if block is not None:
            heapq.heappush(starting, (now + block[0], block[1]))
    return now


def decodes_us(lengths: Iterable[float], kv_heads: int, slots: int, tokens_per_us: float) -> float:
    """A launch of decodes; `tokens_per_us`: what the memory reads of one KV head."""
    blocks = [(0.0, float(length)) for length in lengths]
    return until_empty_us(blocks * kv_heads, slots, tokens_per_us, LONE_TOKENS_PER_US)


def mixed_us(varlen: Varlen, heads: Heads, q: float, before: float, lengths: Floats, edge: float = 0.5) -> float:
    """A launch of decodes and, last in the batch, one chunk: with the constants of the rule, but for the tail."""
    tiles = math.ceil(q / ROWS_PER_CTA)
    set_mb = float(lengths.sum()) * 2.0 * heads.head_dim * heads.kv_element_bytes * 1e-6
    crowd = 1.0 + varlen.crowded_share * min(set_mb / 64.0, 1.0)
    works = varlen.block_us * crowd * (lengths / KV_BLOCK_TOKENS + edge)
    exits = [(varlen.empty_cta_us, 0.0)] * (tiles - 1)
    blocks: list[Block] = [block for work in works.tolist() for block in ((varlen.cta_us, work), *exits)]
    chunk = [before / KV_BLOCK_TOKENS + (tile + 1) * ROWS_PER_CTA / KV_BLOCK_TOKENS + edge for tile in range(tiles)]
    blocks += [(varlen.cta_us, varlen.block_us * each) for each in chunk]
    work = heads.num_heads * sum(each for _, each in blocks)
    traffic = traffic_us(varlen, heads, lengths, before + q, set_mb)
    return varlen.floor_us + until_empty_us(blocks * heads.num_heads, int(varlen.slots), work / traffic, 1.0)


def traffic_us(varlen: Varlen, heads: Heads, lengths: Floats, chunk_tokens: float, set_mb: float) -> float:
    """How long the memory takes with K and V, those that no longer fit the L2 cache more than once."""
    reads = varlen.reread_base + varlen.reread_per_64_seqs * len(lengths) / 64.0
    reads = min(max(reads, 1.0), heads.num_heads / heads.num_kv_heads)
    over = min(max((set_mb - varlen.l2_from_mb) / (varlen.l2_to_mb - varlen.l2_from_mb), 0.0), 1.0)
    tokens = float(lengths.sum()) * (1.0 + (reads - 1.0) * over) + chunk_tokens
    return tokens * 2.0 * heads.head_dim * heads.kv_element_bytes * heads.num_kv_heads / varlen.bytes_per_us


def two_lengths(seqs: Floats, context: Floats, longest: Floats, ratio: float) -> Sequence[Floats]:
    """The decodes of launches of two lengths, long ones first; a long one is `ratio` times a short one."""
    short = longest / ratio
    many = np.round((context - seqs * short) / (longest - short))
    rows = zip(seqs, many, longest, short, strict=True)
    return [np.where(np.arange(int(n)) < count, most, least) for n, count, most, least in rows]
