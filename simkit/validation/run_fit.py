"""Host terms fitted to one real run: its log is served again with one set of terms after the other.

Owns what is simulated, and what becomes of terms that the run does not tell. Imports the engine, metrics, latency and
its siblings; reads no clock, so that the same log gives the same profile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simkit.engine.build import set_up
from simkit.engine.run import simulate
from simkit.errors import CheckError, InputError
from simkit.latency.calibrated import Calibrated
from simkit.latency.effects import FIRST_TOKEN, HOST
from simkit.latency.host import MAX_US, host_of
from simkit.latency.profile import is_shipped, load_profile, profile_text
from simkit.latency.profile_values import HostTerms
from simkit.metrics.definitions import summarise
from simkit.parts import terms_of
from simkit.scenario import Scenario, apply_sets
from simkit.types import Floats
from simkit.validation.host_fit import HostFit, Predict, fit_host
from simkit.validation.run_facts import TERMS, Served, bias_of, facts_of, log_name, profile_with, term_of
from simkit.validation.run_numbers import Numbers, numbers_of

DIGITS = 2
"""Of a term in microseconds; the errors told are those of what is stored."""

LEAST_GAIN = 0.05
"""Share by which the root mean square of the errors must fall, or the fit is not worth storing."""

EXPECTED_SIMULATIONS = 25

Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class RunFit:
    """Terms fitted to a run. `facts` is all that there is to say of it, `profile` the content of a profile with them.

    `refused` says why nothing should be stored, empty where all is well.
    """

    facts: dict[str, Any]
    profile: dict[str, Any]
    refused: str


def fit_run(
    scenario: Scenario, *, name: str | None = None, date: str | None = None, progress: Progress | None = None
) -> RunFit:
    """Fit the host terms to the log that `scenario` replays; relative paths in it start at the working directory.

    `name` is that of the profile made (default: of the profile used, with -host behind one that ships), `date` goes
    into its provenance. Raises InputError for a scenario without a calibrated profile and a log without measured times,
    CheckError for terms that no host has.
    """
    setup = set_up(scenario)
    if not isinstance(setup.latency, Calibrated):
        raise InputError(
            scenario.blame(
                "latency.profile: expected a calibrated profile, in which host terms are kept; step times are those of "
                f"{setup.latency.source} (list: simkit profiles)"
            )
        )
    fitted_effects = [effect for effect in (HOST, FIRST_TOKEN) if effect in scenario.latency.without]
    if fitted_effects:
        raise InputError(scenario.blame(f"latency.without: expected without {fitted_effects[0]}, which is fitted"))
    used = setup.gpu.name if scenario.latency.profile == "auto" else scenario.latency.profile
    given = scenario.latency.host.model_dump(exclude_none=True) if scenario.latency.host else {}
    before = host_of(given, load_profile(used), scenario.engine.version)
    runs = _Runs(scenario, progress)
    first = runs.of(before.terms)
    if first.log is None:
        raise InputError(
            f"--from-run: {log_name(scenario)}: no TTFT or E2E was measured, so that nothing can be fitted"
        )
    numbers = numbers_of(first.table, first.log.ttft_ns, first.log.e2e_ns, stream=setup.stream)
    fit, unsure = _fitted(runs.predicting(numbers), numbers, before.terms)
    terms = _stored(fit, before.terms)
    last = runs.of(terms)
    facts = facts_of(setup, before, terms, numbers, (first, last))
    facts["terms"] = {name: term_of(name, setup, before, fit, terms, unsure, bias_of(first.errors())) for name in TERMS}
    facts["num_simulations"] = runs.num
    if date is not None:
        facts["date"] = date
    refused = _refusal(fit, facts["rms_pct"])
    name = name or (f"{used.strip().lower()}-host" if is_shipped(used) else setup.profile)
    facts = {"name": name, "based_on": setup.profile, "stored": not refused, **facts}
    return RunFit(facts, profile_with(profile_text(used), name, facts), refused)


class _Runs:
    """Simulations of the scenario with other host terms, counted."""

    def __init__(self, scenario: Scenario, progress: Progress | None) -> None:
        self._scenario, self._progress = scenario, progress
        self.num = 0

    def of(self, terms: HostTerms) -> Served:
        """The first replication with these terms. CheckError for terms that no host has."""
        _check_possible(terms)
        if self._progress is not None:
            self._progress(min(0.99, self.num / EXPECTED_SIMULATIONS), f"simulation {self.num + 1}")
        self.num += 1
        setup = set_up(apply_sets(self._scenario, {"latency.host": asdict(terms)}, label="--from-run"))
        facts = simulate(setup)
        table = summarise(facts.record, terms_of(setup, facts)).requests
        return Served(table, facts.measured, setup.stream)

    def predicting(self, numbers: Numbers) -> Predict:
        """Terms to the same numbers of a simulation with them; none is made twice."""

        @functools.cache
        def predict(terms: HostTerms) -> Floats:
            run = self.of(terms)
            return numbers.predicted_ms(run.table, stream=run.stream)

        return predict


def _fitted(predict: Predict, numbers: Numbers, start: HostTerms) -> tuple[HostFit, dict[str, float]]:
    """The fit of the terms that the numbers tell, and the standard errors of those that they do not tell.

    A term that moved by less than its standard error goes back to the start, the least told first, and the others are
    fitted anew.
    """
    names, unsure = list(TERMS), dict[str, float]()
    while True:
        fit = fit_host(predict, numbers.measured_ms, start, names, numbers.weights)
        told = {
            name: abs(getattr(fit.terms, name) - getattr(start, name)) / error
            for name, error in fit.errors_us.items()
            if error > 0
        }
        least = min(told, key=lambda name: told[name], default=None)
        if least is None or told[least] >= 1:
            return fit, unsure
        unsure[least] = fit.errors_us[least]
        names.remove(least)


def _stored(fit: HostFit, before: HostTerms) -> HostTerms:
    """Fitted terms as a profile has them, the others as they were."""
    values = {
        name: round(getattr(fit.terms, name), DIGITS) if name in fit.fitted else getattr(before, name) for name in TERMS
    }
    return HostTerms(**values)


def _check_possible(terms: HostTerms) -> None:
    """CheckError for terms of which no simulation can be made."""
    for name, value in asdict(terms).items():
        if value > MAX_US:
            raise CheckError(
                f"--from-run: {name} would be {value:,.0f} us, which no host takes: the log is not of such a scenario"
            )


def _refusal(fit: HostFit, rms_pct: Mapping[str, float]) -> str:
    if not fit.fitted:
        return "no host term could be fitted to this run"
    before, after = rms_pct["before"], rms_pct["after"]
    if after >= (1 - LEAST_GAIN) * before:
        return f"the errors are no smaller with the fitted terms ({before:.2f} % before, {after:.2f} % after)"
    return ""
