"""A kernel launch as a value, and what every launcher checks of its tensors.

A launcher checks its tensors, builds `Launch`es and runs them. The builders work on tensors of the device "meta" too,
so that ahead-of-time compilation (`calib.verify.compiled`) sees exactly the arguments of a real launch. Owns what a GPU
allows a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Capability = tuple[int, int]
"""Major and minor compute capability, as torch gives it."""

# Bytes of dynamic shared memory a program may opt in to. Triton's compiler does not enforce it: the launch fails.
SHARED_LIMIT_BYTES = {
    (7, 0): 98_304,
    (7, 5): 65_536,
    (8, 0): 166_912,
    (8, 6): 101_376,
    (8, 7): 166_912,
    (8, 9): 101_376,
    (9, 0): 232_448,
    (10, 0): 232_448,
    (10, 3): 232_448,
    (12, 0): 101_376,
}

LEAST_SHARED_BYTES = 101_376
"""Assumed of a GPU that the table does not know: what every GPU since 2020 offers."""

NO_GPU_CAPABILITY: Capability = (8, 0)
NO_GPU_SMS = 108
"""What tensors on the CPU (Triton's interpreter) are planned for: an A100."""


def shared_limit_bytes(capability: Capability) -> int:
    """Shared memory of one program."""
    return SHARED_LIMIT_BYTES.get(capability, LEAST_SHARED_BYTES)


def capability_of(device: torch.device) -> Capability:
    """Compute capability of a device."""
    if device.type != "cuda":
        return NO_GPU_CAPABILITY
    major, minor = torch.cuda.get_device_capability(device)
    return int(major), int(minor)


def num_sms_of(device: torch.device) -> int:
    """Streaming multiprocessors."""
    if device.type != "cuda":
        return NO_GPU_SMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INDEX = (torch.int32,)

OPTIONS = {"enable_fp_fusion": True}
"""Compiler options of every kernel, said because their defaults differ between versions of Triton."""

Constant = bool | int | float


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two >= n, for n >= 1."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: `args` are the kernel's run-time arguments in order, `constants` what it is compiled for."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: Mapping[str, Constant]
    num_warps: int
    num_stages: int

    def run(self) -> None:
        """Launches, unless the grid is empty: CUDA refuses those."""
        if 0 not in self.grid:
            self.kernel[self.grid](
                *self.args, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages, **OPTIONS
            )


def run(launches: Iterable[Launch], out: torch.Tensor) -> torch.Tensor:
    """`out`, once all that fills it is launched."""
    for launch in launches:
        launch.run()
    return out


def require(holds: bool, name: str, expected: str, got: object) -> None:
    """Raises ValueError that says what was expected of `name`, unless it holds."""
    if not holds:
        raise ValueError(f"{name}: expected {expected}, got {got}")


def check(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Raises ValueError unless `tensor` is contiguous, has that shape (None: any size), dtype and device.

    Contiguous, because strides then follow from sizes: fewer arguments, and the compiler sees that rows are aligned.
    """
    fits = tensor.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if fits and tensor.dtype in dtypes and tensor.device == device and tensor.is_contiguous():
        return
    sizes = ", ".join("*" if size is None else str(size) for size in shape)
    kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
    require(
        False,
        name,
        f"a contiguous [{sizes}] tensor of {kinds} on {device}",
        f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}, {layout}",
    )


def output(out: torch.Tensor | None, like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """`out` once checked, or a new tensor of that shape, with the dtype and the device of `like`."""
    if out is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    check("out", out, shape, (like.dtype,), like.device)
    return out
