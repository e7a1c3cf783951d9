"""From a kernel table to a profile: checks, one fit an op, errors where it was not fitted, and the JSON of it all.

Needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calib import CalibrationError
from calib.fit.fit_op import fit_op, spikes
from calib.fit.launches import Json, Launches, check_equal_times, fit_mixed, fit_skew, launches_of
from calib.fit.score import Score, predict, score
from calib.table import UNITS_FACTOR, Rows, Table, check_units, merge_equal, split_by_limit
from simkit.latency.profile import (
    AXES,
    BLOCK_SCALED,
    SCHEMA,
    Limits,
    OpFit,
    Profile,
    grid_keys,
    parse_profile,
    to_nested,
)
from simkit.specs.hardware import GpuSpec

Progress = Callable[[float, str], None]

LISTED = 8
"""Refused rows, outliers and warnings that a profile lists in full; it counts them all."""

REQUIRED = ("gemm", "attention_decode", "attention_prefill")


@dataclass(frozen=True, slots=True)
class OpReport:
    """What became of the rows of one op, and how well they are predicted."""

    op: str
    dtype: str
    num_rows: int
    num_shapes: int
    num_merged: int
    num_filled: int
    refused: tuple[str, ...]
    outliers: tuple[str, ...]
    far_apart: tuple[str, ...]
    num_clamped: int
    score: Score | None

    def as_json(self, listed: int | None = LISTED) -> Json:
        """As a profile has it, with at most `listed` rows of a kind in full (None: all)."""
        return {
            "rows": self.num_rows,
            "shapes": self.num_shapes,
            "merged": self.num_merged,
            "filled_between": self.num_filled,
            "clamped": self.num_clamped,
            "refused": _listed(self.refused, listed),
            "outliers": _listed(self.outliers, listed),
            "far_apart": _listed(self.far_apart, listed),
            "errors": None if self.score is None else self.score.as_json(),
        }


@dataclass(frozen=True, slots=True)
class FitResult:
    """A fitted profile: its JSON text, the same parsed, and the report by op."""

    text: str
    profile: Profile
    reports: tuple[OpReport, ...]
    unusable: tuple[str, ...]


def fit_table(
    table: Table,
    gpu: GpuSpec,
    name: str,
    provenance: Mapping[str, object],
    *,
    more: Seq[Launches] = (),
    progress: Progress | None = None,
    experts: Seq[Json] = (),
) -> FitResult:
    """Fit every op of `table`; `more` are launches of unlike sequences that no kernel table can hold, `experts` what
    `fit.experts` made of a table of its own.

    Raises CalibrationError for wrong units and for a table without the main kernels.
    """
    _check_required(table)
    plain = [rows for rows in table.rows.values() if rows.op in AXES]
    for rows in (rows for rows in plain if rows.op in UNITS_FACTOR):
        check_units(rows, limits_of(rows.op, rows.dtype, gpu))
    report = progress or (lambda done, label: None)
    fitted = []
    for index, rows in enumerate(plain):
        report(index / (len(plain) + 1), f"fitting {rows.op} {rows.dtype}")
        fitted.append(_fit_one(rows, limits_of(rows.op, rows.dtype, gpu)))
    report(len(plain) / (len(plain) + 1), "fitting launches of unlike sequences")
    fits = {found.fit.op: found.fit for found in fitted}
    mixed, unequal = _launches(table, more)
    check_equal_times(unequal, fits["attention_decode"])
    varlen, rule = fit_mixed(mixed, fits["attention_prefill"], fits["attention_decode"], gpu)
    data = {
        "schema": SCHEMA,
        "name": name,
        "gpu": _gpu(gpu),
        "provenance": {
            **provenance,
            "sources": list(table.sources),
            "table_sha256": table.sha256,
            "table_rows": table.num_rows,
        },
        "host": _host(table),
        "mixed": rule,
        "skew": fit_skew(unequal, fits["attention_decode"], varlen, gpu),
        "ops": [_op_json(found.fit, found.report) for found in fitted],
    }
    if experts:
        data["experts"] = list(experts)
    text = to_text(data)
    return FitResult(text, parse_profile(text, name), tuple(found.report for found in fitted), table.unusable)


def _check_required(table: Table) -> None:
    """CalibrationError for a table without the main kernels, with a line that could not be read of one."""
    missing = [op for op in REQUIRED if not any(key[0] == op for key in table.rows)]
    if missing:
        why = next((f"; {line}" for line in table.unusable if any(f" {op} " in line for op in missing)), "")
        raise CalibrationError(f"no usable row of {', '.join(missing)}: a profile needs {', '.join(REQUIRED)}{why}")


def _launches(table: Table, more: Seq[Launches]) -> tuple[list[Launches], list[Launches]]:
    """(launches of a chunk beside decodes, launches of unequal decodes): those of the table, then `more`."""
    parts = [*(part for rows in table.rows.values() for part in launches_of(rows)), *more]
    return [part for part in parts if (part.q > 0).all()], [part for part in parts if not (part.q > 0).any()]


def limits_of(op: str, dtype: str, gpu: GpuSpec) -> Limits:
    """What `op` cannot beat: the link for copies to the host and between GPUs, else compute and memory.

    Raises CalibrationError for a format that the GPU does not compute in.
    """
    peak = gpu.peak_flops_per_s.get(BLOCK_SCALED.get(dtype, dtype))
    if peak is None:
        raise CalibrationError(f"{op}: {gpu.name} has no {dtype}; it computes in {', '.join(gpu.peak_flops_per_s)}")
    rates = {
        "memcpy_h2d": gpu.pcie_bytes_per_s,
        "memcpy_d2h": gpu.pcie_bytes_per_s,
        "all_reduce": gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s,
    }
    return Limits(peak, rates.get(op) or gpu.hbm_bytes_per_s)


@dataclass(frozen=True, slots=True)
class _FittedOp:
    """An op as a profile has it, and the report on it."""

    fit: OpFit
    report: OpReport


def _fit_one(raw: Rows, limits: Limits) -> _FittedOp:
    allowed, refused = split_by_limit(raw, limits)
    if not len(allowed):
        raise CalibrationError(f"{raw.op} {raw.dtype}: every row is faster than the hardware allows: {raw.describe(0)}")
    merged = merge_equal(allowed)
    fitted = fit_op(merged.rows, limits)
    report = OpReport(
        op=raw.op,
        dtype=raw.dtype,
        num_rows=len(raw),
        num_shapes=len(merged.rows),
        num_merged=merged.num_merged,
        num_filled=fitted.num_filled,
        refused=tuple(refused.describe(i) for i in range(len(refused))),
        outliers=tuple(merged.rows.describe(int(i)) for i in spikes(merged.rows, fitted.grid)),
        far_apart=merged.far_apart,
        num_clamped=predict(fitted.fit, merged.rows).num_clamped,
        score=score(merged.rows, limits),
    )
    return _FittedOp(fitted.fit, report)


def _op_json(fit: OpFit, report: OpReport) -> Json:
    grids = []
    for key, grid in sorted(fit.grids.items()):
        axes = {name: _numbers(axis) for name, axis in zip(AXES[fit.op], grid.axes, strict=True)}
        keys = dict(zip(grid_keys(fit.op, fit.dtype), key, strict=True))
        grids.append({**keys, "axes": axes, "log_residual_per_mille": to_nested(grid.residuals)})
    return {
        "op": fit.op,
        "dtype": fit.dtype,
        "limits": asdict(fit.limits),
        "physics": asdict(fit.physics),
        "sheets": grids,
        "report": report.as_json(),
    }


def _host(table: Table) -> dict[str, float] | None:
    """A line through the host times over running sequences, its ends not below 0; None where none was measured."""
    found = [rows for (op, _), rows in table.rows.items() if op == "host_overhead"]
    if not found:
        return None
    seqs, us = found[0].sizes["m"], found[0].us
    slope = 0.0
    if len(np.unique(seqs)) > 1:
        slope = max(0.0, float(np.polyfit(seqs, us, 1)[0]))
    return {"fixed_us": round(max(0.0, float(np.median(us - slope * seqs))), 3), "per_seq_us": round(slope, 5)}


def _gpu(gpu: GpuSpec) -> Json:
    names = ("name", "hbm_bytes_per_s", "pcie_bytes_per_s", "nvlink_bytes_per_s", "num_sms")
    return {name: getattr(gpu, name) for name in names} | {"peak_flops_per_s": dict(gpu.peak_flops_per_s)}


def _listed(lines: tuple[str, ...], most: int | None) -> Json:
    return {"count": len(lines), "first": list(lines[:most])}


def _numbers(axis: Any) -> list[int | float]:
    return [int(value) if value == int(value) else float(value) for value in axis]


def to_text(data: Any) -> str:
    """JSON with one op, grid and row of residuals a line or so: diffs stay readable, files stay small."""
    return _text(data, 0) + "\n"


def _text(value: Any, depth: int) -> str:
    flat = json.dumps(value, separators=(",", ":"), allow_nan=False)
    if not isinstance(value, dict | list) or not value or (len(flat) <= 100 and depth > 1) or _is_row(value):
        return flat
    if isinstance(value, dict):
        inner = [f"{json.dumps(key)}:{_text(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner) + "}"
    return "[\n" + ",\n".join(_text(item, depth + 1) for item in value) + "]"


def _is_row(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(item, dict | list | str) for item in value)
