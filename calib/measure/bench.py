"""How one point is measured: prepared, timed in the fastest of its ways, or skipped for a reason.

Owns the contract that `gpu_ops` and `cpu_ops` fill, how many copies of operands are enough, and which failures belong
to a point (it is skipped and listed) and not to the sweep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from calib import CalibrationError
from calib.measure.device import Device
from calib.measure.grid import Planned
from calib.measure.journal import Entry
from calib.measure.shapes import Point, memory_bytes
from calib.measure.timing import Call, Timer, Timing
from simkit.units import bytes_to_gib

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


class LinkTimer(AbstractContextManager["LinkTimer"], Protocol):
    """What times all-reduces between GPUs."""

    source: str

    def time(self, point: Point, budget_s: float) -> Timing:
        """One all-reduce. Raises `Refused` where the GPUs cannot do it together."""
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


_MEMORY_SHARE = {"cuda": 0.85, "cpu": 0.5}
_TRIAL_SHARE = 0.1


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


@dataclass(frozen=True, slots=True)
class Bench:
    """What measures: the ops and the timer of a device, the correctness checks of its kernels, and a clock.

    `compile` compiles the kernels before they are checked and says what is wrong with the machine code; `links` times
    all-reduces.
    """

    ops: Ops
    timer: Timer
    verify: Callable[[], Iterable[Check]]
    clock_s: Callable[[], float] = time.monotonic
    compile: Callable[[], Compiled | None] = lambda: None
    links: LinkTimer | None = None


def measure_point(planned: Planned, bench: Bench, device: Device) -> Entry:
    """One point. Raises Refused with the reason when it is to be skipped, CalibrationError when nothing can go on."""
    point, ops = planned.point, bench.ops
    if reason := _too_large(point, ops, device):
        raise Refused(reason)
    if point.op == "all_reduce":
        if bench.links is None:
            raise Refused("links are not measured here")
        return Entry(point, ops.dtype, bench.links.source, bench.links.time(point, planned.point_s))
    try:
        way, timing = _time(planned, bench)
        return Entry(point, ops.dtype, ops.source(point.op), timing, way)
    except Exception as error:
        if is_out_of_memory(error):
            reason = "out of memory"
        elif is_refusal(error):
            reason = str(error) if isinstance(error, Refused) else first_line(error)
        elif isinstance(error, RuntimeError):
            raise CalibrationError(f"{point.label()}: {first_line(error)}") from error
        else:
            raise
    # Only here does the traceback let go of the operands.
    ops.release()
    raise Refused(reason)


def _time(planned: Planned, bench: Bench) -> tuple[str, Timing]:
    """The fastest way to compute a point, and its time."""
    prepared, timer = bench.ops.prepare(planned.point), bench.timer
    if prepared.launch:
        ((way, calls),) = prepared.ways.items()
        return way, timer.time_launch(calls[0], planned.point_s)
    if len(prepared.ways) == 1:
        ((way, calls),) = prepared.ways.items()
        return way, timer.time(calls, planned.point_s)
    best_us, best, why_not = float("inf"), "", "no configuration fits"
    for way, calls in prepared.ways.items():
        try:
            trial_us = timer.time(calls, _TRIAL_SHARE * planned.point_s).median_us
        except Exception as error:
            # A configuration that does not fit this chip is no reason to leave the point out.
            if not is_refusal(error):
                raise
            why_not = first_line(error)
            continue
        if trial_us < best_us:
            best_us, best = trial_us, way
    if not best:
        raise Refused(why_not)
    return " ".join(best.split()), timer.time(prepared.ways[best], planned.point_s)


def _too_large(point: Point, ops: Ops, device: Device) -> str:
    if device.memory_bytes is None or point.op == "host_overhead":
        return ""
    needed, limit = memory_bytes(point, ops.element_bytes), _MEMORY_SHARE[device.kind] * device.memory_bytes
    return f"needs {bytes_to_gib(needed):.1f} GiB of {bytes_to_gib(device.memory_bytes):.1f}" if needed > limit else ""


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
