"""Fit of the host terms to what was measured: weighted least squares of relative errors over simulations.

Owns the search; what is simulated is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simkit.latency.profile.values import HostTerms
from simkit.types import Floats

PROBES_US = {
    "fixed_us": 2000.0,
    "per_seq_us": 100.0,
    "per_request_us": 5000.0,
    "gap_us": 1000.0,
    "first_token_us": 5000.0,
}
"""By how much a term is moved to see what it does. So much that it stands out from what a shift of the schedule does:
who meets whom in a step changes with every term, by a few permille of what is predicted."""

NUDGES_US = {
    "fixed_us": 100.0,
    "per_seq_us": 5.0,
    "per_request_us": 1000.0,
    "gap_us": 100.0,
    "first_token_us": 1000.0,
}
"""A move that must still be seen at the end, or the term was not fitted."""

CLOSE_ENOUGH_US = {
    "fixed_us": 1.0,
    "per_seq_us": 0.05,
    "per_request_us": 10.0,
    "gap_us": 1.0,
    "first_token_us": 10.0,
}
MAX_MOVES = 16
SHARES = (1.0, 0.5, 0.25)
"""Of a move that least squares asks for, tried in turn."""

NO_EFFECT = 1e-6
"""Relative change of what is predicted below which a term does nothing, e.g. host work that the GPU's time hides."""

REFINED = 1e-4
"""Root mean square of the relative errors below which nothing is left to refine: no engine is as regular as that."""

WORTH_REFINING = 0.1
"""The same above which the model does not hold, and refining it says nothing."""

LEAST_SCALE = 0.05
"""Of the reach of a refinement, in standard errors along its axes, at which it ends."""

FAR_REACH_SEQS = 100
"""Running sequences below which a fit says how far its term for each of them was seen."""

LEAST_SINE = 0.05
"""Two terms that act so much alike, by the sine between what they do to all numbers, cannot be told apart."""

Predict = Callable[[HostTerms], Floats]
"""Terms to a prediction of everything that was measured, float64[n]."""


@dataclass(frozen=True, slots=True)
class HostFit:
    """Fitted terms; `fitted` names those that were.

    Of the others that were wanted, `idle` change nothing, and `alike` act as one of the fitted does: both stay as they
    were. `errors_us` are standard errors of the fitted terms: as if what is left of the errors were independent, or
    the spread of the terms that least squares finds from elsewhere nearby, where that is more; at heavy load, where all
    requests share a queue, terms are off by several times that. Errors are relative, predicted / measured - 1,
    float64[n], with the terms the search began at and with those fitted.
    """

    terms: HostTerms
    fitted: tuple[str, ...]
    idle: tuple[str, ...]
    alike: tuple[str, ...]
    errors_us: dict[str, float]
    before: Floats
    after: Floats


def reach_limit(fitted: Sequence[str], reach_seqs: int) -> tuple[str, ...]:
    """How far the term for each sequence was seen, where at most `reach_seqs` run at once; nothing where far enough."""
    if "per_seq_us" not in fitted or reach_seqs >= FAR_REACH_SEQS:
        return ()
    return (f"per_seq_us is seen up to {reach_seqs} running sequences, and continued beyond",)


def fit_host(
    predict: Predict,
    measured: Floats,
    start: HostTerms,
    names: Sequence[str],
    weights: Floats | None = None,
    refine: int = 0,
) -> HostFit:
    """The terms `names`, none below 0, that make the weighted sum of squared relative errors smallest.

    The other terms stay. `weights` are of the squares, by default all alike. Gauss-Newton from `start`, with slopes
    that are kept as long as they lead to something better: what is predicted is nearly linear in each term. From where
    that ends, up to `refine` predictions or so look for something better nearby. ValueError when there are fewer
    numbers measured than terms to fit, or one that is not positive.
    """
    if len(measured) < len(names):
        raise ValueError(f"{len(names)} terms cannot be fitted to {len(measured)} measured numbers")
    if not np.all(measured > 0):
        raise ValueError("measured numbers must be positive")
    root = np.ones(len(measured)) if weights is None else np.sqrt(weights / weights.mean())
    search = _Search(predict, measured, root, start)
    before = search.error
    slopes = search.slopes(names, PROBES_US)
    idle = [name for name in names if np.abs(slopes[name]).max() * PROBES_US[name] <= NO_EFFECT]
    active, alike = _told_apart([name for name in names if name not in idle], slopes, root)
    search.run(active, slopes)
    if active and refine:
        search.refine(active, refine)
    nudged = search.slopes(active, NUDGES_US)
    hidden = [name for name in active if np.abs(nudged[name]).max() * NUDGES_US[name] <= NO_EFFECT]
    hidden = [name for name in hidden if search.put_back(name, start)]
    fitted = tuple(name for name in names if name in active and name not in hidden)
    return HostFit(
        terms=search.terms,
        fitted=fitted,
        idle=tuple(name for name in names if name in idle or name in hidden),
        alike=tuple(alike),
        errors_us=search.errors_us(fitted),
        before=before,
        after=search.error,
    )


@dataclass(frozen=True, slots=True)
class Further:
    """What terms that were not fitted would do beside those that were: `idle` and `alike` as in `HostFit`.

    `gain`: by which share all others would make the errors smaller where everything is linear, errors being the root
    mean square for each number that no term uses up.
    """

    idle: tuple[str, ...]
    alike: tuple[str, ...]
    gain: float
    at: HostTerms


def further_terms(
    predict: Predict, measured: Floats, at: HostTerms, fitted: Sequence[str], names: Sequence[str], weights: Floats
) -> Further:
    """What the terms `names` would do where `fitted` ones are `at`: a simulation for each of them all."""
    root = np.sqrt(weights / weights.mean())
    search = _Search(predict, measured, root, at)
    slopes = search.slopes([*fitted, *names], PROBES_US)
    idle = tuple(name for name in names if np.abs(slopes[name]).max() * PROBES_US[name] <= NO_EFFECT)
    kept, found = _told_apart([*fitted, *(name for name in names if name not in idle)], slopes, root)
    alike = tuple(name for name in found if name in names)
    error = search.error * root
    if set(kept) <= set(fitted) or np.square(error).mean() < REFINED**2:
        return Further(idle, alike, 0.0, at)
    matrix = np.stack([slopes[name] for name in kept], axis=1) * root[:, None]
    aim = _least_squares(at, kept, matrix, error)
    moved = np.array([getattr(aim, name) - getattr(at, name) for name in kept])
    before = np.square(error).sum() / max(1, len(error) - len(fitted))
    after = np.square(error + matrix @ moved).sum() / max(1, len(error) - len(kept))
    return Further(idle, alike, 1 - float(np.sqrt(after / before)), aim)


class _Search:
    """Where the search is: terms, what is predicted with them, and the slopes it last looked at."""

    def __init__(self, predict: Predict, measured: Floats, root: Floats, start: HostTerms) -> None:
        self._predict, self._measured, self._root = predict, measured, root
        self.terms, self.predicted = start, predict(start)
        self._slopes: dict[str, Floats] = {}
        self._ends: list[HostTerms] = []

    @property
    def error(self) -> Floats:
        """Relative errors here."""
        return self.predicted / self._measured - 1

    def slopes(self, names: Sequence[str], moves_us: dict[str, float]) -> dict[str, Floats]:
        """Change of the relative errors for each microsecond of a term."""
        found = {}
        for name in names:
            further = self._predict(replace(self.terms, **{name: getattr(self.terms, name) + moves_us[name]}))
            found[name] = (further - self.predicted) / self._measured / moves_us[name]
        return found

    def run(self, names: Sequence[str], slopes: dict[str, Floats]) -> None:
        """Move as long as it gets better; slopes are looked at again after the first move and when it does not."""
        self._slopes, fresh, first = slopes, True, True
        for _ in range(MAX_MOVES if names else 0):
            before = self.terms
            if not self._moved(names):
                if fresh:
                    return
                self._slopes, fresh = self.slopes(names, PROBES_US), True
                continue
            if all(abs(getattr(self.terms, n) - getattr(before, n)) < CLOSE_ENOUGH_US[n] for n in names):
                return
            fresh = first
            if first:
                self._slopes, first = self.slopes(names, PROBES_US), False

    def _moved(self, names: Sequence[str]) -> bool:
        """Whether a move along the slopes made the errors smaller."""
        matrix = np.stack([self._slopes[name] for name in names], axis=1) * self._root[:, None]
        aim = _least_squares(self.terms, names, matrix, self.error * self._root)
        for share in SHARES:
            to = {name: (1 - share) * getattr(self.terms, name) + share * getattr(aim, name) for name in names}
            if self._took(replace(self.terms, **to)):
                return True
        return False

    def _took(self, terms: HostTerms) -> bool:
        """Whether `terms` make the errors smaller; the search goes on from there then."""
        predicted = self._predict(terms)
        if self._squares(predicted) >= self._squares(self.predicted):
            return False
        self.terms, self.predicted = terms, predicted
        return True

    def _squares(self, predicted: Floats) -> float:
        return float(np.square((predicted / self._measured - 1) * self._root).sum())

    def refine(self, names: Sequence[str], budget: int) -> None:
        """Look around for something better, until `budget` predictions are made or the reach is small.

        What is predicted jumps a little with every term, so that slopes lead past the best. From here the search
        reaches along the axes of the ellipsoid that least squares is unsure in, by its width, and from there by least
        squares once more; where nothing is better the reach is halved.
        """
        self._slopes = self.slopes(names, PROBES_US)
        matrix = np.stack([self._slopes[name] for name in names], axis=1) * self._root[:, None]
        sizes, axes = np.linalg.eigh(matrix.T @ matrix)
        reach, left = 1.0, budget - len(names)
        while reach > LEAST_SCALE and left > 0 and REFINED < self._rms() < WORTH_REFINING:
            better = False
            for size, axis in zip(np.maximum(sizes, sizes.max() * 1e-12), axes.T, strict=True):
                for sign in (1.0, -1.0):
                    width = sign * reach * float(np.sqrt(self._squares(self.predicted) / size))
                    at = [getattr(self.terms, name) for name in names]
                    moved = [max(0.0, value + width * float(part)) for value, part in zip(at, axis, strict=True)]
                    there = replace(self.terms, **dict(zip(names, moved, strict=True)))
                    left -= 2
                    if self._took(there) or self._took(self._end_from(there, names, matrix)):
                        better = True
                        break
            reach = reach if better else reach / 2

    def _end_from(self, terms: HostTerms, names: Sequence[str], matrix: Floats) -> HostTerms:
        """Where least squares leads from `terms`, kept: how these ends differ is how unsure they are."""
        end = _least_squares(terms, names, matrix, (self._predict(terms) / self._measured - 1) * self._root)
        self._ends.append(end)
        return end

    def _rms(self) -> float:
        return float(np.sqrt(self._squares(self.predicted) / len(self._measured)))

    def put_back(self, name: str, start: HostTerms) -> bool:
        """Whether `name` could be put back to what it was at the start, because nothing tells the two apart."""
        terms = replace(self.terms, **{name: getattr(start, name)})
        predicted = self._predict(terms)
        if np.abs(predicted - self.predicted).max() > NO_EFFECT * np.abs(self.predicted).max():
            return False
        self.terms, self.predicted = terms, predicted
        return True

    def errors_us(self, names: Sequence[str]) -> dict[str, float]:
        """Standard errors of terms, as `HostFit` has them."""
        if not names:
            return {}
        matrix = np.stack([self._slopes[name] for name in names], axis=1) * self._root[:, None]
        spare = max(1, len(matrix) - len(names))
        variance = np.square(self.error * self._root).sum() / spare
        found = np.sqrt(np.diag(np.linalg.pinv(matrix.T @ matrix)) * variance)
        ends = {name: [getattr(end, name) for end in self._ends or [self.terms]] for name in names}
        spread = {name: float(np.diff(np.percentile(ends[name], (16, 84)))[0]) / 2 for name in names}
        return {
            name: max(float(value), spread[name], CLOSE_ENOUGH_US[name])
            for name, value in zip(names, found, strict=True)
        }


def _told_apart(names: Sequence[str], slopes: dict[str, Floats], root: Floats) -> tuple[list[str], list[str]]:
    """(terms that can be fitted together, those that act as the ones before them do)."""
    kept: list[str] = []
    alike: list[str] = []
    for name in names:
        column = slopes[name] * root
        if kept:
            others = np.stack([slopes[other] * root for other in kept], axis=1)
            rest = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
            if np.linalg.norm(rest) < LEAST_SINE * np.linalg.norm(column):
                alike.append(name)
                continue
        kept.append(name)
    return kept, alike


def _least_squares(terms: HostTerms, names: Sequence[str], slopes: Floats, error: Floats) -> HostTerms:
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
