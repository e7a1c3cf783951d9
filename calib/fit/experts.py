"""Fits the op `moe` of a profile: reads its kernel table, fits the formula, and says how wrong it is.

Owns which rows are believed. Shapes are held out whole, with all their tokens and routings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calib import CalibrationError
from calib.fit.fit_op import fit_physics
from calib.fit.score import HELD_OUT_SEED, HELD_OUT_SHARE, errors_of
from calib.table import LARGEST_SIZE, LONGEST_US, Floats, frame_of
from simkit.latency.profile import (
    EXPERT_FORMATS,
    MEASURED_EXPONENT,
    ExpertFit,
    ExpertShape,
    Limits,
    Load,
    Work,
    balanced_load,
    expert_work,
    lies_between,
    power_law_load,
)
from simkit.specs.hardware import GpuSpec

SPREADS = {"balanced": 0.0, "power_law_1.01": MEASURED_EXPONENT}
"""What is taken of the table, to how unequal it is."""

NOTHING_US = 1e-6
MOST_TOKENS = 16_384
MIN_SHAPES = 10

TWO_MATRICES = {(2688, 1856), (1024, 2688), (2048, 5120), (4096, 2688)}
"""(hidden, inter) of models whose experts have two matrices (Nemotron): the formula counts three."""

OTHER_KERNELS = "situ"
"""In the name of a kernel that computes another activation than the models of this package do."""

BEYOND_CACHE = 1e9
"""Weights that no cache holds a part of that counts; smaller ones were measured without emptying it."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Measured times of one format, by (shape, spread, tokens); NaN where there is none."""

    dtype: str
    shapes: tuple[ExpertShape, ...]
    spreads: Floats
    tokens: Floats
    us: Floats
    num_rows: int
    num_filled: int = 0
    dropped: tuple[str, ...] = ()

    def take(self, chosen: Bools) -> ExpertRows:
        """The shapes of a mask."""
        shapes = tuple(shape for shape, taken in zip(self.shapes, chosen, strict=True) if taken)
        return replace(self, shapes=shapes, us=self.us[chosen])


def read_experts(path: Path, dtype: str) -> ExpertRows:
    """The rows of one format. Raises CalibrationError for a table without any."""
    names = [*ExpertShape._fields]
    found = _usable(path)
    found = found[(found["dtype"] == dtype) & found["distribution"].isin(SPREADS)]
    found = found[~found["kernel"].astype(str).str.contains(OTHER_KERNELS)]
    two = [pair in TWO_MATRICES for pair in zip(found["hidden"], found["inter"], strict=True)]
    found = found[~np.array(two, dtype=bool)]
    if not len(found):
        raise CalibrationError(f"{path}: no usable row of moe {dtype}")
    cells = found.groupby([*names, "distribution", "m"])["latency_us"].median()
    shapes = tuple(sorted({ExpertShape(*(int(size) for size in key[:6])) for key in cells.index}))
    spreads = np.array(sorted({SPREADS[key[6]] for key in cells.index}))
    tokens = np.array(sorted({float(key[7]) for key in cells.index}))
    us = np.full((len(shapes), len(spreads), len(tokens)), np.nan)
    places = {shape: index for index, shape in enumerate(shapes)}
    for key, value in cells.items():
        shape = ExpertShape(*(int(size) for size in key[:6]))
        us[places[shape], np.searchsorted(spreads, SPREADS[key[6]]), np.searchsorted(tokens, key[7])] = value
    return ExpertRows(dtype, shapes, spreads, tokens, us, len(found))


def _usable(path: Path) -> Any:
    """The rows of experts whose sizes and times can be true. CalibrationError where a column is missing."""
    import pandas as pd

    _, frame = frame_of(path)
    sizes = [*ExpertShape._fields, "m", "latency_us"]
    missing = next((name for name in (*sizes, "distribution") if name not in frame.columns), None)
    if missing is not None:
        raise CalibrationError(f"{path}:1: missing column {missing}, which rows of moe need")
    found = frame[frame["op"] == "moe"].reindex(columns=[*frame.columns.union(["kernel"], sort=False)])
    for name in sizes:
        found[name] = pd.to_numeric(found[name], errors="coerce")
    good = (found["latency_us"] > 0) & (found["latency_us"] <= LONGEST_US) & (found["m"] <= MOST_TOKENS)
    for name in sizes[:-1]:
        good &= (found[name] >= 1) & (found[name] <= LARGEST_SIZE) & (found[name] % 1 == 0)
    shared = (found["moe_tp"] > 1) & (found["moe_ep"] > 1)
    fits = (found["num_experts"] % found["moe_ep"] == 0) & (found["topk"] <= found["num_experts"])
    return found[good & fits & ~shared]


def formats_of(path: Path, gpu: GpuSpec) -> tuple[list[str], list[str]]:
    """(formats that are fitted, why others of the table are not). Experts of fp8 with one scale are left out where they
    are slower than those in 16 bits: the kernel is at fault then, which few checkpoints run."""
    found = _usable(path)
    taken, notes = [], []
    for dtype, rows in found.groupby("dtype", sort=True):
        name = str(dtype)
        if name not in EXPERT_FORMATS or EXPERT_FORMATS[name].computed_in not in gpu.peak_flops_per_s:
            notes.append(f"{path.name}: {len(rows)} rows of moe {name}: not known, ignored")
        else:
            taken.append(name)
    if "fp8" in taken and "bfloat16" in taken:
        keys = [*ExpertShape._fields, "m", "distribution"]
        one, wide = (found[found["dtype"] == name].groupby(keys)["latency_us"].median() for name in ("fp8", "bfloat16"))
        ratio = (one / wide).median()
        if ratio > 1.0:
            taken.remove("fp8")
            notes.append(f"{path.name}: rows of moe fp8 take {ratio:.2f} x those in bfloat16, ignored")
    return taken, notes


def believed(rows: ExpertRows, limits: Limits) -> ExpertRows:
    """Without balanced rows of models that did not route as these say, whatever their number of ranks.

    A balanced pass of many tokens reads all experts. Where that would beat the bandwidth, fewer were read: a router
    that picks groups of experts first breaks ties by their order, and leaves whole groups, so whole ranks, idle.
    """
    if rows.spreads[0] > 0:
        return rows
    read_bytes = np.array([s.num_experts / s.moe_ep * 3.0 * s.hidden * s.width for s in rows.shapes])
    least_us = read_bytes * EXPERT_FORMATS[rows.dtype].weight_bytes / limits.bytes_per_s * 1e6
    full = [rows.tokens * s.topk >= 2 * s.num_experts for s in rows.shapes]
    beats = {
        shape.model
        for shape, least, many, us, size in zip(rows.shapes, least_us, full, rows.us[:, 0], read_bytes, strict=True)
        if size > BEYOND_CACHE and np.nanmin(np.where(many, us, np.inf)) < least
    }
    refuted = np.array([shape.model in beats for shape in rows.shapes])
    us = rows.us.copy()
    us[refuted, 0] = np.nan
    names = ["{}/{} experts of {} x {}".format(model[1], model[0], *model[2:]) for model in sorted(beats)]
    return replace(rows, us=us, dropped=tuple(f"balanced rows of {name}: faster than the memory" for name in names))


def loads(rows: ExpertRows) -> list[list[Load]]:
    """The load of each shape and spread."""
    sizes = [(s.num_experts, s.topk, s.moe_ep, rows.tokens) for s in rows.shapes]
    return [
        [balanced_load(*size) if spread == 0 else power_law_load(float(spread), *size) for spread in rows.spreads]
        for size in sizes
    ]


def fit_experts(rows: ExpertRows, limits: Limits) -> ExpertFit:
    """The formula over all measured cells, then what it misses of each, rounded as a profile stores it."""
    works = [
        [expert_work(rows.dtype, shape, rows.tokens, load) for load in of_shape]
        for shape, of_shape in zip(rows.shapes, loads(rows), strict=True)
    ]
    work = Work(*(np.array([[getattr(w, name) for w in row] for row in works]) for name in Work.__dataclass_fields__))
    there = ~np.isnan(rows.us)
    known = Work(*(getattr(work, name)[there] for name in Work.__dataclass_fields__))
    physics = fit_physics(known, rows.us[there], limits, in_memory=True)
    if physics.piece_us < NOTHING_US:
        physics = replace(physics, piece_us=0.0)
    residuals = np.log(rows.us / physics.us(work, limits))
    return ExpertFit(rows.dtype, physics, limits, rows.shapes, rows.spreads, rows.tokens, _filled(residuals).round(3))


def _filled(residuals: Floats) -> Floats:
    """Cells without a measurement: from fewer and more tokens, else as with the other routing, else nothing missed."""
    filled = residuals.copy()
    places = np.arange(residuals.shape[2])
    for index in np.ndindex(residuals.shape[:2]):
        known = ~np.isnan(residuals[index])
        if known.any() and not known.all():
            filled[index] = np.interp(places, places[known], residuals[index][known])
    other = np.flip(filled, axis=1)
    filled = np.where(np.isnan(filled), other, filled)
    return np.nan_to_num(filled)


def score_experts(rows: ExpertRows, limits: Limits) -> dict[str, object] | None:
    """Errors on shapes that were not fitted, between others of the same model and beyond; None for too few shapes."""
    if len(rows.shapes) < MIN_SHAPES:
        return None
    held = np.zeros(len(rows.shapes), dtype=bool)
    chosen = np.random.default_rng(HELD_OUT_SEED).choice(
        len(held), size=round(len(held) * HELD_OUT_SHARE), replace=False
    )
    held[chosen] = True
    fit, test = fit_experts(rows.take(~held), limits), rows.take(held)
    bare = replace(fit, residuals=0.0 * fit.residuals)
    inside = np.array([lies_between(shape, fit.shapes) for shape in test.shapes])
    within = np.broadcast_to(inside[:, None, None], test.us.shape)
    there = ~np.isnan(test.us)
    us, of_formula = _predicted(fit, test), _predicted(bare, test)
    return {
        "held_out_inside": errors_of(us[there & within], test.us[there & within]).as_json(),
        "held_out_outside": errors_of(us[there & ~within], test.us[there & ~within]).as_json(),
        "held_out_physics_only": errors_of(of_formula[there], test.us[there]).as_json(),
    }


def _predicted(fit: ExpertFit, rows: ExpertRows) -> Floats:
    return np.array(
        [
            [fit.predict(shape, rows.tokens, load).us for load in of_shape]
            for shape, of_shape in zip(rows.shapes, loads(rows), strict=True)
        ]
    )


def expert_limits(dtype: str, gpu: GpuSpec) -> Limits:
    """Peak of the format that a fit is told in, and bandwidth."""
    peaks = gpu.peak_flops_per_s
    computed_in = EXPERT_FORMATS[dtype].computed_in
    if computed_in not in peaks:
        raise CalibrationError(f"moe: {gpu.name} has no {computed_in}, in which {dtype} is told")
    return Limits(peaks[computed_in], gpu.hbm_bytes_per_s)


def experts_json(path: Path, dtypes: Collection[str], gpu: GpuSpec) -> list[dict[str, object]]:
    """The experts of a table as a profile has them."""
    found = []
    for dtype in dtypes:
        limits = expert_limits(dtype, gpu)
        rows = believed(read_experts(path, dtype), limits)
        found.append(_json(fit_experts(rows, limits), rows, score_experts(rows, limits)))
    return found


def _json(fit: ExpertFit, rows: ExpertRows, errors: dict[str, object] | None) -> dict[str, object]:
    per_mille = np.rint(fit.residuals * 1000.0).astype(int)
    return {
        "op": "moe",
        "dtype": fit.dtype,
        "limits": asdict(fit.limits),
        "physics": asdict(fit.physics),
        "spreads": fit.spreads.tolist(),
        "m": [int(size) for size in fit.tokens],
        "shapes": [list(shape) for shape in fit.shapes],
        "log_residual_per_mille": per_mille.tolist(),
        "report": {
            "rows": rows.num_rows,
            "shapes": len(rows.shapes),
            "dropped": list(rows.dropped),
            "errors": errors,
        },
    }
