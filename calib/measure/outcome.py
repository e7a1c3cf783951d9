"""What a measurement leaves behind: the kernel table `kernels.csv` and `measured.json` about how it was made.

Owns what is derived from measured points (ceilings, spreads, the faster GEMM), the number of digits of a latency, and
what is read back from `measured.json`: the device as a GPU specification, and the provenance of a profile.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calib import CalibrationError
from calib.measure.journal import Entry
from calib.measure.shapes import NOT_IN_TABLE, Point, work
from calib.table import COLUMNS
from simkit.specs.hardware import GpuSpec, load_gpu
from simkit.units import bytes_to_gib

_SIGNIFICANT_DIGITS = 5
_MAX_DECIMALS = 3

CPU_HEADROOM = 1.25
"""A CPU has no data sheet that holds for this machine: its limits are the best rates measured and so much more."""

Info = dict[str, Any]
"""The content of `measured.json`."""


@dataclass(frozen=True, slots=True)
class GemmRatio:
    """How many times as long simkit's GEMM takes as the vendor's for one shape, and its configuration."""

    m: int
    n: int
    k: int
    ratio: float
    config: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the points of an op: samples, ways of timing, and (p90 - p10) / median."""

    points: int
    samples: int
    methods: dict[str, int]
    median_spread: float
    p90_spread: float


def latency_text(latency_us: float) -> str:
    """Five significant digits, at most three decimals, never an exponent."""
    if latency_us <= 0:
        raise ValueError(f"a latency must be above 0, got {latency_us}")
    decimals = min(_MAX_DECIMALS, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(latency_us)))
    return f"{round(latency_us, decimals):.{max(0, decimals)}f}"


def table_text(entries: Iterable[Entry]) -> str:
    """The kernel table, rows sorted by op and size."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for entry in sorted(entries, key=lambda entry: entry.point.sort_key()):
        if entry.point.op in NOT_IN_TABLE:
            continue
        own = {"dtype": entry.dtype, "latency_us": latency_text(entry.timing.median_us), "source": entry.source}
        writer.writerow({**entry.point.cells(), **own})
    return text.getvalue()


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises CalibrationError."""
    draft = path.with_name(path.name + ".tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise CalibrationError(f"{path}: {error.strerror or error}") from None


def write_info(path: Path, info: Info) -> None:
    """Write `measured.json`."""
    write_text(path, json.dumps(info, indent=2) + "\n")


def table_info(table: str) -> dict[str, object]:
    """Rows and hash of the table, to tell which one a profile came from."""
    return {"rows": table.count("\n") - 1, "sha256": hashlib.sha256(table.encode()).hexdigest()}


def ceilings(entries: Collection[Entry]) -> dict[str, float | None]:
    """The best rates reached; None where nothing was measured. A copy counts what it reads and what it writes."""
    return {
        "copy_bytes_per_s": _best(entries, ("memcpy_d2d",), "bytes"),
        "cached_copy_bytes_per_s": _best(entries, ("memcpy_d2d_cached",), "bytes"),
        "matmul_flops_per_s": _best(entries, ("gemm", "gemm_triton"), "flops"),
    }


def _best(entries: Iterable[Entry], ops: Collection[str], quantity: str) -> float | None:
    rates = [
        getattr(work(entry.point, 1), quantity) / entry.timing.median_us * 1e6
        for entry in entries
        if entry.point.op in ops
    ]
    return max(rates, default=None)


def spreads(entries: Iterable[Entry]) -> dict[str, Spread]:
    """For each op how far its samples lie apart."""
    by_op: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.point.sort_key()):
        by_op.setdefault(entry.point.op, []).append(entry)
    return {
        op: Spread(
            points=len(found),
            samples=sum(entry.timing.samples for entry in found),
            methods=dict(sorted(Counter(entry.timing.method for entry in found).items())),
            median_spread=_rank([entry.timing.spread for entry in found], 0.5),
            p90_spread=_rank([entry.timing.spread for entry in found], 0.9),
        )
        for op, found in by_op.items()
    }


def _rank(values: list[float], share: float) -> float:
    return round(sorted(values)[math.ceil(share * len(values)) - 1], 4)


def gemm_backends(entries: Iterable[Entry]) -> Info | None:
    """How simkit's GEMM compares with the vendor's where both were measured; None where they never were."""
    by_point = {entry.point: entry for entry in entries}
    rows = []
    for point, own in sorted(by_point.items(), key=lambda item: item[0].sort_key()):
        vendor = by_point.get(Point("gemm", m=point.m, n=point.n, k=point.k))
        if point.op == "gemm_triton" and vendor is not None:
            ratio = own.timing.median_us / vendor.timing.median_us
            rows.append(GemmRatio(point.get("m"), point.get("n"), point.get("k"), round(ratio, 4), own.way))
    if not rows:
        return None
    faster = sum(row.ratio < 1 for row in rows)
    mean = math.exp(sum(math.log(row.ratio) for row in rows) / len(rows))
    return {
        "points": len(rows),
        "vendor_faster": len(rows) - faster,
        "triton_faster": faster,
        "mean_time_ratio_triton_to_vendor": round(mean, 4),
        "by_point": [asdict(row) for row in rows],
    }


def read_info(path: Path) -> Info:
    """The content of `measured.json`. Raises CalibrationError."""
    try:
        found: Info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: cannot be read: {error}") from None
    return found


def info_beside(table: Path) -> Info | None:
    """`measured.json` beside a table that simkit measured, if it is of that very table."""
    path = table.with_name("measured.json")
    if not path.is_file() or not table.is_file():
        return None
    info = read_info(path)
    found = info.get("table", {}).get("sha256") == hashlib.sha256(table.read_bytes()).hexdigest()
    return info if found else None


def spec_of(info: Info, gpu_spec: str | None) -> GpuSpec:
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


def provenance_of(info: Info) -> dict[str, object]:
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
