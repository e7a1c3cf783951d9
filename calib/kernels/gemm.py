"""Matrix product with a weight stored as torch.nn.Linear stores it, and the tile shapes to choose from.

`candidates` names the few tiles worth timing for a shape; the first is the choice without timing. Products of few rows
read each weight once and are bound by memory: small tiles, and split-K where there are too few tiles to keep a GPU's
memory busy. Split sums go through a buffer and a second kernel, never atomics, so equal inputs give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from calib.kernels.launch import (
    FLOATS,
    Capability,
    Launch,
    capability_of,
    cdiv,
    check,
    output,
    require,
    run,
    shared_limit_bytes,
)

REDUCE_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Config:
    """A tile: `group_m` rows of tiles share columns of the weight in cache; `split_k` programs share a tile's sum."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    group_m: int = 8
    split_k: int = 1

    def shared_bytes(self, element_bytes: int) -> int:
        """Shared memory of the pipeline of both operands: an upper bound of what the compiler takes for it."""
        return (self.block_m + self.block_n) * self.block_k * element_bytes * self.num_stages


# For elements of two bytes: many rows first.
WIDE = Config(128, 256, 64, num_warps=8, num_stages=3)
SQUARE = Config(128, 128, 64, num_warps=8, num_stages=3)
LOW = Config(64, 128, 64, num_warps=4, num_stages=4)
LOW_SMALL = Config(64, 64, 64, num_warps=4, num_stages=4)
FEW_32 = Config(32, 64, 128, num_warps=4, num_stages=4, group_m=1)
FEW_32_SPLIT = Config(32, 64, 128, num_warps=4, num_stages=4, group_m=1, split_k=4)
FEW_16 = Config(16, 64, 128, num_warps=4, num_stages=4, group_m=1)
FEW_16_NARROW = Config(16, 32, 256, num_warps=4, num_stages=4, group_m=1)
FEW_16_SPLIT = Config(16, 64, 128, num_warps=4, num_stages=4, group_m=1, split_k=4)
FEW_16_SPLIT_MORE = Config(16, 64, 128, num_warps=4, num_stages=4, group_m=1, split_k=8)

# For elements of four bytes, whose products are sums of three on tensor cores (tf32x3), as exact as float32.
FULL = Config(64, 64, 32, num_warps=8, num_stages=3)
FULL_FEW = Config(16, 64, 32, num_warps=4, num_stages=4, group_m=1)
FULL_FEW_SPLIT = Config(16, 64, 32, num_warps=4, num_stages=4, group_m=1, split_k=4)

CONFIGS = (
    WIDE,
    SQUARE,
    LOW,
    LOW_SMALL,
    FEW_32,
    FEW_32_SPLIT,
    FEW_16,
    FEW_16_NARROW,
    FEW_16_SPLIT,
    FEW_16_SPLIT_MORE,
)
FULL_CONFIGS = (FULL, FULL_FEW, FULL_FEW_SPLIT)

FEW_TILES = 264
"""Fewer programs than this, two on each multiprocessor of the largest GPUs here, leave memory idle: split."""


def candidates(m: int, n: int, k: int, capability: Capability, element_bytes: int = 2) -> tuple[Config, ...]:
    """At most four tiles worth timing for [m, k] x [n, k], the likeliest first."""
    order: tuple[Config, ...]
    starved = cdiv(m, 16) * cdiv(n, 64) < FEW_TILES and k >= 1024
    if element_bytes > 2:
        order = (FULL,) if m > 32 else (FULL_FEW_SPLIT, FULL_FEW) if starved else (FULL_FEW, FULL_FEW_SPLIT)
    elif m <= 16 and starved:
        order = (FEW_16_SPLIT, FEW_16_SPLIT_MORE, FEW_16, FEW_16_NARROW)
    elif m <= 16:
        order = (FEW_16, FEW_16_NARROW, FEW_16_SPLIT)
    elif m <= 32:
        order = (FEW_32_SPLIT, FEW_32, FEW_16_SPLIT) if starved else (FEW_32, FEW_32_SPLIT, FEW_16)
    elif m <= 64:
        order = (FEW_32_SPLIT, LOW_SMALL, FEW_32) if starved else (LOW_SMALL, LOW, FEW_32)
    elif m <= 256:
        order = (LOW_SMALL, LOW, SQUARE, FEW_32_SPLIT) if starved else (LOW, SQUARE, LOW_SMALL, WIDE)
    elif cdiv(m, 128) * cdiv(n, 128) < FEW_TILES:
        order = (SQUARE, LOW, WIDE, LOW_SMALL)
    else:
        order = (WIDE, SQUARE, LOW)
    limit = shared_limit_bytes(capability)
    fitting = tuple(config for config in order if config.shared_bytes(element_bytes) <= limit)
    return fitting or (LOW_SMALL,)


@triton.jit(do_not_specialize=["m"])
def gemm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
) -> None:
    """One tile of x @ weight^T, or of one of SPLIT_K parts of the sum, which go to out[split]."""
    tile, split = tl.program_id(0), tl.program_id(1)
    # Tiles go down GROUP_M rows before the next column, so that neighbours in time share both operands in cache.
    tiles_n = tl.cdiv(n, BLOCK_N)
    group = tile // (GROUP_M * tiles_n)
    group_rows = tl.minimum(tl.cdiv(m, BLOCK_M) - group * GROUP_M, GROUP_M)
    in_group = tile % (GROUP_M * tiles_n)
    first_m = (group * GROUP_M + in_group % group_rows) * BLOCK_M
    first_n = in_group // group_rows * BLOCK_N

    row, col, inner = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    row_in, col_in = first_m + row < m, first_n + col < n
    x_tile = x + first_m.to(tl.int64) * k + row[:, None] * k + inner[None, :]
    # Columns past the last read others again, and are not stored: weights seldom have any, and a mask costs registers.
    weight_tile = weight + ((first_n + col) % n).to(tl.int64)[None, :] * k + inner[:, None]

    k_tiles = tl.cdiv(k, BLOCK_K)
    per_split = tl.cdiv(k_tiles, SPLIT_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(split * per_split, tl.minimum((split + 1) * per_split, k_tiles)):
        at = step * BLOCK_K
        if EVEN_K:
            a = tl.load(x_tile + at, mask=row_in[:, None], other=0.0)
            b = tl.load(weight_tile + at)
        else:
            inner_in = at + inner < k
            a = tl.load(x_tile + at, mask=row_in[:, None] & inner_in[None, :], other=0.0)
            b = tl.load(weight_tile + at, mask=inner_in[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="tf32x3")

    out += split.to(tl.int64) * m * n + first_m.to(tl.int64) * n + first_n
    tl.store(
        out + row[:, None] * n + col[None, :], acc.to(out.dtype.element_ty), mask=row_in[:, None] & col_in[None, :]
    )


@triton.jit
def sum_splits_kernel(
    parts: tl.tensor, out: tl.tensor, count: tl.tensor, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """out[count] = sum of parts[SPLIT_K, count] in order of the splits."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLIT_K):
        total += tl.load(parts + split * count + at, mask=at < count, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < count)


def launches(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, parts: torch.Tensor | None, config: Config
) -> tuple[Launch, ...]:
    """The product, and the sum of its `parts` where the config splits."""
    (m, k), n = x.shape, weight.shape[0]
    constants = {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
        "SPLIT_K": config.split_k,
        "EVEN_K": k % config.block_k == 0,
    }
    grid = (cdiv(m, config.block_m) * cdiv(n, config.block_n), config.split_k)
    into = out if parts is None else parts
    product = Launch(gemm_kernel, grid, (x, weight, into, m, n, k), constants, config.num_warps, config.num_stages)
    if parts is None:
        return (product,)
    total = Launch(
        sum_splits_kernel,
        (cdiv(m * n, REDUCE_BLOCK),),
        (parts, out, m * n),
        {"SPLIT_K": config.split_k, "BLOCK": REDUCE_BLOCK},
        num_warps=4,
        num_stages=1,
    )
    return (product, total)


def gemm(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None, config: Config | None = None
) -> torch.Tensor:
    """x[m, k] @ weight[n, k]^T -> [m, n], summed in float32; without `config` the first of `candidates`."""
    check("x", x, (None, None), FLOATS, x.device)
    check("weight", weight, (None, x.shape[1]), (x.dtype,), x.device)
    (m, k), n = x.shape, weight.shape[0]
    out = output(out, x, (m, n))
    if config is None:
        config = candidates(m, n, k, capability_of(x.device), x.element_size())[0]
    parts = None
    if config.split_k > 1:
        require(config.split_k * m * n < 2**31, "config", "split_k x m x n below 2**31", config)
        parts = torch.empty((config.split_k, m, n), dtype=torch.float32, device=x.device)
    return run(launches(x, weight, out, parts, config), out)
