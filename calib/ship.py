"""Makes the profiles that ship from the kernel tables they were imported from: ``python -m calib.ship FOLDER ...``.

Owns their provenance and licences, and the tables that come beside: what decodes of unequal length cost on RTX PRO
6000, in a form of its own, its all-reduces, and, of other hands, GEMMs of H100 and H200 with scales by block, layers of
latent attention, attention with windows, and routed experts. Needs no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np

from calib.fit.experts import experts_json
from calib.fit.fit import fit_table
from calib.table import Rows, Table, joined, read_table
from calib.tables import Tables, read_tables
from simkit.specs.hardware import load_gpu

AICONFIGURATOR = {"measured_by": "NVIDIA, aiconfigurator-core 0.12.0", "licence": "Apache-2.0"}
SIM = "NVIDIA, aisimulate 0.13.0.dev202610270000000085, vLLM 0.25.0 kernels, Apache-2.0"
CORE = "NVIDIA, aiconfigurator-core 0.12.0, vLLM 0.24 kernels, Apache-2.0"
OTHER_TABLES = {"fp8_block": SIM, "latent": SIM, "windows": SIM, "experts": SIM}
PROVENANCE: dict[str, dict[str, str]] = {
    "a100-sxm4-80gb": {
        **AICONFIGURATOR,
        "software": "vLLM 0.14 kernels",
        "experts": "NVIDIA, aiconfigurator-core 0.12.0, vLLM 0.14 kernels, Apache-2.0",
    },
    "h100-sxm5-80gb": {**AICONFIGURATOR, "software": "vLLM 0.24 kernels", **OTHER_TABLES},
    "h200-sxm-141gb": {**AICONFIGURATOR, "software": "vLLM 0.24 kernels", **OTHER_TABLES},
    "rtx-pro-6000": {
        "measured_by": "KAIST, LLMServingSim 5daddb2",
        "licence": "MIT",
        "software": "vLLM 0.19 kernels, eager, shapes of Llama-3.1-8B",
        "all_reduce": "NVIDIA, aiconfigurator-core 0.12.0, vLLM 0.24 custom all-reduce over PCIe, Apache-2.0",
        "latent": CORE,
        "windows": CORE,
        "experts": CORE,
    },
    "l40s-48gb": {
        **AICONFIGURATOR,
        "software": "vLLM 0.24 kernels",
        "all_reduce": "NVIDIA, aiconfigurator-core 0.12.0, vLLM 0.14 custom all-reduce over PCIe, Apache-2.0",
        "latent": CORE,
        "windows": CORE,
    },
}
"""Where the parts are from that stand in tables of their own: `all_reduce` in `NAME.comm.csv.gz`, GEMMs of fp8 with
scales by block (`fp8_block`) in `NAME.dense.csv.gz`, layers of latent attention (`latent`) in `NAME.mla.csv.gz`,
attention with other widths of a head and with windows (`windows`) in `NAME.attention.csv.gz`, routed experts
(`experts`) in `NAME.moe.csv.gz`. A GPU without a table `NAME.csv.gz` has all its dense kernels in the second."""

EXPERTS = {
    "a100-sxm4-80gb": ("bfloat16",),
    "h100-sxm5-80gb": ("bfloat16", "fp8_block", "int4_wo", "w4a16_mxfp4"),
    "h200-sxm-141gb": ("bfloat16", "fp8_block", "int4_wo", "w4a16_mxfp4"),
    "rtx-pro-6000": ("bfloat16", "fp8", "int4_wo", "nvfp4", "w4a16_mxfp4"),
}
"""Formats of routed experts that are taken of `NAME.moe.csv.gz`. Of H100 and H200 those of fp8 with one scale are left
out: that kernel (CUTLASS of FlashInfer, for checkpoints of ModelOpt) reaches 0.18 of the peak and of the bandwidth,
which is slower than experts in 16 bits. On RTX PRO 6000 the same kernel reaches 0.9 of the bandwidth."""

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
    return _with_rows_of_blocks(table, read_table(dense).rows["gemm", "fp8_block"])


def with_latent(table: Table, latent: Path) -> Table:
    """`table` and the layers of latent attention of a table of these."""
    return replace(table, rows={**table.rows, **read_table(latent).rows})


def with_heads_and_windows(table: Table, attention: Path) -> Table:
    """`table` and attention with other widths of a head, and with windows, of a table of these."""
    found = dict(table.rows)
    for key, rows in read_table(attention).rows.items():
        found[key] = joined(found[key], rows) if key in found else rows
    return replace(table, rows=found)


def _with_rows_of_blocks(table: Table, rows: Rows) -> Table:
    key = ("gemm", "fp8_block")
    wide = (rows.sizes["n"] >= BLOCK_SIDE) & (rows.sizes["k"] >= BLOCK_SIDE)
    return replace(table, rows={**table.rows, key: rows.take(wide & np.isin(rows.sizes["m"], BLOCK_ROWS))})


def gathered(name: str, folders: Seq[Path]) -> Tables:
    """All tables of one profile but for experts, each from the first of the folders that has it."""
    provenance, dense = PROVENANCE[name], _found(f"{name}.dense", folders)
    skew = _found(f"{name}-skew", folders)
    plain = _found(name, folders) or dense
    assert plain is not None, f"no table of {name}"
    found = read_tables([plain, *([skew] if skew is not None else [])])
    table = found.table
    if ("gemm", "fp8_block") in table.rows:
        table = _with_rows_of_blocks(table, table.rows["gemm", "fp8_block"])
    for part, end, add in _PARTS:
        if part in provenance:
            path = _found(f"{name}.{end}", folders)
            assert path is not None, f"no table {name}.{end}"
            table = add(table, path)
    return replace(found, table=table)


_PARTS = (
    ("all_reduce", "comm", with_all_reduces),
    ("fp8_block", "dense", with_block_scaled),
    ("latent", "mla", with_latent),
    ("windows", "attention", with_heads_and_windows),
)


def _found(stem: str, folders: Seq[Path]) -> Path | None:
    return next((path for folder in folders if (path := folder / f"{stem}.csv.gz").exists()), None)


def experts_of(name: str, folders: Seq[Path]) -> list[dict[str, object]]:
    """The routed experts of a profile, from a table of them; none for a GPU without."""
    if name not in EXPERTS:
        return []
    path = _found(f"{name}.moe", folders)
    assert path is not None, f"no table {name}.moe"
    return experts_json(path, EXPERTS[name], load_gpu(name))


def ship(folders: Seq[Path], into: Path = FOLDER) -> list[Path]:
    """Write the profile of every table that ships; the paths written."""
    written = []
    for name, provenance in PROVENANCE.items():
        found, experts = gathered(name, folders), experts_of(name, folders)
        result = fit_table(found.table, load_gpu(name), name, provenance, more=found.launches, experts=experts)
        written.append(into / f"{name}.json")
        written[-1].write_text(result.text, encoding="utf-8")
    return written


if __name__ == "__main__":
    for path in ship([Path(text) for text in sys.argv[1:]]):
        print(f"{path}: {path.stat().st_size:,} bytes")
