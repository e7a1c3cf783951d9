"""Attention of a mixed step: decodes and prefill chunks of any lengths in one launch, as engines batch them.

One program takes a few query tokens of one sequence with all query heads of a KV head, so a decode reads each key and
value once and a chunk fills the tile. Which sequence a program serves it finds out itself, by binary search.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from calib.kernels.launch import INDEX, Capability, Launch, capability_of, check, next_power_of_2, output, require, run
from calib.kernels.paged_attention import PagedInputs, attend, mixed_tile, scale_log2


@triton.jit
def sequence_of(tile: tl.tensor, query_start_loc: tl.tensor, batch: tl.tensor, tile_tokens: tl.tensor) -> tl.tensor:
    """The last sequence whose first tile, query_start_loc[i] // tile_tokens + i, is not after `tile`.

    These first tiles leave room for every chunk, and at most one tile a sequence too many.
    """
    low, high = 0, batch
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_loc + middle) // tile_tokens + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(do_not_specialize=["max_blocks", "kv_heads", "group", "batch", "tile_tokens"])
def mixed_kernel(
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    block_table: tl.tensor,
    query_start_loc: tl.tensor,
    seq_lens: tl.tensor,
    out: tl.tensor,
    max_blocks: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    batch: tl.tensor,
    tile_tokens: tl.tensor,
    scale: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """`tile_tokens` query tokens x `group` query heads of one KV head; rows of BLOCK_M beyond these are padding."""
    kv_head, tile = tl.program_id(0), tl.program_id(1)
    seq = sequence_of(tile, query_start_loc, batch, tile_tokens)
    start = tl.load(query_start_loc + seq)
    chunk = tl.load(query_start_loc + seq + 1) - start
    first = (tile - start // tile_tokens - seq) * tile_tokens
    if first >= chunk:
        return
    length = tl.load(seq_lens + seq)

    row, dim = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    token, head = first + row // group, kv_head * group + row % group
    row_in = (row < tile_tokens * group) & (token < chunk)
    at = ((start + token).to(tl.int64) * (kv_heads * group) + head)[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(query + at, mask=row_in[:, None], other=0.0)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)

    context = length - chunk
    seen_by_all = (context + first + 1) // BLOCK_N * BLOCK_N
    end = tl.minimum(context + first + tile_tokens, length)
    table_row = block_table + tl.cast(seq, tl.int64) * max_blocks
    key_head, value_head = key_cache + kv_head * HEAD_DIM, value_cache + kv_head * HEAD_DIM
    acc, row_max, row_sum = attend(
        q, context + token, table_row, key_head, value_head, 0, seen_by_all, length, kv_heads * HEAD_DIM, scale,
        acc, row_max, row_sum, MASKED=False, BLOCK_N=BLOCK_N, BLOCK_SIZE=BLOCK_SIZE, HEAD_DIM=HEAD_DIM,
    )  # fmt: skip
    acc, row_max, row_sum = attend(
        q, context + token, table_row, key_head, value_head, seen_by_all, end, length, kv_heads * HEAD_DIM, scale,
        acc, row_max, row_sum, MASKED=True, BLOCK_N=BLOCK_N, BLOCK_SIZE=BLOCK_SIZE, HEAD_DIM=HEAD_DIM,
    )  # fmt: skip
    result = acc / row_sum[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row_in[:, None])


def launches(
    inputs: PagedInputs, starts: torch.Tensor, out: torch.Tensor, scale: float | None, capability: Capability
) -> tuple[Launch, ...]:
    """The one launch of checked inputs."""
    shape, (query, key_cache, value_cache, block_table, seq_lens) = inputs.shape, inputs
    tile = mixed_tile(shape.head_dim, query.element_size(), capability)
    block_m = max(tile.block_m, next_power_of_2(shape.group))
    tile_tokens = block_m // shape.group
    return (
        Launch(
            mixed_kernel,
            (shape.kv_heads, shape.rows // tile_tokens + shape.batch),
            (query, key_cache, value_cache, block_table, starts, seq_lens, out, shape.max_blocks,
             shape.kv_heads, shape.group, shape.batch, tile_tokens, scale_log2(scale, shape.head_dim)),
            {**shape.constants(tile), "BLOCK_M": block_m},
            tile.num_warps,
            tile.num_stages,
        ),
    )  # fmt: skip


def mixed(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    out: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """`paged_prefill` for chunks of any lengths, 0 and 1 (a decode) among them.

    The arguments are the same, so that the two can stand for each other; this one needs no `max_query_len`.
    """
    inputs = PagedInputs(query, key_cache, value_cache, block_table, seq_lens)
    shape = inputs.checked()
    check("query_start_loc", query_start_loc, (shape.batch + 1,), INDEX, query.device)
    require(max_query_len >= 0, "max_query_len", "0 or more", max_query_len)
    out = output(out, query, tuple(query.shape))
    return run(launches(inputs, query_start_loc, out, scale, capability_of(query.device)), out)
