"""A model on GPUs as an engine runs it: all that step times depend on beside what a step holds.

Owns as well which batch a captured CUDA graph runs for a number of tokens.

The capture sizes are vLLM's own (`VllmConfig._set_cudagraph_sizes` and, before 0.11,
`SchedulerConfig.cuda_graph_sizes`): 1, 2, 4, multiples of 8 below 256 and of 16 from there on, up to twice
max_num_seqs, 512 and the token budget.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from simkit.latency.effects import FIRST_TOKEN, GAP, HOST, OFF, OVERLAP, RULES, SAMPLED_ROWS, Source, nothing
from simkit.latency.effects import LAUNCHES as LAUNCHING
from simkit.latency.error import EXACT, Factors
from simkit.latency.host import NO_HOST, NO_LAUNCHES, VLLM, HostCosts, LaunchCost, Launches, Loop, Version
from simkit.latency.link import StatedLink
from simkit.latency.routing import Routing
from simkit.specs.hardware import GpuSpec
from simkit.specs.models import ModelSpec
from simkit.types import Ints
from simkit.units import NS_PER_US


@dataclass(frozen=True, slots=True)
class Deployment:
    """What latency models are made from, under the names of a scenario.

    `without` names effects that are switched off. `graph_sizes` are the batches that were captured as CUDA graphs,
    ascending; none for an engine without. `launch`: what a kernel outside of them takes to launch. A `link` that is
    stated takes the place of the `interconnect`. `engine`: whose kernels run (`host.ENGINES`), and of which version,
    None for the newest. `errors` are factors by which times are wrong (`latency.error`). `routing`: which experts
    tokens go to. `expert_parallel`: ranks hold whole experts each, not a part of every expert.
    """

    model: ModelSpec
    gpu: GpuSpec
    tensor_parallel_size: int
    interconnect: str
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    async_scheduling: bool = False
    host: HostCosts = NO_HOST
    without: Collection[str] = ()
    graph_sizes: Seq[int] = ()
    link: StatedLink | None = None
    launch: LaunchCost = NO_LAUNCHES
    engine: tuple[str, Version | None] = (VLLM, None)
    errors: Factors = EXACT
    routing: Routing = None
    expert_parallel: bool = False

    def has(self, effect: str) -> bool:
        """Whether an effect is not switched off."""
        return effect not in self.without

    @property
    def overlaps(self) -> bool:
        """Whether the host works on beside the GPU."""
        return self.async_scheduling and self.has(OVERLAP)

    def launches(self, num_launches: int) -> Launches:
        """What launching so many kernels a step takes; nothing where it is switched off."""
        captured = self.graph_sizes[-1] if self.graph_sizes else 0
        us = self.launch.us if self.has(LAUNCHING) else 0.0
        return Launches(num_launches * us * NS_PER_US, captured)

    @property
    def acting_host(self) -> HostCosts:
        """The host with what is switched off at 0."""
        off = {effect: not self.has(effect) for effect in (HOST, GAP, FIRST_TOKEN)}
        host = self.host if self.errors == EXACT else self.host.times(self.errors.host, self.errors.gap)
        return host.without(step=off[HOST], gap=off[GAP], first_token=off[FIRST_TOKEN])

    @property
    def loop(self) -> Loop:
        """The engine's loop around the GPU's part of a step."""
        return self.acting_host.loop(self.tensor_parallel_size, overlaps=self.overlaps)

    def sources(self, own: Mapping[str, Source]) -> dict[str, Source]:
        """Where each effect comes from: those that every latency model of hardware has, then its `own`.

        What is found again after a preemption lies in the engine, which adds that source.
        """
        terms, synchronous = self.host.sources, nothing("synchronous scheduling")
        found = {
            HOST: _both(terms["fixed_us"], terms["per_seq_us"]),
            OVERLAP: RULES if self.async_scheduling else synchronous,
            GAP: terms["gap_us"] if self.async_scheduling else synchronous,
            LAUNCHING: self.launch.source,
            SAMPLED_ROWS: RULES,
            FIRST_TOKEN: terms["first_token_us"],
            **own,
        }
        return {effect: source if self.has(effect) else OFF for effect, source in found.items()}


def _both(fixed: Source, per_seq: Source) -> Source:
    if fixed == per_seq:
        return fixed
    return Source(fixed.origin, f"{fixed.text} (fixed), {per_seq.text} (per sequence)", (fixed, per_seq))


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
