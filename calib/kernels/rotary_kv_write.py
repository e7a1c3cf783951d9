"""Rotary embedding of queries and keys, and the write of keys and values into the paged cache, in one launch.

Keys are needed nowhere but in the cache, so they are rotated on their way into it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from calib.kernels.launch import FLOATS, Launch, cdiv, check, output, require, run
from calib.kernels.paged_attention import HEAD_DIMS

HEADS_AT_ONCE = 8


@triton.jit
def rotate(low: tl.tensor, high: tl.tensor, cos: tl.tensor, sin: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Element i of the low half turns with element i of the high half (the layout of GPT-NeoX), in float32."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit(do_not_specialize=["heads", "kv_heads"])
def rotary_kv_write_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    positions: tl.tensor,
    cos_sin: tl.tensor,
    slots: tl.tensor,
    out: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:
    """BLOCK_H heads of one token: of the query, or past those, of key and value."""
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dim = tl.arange(0, HALF)
    turn = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * HALF)
    cos = tl.load(turn + dim).to(tl.float32)[None, :]
    sin = tl.load(turn + HALF + dim).to(tl.float32)[None, :]
    query_tiles = tl.cdiv(heads, BLOCK_H)
    if tile < query_tiles:
        head = tile * BLOCK_H + tl.arange(0, BLOCK_H)
        head_in = (head < heads)[:, None]
        at = (token * heads + head)[:, None] * (2 * HALF) + dim[None, :]
        low, high = tl.load(query + at, mask=head_in), tl.load(query + at + HALF, mask=head_in)
        low, high = rotate(low, high, cos, sin)
        tl.store(out + at, low.to(out.dtype.element_ty), mask=head_in)
        tl.store(out + at + HALF, high.to(out.dtype.element_ty), mask=head_in)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        head = (tile - query_tiles) * BLOCK_H + tl.arange(0, BLOCK_H)
        head_in = (head < tl.where(slot >= 0, kv_heads, 0))[:, None]
        at = (token * kv_heads + head)[:, None] * (2 * HALF) + dim[None, :]
        to = (slot * kv_heads + head)[:, None] * (2 * HALF) + dim[None, :]
        low, high = tl.load(key + at, mask=head_in), tl.load(key + at + HALF, mask=head_in)
        low, high = rotate(low, high, cos, sin)
        tl.store(key_cache + to, low.to(key_cache.dtype.element_ty), mask=head_in)
        tl.store(key_cache + to + HALF, high.to(key_cache.dtype.element_ty), mask=head_in)
        tl.store(value_cache + to, tl.load(value + at, mask=head_in), mask=head_in)
        tl.store(value_cache + to + HALF, tl.load(value + at + HALF, mask=head_in), mask=head_in)


def launches(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    out: torch.Tensor,
) -> tuple[Launch, ...]:
    """The one launch of checked inputs."""
    tokens, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    return (
        Launch(
            rotary_kv_write_kernel,
            (tokens, cdiv(heads, HEADS_AT_ONCE) + cdiv(kv_heads, HEADS_AT_ONCE)),
            (query, key, value, positions, cos_sin_cache, slot_mapping, out, key_cache, value_cache, heads, kv_heads),
            {"HALF": head_dim // 2, "BLOCK_H": HEADS_AT_ONCE},
            num_warps=4,
            num_stages=1,
        ),
    )


def rotary_kv_write(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotated query[tokens, heads, d] -> like query; rotated key and value[tokens, kv_heads, d] go into the caches.

    cos_sin_cache[max_position, d] holds d / 2 cosines, then d / 2 sines, a row; positions and slot_mapping are int32
    or int64[tokens]. A slot is block x block_size + offset in the block, or -1: not written. `out` may be `query`.
    """
    device, integers = query.device, (torch.int32, torch.int64)
    check("query", query, (None, None, None), FLOATS, device)
    tokens, _, head_dim = query.shape
    require(head_dim in HEAD_DIMS, "query", f"a head size of {HEAD_DIMS}", head_dim)
    check("key", key, (tokens, None, head_dim), (query.dtype,), device)
    check("value", value, tuple(key.shape), (query.dtype,), device)
    check("positions", positions, (tokens,), integers, device)
    check("cos_sin_cache", cos_sin_cache, (None, head_dim), FLOATS, device)
    check("slot_mapping", slot_mapping, (tokens,), integers, device)
    check("key_cache", key_cache, (None, None, key.shape[1], head_dim), (query.dtype,), device)
    check("value_cache", value_cache, tuple(key_cache.shape), (query.dtype,), device)
    out = output(out, query, tuple(query.shape))
    return run(launches(query, key, value, cos_sin_cache, positions, key_cache, value_cache, slot_mapping, out), out)
