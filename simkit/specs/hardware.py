"""GPUs: the registry `simkit/data/gpus.yaml` and a user's YAML file of the same keys. Knows no model and no engine."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from simkit.errors import InputError, nearest

DTYPES = ("float16", "bfloat16", "fp8", "int8", "nvfp4", "float32")
_REQUIRED = (
    "memory_gib",
    "hbm_bytes_per_s",
    "peak_flops_per_s",
    "pcie_bytes_per_s",
    "nvlink_bytes_per_s",
    "num_sms",
    "compute_capability",
)
_OPTIONAL = ("name", "vendor", "memory_bytes", "sources")


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Data sheet figures of one GPU.

    `memory_gib` is the usable total that driver and engine report, `memory_bytes` what the box says (0 when a user's
    file leaves it out). `peak_flops_per_s` is dense and has only the dtypes the chip computes in. Link rates are per
    GPU and direction; `nvlink_bytes_per_s` 0 means none. `sources` maps a figure, or "all", to a document title.
    """

    name: str
    vendor: str
    memory_gib: float
    hbm_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    pcie_bytes_per_s: float
    nvlink_bytes_per_s: float
    num_sms: int
    compute_capability: str
    sources: Mapping[str, str]
    memory_bytes: int = 0


def load_gpu(name_or_path: str) -> GpuSpec:
    """The GPU of a registered name or alias (any case), else of a YAML file with the keys of `simkit/data/gpus.yaml`.

    The file holds one mapping; `name`, `vendor`, `memory_bytes` and `sources` may be left out. Raises InputError for
    a name that is not known (naming the nearest), a missing file, or a wrong key or value (naming file and key).
    """
    registry = _registry()
    key = name_or_path.strip().lower()
    if key in registry:
        return registry[key]
    path = Path(name_or_path).expanduser()
    if path.exists() or "/" in name_or_path or path.suffix in (".yaml", ".yml"):
        return _read(path)
    raise InputError(f"{name_or_path!r} is not known{nearest(key, registry)} (list: simkit gpus)", key="hardware.gpu")


def list_gpus() -> list[GpuSpec]:
    """All registered GPUs, sorted by name."""
    return sorted({gpu.name: gpu for gpu in _registry().values()}.values(), key=lambda gpu: gpu.name)


def is_alias(name: str) -> bool:
    """Whether a name stands for a registered GPU that is called otherwise."""
    known = _registry().get(name.strip().lower())
    return known is not None and known.name != name


@functools.cache
def _registry() -> dict[str, GpuSpec]:
    """Lower-case name or alias to GPU."""
    text = resources.files("simkit").joinpath("data/gpus.yaml").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    registry: dict[str, GpuSpec] = {}
    for name, row in rows.items():
        aliases = row.pop("aliases", [])
        spec = _Fields("gpus.yaml", row).spec(name)
        for key in (name, *aliases):
            if key in registry:
                raise ValueError(f"gpus.yaml: {key} is listed twice")
            registry[key] = spec
    return registry


def _read(path: Path) -> GpuSpec:
    try:
        row = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}", key="hardware.gpu") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file", key="hardware.gpu") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(
            f"{where}: not YAML: {getattr(error, 'problem', None) or 'syntax'}", key="hardware.gpu"
        ) from None
    if not isinstance(row, dict):
        raise InputError(f"{path}: expected a mapping with the keys {', '.join(_REQUIRED)}", key="hardware.gpu")
    return _Fields(str(path), row).spec(path.stem)


class _Fields:
    """Checked access to the keys of one GPU."""

    def __init__(self, where: str, row: dict[Any, Any]) -> None:
        self._where = where
        self._row = row

    def spec(self, default_name: str) -> GpuSpec:
        """The GPU; an unknown or missing key is an error."""
        for key in self._row:
            if key not in (*_REQUIRED, *_OPTIONAL):
                raise self._error(str(key), f"unknown key{nearest(str(key), (*_REQUIRED, *_OPTIONAL))}")
        for key in _REQUIRED:
            if key not in self._row:
                raise self._error(key, "missing")
        return GpuSpec(
            name=self._text("name", default_name),
            vendor=self._text("vendor", "unknown"),
            memory_gib=self._positive("memory_gib"),
            hbm_bytes_per_s=self._positive("hbm_bytes_per_s"),
            peak_flops_per_s=self._peaks(),
            pcie_bytes_per_s=self._positive("pcie_bytes_per_s"),
            nvlink_bytes_per_s=self._number("nvlink_bytes_per_s", self._row["nvlink_bytes_per_s"]),
            num_sms=self._count("num_sms"),
            compute_capability=self._text("compute_capability", ""),
            sources=self._sources(),
            memory_bytes=self._count("memory_bytes") if "memory_bytes" in self._row else 0,
        )

    def _peaks(self) -> Mapping[str, float]:
        peaks = self._row["peak_flops_per_s"]
        if not isinstance(peaks, dict) or not peaks:
            raise self._error("peak_flops_per_s", f"expected a mapping from {', '.join(DTYPES)} to FLOP/s")
        for dtype in peaks:
            if dtype not in DTYPES:
                raise self._error(f"peak_flops_per_s.{dtype}", f"unknown dtype; expected one of {', '.join(DTYPES)}")
        values = {dtype: self._number(f"peak_flops_per_s.{dtype}", peaks[dtype]) for dtype in DTYPES if dtype in peaks}
        for dtype, value in values.items():
            if value == 0:
                raise self._error(f"peak_flops_per_s.{dtype}", "expected a number > 0, got 0; leave the dtype out")
        return values

    def _sources(self) -> Mapping[str, str]:
        sources = self._row.get("sources", {"all": self._where})
        if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
            raise self._error("sources", "expected a mapping from a figure (or 'all') to a document title")
        return {str(figure): text for figure, text in sources.items()}

    def _positive(self, key: str) -> float:
        value = self._number(key, self._row[key])
        if value == 0:
            raise self._error(key, "expected a number > 0, got 0")
        return value

    def _number(self, key: str, value: Any) -> float:
        # YAML 1.1 reads 2.039e12 (no sign in the exponent) as text, so number-like text counts as a number.
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise self._error(key, f"expected a number >= 0, got {value!r}")
        return number

    def _count(self, key: str) -> int:
        value = self._positive(key)
        if value != int(value):
            raise self._error(key, f"expected an integer >= 1, got {self._row[key]!r}")
        return int(value)

    def _text(self, key: str, default: str) -> str:
        value = self._row.get(key, default)
        if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
            raise self._error(key, f"expected text, got {value!r}")
        return str(value)

    def _error(self, key: str, what: str) -> InputError:
        return InputError(f"{self._where}: {key}: {what}", key="hardware.gpu")
