"""What the kernels should compute: the plainest float64 torch, slow and obviously right.

Each function has the inputs of the kernel's launcher and returns float64 on the same device.
"""

from __future__ import annotations

import torch


def gemm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight^T."""
    return x.double() @ weight.double().T


def tokens_of(cache: torch.Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` tokens of the sequence whose row of the block table is `blocks`: [length, kv_heads, d]."""
    block_size = cache.shape[1]
    found = [cache[int(blocks[token // block_size]), token % block_size].double() for token in range(length)]
    return torch.stack(found) if found else cache.new_empty((0, *cache.shape[2:]), dtype=torch.float64)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Causal attention of the last tokens of a sequence: [chunk, heads, d] over [length, kv_heads, d]."""
    chunk, heads, head_dim = query.shape
    length, kv_heads = key.shape[:2]
    out = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    if length == 0:
        return out
    for row in range(chunk):
        visible = length - chunk + row + 1
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = key[:visible, kv_head] @ query[row, head].double()
            weights = torch.softmax(scores * (head_dim**-0.5 if scale is None else scale), 0)
            out[row, head] = weights @ value[:visible, kv_head]
    return out


def paged_prefill(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    """Every sequence's chunk over its own cached tokens; of a mixed step too."""
    out = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    for seq, length in enumerate(seq_lens.tolist()):
        rows = slice(int(query_start_loc[seq]), int(query_start_loc[seq + 1]))
        key = tokens_of(key_cache, block_table[seq], length)
        value = tokens_of(value_cache, block_table[seq], length)
        out[rows] = attention(query[rows], key, value, scale)
    return out


def paged_decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    """A chunk of one token a sequence; zeros where there are no tokens."""
    starts = torch.arange(len(seq_lens) + 1)
    return paged_prefill(query, key_cache, value_cache, block_table, starts, seq_lens, scale)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    """x / sqrt(mean(x ** 2) + epsilon) * weight."""
    value = x.double()
    return value / torch.sqrt((value * value).mean(1, keepdim=True) + epsilon) * weight.double()


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual)."""
    total = x.double() + residual.double()
    return rms_norm(total, weight, epsilon), total


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu of the left half times the right half."""
    gate, up = x.double().chunk(2, dim=1)
    return gate * torch.sigmoid(gate) * up


def rotary(x: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor) -> torch.Tensor:
    """x[tokens, heads, d] with each pair (i, i + d / 2) turned by its token's angle."""
    cos, sin = cos_sin_cache.double()[positions.long()].chunk(2, dim=1)
    low, high = x.double().chunk(2, dim=2)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=2)


def kv_write(cache: torch.Tensor, rows: torch.Tensor, slot_mapping: torch.Tensor) -> torch.Tensor:
    """A copy of the cache with row i at slot_mapping[i], unless that is -1."""
    out = cache.double()
    block_size = cache.shape[1]
    for row, slot in zip(rows.double(), slot_mapping.tolist(), strict=True):
        if slot >= 0:
            out[slot // block_size, slot % block_size] = row
    return out
