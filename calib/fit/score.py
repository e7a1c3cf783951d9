"""How wrong a fit is where it was not fitted: held-out shapes, and sizes beyond the largest it was trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calib.fit.fit_op import fit_op
from calib.table import Floats, Rows
from simkit.latency.profile import AXES, EXTRA, KEYS, Limits, OpFit

HELD_OUT_SHARE = 0.2
HELD_OUT_SEED = 0
MIN_ROWS = 40
"""Fewer distinct shapes are not split."""

LARGE_AXES = ("m", "n", "k", "batch", "q_len", "kv_len", "bytes")


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute relative errors of predictions in percent, and the mean signed one."""

    num: int
    mape_pct: float | None
    median_pct: float | None
    p95_pct: float | None
    bias_pct: float | None

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def errors_of(predicted: Floats, measured: Floats) -> Errors:
    """Errors of predictions; None where there are none."""
    if not len(measured):
        return Errors(0, None, None, None, None)
    relative = predicted / measured - 1.0
    size = np.abs(relative) * 100.0
    numbers = (size.mean(), np.median(size), np.percentile(size, 95), relative.mean() * 100.0)
    return Errors(len(measured), *(round(float(number), 2) for number in numbers))


@dataclass(frozen=True, slots=True)
class Score:
    """Held-out errors inside and outside the grid, errors beyond half of each axis, and predictions at the limit."""

    inside: Errors
    outside: Errors
    physics_only: Errors
    beyond: dict[str, Errors]
    num_clamped: int

    def as_json(self) -> dict[str, object]:
        return {
            "held_out_inside": self.inside.as_json(),
            "held_out_outside": self.outside.as_json(),
            "held_out_physics_only": self.physics_only.as_json(),
            "beyond_half_of": {axis: errors.as_json() for axis, errors in self.beyond.items()},
            "clamped": self.num_clamped,
        }


@dataclass(frozen=True, slots=True)
class Predicted:
    """Microseconds of rows, which of them are extrapolated, and how many were raised to the physical limit."""

    us: Floats
    extrapolated: npt.NDArray[np.bool_]
    num_clamped: int


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Shapes that were not fitted, and what a fit of the others says of them."""

    rows: Rows
    us: Floats
    inside: npt.NDArray[np.bool_]
    fit: OpFit
    num_clamped: int


def hold_out(rows: Rows, limits: Limits) -> HeldOut | None:
    """Fit on 80 % of the distinct shapes and predict the rest; None for too few shapes.

    A held-out shape is inside when the rest has measured neighbours on both sides of it along every axis: when its
    prediction is not tagged as extrapolated.
    """
    if len(rows) < MIN_ROWS:
        return None
    held = np.zeros(len(rows), dtype=bool)
    rng = np.random.default_rng(HELD_OUT_SEED)
    held[rng.choice(len(rows), size=round(len(rows) * HELD_OUT_SHARE), replace=False)] = True
    fitted, test = fit_op(rows.take(~held), limits), rows.take(held)
    found = predict(fitted.fit, test)
    return HeldOut(test, found.us, ~found.extrapolated, fitted.fit, found.num_clamped)


def score(rows: Rows, limits: Limits) -> Score | None:
    """Errors on held-out shapes, then of extrapolation; None for too few shapes."""
    held = hold_out(rows, limits)
    if held is None:
        return None
    test, us, inside, clamped = held.rows, held.us, held.inside, held.num_clamped
    without = OpFit(rows.op, rows.dtype, held.fit.physics, limits, {k: _flat(s) for k, s in held.fit.grids.items()})
    bare = predict(without, test).us
    beyond = {}
    for axis, train in _halves(rows):
        far = rows.take(~train)
        found = predict(fit_op(rows.take(train), limits).fit, far)
        beyond[axis] = errors_of(found.us, far.us)
        clamped += found.num_clamped
    return Score(
        errors_of(us[inside], test.us[inside]),
        errors_of(us[~inside], test.us[~inside]),
        errors_of(bare, test.us),
        beyond,
        clamped,
    )


def predict(fit: OpFit, rows: Rows) -> Predicted:
    """What a fit says of rows."""
    us, outside, clamped = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool), 0
    for chosen, sizes in _groups(rows):
        found = fit.predict(sizes)
        us[chosen], outside[chosen] = found.us, found.extrapolated
        clamped += int(found.clamped.sum())
    return Predicted(us, outside, clamped)


def _groups(rows: Rows) -> Iterator[tuple[npt.NDArray[np.int64], dict[str, Floats]]]:
    """Rows of equal heads at a time, since a prediction is for one shape of heads."""
    names = KEYS.get(rows.op)
    if not names:
        yield np.arange(len(rows)), dict(rows.sizes)
        return
    keys = np.stack([rows.sizes[name] for name in names], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    for index, key in enumerate(distinct):
        chosen = np.flatnonzero(inverse.reshape(-1) == index)
        sizes = {name: rows.sizes[name][chosen] for name in (*AXES[rows.op], *EXTRA.get(rows.op, ()))}
        yield chosen, sizes | dict(zip(names, key, strict=True))


def _halves(rows: Rows) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """For each axis with larger sizes to predict: the rows up to half of its maximum."""
    for axis in AXES[rows.op]:
        values = rows.sizes[axis]
        train = values <= values.max() / 2
        if axis in LARGE_AXES and train.sum() >= MIN_ROWS and len(np.unique(values[train])) > 2:
            yield axis, train


def _flat(grid: Any) -> Any:
    return type(grid)([axis[:1] for axis in grid.axes], np.zeros([1] * len(grid.axes)))
