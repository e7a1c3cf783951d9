"""Prefill attention: chunks of query tokens over their sequences' paged KV caches, causal, cached prefix included.

One program takes a tile of queries of one head. Tokens before the tile's first query need no mask; only the last tiles,
on the diagonal, have one, and what lies beyond them is not visited.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from calib.kernels.launch import INDEX, Capability, Launch, capability_of, cdiv, check, output, require, run
from calib.kernels.paged_attention import PagedInputs, attend, prefill_tile, scale_log2


@triton.jit(do_not_specialize=["max_blocks", "kv_heads", "group"])
def prefill_kernel(
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
    scale: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """BLOCK_M queries of one head of one sequence."""
    # The last tiles see the most tokens: started first, they do not finish alone.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    head, seq = tl.program_id(1), tl.program_id(2)
    start = tl.load(query_start_loc + seq)
    chunk = tl.load(query_start_loc + seq + 1) - start
    if first >= chunk:
        return
    length = tl.load(seq_lens + seq)

    offset, dim = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    row_in = first + offset < chunk
    at = ((start + first + offset).to(tl.int64) * (kv_heads * group) + head)[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(query + at, mask=row_in[:, None], other=0.0)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)

    first_position = length - chunk + first
    position = first_position + offset
    seen_by_all = (first_position + 1) // BLOCK_N * BLOCK_N
    end = tl.minimum(first_position + BLOCK_M, length)
    table_row = block_table + seq.to(tl.int64) * max_blocks
    in_cache = head // group * HEAD_DIM
    key_head, value_head = key_cache + in_cache, value_cache + in_cache
    acc, row_max, row_sum = attend(
        q, position, table_row, key_head, value_head, 0, seen_by_all, length, kv_heads * HEAD_DIM, scale,
        acc, row_max, row_sum, MASKED=False, BLOCK_N=BLOCK_N, BLOCK_SIZE=BLOCK_SIZE, HEAD_DIM=HEAD_DIM,
    )  # fmt: skip
    acc, row_max, row_sum = attend(
        q, position, table_row, key_head, value_head, seen_by_all, end, length, kv_heads * HEAD_DIM, scale,
        acc, row_max, row_sum, MASKED=True, BLOCK_N=BLOCK_N, BLOCK_SIZE=BLOCK_SIZE, HEAD_DIM=HEAD_DIM,
    )  # fmt: skip
    result = acc / row_sum[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row_in[:, None])


def launches(
    inputs: PagedInputs,
    starts: torch.Tensor,
    max_query_len: int,
    out: torch.Tensor,
    scale: float | None,
    capability: Capability,
) -> tuple[Launch, ...]:
    """The one launch of checked inputs."""
    shape, (query, key_cache, value_cache, block_table, seq_lens) = inputs.shape, inputs
    tile = prefill_tile(shape.head_dim, query.element_size(), capability)
    return (
        Launch(
            prefill_kernel,
            (cdiv(max_query_len, tile.block_m), shape.heads, shape.batch),
            (query, key_cache, value_cache, block_table, starts, seq_lens, out, shape.max_blocks,
             shape.kv_heads, shape.group, scale_log2(scale, shape.head_dim)),
            shape.constants(tile),
            tile.num_warps,
            tile.num_stages,
        ),
    )  # fmt: skip


def paged_prefill(
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
    """Causal attention of query[total_q, heads, d], sequence i's chunk at query_start_loc[i:i+2], -> like query.

    seq_lens counts cached tokens and the chunk, whose keys and values are in the cache already. `max_query_len` is the
    longest chunk; rows of longer ones would not be computed. `scale` is 1 / sqrt(d) by default.
    """
    inputs = PagedInputs(query, key_cache, value_cache, block_table, seq_lens)
    shape = inputs.checked()
    check("query_start_loc", query_start_loc, (shape.batch + 1,), INDEX, query.device)
    require(max_query_len >= 0, "max_query_len", "0 or more", max_query_len)
    out = output(out, query, tuple(query.shape))
    return run(launches(inputs, query_start_loc, max_query_len, out, scale, capability_of(query.device)), out)
