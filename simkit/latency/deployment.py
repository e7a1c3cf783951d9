"""A model on GPUs as an engine runs it: all that step times depend on beside what a step holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from simkit.latency.effects import FIRST_TOKEN, HOST, OFF, OVERLAP, RULES, SAMPLED_ROWS, Source, nothing
from simkit.latency.host import DEFAULT, HostCosts
from simkit.specs.hardware import GpuSpec
from simkit.specs.models import ModelSpec


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
    host: HostCosts = DEFAULT
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
            else Source(fixed.origin, f"{fixed.text} (fixed), {per_seq.text} (per sequence)"),
            OVERLAP: RULES if self.async_scheduling else nothing("synchronous scheduling"),
            SAMPLED_ROWS: RULES,
            FIRST_TOKEN: terms["first_token_us"],
            **own,
        }
        return {effect: source if self.has(effect) else OFF for effect, source in found.items()}
