"""Decode attention: one query token a sequence over its paged KV cache.

One program takes all query heads of a KV head, so each key and value is read once. Where sequences are few and long,
each is split among programs and a second kernel puts their softmax parts together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from calib.kernels.launch import (
    Capability,
    Launch,
    capability_of,
    cdiv,
    check,
    next_power_of_2,
    num_sms_of,
    output,
    require,
    run,
)
from calib.kernels.paged_attention import PagedInputs, attend, decode_tile, scale_log2

LEAST_ROWS = 16
"""Rows that a tensor core takes at least; smaller groups are padded."""
LEAST_SPLIT_TOKENS = 256
MAX_SPLITS = 128
PROGRAMS_PER_SM = 2
SPLITS_AT_ONCE = 16


def choose_splits(batch: int, kv_heads: int, max_len: int, num_sms: int) -> int:
    """Programs among which a sequence of `max_len` tokens is split: the fewest within 10 % of the shortest time.

    Time counts as rounds of PROGRAMS_PER_SM programs on every multiprocessor, each as long as its share of tokens.
    """
    programs, slots = batch * kv_heads, PROGRAMS_PER_SM * num_sms
    most = min(MAX_SPLITS, cdiv(max_len, LEAST_SPLIT_TOKENS))
    if most <= 1 or programs == 0:
        return 1
    times = [cdiv(programs * splits, slots) * cdiv(max_len, splits) for splits in range(1, most + 1)]
    return next(splits for splits, time in enumerate(times, start=1) if time * 10 <= min(times) * 11)


@triton.jit(do_not_specialize=["max_blocks", "kv_heads", "group"])
def decode_kernel(
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    block_table: tl.tensor,
    seq_lens: tl.tensor,
    out: tl.tensor,
    part_lse: tl.tensor,
    max_blocks: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    scale: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """The query heads of one KV head of one sequence over one split of its tokens.

    SPLIT: out[batch, heads, splits, HEAD_DIM] and the logarithm (base 2) of the sum of each part; minus infinity where
    a split has no tokens, and then its part of `out` is not written.
    """
    kv_head, seq, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(2)
    length = tl.load(seq_lens + seq)
    per_split = tl.cdiv(tl.cdiv(length, BLOCK_N), splits) * BLOCK_N
    begin = split * per_split
    end = tl.minimum(begin + per_split, length)

    in_group, dim = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    row_in = in_group < group
    row = (seq * kv_heads + kv_head) * group + in_group
    q = tl.load(query + row[:, None] * HEAD_DIM + dim[None, :], mask=row_in[:, None], other=0.0)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    position = tl.zeros((BLOCK_M,), dtype=tl.int32) + (length - 1)
    acc, row_max, row_sum = attend(
        q, position, block_table + seq.to(tl.int64) * max_blocks, key_cache + kv_head * HEAD_DIM,
        value_cache + kv_head * HEAD_DIM, begin, end, length, kv_heads * HEAD_DIM, scale, acc, row_max, row_sum,
        MASKED=True, BLOCK_N=BLOCK_N, BLOCK_SIZE=BLOCK_SIZE, HEAD_DIM=HEAD_DIM,
    )  # fmt: skip
    total = tl.where(row_sum > 0, row_sum, 1.0)
    result = acc / total[:, None]
    if SPLIT:
        part = row.to(tl.int64) * splits + split
        lse = row_max + tl.log2(total)
        tl.store(part_lse + part, lse, mask=row_in)
        row_in = row_in & (lse > float("-inf"))
        tl.store(out + part[:, None] * HEAD_DIM + dim[None, :], result, mask=row_in[:, None])
    else:
        result = result.to(out.dtype.element_ty)
        tl.store(out + row[:, None] * HEAD_DIM + dim[None, :], result, mask=row_in[:, None])


@triton.jit(do_not_specialize=["splits"])
def join_splits_kernel(
    parts: tl.tensor,
    part_lse: tl.tensor,
    out: tl.tensor,
    splits: tl.tensor,
    HEAD_DIM: tl.constexpr,
    SPLITS_AT_ONCE: tl.constexpr,
) -> None:
    """out[row] = mean of parts[row, splits], weighted by 2 ** part_lse; zero where every part is empty."""
    row = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, HEAD_DIM)
    acc = tl.zeros((HEAD_DIM,), dtype=tl.float32)
    total, top = 0.0, float("-inf")
    for first in range(0, splits, SPLITS_AT_ONCE):
        split = first + tl.arange(0, SPLITS_AT_ONCE)
        lse = tl.load(part_lse + row * splits + split, mask=split < splits, other=float("-inf"))
        written = lse > float("-inf")
        part = tl.load(
            parts + (row * splits + split)[:, None] * HEAD_DIM + dim[None, :], mask=written[:, None], other=0.0
        )
        new_top = tl.maximum(top, tl.max(lse, 0))
        # Nothing seen yet: any finite origin will do, and minus infinity would give NaN.
        origin = tl.where(new_top > float("-inf"), new_top, 0.0)
        weight, fade = tl.exp2(lse - origin), tl.exp2(top - origin)
        acc = acc * fade + tl.sum(weight[:, None] * part, 0)
        total = total * fade + tl.sum(weight, 0)
        top = new_top
    result = acc / tl.where(total > 0, total, 1.0)
    tl.store(out + row * HEAD_DIM + dim, result.to(out.dtype.element_ty))


def launches(
    inputs: PagedInputs,
    out: torch.Tensor,
    parts: tuple[torch.Tensor, torch.Tensor] | None,
    scale: float | None,
    capability: Capability,
) -> tuple[Launch, ...]:
    """Attention, and the joining of its `parts` (values and log-sums) where sequences are split."""
    shape = inputs.shape
    tile = decode_tile(shape.head_dim, inputs.query.element_size(), capability)
    rows = max(LEAST_ROWS, next_power_of_2(shape.group))
    values, lse = parts if parts else (out, inputs.seq_lens)  # unsplit: an address that is not used
    splits = values.shape[2] if parts else 1
    attention = Launch(
        decode_kernel,
        (shape.kv_heads, shape.batch, splits),
        (*inputs, values, lse, shape.max_blocks, shape.kv_heads, shape.group, scale_log2(scale, shape.head_dim)),
        {**shape.constants(tile), "BLOCK_M": rows, "SPLIT": parts is not None},
        tile.num_warps,
        tile.num_stages,
    )  # fmt: skip
    if parts is None:
        return (attention,)
    join = Launch(
        join_splits_kernel,
        (shape.batch * shape.heads,),
        (values, lse, out, splits),
        {"HEAD_DIM": shape.head_dim, "SPLITS_AT_ONCE": SPLITS_AT_ONCE},
        num_warps=4,
        num_stages=1,
    )
    return (attention, join)


def paged_decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor | None = None,
    scale: float | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    """Attention of query[batch, heads, d] over each sequence's first seq_lens[batch] cached tokens -> like query.

    The caches are [num_blocks, block_size, kv_heads, d], block_table int32[batch, max_blocks]. `scale` is 1 / sqrt(d)
    by default; a sequence of no tokens gives zeros. Without `num_splits`, `choose_splits` for the longest sequence that
    the table can hold: give it a table no wider than needed, or the splits.
    """
    inputs = PagedInputs(query, key_cache, value_cache, block_table, seq_lens)
    shape = inputs.checked()
    check("query", query, (shape.batch, None, None), (query.dtype,), query.device)
    out = output(out, query, tuple(query.shape))
    if num_splits is None:
        max_len = shape.max_blocks * shape.block_size
        num_splits = choose_splits(shape.batch, shape.kv_heads, max_len, num_sms_of(query.device))
    require(num_splits >= 1, "num_splits", "1 or more", num_splits)
    parts = None
    if num_splits > 1:
        values = torch.empty((shape.batch, shape.heads, num_splits, shape.head_dim), dtype=torch.float32,
                             device=query.device)  # fmt: skip
        parts = (values, torch.empty(values.shape[:3], dtype=torch.float32, device=query.device))
    return run(launches(inputs, out, parts, scale, capability_of(query.device)), out)
