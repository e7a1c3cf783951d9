"""A model on GPUs as an engine runs it: all that step times depend on beside what a step holds.

Owns what the host adds to a run (work for every step, and the path of a request to the engine and back), with the
assumed default and which terms hold: those of the scenario, else those that a profile has for the engine's version,
else the default. Owns as well which batch a captured CUDA graph runs for a number of tokens.

The capture sizes are vLLM's own (`VllmConfig._set_cudagraph_sizes` and, before 0.11,
`SchedulerConfig.cuda_graph_sizes`): 1, 2, 4, multiples of 8 below 256 and of 16 from there on, up to twice
max_num_seqs, 512 and the token budget.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from simkit.errors import InputError
from simkit.latency.effects import FIRST_TOKEN, HOST, OFF, OVERLAP, RULES, SAMPLED_ROWS, Origin, Source, nothing
from simkit.latency.profile.values import HostTerms, Profile
from simkit.specs.hardware import GpuSpec
from simkit.specs.models import ModelSpec
from simkit.types import Ints
from simkit.units import NS_PER_US

# --- host
HOST_FIXED_US = 500.0
"""Host work of a step (scheduling, input preparation, output handling). An *assumed* default, one for every GPU."""

HOST_PER_SEQ_US = 0.0
"""Host work a sequence and step; assumed, as `HOST_FIXED_US`."""

FIRST_TOKEN_US = 0.0
"""Path of a request to the engine's queue and back to its client, once a request; assumed."""

ASSUMED = Source(Origin.DEFAULT, "default")
GIVEN = Source(Origin.SCENARIO, "scenario")
LAUNCHES = Source(Origin.MEASURED, "profile, launches measured")

MAX_HOST_US = 1e6
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


DEFAULT_HOST = HostCosts(
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
    terms = {name: getattr(DEFAULT_HOST.terms, name) for name in DEFAULT_HOST.sources}
    sources = dict(DEFAULT_HOST.sources)
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
        if value > MAX_HOST_US:
            raise InputError(
                f"expected at most {MAX_HOST_US:,.10g} microseconds, got {value:,.10g}", key=f"latency.host.{name}"
            )
        terms[name], sources[name] = value, GIVEN
    return HostCosts(HostTerms(**terms), sources)


@dataclass(frozen=True, slots=True)
class Deployment:
    """What latency models are made from, under the names of a scenario.

    `without` names effects that are switched off. `graph_sizes` are the batches that were captured as CUDA graphs,
    ascending; none for an engine without.
    """

    model: ModelSpec
    gpu: GpuSpec
    tensor_parallel_size: int
    interconnect: str
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    async_scheduling: bool = False
    host: HostCosts = DEFAULT_HOST
    without: Collection[str] = ()
    graph_sizes: Seq[int] = ()

    def has(self, effect: str) -> bool:
        """Whether an effect is not switched off."""
        return effect not in self.without

    @property
    def overlaps(self) -> bool:
        """Whether the host works on beside the GPU."""
        return self.async_scheduling and self.has(OVERLAP)

    @property
    def acting_host(self) -> HostCosts:
        """The host with what is switched off at 0."""
        return self.host.without(step=not self.has(HOST), first_token=not self.has(FIRST_TOKEN))

    def sources(self, own: Mapping[str, Source]) -> dict[str, Source]:
        """Where each effect comes from: those that every latency model of hardware has, then its `own`.

        What is found again after a preemption lies in the engine, which adds that source.
        """
        terms = self.host.sources
        fixed, per_seq = terms["fixed_us"], terms["per_seq_us"]
        found = {
            HOST: fixed
            if fixed == per_seq
            else Source(fixed.origin, f"{fixed.text} (fixed), {per_seq.text} (per sequence)", (fixed, per_seq)),
            OVERLAP: RULES if self.async_scheduling else nothing("synchronous scheduling"),
            SAMPLED_ROWS: RULES,
            FIRST_TOKEN: terms["first_token_us"],
            **own,
        }
        return {effect: source if self.has(effect) else OFF for effect, source in found.items()}


# --- CUDA graphs
LARGEST_GRAPH = 512
"""Tokens of the largest graph that vLLM captures by itself."""

LARGEST_ON_BLACKWELL = 1024
"""The same on data-centre Blackwell (compute capability 10.x), since 0.28 (vLLM pull request 49390)."""

FIRST_V1 = (0, 8)
"""Before, graphs are of decodes alone, and go to the first size that holds all slots."""
FOLLOWS_SLOTS = (0, 10)
"""Since then the largest follows max_num_seqs (vLLM pull request 20628)."""
COARSE_STEPS = (0, 11, 1)
"""Since then every 16th size from 256 on; before, every 8th."""
CAPTURES_BUDGET = (0, 21)
"""Since then a token budget that fits is captured too, whatever its size (vLLM pull request 40734)."""
BLACKWELL_DOUBLED = (0, 28)


def capture_sizes(
    max_num_seqs: int, max_num_batched_tokens: int, version: Seq[int], compute_capability: str = ""
) -> tuple[int, ...]:
    """Batches, in tokens and ascending, that vLLM captures by itself, without speculative decoding.

    Sizes lie on a grid, so that the largest may be below the limit: 4 for 3 slots, as 6 is no size.
    """
    version = tuple(version)
    if version < FIRST_V1:
        fine = (1, 2, 4, *range(8, 8192 + 1, 8))
        largest = next((size for size in fine if size >= max_num_seqs), fine[-1])
        return tuple(size for size in fine if size <= largest)
    blackwell = version >= BLACKWELL_DOUBLED and compute_capability.startswith("10.")
    largest = LARGEST_ON_BLACKWELL if blackwell else LARGEST_GRAPH
    if version >= FOLLOWS_SLOTS:
        largest = min(largest, 2 * max_num_seqs)
    coarse_from = 256 if version >= COARSE_STEPS else largest + 1
    sizes = (1, 2, 4, *range(8, min(coarse_from, largest + 1), 8), *range(coarse_from, largest + 1, 16))
    found = {size for size in sizes if size <= min(largest, max_num_batched_tokens)}
    if version >= CAPTURES_BUDGET and max_num_batched_tokens <= largest:
        found.add(max_num_batched_tokens)
    return tuple(sorted(found))


def graph_rows(num_rows: int, sizes: Seq[int]) -> Ints:
    """Rows that run for 0, 1, ... `num_rows` rows: those of the next captured size, beyond the largest as they are.

    The same for steps that hold a prefill chunk, whose graphs leave attention out. A captured batch takes what its own
    size takes, also where fewer rows were measured to take longer (8-bit products of rows that are not aligned).
    """
    rows = np.arange(num_rows + 1, dtype=np.int64)
    if not sizes:
        return rows
    ascending = np.asarray(sizes, dtype=np.int64)
    place = np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)
    return np.where((rows > 0) & (rows <= ascending[-1]), ascending[place], rows)
