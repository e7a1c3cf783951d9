"""RMS norm of rows, alone or of the sum with the residual stream."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from calib.kernels.launch import FLOATS, Launch, check, next_power_of_2, output, run

ELEMENTS_PER_WARP = 1024
MAX_WARPS = 16


@triton.jit
def rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    hidden: tl.tensor,
    epsilon: tl.tensor,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row: out = v / rms(v) * weight, v = x, or with ADD v = x + residual, which replaces residual."""
    row = tl.program_id(0).to(tl.int64) * hidden
    col = tl.arange(0, BLOCK)
    col_in = col < hidden
    value = tl.load(x + row + col, mask=col_in, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row + col, mask=col_in, other=0.0).to(tl.float32)
        stored = value.to(residual.dtype.element_ty)
        tl.store(residual + row + col, stored, mask=col_in)
        # The next layer reads the rounded sum; so does this norm.
        value = stored.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / hidden + epsilon)
    factor = tl.load(weight + col, mask=col_in, other=0.0).to(tl.float32)
    tl.store(out + row + col, (value * scale * factor).to(out.dtype.element_ty), mask=col_in)


def launches(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None, epsilon: float, out: torch.Tensor
) -> tuple[Launch, ...]:
    """The one launch of checked inputs."""
    tokens, hidden = x.shape
    block = next_power_of_2(hidden)
    add = residual is not None
    args = (x, residual if add else x, weight, out, hidden, epsilon)
    warps = min(max(block // ELEMENTS_PER_WARP, 1), MAX_WARPS)
    return (Launch(rms_norm_kernel, (tokens,), args, {"ADD": add, "BLOCK": block}, warps, num_stages=1),)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """v / sqrt(mean(v ** 2) + epsilon) * weight[hidden] of the rows of v = x[tokens, hidden].

    With a residual, as engines do between layers: v = x + residual, and residual is overwritten by v.
    """
    check("x", x, (None, None), FLOATS, x.device)
    check("weight", weight, (x.shape[1],), (x.dtype,), x.device)
    if residual is not None:
        check("residual", residual, tuple(x.shape), (x.dtype,), x.device)
    out = output(out, x, tuple(x.shape))
    return run(launches(x, weight, residual, epsilon, out), out)
