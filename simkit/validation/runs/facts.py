"""What is told of a fit to a real run, as plain data, and what a profile keeps of it. Reads no clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simkit.engine.build import Setup
from simkit.latency.host import HostCosts
from simkit.latency.profile.values import HostTerms
from simkit.metrics.catalogue import STATS
from simkit.metrics.measured import ComparedLatencies, compare_measured
from simkit.plain import Json, optional, plain
from simkit.scenario import Scenario
from simkit.types import Floats, Ints
from simkit.validation.runs.host_fit import HostFit
from simkit.validation.runs.numbers import Numbers
from simkit.workload.build import MeasuredTimes

TERMS = ("fixed_us", "per_seq_us", "first_token_us", "per_request_us", "gap_us")
"""What is fitted. Of terms that a run cannot tell apart the first holds what all of them do."""

FIRST_TERMS = TERMS[:3]
"""Fitted before the others, and alone to fewer than `LEAST_NUMBERS` numbers: the fit would follow their noise."""

LEAST_NUMBERS = 2 * len(TERMS)

LEAST_GAIN = 0.05
"""Share by which the root mean square of the errors must fall, or a fit is not worth storing, nor a further term."""

PROVENANCE = ("log", "log_sha256", "date", "simkit", "scenario", "num_requests", "terms", "rms_pct", "errors")
TOO_FAST = -0.05
"""Relative error from which on a host that the GPU hides may be slower than assumed."""


Profile = dict[str, Any]
"""The JSON of a profile."""

State = Literal["fitted", "unsure", "alike", "idle", "few"]


@dataclass(frozen=True, slots=True)
class Served:
    """A simulation of the log: its requests, what the log measured of them (None: nothing), and the most that ran."""

    table: dict[str, Ints]
    log: MeasuredTimes | None
    stream: bool
    most_running: int = 0

    def errors(self) -> ComparedLatencies:
        """As a replay shows them."""
        assert self.log is not None
        return compare_measured(self.table, self.log.ttft_ns, self.log.e2e_ns, stream=self.stream)


@dataclass(frozen=True, slots=True)
class NumberFacts:
    """A group of requests that is one number of a metric, before and after the fit; `weight` is its share."""

    metric: str
    num_requests: int
    requests_met: float
    measured_ms: float
    before_ms: float
    after_ms: float
    weight: float


@dataclass(frozen=True, slots=True)
class TermFacts:
    """What became of a term, and of one that was left alone why."""

    before: float
    source: str
    after: float
    state: State
    standard_error: float | None
    why: str


@dataclass(frozen=True, slots=True)
class FitFacts:
    """All that there is to say of a fit: the log, the scenario, the terms, and the errors with those at both ends."""

    name: str
    based_on: str
    stored: bool
    version: str
    log: str
    log_sha256: str | None
    simkit: str
    scenario: Mapping[str, object]
    num_requests: Mapping[str, int]
    rms_pct: Mapping[str, float]
    errors: Mapping[str, object]
    numbers: tuple[NumberFacts, ...]
    terms: Mapping[str, TermFacts]
    limits: tuple[str, ...]
    num_simulations: int
    num_cut: int
    date: str | None = optional()

    def to_json(self) -> Json:
        """Plain data."""
        facts: Json = plain(self)
        return facts

    def provenance(self) -> dict[str, object]:
        """What a profile keeps of it."""
        facts = self.to_json()
        return {key: facts[key] for key in PROVENANCE if key in facts}


def scenario_facts(setup: Setup) -> dict[str, object]:
    """What else was so in the run, as far as it is known: host terms hold for an engine that runs like this."""
    scenario, engine = setup.scenario, setup.scenario.engine
    trace = scenario.workload.trace
    assert trace is not None
    part = {key: getattr(trace, key) for key in ("start_s", "end_s", "max_requests", "keep_share", "speed")}
    return {
        "model": setup.model.name,
        "gpu": setup.gpu.name,
        "tensor_parallel_size": scenario.hardware.tensor_parallel_size,
        "replicas": scenario.replicas,
        "dtype": engine.dtype,
        "quantization": engine.weight_format,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "engine_version": engine.version,
        "async_scheduling": setup.async_scheduling,
        "enable_chunked_prefill": engine.enable_chunked_prefill,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "max_num_seqs": setup.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_model_len": setup.max_model_len,
        "num_gpu_blocks": setup.num_gpu_blocks,
        "without": list(scenario.latency.without),
        "log_part": {key: value for key, value in part.items() if key in trace.model_fields_set},
    }


def number_facts(numbers: Numbers, before_ms: Floats, after_ms: Floats) -> tuple[NumberFacts, ...]:
    """The numbers that were fitted to, as predicted before and after."""
    total = numbers.weights.sum()
    return tuple(
        NumberFacts(
            metric=group.metric,
            num_requests=len(group.rows),
            requests_met=group.met,
            measured_ms=float(numbers.measured_ms[i]),
            before_ms=float(before_ms[i]),
            after_ms=float(after_ms[i]),
            weight=float(numbers.weights[i] / total),
        )
        for i, group in enumerate(numbers.groups)
    )


def term_facts(
    name: str,
    setup: Setup,
    before: HostCosts,
    fit: HostFit,
    terms: HostTerms,
    unsure: Mapping[str, float | None],
    bias: float,
    wanted: Sequence[str],
) -> TermFacts:
    """What became of the term `name`; `wanted` are those that there are enough numbers for."""
    state: State
    if name in fit.fitted:
        state, why = "fitted", ""
    elif name in unsure:
        state, error = "unsure", unsure[name]
        moved = "" if error is None else f"moved by less than its standard error of {error:,.1f} us"
        why = moved or "the errors are no smaller with it"
    elif name in fit.alike:
        do = "does, which holds" if len(fit.fitted) == 1 else "do together, which hold"
        state, why = "alike", f"acts here as {' and '.join(fit.fitted)} {do} both"
    elif name not in wanted:
        state, why = "few", f"expected {LEAST_NUMBERS} numbers or more to fit it to"
    else:
        state, why = "idle", _why_idle(name, setup, bias)
    return TermFacts(
        before=getattr(before.terms, name),
        source=before.sources[name].text,
        after=getattr(terms, name),
        state=state,
        standard_error=fit.errors_us.get(name, unsure.get(name)),
        why=why,
    )


def _why_idle(name: str, setup: Setup, bias: float) -> str:
    if name == "gap_us" and not setup.async_scheduling:
        return "not identifiable: without async scheduling there is no gap that the host leaves"
    if name == "first_token_us" or not setup.async_scheduling:
        return "not identifiable: it changes nothing"
    hidden = "not identifiable: under async scheduling the GPU's time hides it"
    if bias >= TOO_FAST:
        return hidden
    return (
        f"{hidden}; what is predicted is {-100 * bias:.0f} % too fast: if the host takes longer than the GPU, begin "
        "there with --set latency.host.fixed_us=US"
    )


def wanted_terms(num_numbers: int) -> tuple[str, ...]:
    """The terms that so many numbers are enough for."""
    return TERMS if num_numbers >= LEAST_NUMBERS else FIRST_TERMS


def bias_of(errors: ComparedLatencies) -> float:
    """Relative error of the mean TPOT, or of the mean E2E, at the start; 0 where neither is there."""
    metric = errors.get("tpot_ms") or errors.get("e2e_ms")
    return 0.0 if metric is None or metric.mean.error_pct is None else metric.mean.error_pct / 100


def rms_pct(numbers: Numbers, predicted_ms: Floats) -> float:
    """Weighted root mean square of the relative errors, percent."""
    error = predicted_ms / numbers.measured_ms - 1
    return 100 * float(np.sqrt((numbers.weights * error**2).sum() / numbers.weights.sum()))


def both_errors(old: ComparedLatencies, new: ComparedLatencies) -> dict[str, object]:
    """Each statistic of each metric, measured, before and after."""
    return {
        metric: {
            stat: {
                "measured": values.stat(stat).measured,
                "before": old[metric].stat(stat).predicted,
                "after": values.stat(stat).predicted,
                "before_pct": old[metric].stat(stat).error_pct,
                "after_pct": values.stat(stat).error_pct,
            }
            for stat in STATS
        }
        for metric, values in new.items()
    }


def profile_with(text: str, name: str, version: str, terms: HostTerms, provenance: Mapping[str, object]) -> Profile:
    """The content of a profile under `name` with the terms of a version in place of those it had."""
    data: Profile = json.loads(text)
    data["name"] = name
    entry = {"version": version, **asdict(terms), "provenance": dict(provenance)}
    others = [row for row in data.get("engine_hosts", []) if row["version"] != version]
    data["engine_hosts"] = sorted([*others, entry], key=lambda row: [int(part) for part in row["version"].split(".")])
    return data


def log_name(scenario: Scenario) -> str:
    """The log's file, without its folder: profiles are the same wherever they were made."""
    trace = scenario.workload.trace
    assert trace is not None, "a scenario that replays a log"
    return Path(trace.path).name
