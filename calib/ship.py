"""Makes the profiles that ship from the kernel tables they were imported from: ``python -m calib.ship FOLDER``.

Owns their provenance and licences, and the tables that come beside: what decodes of unequal length cost on RTX PRO
6000, in a form of its own, its all-reduces, and GEMMs of H100 and H200 with scales by block, of other hands. Needs no
torch.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from calib.fit.fit import fit_table
from calib.table import Table, read_table
from calib.tables import read_tables
from simkit.specs.hardware import load_gpu

AICONFIGURATOR = {"measured_by": "NVIDIA, aiconfigurator-core 0.12.0", "licence": "Apache-2.0"}
BLOCK_SCALED = {"fp8_block": "NVIDIA, aisimulate 0.13.0.dev202610270000000085, vLLM 0.25.0 kernels, Apache-2.0"}
PROVENANCE: dict[str, dict[str, str]] = {
    "a100-sxm4-80gb": {**AICONFIGURATOR, "software": "vLLM 0.14 kernels"},
    "h100-sxm5-80gb": {**AICONFIGURATOR, "software": "vLLM 0.24 kernels", **BLOCK_SCALED},
    "h200-sxm-141gb": {**AICONFIGURATOR, "software": "vLLM 0.24 kernels", **BLOCK_SCALED},
    "rtx-pro-6000": {
        "measured_by": "KAIST, LLMServingSim 5daddb2",
        "licence": "MIT",
        "software": "vLLM 0.19 kernels, eager, shapes of Llama-3.1-8B",
        "all_reduce": "NVIDIA, aiconfigurator-core 0.12.0, vLLM 0.24 custom all-reduce over PCIe, Apache-2.0",
    },
}
"""`all_reduce` and `fp8_block`: where all-reduces, and GEMMs of fp8 with scales by block, are from that stand in tables
of their own, `NAME.comm.csv.gz` and `NAME.dense.csv.gz`."""

BLOCK_ROWS = (1, 2, 4, 8, 16, 17, 32, 33, 48, 64, 65, 80, 96, 97, 112, 128, 129, 160, 161, 192, 224, 256, 257, 512, 513,
              1024, 1025, 1536, 2048, 2049, 3072, 4096, 8192, 16384, 32768)  # fmt: skip
BLOCK_SIDE = 128
"""What is taken of the GEMMs with scales by block: these numbers of rows, and no side shorter than a block."""

FOLDER = Path(__file__).parent / "profiles"


def with_all_reduces(table: Table, collectives: Path) -> Table:
    """`table` and the all-reduces of a table of collectives, of which nothing else is taken."""
    key = ("all_reduce", "bfloat16")
    return replace(table, rows={**table.rows, key: read_table(collectives).rows[key]})


def with_block_scaled(table: Table, dense: Path) -> Table:
    """`table` and the GEMMs with scales by block of a table of dense kernels."""
    key = ("gemm", "fp8_block")
    rows = read_table(dense).rows[key]
    wide = (rows.sizes["n"] >= BLOCK_SIDE) & (rows.sizes["k"] >= BLOCK_SIDE)
    return replace(table, rows={**table.rows, key: rows.take(wide & np.isin(rows.sizes["m"], BLOCK_ROWS))})


def ship(tables: Path, folder: Path = FOLDER) -> list[Path]:
    """Write the profile of every table that ships; the paths written."""
    written = []
    for name, provenance in PROVENANCE.items():
        skew = tables / f"{name}-skew.csv.gz"
        found = read_tables([tables / f"{name}.csv.gz", *([skew] if skew.exists() else [])])
        table = found.table
        if "all_reduce" in provenance:
            table = with_all_reduces(table, tables / f"{name}.comm.csv.gz")
        if "fp8_block" in provenance:
            table = with_block_scaled(table, tables / f"{name}.dense.csv.gz")
        result = fit_table(table, load_gpu(name), name, provenance, more=found.launches)
        written.append(folder / f"{name}.json")
        written[-1].write_text(result.text, encoding="utf-8")
    return written


if __name__ == "__main__":
    for path in ship(Path(sys.argv[1])):
        print(f"{path}: {path.stat().st_size:,} bytes")
