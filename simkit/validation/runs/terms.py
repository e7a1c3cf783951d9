"""Which host terms a run tells, and the simulations that say so: its log is served with one set of terms after another.

The terms of the step and of the path of a request are fitted first. The others join where they would make the errors
smaller by more than as many more terms do by chance, so that a run which does not tell them is fitted as without them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import numpy as np

from simkit.engine.build import set_up
from simkit.engine.run import simulate
from simkit.errors import CheckError
from simkit.latency.host import MAX_HOST_US
from simkit.latency.profile.values import HostTerms
from simkit.runs.replication import metrics_of
from simkit.scenario import Scenario, apply_sets
from simkit.types import Floats, Ints
from simkit.validation.runs.facts import FIRST_TERMS, LEAST_GAIN, Served
from simkit.validation.runs.host_fit import HostFit, Predict, fit_host, further_terms
from simkit.validation.runs.numbers import Numbers, numbers_of

REFINE = 30
"""Simulations that may look for better terms near those of least squares."""

EXPECTED_SIMULATIONS = 90

Progress = Callable[[float, str], None]

Unsure = dict[str, float | None]
"""Terms that a run does not tell, and their standard errors: None for one that only made the errors no smaller."""


class Simulations:
    """Simulations of the scenario with other host terms, counted."""

    def __init__(self, scenario: Scenario, wanted_tokens: Ints, progress: Progress | None) -> None:
        self._scenario, self._wanted, self._progress = scenario, wanted_tokens, progress
        self.num = 0

    def of(self, terms: HostTerms) -> Served:
        """The first replication with these terms. CheckError for terms that no host has."""
        _check_possible(terms)
        if self._progress is not None:
            self._progress(min(0.99, self.num / EXPECTED_SIMULATIONS), f"simulation {self.num + 1}")
        self.num += 1
        values = {f"latency.host.{name}": value for name, value in asdict(terms).items()}
        setup = set_up(apply_sets(self._scenario, values, label="--from-run"))
        facts = simulate(setup)
        table = metrics_of(setup, facts).requests
        table["wanted_tokens"] = self._wanted[table["id"]]
        return Served(table, facts.measured, setup.stream, int(facts.record.spans.to_dict()["running"].max(initial=0)))

    def predicting(self, numbers: Numbers) -> Predict:
        """Terms to the same numbers of a simulation with them; none is made twice."""

        @functools.cache
        def predict(terms: HostTerms) -> Floats:
            run = self.of(terms)
            return numbers.predicted_ms(run.table, stream=run.stream)

        return predict


def fit_terms(
    runs: Simulations, stream: bool, numbers: Numbers, start: HostTerms, wanted: Sequence[str]
) -> tuple[HostFit, Unsure]:
    """The fit of those `wanted` terms that the numbers tell, and what is known of those that they do not tell."""
    predict = runs.predicting(numbers)
    first = [name for name in wanted if name in FIRST_TERMS]
    fit, unsure = _fitted(runs, predict, stream, numbers, start, first, start)
    rest = [name for name in wanted if name not in first]
    if not rest:
        return fit, unsure
    more = further_terms(predict, numbers.measured_ms, fit.terms, fit.fitted, rest, numbers.weights)
    if more.gain >= LEAST_GAIN:
        both, both_unsure = _fitted(runs, predict, stream, numbers, start, wanted, more.at)
        spreads = [_spread(predict, numbers, start, found) for found in (fit, both)]
        if spreads[1] <= (1 - LEAST_GAIN) * spreads[0]:
            return both, both_unsure
    untold = dict.fromkeys(name for name in rest if name not in (*more.idle, *more.alike))
    return replace(fit, idle=(*fit.idle, *more.idle), alike=(*fit.alike, *more.alike)), unsure | untold


def _spread(predict: Predict, numbers: Numbers, start: HostTerms, fit: HostFit) -> float:
    """Root mean square of the relative errors for each number that is not used up by a fitted term."""
    terms = replace(start, **{name: getattr(fit.terms, name) for name in fit.fitted})
    squares = numbers.weights * np.square(predict(terms) / numbers.measured_ms - 1)
    return float(np.sqrt(squares.sum() / max(1, len(squares) - len(fit.fitted))))


def _fitted(
    runs: Simulations,
    predict: Predict,
    stream: bool,
    numbers: Numbers,
    start: HostTerms,
    wanted: Sequence[str],
    at: HostTerms,
) -> tuple[HostFit, Unsure]:
    """The fit of those `wanted` terms that the numbers tell, and the standard errors of those that they do not tell.

    The search begins `at` some terms; `start` is what terms are that are not fitted.
    A term that moved by less than its standard error goes back to the start, the least told first, and the others are
    fitted anew. Twice: `numbers` are put together and weighed by a simulation with other terms than the run had, so
    that what those change looks like noise; with the terms found from them they are put together once more.
    """
    names, unsure = list(wanted), Unsure()
    while True:
        fit = fit_host(predict, numbers.measured_ms, at, names, numbers.weights)
        least = _untold(fit, start)
        if least is None:
            break
        unsure[least] = fit.errors_us[least]
        names.remove(least)
        at = replace(at, **{least: getattr(start, least)})
    while fit.fitted:
        there = runs.of(fit.terms)
        assert there.log is not None
        nearer = numbers_of(there.table, there.log.ttft_ns, there.log.e2e_ns, stream=stream)
        again = fit_host(runs.predicting(nearer), nearer.measured_ms, fit.terms, fit.fitted, nearer.weights, REFINE)
        least = _untold(again, start)
        fit = replace(again, idle=(*fit.idle, *again.idle), alike=(*fit.alike, *again.alike))
        if least is None:
            break
        unsure[least] = fit.errors_us[least]
        terms = replace(fit.terms, **{least: getattr(start, least)})
        fit = replace(fit, terms=terms, fitted=tuple(name for name in fit.fitted if name != least))
    return fit, unsure


def _untold(fit: HostFit, start: HostTerms) -> str | None:
    """The fitted term that moved least for its standard error, where that is by less than it."""
    moved = {name: abs(getattr(fit.terms, name) - getattr(start, name)) for name in fit.fitted}
    least = min(fit.fitted, key=lambda name: moved[name] / (fit.errors_us[name] or 1e-9), default=None)
    return least if least is not None and moved[least] < fit.errors_us[least] else None


def _check_possible(terms: HostTerms) -> None:
    """CheckError for terms of which no simulation can be made."""
    for name, value in asdict(terms).items():
        if value > MAX_HOST_US:
            raise CheckError(
                f"--from-run: {name} would be {value:,.0f} us, which no host takes: the log is not of such a scenario"
            )
