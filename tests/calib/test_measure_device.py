"""Finding a device: every way in which it is not there, and what the driver says. torch and NVML are stand-ins."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from calib import CalibrationError
from calib.measure import device as module
from calib.measure.device import Monitor, Reading, find_device, open_monitor, registered_gpu, summary
from simkit.specs.hardware import list_gpus


def fake_torch(*names: str, uuid: str | None = "1234") -> ModuleType:
    torch = ModuleType("torch")
    torch.__version__ = "2.13.0+cu130"  # type: ignore[attr-defined]
    properties = [
        SimpleNamespace(name=name, total_memory=80 << 30, L2_cache_size=50 << 20, uuid=uuid) for name in names
    ]
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        is_available=lambda: bool(names),
        device_count=lambda: len(names),
        get_device_name=lambda i: names[i],
        get_device_properties=lambda i: properties[i],
        get_device_capability=lambda i: (9, 0),
    )
    torch.version = SimpleNamespace(cuda="13.0")  # type: ignore[attr-defined]
    torch.get_num_threads = lambda: 2  # type: ignore[attr-defined]
    return torch


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make imports find what is given and nothing else."""

    def put(torch: ModuleType | None, triton: bool = True, pynvml: Any = None) -> None:
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.7.0") if triton else None)
        monkeypatch.setitem(sys.modules, "pynvml", pynvml)

    return put


def fails(name: str, gpu_spec: str | None = None) -> str:
    with pytest.raises(CalibrationError) as failure:
        find_device(name, gpu_spec)
    text = str(failure.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", ["cpu", "cuda:0"])
def test_without_torch_it_says_what_to_install(install: Any, name: str) -> None:
    install(None)
    assert "pip install 'simkit-llm[calibrate]'" in fails(name)


def test_without_triton_it_says_what_to_install(install: Any) -> None:
    install(fake_torch("NVIDIA H200"), triton=False)
    assert "needs Triton" in fails("cuda:0")
    assert "pip install 'simkit-llm[calibrate]'" in fails("cuda:0")


def test_without_a_gpu_it_names_the_other_way(install: Any) -> None:
    install(fake_torch())
    assert "no CUDA device" in fails("cuda:0")
    assert "--device cpu" in fails("cuda")


def test_a_gpu_that_is_not_there(install: Any) -> None:
    install(fake_torch("NVIDIA H200", "NVIDIA L4"))
    assert fails("cuda:2") == "--gpu 2: there are 2 CUDA device(s) (0: NVIDIA H200, 1: NVIDIA L4)"


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", "mps"])
def test_a_device_that_is_none(install: Any, name: str) -> None:
    install(fake_torch("NVIDIA H200"))
    assert fails(name) == f"--device {name}: expected cpu, cuda or cuda:N"


def test_a_gpu_that_simkit_does_not_know_needs_its_spec(install: Any) -> None:
    install(fake_torch("NVIDIA Z900"))
    assert "--gpu-spec NAME|PATH" in fails("cuda:0")
    found = find_device("cuda:0", "h200-sxm-141gb")
    assert found.spec is not None
    assert found.spec.name == "h200-sxm-141gb"
    assert found.name == "NVIDIA Z900"


def test_what_is_known_of_a_gpu(install: Any) -> None:
    install(fake_torch("NVIDIA A100-SXM4-80GB"))
    found = find_device("cuda")
    assert (found.kind, found.torch_name, found.capability, found.cache_bytes) == ("cuda", "cuda:0", (9, 0), 50 << 20)
    assert found.identity()["gpu"] == "a100-sxm4-80gb"
    assert found.identity()["driver"] == "unknown"
    assert {"torch", "triton", "cuda", "simkit"} <= set(found.software)
    assert found.monitor.missing == "nvidia-ml-py is not installed"
    assert found.monitor.read() is None


def test_links_are_measured_between_gpus_of_one_name(install: Any) -> None:
    install(fake_torch("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA H200"))
    assert find_device("cuda:2").peers == (2, 0, 3)
    assert find_device("cuda:1").peers == (1,)
    assert find_device("cpu").peers == ()


def test_cuda_names_lead_to_registered_gpus() -> None:
    known = {gpu.name for gpu in list_gpus()}
    assert set(module._GPU_OF_CUDA_NAME.values()) <= known
    assert registered_gpu("NVIDIA H200").name == "h200-sxm-141gb"  # type: ignore[union-attr]
    assert registered_gpu("NVIDIA H200 NVL") is None


def test_what_is_known_of_a_cpu(install: Any) -> None:
    install(fake_torch())
    found = find_device("cpu")
    assert (found.kind, found.torch_name, found.spec, found.driver) == ("cpu", "cpu", None, None)
    assert found.name
    assert found.cache_bytes > 0


def test_the_largest_cache_that_the_system_names(tmp_path: Path) -> None:
    for index, size in enumerate(["32K", "1024K", "32768K", "odd"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert module._cpu_cache_bytes(tmp_path) == 32 << 20
    assert module._cpu_cache_bytes(tmp_path / "none") > 0


class Nvml(SimpleNamespace):
    """A driver that answers, but for the power, which it refuses."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.broken = False

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        if uuid != "GPU-1234":
            raise self.NVMLError("Not Found")
        return "by uuid"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"by index {index}"

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x01 | 0x04 | 0x40

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return {1: 1980, 2: 3201}[clock]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 55

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        raise self.NVMLError("Not Supported")


def test_what_the_driver_says(install: Any) -> None:
    install(fake_torch("NVIDIA H200"), pynvml=Nvml())
    found = find_device("cuda:0")
    assert found.driver == "580.1"
    assert found.monitor.missing == ""
    assert found.monitor.read() == Reading(1980, 3201, 55, None, ("power cap", "thermal (hardware)"))


def test_the_driver_is_asked_by_uuid_then_by_index(install: Any) -> None:
    nvml = Nvml()
    install(None, pynvml=nvml)
    assert open_monitor(3, "1234")._handle == "by uuid"
    assert open_monitor(3, "GPU-5678")._handle == "by index 3"
    assert open_monitor(3, None)._handle == "by index 3"
    assert nvml.asked == ["GPU-1234", "GPU-5678"]


def test_a_driver_that_is_not_loaded_is_recorded(install: Any) -> None:
    nvml = Nvml()
    nvml.broken = True
    install(None, pynvml=nvml)
    monitor = open_monitor(0, None)
    assert (monitor.missing, monitor.read(), monitor.driver()) == ("NVML: Driver Not Loaded", None, None)


def test_readings_are_summed_up_by_their_extremes() -> None:
    readings = [Reading(1980, 3201, 50, 300.0), Reading(1200, 3201, 80, 700.0, ("power cap",)), Reading()]
    assert summary(readings) == {
        "readings": 3,
        "sm_clock_mhz": [1200, 1980],
        "temperature_c": [50, 80],
        "power_w": [300.0, 700.0],
        "throttled_readings": 1,
        "throttling": ["power cap"],
    }
    assert summary([]) == {}
    assert Monitor(None, None).read() is None
