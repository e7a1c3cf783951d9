"""What is believed of a kernel table: units, the physical limit, equal rows, isolated spikes. Nothing goes unsaid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calib.errors import CalibrationError
from calib.table import Floats, Rows
from simkit.latency.profile import MEMORY_BOUND_OPS, Limits, work_of

FAR_APART = 1.25
"""Equal keys whose slowest time is more than this many times the fastest are a warning."""

UNITS_FACTOR = {"gemm": 100.0, "attention_decode": 300.0, "attention_prefill": 300.0}
"""A median of large calls this far from the physical limit is a matter of units, not of a slow kernel."""

BIG_US = 5.0
"""GEMMs for which the hardware needs this long are not dominated by launching them."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows with one row a key, and how many keys had several measurements, how far apart."""

    rows: Rows
    num_merged: int
    far_apart: tuple[str, ...]


def check_units(rows: Rows, limits: Limits) -> None:
    """Raise CalibrationError when the median large call is orders of magnitude from what the GPU can do."""
    fastest = limits.fastest_us(work_of(rows.op, rows.dtype, rows.sizes))
    big = fastest >= min(BIG_US, float(np.median(fastest)))
    ratio = float(np.median(rows.us[big] / fastest[big]))
    factor = UNITS_FACTOR[rows.op]
    if 1 / factor < ratio < factor:
        return
    unit = "milliseconds or seconds" if ratio < 1 else "nanoseconds"
    raise CalibrationError(
        f"latency_us: the median {rows.dtype} {rows.op} takes {ratio:.3g} x the physical limit of the GPU: expected "
        f"microseconds, these look like {unit} (or the table is of another GPU)"
    )


def split_by_limit(rows: Rows, limits: Limits) -> tuple[Rows, Rows]:
    """(rows that the hardware allows, rows that beat its bandwidth or FLOP/s although their operands are in memory)."""
    if rows.op not in MEMORY_BOUND_OPS:
        return rows, rows.take(np.zeros(len(rows), dtype=bool))
    allowed = rows.us >= limits.fastest_us(work_of(rows.op, rows.dtype, rows.sizes))
    return rows.take(allowed), rows.take(~allowed)


def merge_equal(rows: Rows) -> Merged:
    """Rows of equal sizes become their median. Rows come out sorted by size."""
    keys = np.stack(list(rows.sizes.values()), axis=1)
    distinct, inverse, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    order = np.lexsort((rows.us, inverse.reshape(-1)))
    sorted_us, starts = rows.us[order], np.concatenate([[0], np.cumsum(counts)[:-1]])
    low, high = (counts - 1) // 2, counts // 2
    us: Floats = (sorted_us[starts + low] + sorted_us[starts + high]) / 2.0
    merged = Rows(rows.op, rows.dtype, {name: distinct[:, i] for i, name in enumerate(rows.sizes)}, us)
    ratio = sorted_us[starts + counts - 1] / sorted_us[starts]
    far = tuple(
        f"{merged.describe(int(i))}: {counts[i]} measurements, slowest {ratio[i]:.2f} x fastest"
        for i in np.flatnonzero(ratio > FAR_APART)
    )
    return Merged(merged, int((counts > 1).sum()), far)
