"""Host terms fitted to one real run: its log is served again with one set of terms after the other.

Owns what is simulated, and what becomes of terms that the run does not tell. Reads no clock, so that the same log gives
the same profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simkit.engine.build import set_up
from simkit.engine.pricing import given_terms, host_engine
from simkit.engine.run import log_sha256
from simkit.errors import InputError
from simkit.latency.calibrated import Calibrated
from simkit.latency.effects import FIRST_TOKEN, HOST
from simkit.latency.host import host_of, short_version
from simkit.latency.profile import is_shipped, load_profile, profile_text
from simkit.latency.profile.values import HostTerms
from simkit.logs import play_log
from simkit.metrics import record as rec
from simkit.runs.manifest import CREATED_BY
from simkit.scenario import Scenario
from simkit.streams import Streams
from simkit.types import Ints
from simkit.validation.runs.facts import (
    LEAST_GAIN,
    TERMS,
    FitFacts,
    Profile,
    bias_of,
    both_errors,
    log_name,
    number_facts,
    profile_with,
    rms_pct,
    scenario_facts,
    term_facts,
    wanted_terms,
)
from simkit.validation.runs.host_fit import HostFit, reach_limit
from simkit.validation.runs.numbers import Table, numbers_of
from simkit.validation.runs.result import check_as_it_was
from simkit.validation.runs.terms import Progress, Simulations, fit_terms

DIGITS = 2
"""Of a term in microseconds; the errors told are those of what is stored."""

MOST_CUT = 0.01
"""Share of the requests that the scenario may cut short or refuse: what the others met is no longer what was served."""

MOST_RMS_PCT = 10.0
"""Root mean square of the errors after the fit beyond which the scenario is not what served the log."""

GROUPED_WITH = HostTerms(fixed_us=500.0, per_seq_us=0.0, first_token_us=0.0)
"""Terms of the simulation that says which requests are one number."""


@dataclass(frozen=True, slots=True)
class RunFit:
    """Terms fitted to a run. `facts` is all that there is to say of it, `profile` the content of a profile with them.

    `refused` says why nothing should be stored, empty where all is well.
    """

    facts: FitFacts
    profile: Profile
    refused: str


def fit_run(
    scenario: Scenario, *, name: str | None = None, date: str | None = None, progress: Progress | None = None
) -> RunFit:
    """Fit the host terms to the log that `scenario` replays; relative paths in it start at the working directory.

    `name` is that of the profile made (default: of the profile used, with -host behind one that ships), `date` goes
    into its provenance. Raises InputError for a scenario without a calibrated profile and a log without measured times,
    CheckError for terms that no host has.
    """
    check_as_it_was(scenario)
    setup = set_up(scenario)
    if not isinstance(setup.latency, Calibrated):
        raise scenario.refuse(
            "latency.profile",
            "expected a calibrated profile, in which host terms are kept; step times are those of "
            f"{setup.latency.source} (list: simkit profiles)",
        )
    fitted_effects = [effect for effect in (HOST, FIRST_TOKEN) if effect in scenario.latency.without]
    if fitted_effects:
        raise scenario.refuse("latency.without", f"expected without {fitted_effects[0]}, which is fitted")
    used = setup.gpu.name if scenario.latency.profile == "auto" else scenario.latency.profile
    before = host_of(given_terms(scenario), load_profile(used), scenario.engine.version, host_engine(scenario))
    runs = Simulations(scenario, _wanted_tokens(scenario, setup.max_model_len), progress)
    first = runs.of(before.terms)
    if first.log is None:
        raise InputError(
            f"--from-run: {log_name(scenario)}: no TTFT or E2E was measured, so that nothing can be fitted"
        )
    num_cut = _num_cut(first.table)
    # Groups and weights are those of one simulation wherever the fit starts, or its errors could not be compared.
    grouped = first if before.terms == GROUPED_WITH else runs.of(GROUPED_WITH)
    numbers = numbers_of(grouped.table, first.log.ttft_ns, first.log.e2e_ns, stream=setup.stream)
    wanted = wanted_terms(len(numbers.groups))
    fit, unsure = fit_terms(runs, setup.stream, numbers, before.terms, wanted)
    terms = _stored(fit, before.terms)
    last = runs.of(terms)
    at = [numbers.predicted_ms(run.table, stream=run.stream) for run in (first, last)]
    rms = dict(zip(("before", "after"), (rms_pct(numbers, ms) for ms in at), strict=True))
    refused, old, new = _refusal(fit, rms), first.errors(), last.errors()
    facts = FitFacts(
        name=name or (f"{used.strip().lower()}-host" if is_shipped(used) else setup.profile),
        based_on=setup.profile,
        stored=not refused,
        version=short_version(setup.scenario.engine.version),
        log=log_name(setup.scenario),
        log_sha256=log_sha256(setup),
        simkit=CREATED_BY,
        scenario=scenario_facts(setup),
        num_requests={metric: values.num_requests for metric, values in new.items()},
        rms_pct=rms,
        errors=both_errors(old, new),
        numbers=number_facts(numbers, *at),
        terms={name: term_facts(name, setup, before, fit, terms, unsure, bias_of(old), wanted) for name in TERMS},
        limits=reach_limit(fit.fitted, last.most_running),
        num_simulations=runs.num,
        num_cut=num_cut,
        date=date,
    )
    profile = profile_with(profile_text(used), facts.name, facts.version, terms, facts.provenance())
    return RunFit(facts, profile, refused)


def _wanted_tokens(scenario: Scenario, max_model_len: int) -> Ints:
    """Output tokens of each request of the log, whatever of them the scenario lets be made, int64[n]."""
    spec = scenario.workload.trace
    assert spec is not None, "a scenario that replays a log"
    streams = Streams(scenario.seed, 0)
    return play_log(spec, scenario.base_dir, streams=streams, max_model_len=max_model_len).output_tokens


def _num_cut(table: Table) -> int:
    """Requests that are refused or end before the log says, which are not fitted. InputError where there are many."""
    finished = table["status"] == rec.FINISHED
    cut = (finished & (table["output_tokens"] < table["wanted_tokens"])) | (table["status"] == rec.REJECTED)
    if cut.sum() > MOST_CUT * len(cut):
        raise InputError(
            f"--from-run: {cut.sum()} of {len(cut)} requests are refused or end before they did in the log: expected a "
            "scenario that lets them be as long (engine.max_model_len, workload.max_tokens)"
        )
    return int(cut.sum())


def _stored(fit: HostFit, before: HostTerms) -> HostTerms:
    """Fitted terms as a profile has them, the others as they were."""
    return replace(before, **{name: round(getattr(fit.terms, name), DIGITS) for name in fit.fitted})


def _refusal(fit: HostFit, rms_pct: Mapping[str, float]) -> str:
    if not fit.fitted:
        return "no host term could be fitted to this run"
    before, after = rms_pct["before"], rms_pct["after"]
    if after >= (1 - LEAST_GAIN) * before:
        return f"the errors are no smaller with the fitted terms ({before:.2f} % before, {after:.2f} % after)"
    if after > MOST_RMS_PCT:
        return (
            f"the errors with the fitted terms are {after:.1f} % (root mean square; at most {MOST_RMS_PCT:g} % is of "
            "use): the log is not of such a scenario"
        )
    return ""
