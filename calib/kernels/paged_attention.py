"""What the three attention kernels share: the loop over tokens of a paged KV cache, their tiles, their checks.

A cache is [num_blocks, block_size, kv_heads, head_dim]; a row of the block table names a sequence's blocks in order.
What lies past a sequence's end, in its last block, in its row of the table or in other blocks, is never read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from calib.kernels.launch import FLOATS, INDEX, Capability, Constant, check, require, shared_limit_bytes

BLOCK_SIZES = (16, 32, 64)
HEAD_DIMS = (64, 128, 256)
SMALL_SHARED_BYTES = 101_376
"""Shared memory up to which a GPU has no room for the larger tiles."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of queries by tokens of KV that one program holds at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@triton.jit
def attend(
    q: tl.tensor,
    position: tl.tensor,
    table_row: tl.tensor,
    key_head: tl.tensor,
    value_head: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    length: tl.tensor,
    kv_stride: tl.tensor,
    scale_log2: tl.tensor,
    acc: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Online softmax of the rows of q over the tokens [begin, end), begin a multiple of BLOCK_N.

    MASKED: a row sees tokens up to its `position`, none from `length` on. Else all rows see all tokens. The first
    token must be visible to every row, or its maximum stays minus infinity. Exponents are of base 2. A product in
    float32 is three of tensor cores (tf32x3): as exact as float32, with fewer registers than without them.
    """
    offset, dim = tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    for first in range(begin, end, BLOCK_N):
        token = first + offset
        if MASKED:
            stored = token < length
            block = tl.load(table_row + token // BLOCK_SIZE, mask=stored, other=0)
        else:
            block = tl.load(table_row + token // BLOCK_SIZE)
        at = (block.to(tl.int64) * BLOCK_SIZE + token % BLOCK_SIZE)[:, None] * kv_stride + dim[None, :]
        if MASKED:
            k = tl.load(key_head + at, mask=stored[:, None], other=0.0)
            v = tl.load(value_head + at, mask=stored[:, None], other=0.0)
        else:
            k, v = tl.load(key_head + at), tl.load(value_head + at)
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale_log2
        if MASKED:
            seen = (token[None, :] <= position[:, None]) & stored[None, :]
            scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weight = tl.exp2(scores - new_max[:, None])
        fade = tl.exp2(row_max - new_max)
        row_sum = row_sum * fade + tl.sum(weight, 1)
        acc = tl.dot(weight.to(v.dtype), v, acc * fade[:, None], input_precision="tf32x3")
        row_max = new_max
    return acc, row_max, row_sum


LONG_HEADS = Tile(64, 32, num_warps=8, num_stages=2)
"""For heads of more than 128 elements."""


def prefill_tile(head_dim: int, element_bytes: int, capability: Capability) -> Tile:
    """Tile for many queries a sequence."""
    if element_bytes > 2:
        return _full_precision(head_dim, capability)
    if head_dim > 128:
        return LONG_HEADS
    if shared_limit_bytes(capability) <= SMALL_SHARED_BYTES:
        return Tile(64, 32, num_warps=4, num_stages=2)
    return Tile(128, 64, num_warps=8, num_stages=3 if capability < (9, 0) else 5)


def decode_tile(head_dim: int, element_bytes: int, capability: Capability) -> Tile:
    """Tile for one query a sequence; the launcher gives it more rows where a KV head has more than 16 query heads."""
    if element_bytes > 2:
        return _full_precision(head_dim, capability)
    if head_dim > 128:
        return Tile(16, 32, num_warps=4, num_stages=3)
    return Tile(16, 64, num_warps=4, num_stages=_deep(capability))


def mixed_tile(head_dim: int, element_bytes: int, capability: Capability) -> Tile:
    """Tile for both: 64 rows, the least that Hopper's matrix instructions take."""
    if element_bytes > 2:
        return _full_precision(head_dim, capability)
    if head_dim > 128:
        return LONG_HEADS
    if capability < (9, 0) or shared_limit_bytes(capability) <= SMALL_SHARED_BYTES:
        return Tile(64, 32, num_warps=4, num_stages=_deep(capability))
    return Tile(64, 64, num_warps=4, num_stages=5)


def _full_precision(head_dim: int, capability: Capability) -> Tile:
    """For float32, whose products are sums of three: anything larger spills registers."""
    small = shared_limit_bytes(capability) <= SMALL_SHARED_BYTES
    return Tile(16, 16 if small and head_dim > 128 else 32, num_warps=8, num_stages=2)


def _deep(capability: Capability) -> int:
    """Stages where memory is the limit. Five keep two tiles of keys and values on their way, three keep one.

    The block table is read a stage ahead of the keys, so that it takes half of the stages' distance.
    """
    return 3 if shared_limit_bytes(capability) <= SMALL_SHARED_BYTES else 5


@dataclass(frozen=True, slots=True)
class PagedShape:
    """Sizes of a checked set of attention inputs."""

    rows: int
    heads: int
    head_dim: int
    block_size: int
    kv_heads: int
    batch: int
    max_blocks: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    def constants(self, tile: Tile) -> dict[str, Constant]:
        """What every attention kernel is compiled for."""
        return {
            "BLOCK_SIZE": self.block_size,
            "HEAD_DIM": self.head_dim,
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
        }


class PagedInputs(NamedTuple):
    """What every attention kernel reads, in the order in which it takes them."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor

    @property
    def shape(self) -> PagedShape:
        """Sizes, unchecked."""
        return PagedShape(*self.query.shape, *self.key_cache.shape[1:3], *self.block_table.shape)

    def checked(self) -> PagedShape:
        """Sizes, or ValueError."""
        query, key_cache, value_cache, block_table, seq_lens = self
        check("query", query, (None, None, None), FLOATS, query.device)
        heads, head_dim = query.shape[1:]
        check("key_cache", key_cache, (None, None, None, head_dim), (query.dtype,), query.device)
        check("value_cache", value_cache, tuple(key_cache.shape), (query.dtype,), query.device)
        check("block_table", block_table, (None, None), INDEX, query.device)
        check("seq_lens", seq_lens, (block_table.shape[0],), INDEX, query.device)
        block_size, kv_heads = key_cache.shape[1:3]
        require(head_dim in HEAD_DIMS, "query", f"a head size of {HEAD_DIMS}", head_dim)
        require(block_size in BLOCK_SIZES, "key_cache", f"a block size of {BLOCK_SIZES}", block_size)
        require(kv_heads > 0 and heads % kv_heads == 0, "query", f"heads a multiple of {kv_heads} KV heads", heads)
        return self.shape


def scale_log2(scale: float | None, head_dim: int) -> float:
    """The factor of scores, 1 / sqrt(head_dim) unless given, for exponents of base 2."""
    return (head_dim**-0.5 if scale is None else scale) * math.log2(math.e)
