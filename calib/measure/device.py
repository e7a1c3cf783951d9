"""What is measured on: a CUDA device or this CPU, what it is called, what software drives it, and how its clocks do.

Owns the errors for a device that is not there, the map from CUDA names to registered GPUs, and the use of pynvml (the
package nvidia-ml-py), which is optional: without it readings are empty and say why. Reads, never sets.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calib import CalibrationError
from simkit.specs.hardware import GpuSpec, list_gpus, load_gpu

INSTALL = "pip install 'simkit-llm[calibrate]'"

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

    def to_json(self) -> dict[str, object]:
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


def summary(readings: list[Reading]) -> dict[str, object]:
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


_GPU_OF_CUDA_NAME = {
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA B200": "b200-sxm-180gb",
    "NVIDIA L4": "l4-24gb",
    "NVIDIA L40S": "l40s-48gb",
    "NVIDIA A10G": "a10g-24gb",
    "Tesla T4": "t4-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000",
}

_DEFAULT_CACHE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """What is measured. `name` is the maker's; `spec` the registered GPU, None for a CPU; `cache_bytes` the last cache.

    `driver` and `memory_bytes` are None where they cannot be told. `peers`: the CUDA devices of the same name, itself
    first, between which links are measured; none of a CPU.
    """

    kind: str
    index: int
    name: str
    spec: GpuSpec | None
    capability: tuple[int, int]
    cache_bytes: int
    memory_bytes: int | None
    driver: str | None
    software: Mapping[str, str]
    monitor: Monitor = field(compare=False, repr=False)
    peers: tuple[int, ...] = ()

    @property
    def torch_name(self) -> str:
        """The device as PyTorch writes it."""
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"

    def identity(self) -> dict[str, str]:
        """What must be equal for measurements to belong to one table."""
        spec = self.spec.name if self.spec else "none"
        return {"device": self.name, "gpu": spec, "driver": self.driver or "unknown", **self.software}


def find_device(name: str, gpu_spec: str | None = None) -> Device:
    """The device of ``cpu``, ``cuda`` or ``cuda:N``.

    `gpu_spec` (name or path) says which GPU it is where the CUDA name is not known. Raises CalibrationError.
    """
    torch = import_torch()
    if name == "cpu":
        return _cpu(torch)
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise CalibrationError(f"--device {name}: expected cpu, cuda or cuda:N")
    return _cuda(torch, int(index or "0"), gpu_spec)


def import_torch() -> Any:
    """PyTorch, or CalibrationError that says how to install it."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise CalibrationError(f"measuring kernels needs PyTorch, which is not installed: {INSTALL}") from None


def registered_gpu(cuda_name: str) -> GpuSpec | None:
    """The registered GPU of a name that CUDA gives, None when it is not known."""
    known = {gpu.name: gpu for gpu in list_gpus()}
    return known.get(_GPU_OF_CUDA_NAME.get(cuda_name, ""))


def package_version(distribution: str) -> str:
    """The installed version of a distribution, "unknown" when it runs from a source tree."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _cuda(torch: Any, index: int, gpu_spec: str | None) -> Device:
    if not torch.cuda.is_available():
        raise CalibrationError(
            f"no CUDA device: PyTorch {torch.__version__} sees none (`nvidia-smi` lists what the driver sees;"
            " --device cpu measures this CPU)"
        )
    count = torch.cuda.device_count()
    if index >= count:
        found = ", ".join(f"{i}: {torch.cuda.get_device_name(i)}" for i in range(count))
        raise CalibrationError(f"--gpu {index}: there {'is' if count == 1 else 'are'} {count} CUDA device(s) ({found})")
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        raise CalibrationError(f"measuring on a GPU needs Triton, which is not installed: {INSTALL}") from None
    properties = torch.cuda.get_device_properties(index)
    spec = load_gpu(gpu_spec) if gpu_spec else registered_gpu(properties.name)
    if spec is None:
        raise CalibrationError(
            f"{properties.name!r} is not in simkit's list of GPUs: say what it is with --gpu-spec NAME|PATH"
            " (list: simkit gpus)"
        )
    uuid = getattr(properties, "uuid", None)
    monitor = open_monitor(index, str(uuid) if uuid else None)
    return Device(
        kind="cuda",
        index=index,
        name=properties.name,
        spec=spec,
        capability=torch.cuda.get_device_capability(index),
        cache_bytes=getattr(properties, "L2_cache_size", 0) or 2 * _DEFAULT_CACHE_BYTES,
        memory_bytes=properties.total_memory,
        driver=monitor.driver(),
        software={**_software(torch), "triton": triton.__version__, "cuda": str(torch.version.cuda)},
        monitor=monitor,
        peers=(index, *(i for i in range(count) if i != index and torch.cuda.get_device_name(i) == properties.name)),
    )


def _cpu(torch: Any) -> Device:
    """One thread fewer than PyTorch would take: threads that meet at barriers wait for whoever else uses a core."""
    return Device(
        kind="cpu",
        index=0,
        name=_cpu_name(),
        spec=None,
        capability=(0, 0),
        cache_bytes=_cpu_cache_bytes(),
        memory_bytes=_memory_bytes(),
        driver=None,
        software={**_software(torch), "threads": str(max(1, torch.get_num_threads() - 1))},
        monitor=Monitor(None, None, "a CPU has no NVML"),
    )


def _software(torch: Any) -> dict[str, str]:
    return {
        "simkit": package_version("simkit-llm"),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in names if name), platform.processor() or platform.machine())


def _cpu_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache that the system names."""
    sizes = []
    for path in sorted(root.glob("index*/size")):
        text = path.read_text(encoding="ascii").strip()
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes, default=_DEFAULT_CACHE_BYTES)


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
