"""Correctness before speed: which kernels `calib.verify` found wrong, and so which ops are not timed. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from calib.measure.gpu_ops import KERNELS_OF_OP


class Check(Protocol):
    """What `calib.verify.verify` says of one comparison. The name begins with that of the kernel."""

    @property
    def name(self) -> str: ...
    @property
    def passed(self) -> bool: ...
    @property
    def max_error(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Compiled:
    """What compiling all kernels ahead of time found. `faults` name a kernel and what is wrong with it."""

    num_variants: int
    largest_shared_bytes: int
    faults: tuple[str, ...]


def refused_ops(checks: Iterable[Check]) -> Mapping[str, str]:
    """Op to the reason why it is not timed. A failed check of no known kernel refuses all kernels."""
    kernels = {kernel for needed in KERNELS_OF_OP.values() for kernel in needed}
    reasons: dict[str, str] = {}
    for check in checks:
        if check.passed:
            continue
        known = [kernel for kernel in kernels if check.name.startswith(kernel)]
        blamed = {max(known, key=len)} if known else kernels
        for op, needed in KERNELS_OF_OP.items():
            if blamed.intersection(needed):
                reasons.setdefault(op, f"wrong result: {check.name} (max error {check.max_error:.3g})")
    return reasons
