"""What `measured.json` says of a measurement: the device as a GPU specification, and the provenance of a profile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calib.errors import CalibrationError
from simkit.specs.hardware import GpuSpec, load_gpu
from simkit.units import bytes_to_gib

CPU_HEADROOM = 1.25
"""A CPU has no data sheet that holds for this machine: its limits are the best rates measured and so much more."""


def read_info(path: Path) -> dict[str, Any]:
    """The content of `measured.json`. Raises CalibrationError."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: cannot be read: {error}") from None
    return found


def info_beside(table: Path) -> dict[str, Any] | None:
    """`measured.json` beside a table that simkit measured, if it is of that very table."""
    path = table.with_name("measured.json")
    if not path.is_file() or not table.is_file():
        return None
    info = read_info(path)
    found = info.get("table", {}).get("sha256") == hashlib.sha256(table.read_bytes()).hexdigest()
    return info if found else None


def spec_of(info: Mapping[str, Any], gpu_spec: str | None) -> GpuSpec:
    """The registered GPU that was measured; of a CPU what its own measurements say.

    A CPU's bandwidth is that of its caches, in which the operands of small calls stay.
    """
    identity = info["identity"]
    if info["kind"] == "cuda":
        return load_gpu(gpu_spec or identity["gpu"])
    ceilings = info["ceilings"]
    copied = max(ceilings["copy_bytes_per_s"] or 0.0, ceilings["cached_copy_bytes_per_s"] or 0.0)
    if not copied or not ceilings["matmul_flops_per_s"]:
        raise CalibrationError("the ceilings of this CPU were not measured: give it more time")
    flops = ceilings["matmul_flops_per_s"] * CPU_HEADROOM
    return GpuSpec(
        name="cpu",
        vendor=identity["device"],
        memory_gib=bytes_to_gib(info["memory_bytes"] or 0),
        hbm_bytes_per_s=copied * CPU_HEADROOM,
        peak_flops_per_s=dict.fromkeys(("float16", "bfloat16", "float32"), flops),
        pcie_bytes_per_s=copied,
        nvlink_bytes_per_s=0.0,
        num_sms=int(identity["threads"]),
        compute_capability="cpu",
        sources={"all": "measured"},
    )


def provenance_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Who measured what, when, with which software, and whether the device slowed itself down."""
    identity = info["identity"]

    def known(name: str) -> bool:
        return bool(identity.get(name, "unknown") != "unknown")

    software = [f"{name} {identity[name]}" for name in ("torch", "triton", "cuda", "driver") if known(name)]
    return {
        "measured_by": f"simkit {identity['simkit']} calibrate on {identity['device']}",
        "measured_at": info["measured_at"],
        "software": ", ".join(software),
        "models": identity["models"],
        "quick": identity["quick"],
        "clocks": info["clocks"],
        "throttling_seen": info["throttling_seen"],
        "ceilings": info["ceilings"],
        "gemm": {"uses": "gemm: the vendor's library, as engines do", "against_triton": info["gemm_backends"]},
    }
