"""How one point is measured: prepared, timed in the fastest of its ways, or skipped for a reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from calib.errors import CalibrationError
from calib.measure.device import Device
from calib.measure.gate import Check, Compiled
from calib.measure.grid import Planned
from calib.measure.journal import Entry
from calib.measure.ops import Ops, Refused, is_out_of_memory, is_refusal
from calib.measure.shapes import Point, memory_bytes
from calib.measure.timing import Timer, Timing
from simkit.units import bytes_to_gib

_MEMORY_SHARE = {"cuda": 0.85, "cpu": 0.5}
_TRIAL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Bench:
    """What measures: the ops and the timer of a device, the correctness checks of its kernels, and a clock.

    `compile` compiles the kernels before they are checked and says what is wrong with the machine code.
    """

    ops: Ops
    timer: Timer
    verify: Callable[[], Iterable[Check]]
    clock_s: Callable[[], float] = time.monotonic
    compile: Callable[[], Compiled | None] = lambda: None


def measure_point(planned: Planned, bench: Bench, device: Device) -> Entry:
    """One point. Raises Refused with the reason when it is to be skipped, CalibrationError when nothing can go on."""
    point, ops = planned.point, bench.ops
    if reason := _too_large(point, ops, device):
        raise Refused(reason)
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
