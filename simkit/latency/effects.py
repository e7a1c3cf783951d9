"""The effects that a step time and a request's latency are made of: their names, and what each one is.

Owns the list; each effect can be switched off by name (`latency.without`), and a latency model says of each where it
comes from.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from simkit.errors import InputError

HOST = "host"
OVERLAP = "overlap"
GAP = "gap"
GRAPH_PADDING = "graph_padding"
LAUNCHES = "launches"
SAMPLED_ROWS = "sampled_rows"
UNEQUAL_DECODES = "unequal_decodes"
MIXED_LAUNCHES = "mixed_launches"
CHUNK_CONTEXT = "chunk_context"
ALL_REDUCE = "all_reduce"
FIRST_TOKEN = "first_token"
PREFIX_REHITS = "prefix_rehits"

EFFECTS: dict[str, str] = {
    HOST: "work of the host for a step, fixed, for each sequence and for each new request; off: none",
    OVERLAP: "that work goes on beside the GPU under async scheduling; off: it is added",
    GAP: "the GPU is idle for a moment between steps all the same; off: it is not",
    GRAPH_PADDING: "CUDA graphs run the next larger batch that was captured; off: exactly the tokens of the step",
    LAUNCHES: "kernels outside CUDA graphs wait for the host to launch them; off: for nothing",
    SAMPLED_ROWS: "the LM head runs on sequences that sample; off: on every token of the step",
    UNEQUAL_DECODES: "decodes of unequal length in one launch wait for the longest; off: priced at their mean",
    MIXED_LAUNCHES: "a prefill chunk slows the decodes in its launch; off: the parts one after the other",
    CHUNK_CONTEXT: "a prefill chunk attends to what was computed before it; off: to itself alone",
    ALL_REDUCE: "GPUs that share a model add up their results; off: for nothing",
    FIRST_TOKEN: "tokenising, hand-over to the queue and detokenising, once a request; off: no time",
    PREFIX_REHITS: "who was preempted finds blocks of its own again; off: all is computed again",
}
"""Effect to what it is, and to what takes its place when it is switched off."""


class Origin(Enum):
    """What the source of an effect, or of a host term, is."""

    RULES = auto()
    DATA_SHEET = auto()
    MEASURED = auto()
    NOT_MEASURED = auto()
    FITTED = auto()
    SHIPPED = auto()
    DEFAULT = auto()
    SCENARIO = auto()
    OTHER_VERSIONS = auto()
    NOTHING = auto()
    OFF = auto()


@dataclass(frozen=True, slots=True)
class Source:
    """Where an effect comes from, and how outputs say so; `terms` are the sources of its terms, where they differ."""

    origin: Origin
    text: str
    terms: tuple[Source, ...] = ()

    @property
    def is_on(self) -> bool:
        """Whether the effect is in the latency: neither switched off, nor without cause in this set-up."""
        return self.origin not in (Origin.OFF, Origin.NOTHING)

    @property
    def is_fitted(self) -> bool:
        """Whether a number of it was fitted to a real run."""
        return self.origin is Origin.FITTED or any(term.is_fitted for term in self.terms)


def nothing(why: str) -> Source:
    """An effect that has no cause in this set-up."""
    return Source(Origin.NOTHING, f"none: {why}")


RULES = Source(Origin.RULES, "scheduler rules")
DATA_SHEET = Source(Origin.DATA_SHEET, "data sheet")
STATED = Source(Origin.SCENARIO, "stated")
KERNEL_TABLE = Source(Origin.MEASURED, "kernel table")
UNMEASURED_RULE = Source(Origin.NOT_MEASURED, "rule not measured on this GPU")
ONE_GPU = nothing("one GPU")
OFF = Source(Origin.OFF, "off")


def check_known(without: Collection[str], known: Collection[str], model: str) -> None:
    """InputError for an effect that is to be switched off and that the latency model does not have."""
    for name in without:
        if name not in known:
            have = ", ".join(known) or "none"
            raise InputError(f"{name} is no effect of {model}; expected one of {have}", key="latency.without")
