"""What the driver says of a GPU while it is measured: clocks, throttling, temperature, power. Reads, never sets.

Owns the use of pynvml (the package nvidia-ml-py), which is optional: without it readings are empty and say why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# Bits of the driver's "clocks event reasons" that slow a GPU down against its own will; idle and user settings do not.
_SLOWED_BY = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a GPU. None is what the driver did not tell."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttling: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self) | {"throttling": list(self.throttling)}


class Monitor:
    """Readings of one GPU. `missing` says why there are none, "" when there are."""

    def __init__(self, nvml: Any, handle: Any, missing: str = "") -> None:
        self._nvml = nvml
        self._handle = handle
        self.missing = missing

    def driver(self) -> str | None:
        """The driver's version."""
        version = self._ask(lambda: self._nvml.nvmlSystemGetDriverVersion())
        return version.decode() if isinstance(version, bytes) else version

    def read(self) -> Reading | None:
        """What the driver says now; None without NVML."""
        if self._handle is None:
            return None
        nvml, handle = self._nvml, self._handle
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        reasons = reasons or getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        bits = self._ask(lambda: reasons(handle)) if reasons else None
        power_mw = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return Reading(
            sm_clock_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            temperature_c=self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_w=None if power_mw is None else power_mw / 1000,
            throttling=tuple(name for bit, name in _SLOWED_BY.items() if (bits or 0) & bit),
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        """An answer, or None where this driver or virtual machine refuses to tell."""
        if self._nvml is None:
            return None
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def open_monitor(index: int, uuid: str | None) -> Monitor:
    """The monitor of a CUDA device; by its UUID, since CUDA_VISIBLE_DEVICES renumbers devices for CUDA alone."""
    try:
        import pynvml
    except ImportError:
        return Monitor(None, None, "nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        handle = None
        if uuid:
            name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(name)
            except pynvml.NVMLError:
                handle = None
        handle = handle or pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return Monitor(None, None, f"NVML: {error}")
    return Monitor(pynvml, handle)


def summary(readings: list[Reading]) -> dict[str, Any]:
    """Extremes over readings taken while measuring; empty without readings."""
    if not readings:
        return {}
    clocks = [reading.sm_clock_mhz for reading in readings if reading.sm_clock_mhz is not None]
    temperatures = [reading.temperature_c for reading in readings if reading.temperature_c is not None]
    powers = [reading.power_w for reading in readings if reading.power_w is not None]
    throttled = [reading for reading in readings if reading.throttling]
    return {
        "readings": len(readings),
        "sm_clock_mhz": [min(clocks), max(clocks)] if clocks else None,
        "temperature_c": [min(temperatures), max(temperatures)] if temperatures else None,
        "power_w": [min(powers), max(powers)] if powers else None,
        "throttled_readings": len(throttled),
        "throttling": sorted({reason for reading in throttled for reason in reading.throttling}),
    }
