"""What an engine adds around its kernels: the work of its loop for a step, and the path of a request there and back.

Owns which terms hold in a run: those of the scenario, else those that the profile has for the engine's version, else
those that ship for the engine (data/engine_hosts.yaml). Owns as well how the work of a step adds up, and what launching
the kernels costs that no CUDA graph holds: the host launches ahead of the GPU, so that such a step takes the longer of
its kernels and their launches. Launches are counted on the kernels that a step is priced by (`Kernels.launches`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from typing import Any

import numpy as np
import yaml

from simkit.errors import InputError, nearest
from simkit.latency.effects import Origin, Source, nothing
from simkit.latency.profile.values import HostTerms, Profile
from simkit.types import Floats, Ints
from simkit.units import NS_PER_US

VLLM, TRTLLM, SGLANG = "vllm", "trt-llm", "sglang"
ENGINES = {VLLM: "vLLM", TRTLLM: "TRT-LLM", SGLANG: "SGLang"}
"""Engines that have terms, and what they are called."""

TERMS = tuple(field.name for field in fields(HostTerms))

GIVEN = Source(Origin.SCENARIO, "scenario")
MEASURED_LAUNCHES = Source(Origin.MEASURED, "profile, launches measured")

MAX_HOST_US = 1e6
"""Largest value of a term, as in profiles: a second."""

BETWEEN_VERSIONS = 0.35
"""How far the terms of one version of an engine are from another's, as standard deviation of the logarithm. What a step
of 32 sequences takes by the six rows of vLLM in data/engine_hosts.yaml has 0.5, between versions and the machines of
labs; half of that variance is taken to be between versions."""

FITTED_ERROR = 0.1
"""Of terms that were fitted to a real run of this engine on this GPU. *Assumed*."""

Version = tuple[int, ...]

_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){1,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class EngineTerms:
    """Terms that ship for an engine: from version `since` on, seen in versions up to `seen`.

    `rows`, `n` and `range` say what they were fitted to, `select` which rows of the collection of public measurements
    these are (conditions COLUMN=GLOB; none for a report), `about` how well and what they do not tell. `error`: how far
    the terms of another machine may be from these, as standard deviation of the logarithm of all together.
    """

    engine: str
    since: Version
    seen: Version
    terms: HostTerms
    rows: str
    n: int
    range: str
    about: str = ""
    select: tuple[str, ...] = ()
    error: float = 0.0

    @property
    def label(self) -> str:
        """Engine and versions, e.g. ``vLLM 0.12 to 0.13``."""
        first, last = version_text(self.since), version_text(self.seen)
        return f"{ENGINES[self.engine]} {first}" + ("" if first == last else f" to {last}")

    def source_for(self, version: Version) -> Source:
        """How outputs say where the terms come from where the engine is of `version`."""
        if self.since <= version <= self.seen:
            return Source(Origin.SHIPPED, f"{self.label}, shipped")
        return Source(Origin.OTHER_VERSIONS, f"those shipped for {self.label}, the nearest")

    def error_for(self, version: Version) -> float:
        """How far off the terms may be for an engine of `version`."""
        return self.error if self.since <= version <= self.seen else math.hypot(self.error, BETWEEN_VERSIONS)


@dataclass(frozen=True, slots=True)
class HostCosts:
    """The terms of a run and where each comes from (by name of the term). `error`: standard deviation of the logarithm
    of those that the scenario does not state."""

    terms: HostTerms
    sources: Mapping[str, Source]
    error: float = 0.0

    @property
    def first_token_ns(self) -> int:
        """From a client to the engine's queue and back, whole ns."""
        return round(self.terms.first_token_us * NS_PER_US)

    def without(self, *, step: bool, gap: bool, first_token: bool) -> HostCosts:
        """The same with what is switched off at 0."""
        off = {"first_token_us"} if first_token else set[str]()
        off |= {"gap_us"} if gap else set()
        off |= {"fixed_us", "per_seq_us", "per_request_us", "tp_us"} if step else set()
        return replace(self, terms=replace(self.terms, **dict.fromkeys(off, 0.0)))

    def times(self, host: float, gap: float) -> HostCosts:
        """The same with the gap and the other terms, but for those that are stated, times a factor."""
        free = [term for term in TERMS if self.sources[term] != GIVEN]
        found = {term: getattr(self.terms, term) * (gap if term == "gap_us" else host) for term in free}
        return replace(self, terms=replace(self.terms, **found))

    def loop(self, ranks: int, *, overlaps: bool) -> Loop:
        """The work of a step where `ranks` GPUs share a model."""
        terms = self.terms
        fixed_us = terms.fixed_us + terms.tp_us * math.log2(ranks)
        gap_us = terms.gap_us if overlaps else 0.0
        return Loop(
            fixed_ns=fixed_us * NS_PER_US,
            per_seq_ns=terms.per_seq_us * NS_PER_US,
            per_request_ns=terms.per_request_us * NS_PER_US,
            gap_ns=gap_us * NS_PER_US,
            overlaps=overlaps,
        )


@dataclass(frozen=True, slots=True)
class Loop:
    """The engine's loop around the GPU's part of a step, in ns.

    A step of n sequences, c of which end their prompt in it, takes max(GPU + gap, host) where the host works beside the
    GPU, else GPU + host; host = fixed + per_seq n + per_request c.
    """

    fixed_ns: float
    per_seq_ns: float
    per_request_ns: float
    gap_ns: float
    overlaps: bool

    def host_ns(self, num_decode: int, num_sampled: int) -> float:
        """The host's work of one step."""
        seqs, new = (num_decode, 0) if num_decode >= num_sampled else (num_sampled, num_sampled - num_decode)
        return self.fixed_ns + self.per_seq_ns * seqs + self.per_request_ns * new

    def hosts_ns(self, num_decode: Ints, num_sampled: Ints) -> Floats:
        """`host_ns` of many steps, the same operations in the same order."""
        seqs, new = np.maximum(num_decode, num_sampled), np.maximum(num_sampled - num_decode, 0)
        work: Floats = self.fixed_ns + self.per_seq_ns * seqs + self.per_request_ns * new
        return work

    def step_ns(self, gpu_ns: float, host_ns: float) -> float:
        """A step from both parts."""
        if self.overlaps:
            gpu_ns += self.gap_ns
            return gpu_ns if gpu_ns >= host_ns else host_ns
        return gpu_ns + host_ns

    def steps_ns(self, gpu_ns: Floats, host_ns: Floats | float) -> Floats:
        """`step_ns` of many steps."""
        total: Floats = np.maximum(gpu_ns + self.gap_ns, host_ns) if self.overlaps else gpu_ns + host_ns
        return total


def parse_engine(text: str) -> tuple[str, Version | None]:
    """(engine, version or None for the newest) of ``trt-llm 1.0``. Raises InputError."""
    name, _, version = text.strip().partition(" ")
    if name.lower() not in ENGINES:
        raise InputError(
            f"expected an engine ({', '.join(ENGINES)}), with a version behind it or without, got {text!r}"
            f"{nearest(name.lower(), ENGINES)}",
            key="latency.host.engine",
        )
    version = version.strip()
    if not version:
        return name.lower(), None
    try:
        return name.lower(), parse_short(version)
    except ValueError:
        raise InputError(
            f"expected a version behind {name}, such as 1.0, got {version!r}", key="latency.host.engine"
        ) from None


def parse_short(version: str) -> Version:
    """(major, minor) of a version of two to four numbers. Raises ValueError."""
    if not _VERSION.fullmatch(version):
        raise ValueError(version)
    return tuple(int(part) for part in short_version(version).split("."))


def short_version(version: str) -> str:
    """The first two numbers of a version, by which engines are told apart."""
    return ".".join(version.split(".")[:2])


def version_text(version: Sequence[int]) -> str:
    """As it is written."""
    return ".".join(map(str, version))


@functools.cache
def shipped() -> tuple[EngineTerms, ...]:
    """The terms of data/engine_hosts.yaml, by engine and version."""
    text = resources.files("simkit.data").joinpath("engine_hosts.yaml").read_text(encoding="utf-8")
    data: dict[str, list[dict[str, Any]]] = yaml.safe_load(text)
    found = [_read(engine, row) for engine, rows in data.items() for row in rows]
    return tuple(sorted(found, key=lambda row: (row.engine, row.since)))


def _read(engine: str, row: dict[str, Any]) -> EngineTerms:
    assert engine in ENGINES, engine
    terms = HostTerms(**{name: float(value) for name, value in row["terms"].items()})
    return EngineTerms(
        engine=engine,
        since=parse_short(row["since"]),
        seen=parse_short(row["seen"]),
        terms=terms,
        rows=row["rows"],
        n=row["n"],
        range=row["range"],
        about=row.get("about", ""),
        select=tuple(row.get("select", ())),
        error=float(row["error"]),
    )


def terms_of(engine: str, version: Version | None) -> tuple[HostTerms, Source, float]:
    """The terms that ship for a version, the newest for None, how outputs say so, and how far off they may be.

    A version that no terms were seen for takes those of the nearest before it, else the first.
    """
    rows = [row for row in shipped() if row.engine == engine]
    if version is None:
        return rows[-1].terms, Source(Origin.SHIPPED, f"{rows[-1].label}, shipped"), rows[-1].error
    row = next((row for row in reversed(rows) if row.since <= version), rows[0])
    return row.terms, row.source_for(version), row.error_for(version)


def host_of(given: Mapping[str, float], profile: Profile | None, version: str, engine: str | None = None) -> HostCosts:
    """The terms of a run: those `given` by the scenario, term by term, over those of the profile, over those shipped.

    A profile has terms of versions of vLLM, fitted to real runs (`engine_hosts`), and what launching the kernels of a
    step took (`host`): the engine's own work is then no less than what ships. `engine`: whose terms, instead of those
    of vLLM `version`. Raises InputError for an engine without terms and a term beyond what a host can take.
    """
    name, wanted = (VLLM, parse_short(version)) if engine is None else parse_engine(engine)
    found, source, error = terms_of(name, wanted)
    terms = {term: getattr(found, term) for term in TERMS}
    sources = dict.fromkeys(TERMS, source)
    short = "" if wanted is None else version_text(wanted)
    if name == VLLM and profile is not None and short in profile.engine_hosts:
        fitted = profile.engine_hosts[short].terms
        terms = {term: getattr(fitted, term) for term in TERMS}
        sources = dict.fromkeys(TERMS, Source(Origin.FITTED, f"profile, fitted to a run of vLLM {short}"))
        error = FITTED_ERROR
    elif profile is not None and profile.host is not None:
        for term, measured in (("fixed_us", profile.host.fixed_us), ("per_seq_us", profile.host.per_seq_us)):
            if measured > terms[term]:
                terms[term], sources[term] = measured, MEASURED_LAUNCHES
    for term, value in given.items():
        if value > MAX_HOST_US:
            raise InputError(
                f"expected at most {MAX_HOST_US:,.10g} microseconds, got {value:,.10g}", key=f"latency.host.{term}"
            )
        terms[term], sources[term] = value, GIVEN
    return HostCosts(HostTerms(**terms), sources, error)


NO_HOST = HostCosts(HostTerms(0.0, 0.0, 0.0), dict.fromkeys(TERMS, Source(Origin.NOTHING, "none")))
"""Nothing around the kernels."""


# --- launches outside CUDA graphs
EAGER_US = 70.0
"""A launch by eager PyTorch modules, with all dispatch beside the kernel. *Assumed* for every host, from one: the
thinker of Qwen2.5-Omni-7B on A800 takes 22 to 23 ms a token eager and 13 ms with graphs (vLLM-Omni issue 7960). Its 28
layers are 284 launches, and some 3 of the 13 ms are not kernels, so that a launch takes 67 to 70 us there."""

COMPILED_US = 5.0
"""A launch of a compiled step beyond the largest graph. *Assumed*: what cudaLaunchKernel takes, 5 us, as compiled code
has little dispatch beside it. More is seen nowhere: rows whose prompts lie beyond the graphs fit without it."""


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """Microseconds of a launch, and where they come from."""

    us: float
    source: Source


NO_LAUNCHES = LaunchCost(0.0, nothing("launches take no time"))
ALL_CAPTURED = LaunchCost(0.0, nothing("CUDA graphs hold every step"))


def launch_cost(given_us: float | None, *, eager: bool) -> LaunchCost:
    """As the scenario gives it, else as assumed."""
    if given_us is not None:
        return LaunchCost(given_us, Source(Origin.SCENARIO, "scenario"))
    if eager:
        return LaunchCost(EAGER_US, Source(Origin.DEFAULT, f"assumed, {EAGER_US:g} us each without CUDA graphs"))
    return LaunchCost(COMPILED_US, Source(Origin.DEFAULT, f"assumed, {COMPILED_US:g} us each beyond the largest graph"))


@dataclass(frozen=True, slots=True)
class Launches:
    """What the launches of a step of more than `captured_rows` rows take, in ns; 0 for none."""

    ns: float
    captured_rows: int

    def least_ns(self, rows: int) -> float:
        """The least that a step of so many rows takes."""
        return self.ns if rows > self.captured_rows else 0.0

    def step_ns(self, gpu_ns: float, rows: int) -> float:
        """A step whose kernels take `gpu_ns`."""
        least = self.least_ns(rows)
        return gpu_ns if gpu_ns >= least else least

    def steps_ns(self, gpu_ns: Floats, rows: Ints) -> Floats:
        """`step_ns` of many steps."""
        if not self.ns:
            return gpu_ns
        least: Floats = np.where(rows > self.captured_rows, self.ns, 0.0)
        return np.maximum(gpu_ns, least)
