"""Makes the profiles that ship from the kernel tables they were imported from: ``python -m calib.ship FOLDER``.

Owns their provenance and licences, and the one table of a form of its own: what decodes of unequal length cost on RTX
PRO 6000. Needs no torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from calib.fit.fit import fit_table
from calib.fit.launches import Launches
from calib.table import read_table
from simkit.latency.profile import Heads
from simkit.specs.hardware import load_gpu

AICONFIGURATOR = {"measured_by": "NVIDIA, aiconfigurator-core 0.12.0", "licence": "Apache-2.0"}
PROVENANCE: dict[str, dict[str, str]] = {
    "a100-sxm4-80gb": {**AICONFIGURATOR, "software": "vLLM 0.14 kernels"},
    "h100-sxm5-80gb": {**AICONFIGURATOR, "software": "vLLM 0.24 kernels"},
    "h200-sxm-141gb": {**AICONFIGURATOR, "software": "vLLM 0.24 kernels"},
    "rtx-pro-6000": {
        "measured_by": "KAIST, LLMServingSim 5daddb2",
        "licence": "MIT",
        "software": "vLLM 0.19 kernels, eager, shapes of Llama-3.1-8B",
    },
}
SKEW_LAYERS = 3
"""The table of unequal decodes has times of so many layers."""

FOLDER = Path(__file__).parent / "profiles"


def read_unequal(path: Path) -> tuple[Launches, Launches]:
    """(launches with a chunk, decodes alone) of the table of unequal decodes; its heads are those of Llama-3.1-8B."""
    import pandas as pd

    frame = pd.read_csv(path)
    both = frame["regime"] == "mixed"
    return _launches(frame[both]), _launches(frame[~both])


def _launches(frame: Any) -> Launches:
    column = {name: frame[name].to_numpy(np.float64) for name in frame.columns if name != "regime"}
    return Launches(
        heads=Heads(32, 8, 128, 2.0),
        q=column["pc"],
        before=column["kp"],
        seqs=column["n"],
        context=column["nb"] * column["kv_big"] + (column["n"] - column["nb"]) * column["kvs"],
        longest=column["kv_big"],
        us=column["t_skew_us"] / SKEW_LAYERS,
        # Lengths are multiples of 128, so that a decode has just begun a block.
        decode_edge=np.ones(len(frame)),
        unequal=True,
        mean_us=column["t_mean_us"] / SKEW_LAYERS,
        longest_us=column["t_max_us"] / SKEW_LAYERS,
    )


def ship(tables: Path, folder: Path = FOLDER) -> list[Path]:
    """Write the profile of every table that ships; the paths written."""
    written = []
    for name, provenance in PROVENANCE.items():
        skew = tables / f"{name}-skew.csv.gz"
        more = read_unequal(skew) if skew.exists() else ()
        result = fit_table(read_table(tables / f"{name}.csv.gz"), load_gpu(name), name, provenance, more=more)
        written.append(folder / f"{name}.json")
        written[-1].write_text(result.text, encoding="utf-8")
    return written


if __name__ == "__main__":
    for path in ship(Path(sys.argv[1])):
        print(f"{path}: {path.stat().st_size:,} bytes")
