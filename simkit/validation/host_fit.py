"""Fit of the host terms to what was measured: least squares of relative errors over simulations.

Owns the search; what is simulated is the caller's affair. Imports numpy and `latency` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simkit.latency.profile_values import HostTerms
from simkit.types import Floats

STEPS_US = {"fixed_us": 100.0, "per_seq_us": 5.0, "first_token_us": 1000.0}
"""By how much a term is moved to see what it does; all terms in `fit_host` can be fitted."""

MAX_ROUNDS = 6
CLOSE_ENOUGH_US = {"fixed_us": 1.0, "per_seq_us": 0.05, "first_token_us": 10.0}
NO_EFFECT = 1e-6
"""Relative change of what is predicted below which a term does nothing, e.g. host work that the GPU's time hides."""

Predict = Callable[[HostTerms], Floats]
"""Terms to a prediction of everything that was measured, float64[n]."""


@dataclass(frozen=True, slots=True)
class HostFit:
    """Fitted terms; `fitted` names those that were, `idle` those wanted ones that change nothing and were left alone.

    Errors are relative, predicted / measured - 1, float64[n], with the terms the search began at and with those fitted.
    """

    terms: HostTerms
    fitted: tuple[str, ...]
    idle: tuple[str, ...]
    before: Floats
    after: Floats


def fit_host(predict: Predict, measured: Floats, start: HostTerms, names: Sequence[str]) -> HostFit:
    """The terms `names`, none below 0, that make the sum of squared relative errors smallest; the others stay.

    Gauss-Newton from `start`: what is predicted is nearly linear in each term. ValueError when there are fewer numbers
    measured than terms to fit, or one that is not positive.
    """
    if len(measured) < len(names):
        raise ValueError(f"{len(names)} terms cannot be fitted to {len(measured)} measured numbers")
    if not np.all(measured > 0):
        raise ValueError("measured numbers must be positive")
    terms, predicted = start, predict(start)
    before, error = predicted / measured - 1, predicted / measured - 1
    idle: set[str] = set()
    for _ in range(MAX_ROUNDS):
        slopes = {name: _slope(predict, measured, terms, predicted, name) for name in names}
        active = [name for name in names if np.abs(slopes[name]).max() * STEPS_US[name] > NO_EFFECT]
        idle = set(names) - set(active)
        if not active:
            break
        moved = _moved(terms, active, np.stack([slopes[name] for name in active], axis=1), error)
        found = predict(moved)
        close = all(abs(getattr(moved, n) - getattr(terms, n)) < CLOSE_ENOUGH_US[n] for n in active)
        if np.square(found / measured - 1).sum() > np.square(error).sum():
            break
        terms, predicted, error = moved, found, found / measured - 1
        if close:
            break
    fitted = tuple(name for name in names if name not in idle)
    return HostFit(terms, fitted, tuple(name for name in names if name in idle), before, error)


def _slope(predict: Predict, measured: Floats, terms: HostTerms, predicted: Floats, name: str) -> Floats:
    """Change of the relative errors for each microsecond of a term."""
    step_us = STEPS_US[name]
    further = predict(replace(terms, **{name: getattr(terms, name) + step_us}))
    slope: Floats = (further - predicted) / measured / step_us
    return slope


def _moved(terms: HostTerms, names: Sequence[str], slopes: Floats, error: Floats) -> HostTerms:
    """The terms of least squares where everything is linear; one that would fall below 0 stays there."""
    at_zero: set[int] = set()
    free = list(range(len(names)))
    while True:
        rest = error - sum((slopes[:, i] * getattr(terms, names[i]) for i in at_zero), np.zeros(len(error)))
        steps = np.linalg.lstsq(slopes[:, free], -rest, rcond=None)[0] if free else np.zeros(0)
        values = {names[i]: getattr(terms, names[i]) + float(step) for i, step in zip(free, steps, strict=True)}
        below = [i for i in free if values[names[i]] < 0]
        if not below:
            return replace(terms, **values, **{names[i]: 0.0 for i in at_zero})
        worst = min(below, key=lambda i: values[names[i]])
        free.remove(worst)
        at_zero.add(worst)
