"""Runs every kernel on a device against its float64 reference: a kernel that is wrong is never timed.

The same cases run in Triton's interpreter, on tensors of the CPU, where there is no GPU. Owns how close is close
enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from calib.kernels.gemm import CONFIGS, FULL_CONFIGS
from calib.kernels.launch import capability_of, shared_limit_bytes
from calib.verify.cases import CASES, KERNELS, Case, Compared

TOLERANCE = {torch.float32: 5e-5, torch.float16: 3e-3, torch.bfloat16: 2.4e-2}
"""Largest allowed error: some four times what rounding to 16 bits makes, and more of float32 for its split products."""

INTERPRETED = (torch.float16, torch.float32)
"""Without bfloat16, whose matrix products Triton's interpreter gets wrong."""

HAS_BFLOAT16 = (8, 0)
"""The least compute capability that has it."""


@dataclass(frozen=True, slots=True)
class Check:
    """A case in one dtype. `max_error` is a share of value + root mean square, infinite where NaN is wrong.

    The name begins with that of the kernel, a module of `calib.kernels`.
    """

    name: str
    dtype: str
    max_error: float
    tolerance: float
    passed: bool
    note: str


def verify(
    device: str | torch.device,
    dtypes: Iterable[torch.dtype] | None = None,
    kernels: Iterable[str] | None = None,
) -> list[Check]:
    """Every case of `kernels` (all of `cases.KERNELS`) in `dtypes` on `device`.

    Without `dtypes`, on a GPU those that engines compute in; nothing else is compiled for that.
    A kernel that fails to launch is a failed check, not an exception, but may leave the device unusable for the rest.
    """
    device = torch.device(device)
    chosen = tuple(dtypes) if dtypes is not None else default_dtypes(device)
    wanted = tuple(kernels) if kernels is not None else KERNELS
    unknown = set(wanted) - set(KERNELS)
    if unknown:
        raise ValueError(f"kernels: expected some of {KERNELS}, got {sorted(unknown)}")
    return [
        check(case, device, dtype)
        for dtype in chosen
        for case in CASES
        if case.kernel in wanted and applies(case, device, dtype)
    ]


def default_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """What `verify` checks unless told."""
    if device.type != "cuda":
        return INTERPRETED
    return (torch.bfloat16, torch.float16) if capability_of(device) >= HAS_BFLOAT16 else (torch.float16,)


def applies(case: Case, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a case is for that device and dtype: tiles are for a size of elements, and need not fit every GPU."""
    if case.large and device.type != "cuda":
        return False
    if case.config is None:
        return True
    tiles = CONFIGS if dtype.itemsize == 2 else FULL_CONFIGS
    return case.config in tiles and case.config.shared_bytes(dtype.itemsize) <= shared_limit_bytes(
        capability_of(device)
    )


def check(case: Case, device: torch.device, dtype: torch.dtype) -> Check:
    """One case in one dtype."""
    tolerance, kind = TOLERANCE[dtype], str(dtype).removeprefix("torch.")
    name = f"{case.kernel} {case.name} {kind}"
    try:
        compared = case.run(device, dtype)
    except Exception as failure:  # a launch fails in many ways, and each is a kernel not to be timed
        note = f"{type(failure).__name__}: {failure}".split("\n")[0]
        return Check(name, kind, float("inf"), tolerance, False, note)
    worst = max(error(each) for each in compared)
    intact = all(each.intact for each in compared)
    note = "" if intact else "wrote past the end of its output"
    return Check(name, kind, worst, tolerance, intact and worst <= tolerance, note)


def error(compared: Compared) -> float:
    """Largest error as a share of the reference's value + root mean square; NaN must be where the reference has it.

    The one alone would let large values be too wrong, the other asks too much of what cancels out.
    """
    got, want = compared.got.double(), compared.want
    written = ~want.isnan()
    if not torch.equal(~got.isnan(), written):
        return float("inf")
    if not written.any():
        return 0.0
    got, want = got[written], want[written]
    scale = want.abs() + (want.pow(2).mean().sqrt() or 1.0)
    return float(((got - want).abs() / scale).max())
