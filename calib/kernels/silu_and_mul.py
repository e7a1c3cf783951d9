"""The gate of a SwiGLU MLP: silu(left half) x right half."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from calib.kernels.launch import FLOATS, Launch, cdiv, check, output, require, run

BLOCK = 1024


@triton.jit
def silu_and_mul_kernel(x: tl.tensor, out: tl.tensor, inner: tl.tensor, BLOCK: tl.constexpr) -> None:
    """BLOCK columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    col_in = col < inner
    gate = tl.load(x + row * (2 * inner) + col, mask=col_in, other=0.0).to(tl.float32)
    up = tl.load(x + row * (2 * inner) + inner + col, mask=col_in, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * inner + col, value.to(out.dtype.element_ty), mask=col_in)


def launches(x: torch.Tensor, out: torch.Tensor) -> tuple[Launch, ...]:
    """The one launch of checked inputs."""
    tokens, inner = out.shape
    grid = (tokens, cdiv(inner, BLOCK))
    return (Launch(silu_and_mul_kernel, grid, (x, out, inner), {"BLOCK": BLOCK}, num_warps=4, num_stages=1),)


def silu_and_mul(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(x[:, :inner]) * x[:, inner:] of x[tokens, 2 inner] -> [tokens, inner]."""
    check("x", x, (None, None), FLOATS, x.device)
    require(x.shape[1] % 2 == 0, "x", "an even number of columns", x.shape[1])
    out = output(out, x, (x.shape[0], x.shape[1] // 2))
    return run(launches(x, out), out)
