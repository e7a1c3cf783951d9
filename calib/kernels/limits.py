"""What a GPU offers a kernel: its compute capability, shared memory a program may ask for, multiprocessors."""

from __future__ import annotations

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
