"""What the host adds to a run: work for every step, and the path of a request to the engine and back.

Owns the assumed default, and which terms hold: those of the scenario, else those that a profile has for the engine's
version, else the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simkit.errors import InputError
from simkit.latency.effects import Origin, Source
from simkit.latency.profile.values import HostTerms, Profile
from simkit.units import NS_PER_US

HOST_FIXED_US = 500.0
"""Host work of a step (scheduling, input preparation, output handling). An *assumed* default, one for every GPU."""

HOST_PER_SEQ_US = 0.0
"""Host work a sequence and step; assumed, as `HOST_FIXED_US`."""

FIRST_TOKEN_US = 0.0
"""Path of a request to the engine's queue and back to its client, once a request; assumed."""

ASSUMED = Source(Origin.DEFAULT, "default")
GIVEN = Source(Origin.SCENARIO, "scenario")
LAUNCHES = Source(Origin.MEASURED, "profile, launches measured")

MAX_US = 1e6
"""Largest value of a term, as in profiles: a second."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """The terms of a run and where each comes from (by name of the term)."""

    terms: HostTerms
    sources: Mapping[str, Source]

    @property
    def fixed_ns(self) -> float:
        """Work of a step whatever it holds."""
        return self.terms.fixed_us * NS_PER_US

    @property
    def per_seq_ns(self) -> float:
        """Work of a step for each of its sequences."""
        return self.terms.per_seq_us * NS_PER_US

    @property
    def first_token_ns(self) -> int:
        """From a client to the engine's queue and back, whole ns."""
        return round(self.terms.first_token_us * NS_PER_US)

    def without(self, *, step: bool, first_token: bool) -> HostCosts:
        """The same with what is switched off at 0."""
        terms = self.terms
        if step:
            terms = replace(terms, fixed_us=0.0, per_seq_us=0.0)
        if first_token:
            terms = replace(terms, first_token_us=0.0)
        return replace(self, terms=terms)


DEFAULT = HostCosts(
    HostTerms(HOST_FIXED_US, HOST_PER_SEQ_US, FIRST_TOKEN_US),
    dict.fromkeys(("fixed_us", "per_seq_us", "first_token_us"), ASSUMED),
)


def short_version(version: str) -> str:
    """The first two numbers of a version, by which profiles name engines."""
    return ".".join(version.split(".")[:2])


def host_of(given: Mapping[str, float], profile: Profile | None, version: str) -> HostCosts:
    """The terms of a run: those `given` by the scenario, term by term, over those of the profile, over the default.

    A profile has terms of engine versions, fitted to real runs (`engine_hosts`), and what launching the kernels of a
    step took (`host`): the engine's own work is then no less than assumed. Raises InputError for a given term beyond
    what a host can take.
    """
    terms = {name: getattr(DEFAULT.terms, name) for name in DEFAULT.sources}
    sources = dict(DEFAULT.sources)
    short = short_version(version)
    if profile is not None and profile.engine_hosts and short not in profile.engine_hosts:
        others = f"default, the profile has those of vLLM {', '.join(profile.engine_hosts)}"
        sources = dict.fromkeys(terms, Source(Origin.OTHER_VERSIONS, others))
    if profile is not None and short in profile.engine_hosts:
        fitted = profile.engine_hosts[short].terms
        terms = {name: getattr(fitted, name) for name in terms}
        sources = dict.fromkeys(terms, Source(Origin.FITTED, f"profile, fitted to a run of vLLM {short}"))
    elif profile is not None and profile.host is not None:
        if profile.host.fixed_us > terms["fixed_us"]:
            terms["fixed_us"], sources["fixed_us"] = profile.host.fixed_us, LAUNCHES
        terms["per_seq_us"], sources["per_seq_us"] = profile.host.per_seq_us, LAUNCHES
    for name, value in given.items():
        if value > MAX_US:
            raise InputError(
                f"expected at most {MAX_US:,.10g} microseconds, got {value:,.10g}", key=f"latency.host.{name}"
            )
        terms[name], sources[name] = value, GIVEN
    return HostCosts(HostTerms(**terms), sources)
