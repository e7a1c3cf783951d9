"""What a device offers to the sweep: a call for each point, over copies of its operands.

Owns the contract that `gpu_ops` and `cpu_ops` fill, how many copies are enough, and which failures belong
to a point (it is skipped and listed) and not to the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from calib.measure.shapes import Point
from calib.measure.timing import Call

MAX_COPIES = 64
_CACHES_TO_EXCEED = 3
EMBEDDING_ROWS = 32_768
"""Rows of the embedding table that is gathered from: far more than a cache holds, less than a vocabulary."""
KV_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Prepared:
    """A point ready to be timed: ways to compute it by name, usually one, each over copies of the operands.

    `launch` asks for the time until the call returns, not until its work is done.
    """

    ways: Mapping[str, Sequence[Call]]
    launch: bool = False


class Ops(Protocol):
    """The ops of one device."""

    dtype: str
    element_bytes: int

    def prepare(self, point: Point) -> Prepared:
        """Operands on the device and the call. Raises `Refused` for what this device does not do."""
        ...

    def source(self, op: str) -> str:
        """Who computes the op: the `source` of its rows."""
        ...

    def session(self) -> AbstractContextManager[object]:
        """Wraps all preparing and timing: no gradients are kept, as in serving."""
        ...

    def release(self) -> None:
        """Give memory back after a point that did not fit."""
        ...


class Refused(Exception):
    """This point cannot be measured here; the text says why."""


def copies(call_bytes: float, cache_bytes: int) -> int:
    """Copies of the operands that together exceed the cache; 64 of them at most, so tiny operands stay cached.

    In a serving step tiny operands are cached too: the kernel before has just written them.
    """
    wanted = _CACHES_TO_EXCEED * cache_bytes
    return max(1, min(MAX_COPIES, -(-wanted // max(1, round(call_bytes)))))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on the device or the host."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text))
    )


def is_refusal(error: BaseException) -> bool:
    """Whether a kernel turned down these shapes (a check, a tile that does not fit) and the device is well."""
    triton = type(error).__module__.partition(".")[0] == "triton"
    return triton or isinstance(error, (Refused, ValueError, NotImplementedError))
