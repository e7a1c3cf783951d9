"""The effects that a step time and a request's latency are made of: their names, and what each one is.

Owns the list; each effect can be switched off by name (`latency.without`), and a latency model says of each where it
comes from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from simkit.errors import InputError

HOST = "host"
OVERLAP = "overlap"
GRAPH_PADDING = "graph_padding"
SAMPLED_ROWS = "sampled_rows"
UNEQUAL_DECODES = "unequal_decodes"
MIXED_LAUNCHES = "mixed_launches"
CHUNK_CONTEXT = "chunk_context"
ALL_REDUCE = "all_reduce"
FIRST_TOKEN = "first_token"
PREFIX_REHITS = "prefix_rehits"

EFFECTS: dict[str, str] = {
    HOST: "work of the host for a step, fixed and for each sequence; off: none",
    OVERLAP: "that work goes on beside the GPU under async scheduling; off: it is added",
    GRAPH_PADDING: "CUDA graphs run the next larger batch that was captured; off: exactly the tokens of the step",
    SAMPLED_ROWS: "the LM head runs on sequences that sample; off: on every token of the step",
    UNEQUAL_DECODES: "decodes of unequal length in one launch wait for the longest; off: priced at their mean",
    MIXED_LAUNCHES: "a prefill chunk slows the decodes in its launch; off: the parts one after the other",
    CHUNK_CONTEXT: "a prefill chunk attends to what was computed before it; off: to itself alone",
    ALL_REDUCE: "GPUs that share a model add up their results; off: for nothing",
    FIRST_TOKEN: "tokenising, hand-over to the queue and detokenising, once a request; off: no time",
    PREFIX_REHITS: "who was preempted finds blocks of its own again; off: all is computed again",
}
"""Effect to what it is, and to what takes its place when it is switched off."""

SPEC = "scheduler rules"
DATA_SHEET = "data sheet"
KERNEL_TABLE = "kernel table"


class Absent(str):
    """A source that says why an effect is not in the latency: switched off, or without cause in this set-up."""

    __slots__ = ()


OFF = Absent("off")
ONE_GPU = Absent("none: one GPU")


def check_known(without: Collection[str], known: Collection[str], model: str) -> None:
    """InputError for an effect that is to be switched off and that the latency model does not have."""
    for name in without:
        if name not in known:
            have = ", ".join(known) or "none"
            raise InputError(f"{name} is no effect of {model}; expected one of {have}", key="latency.without")


def is_on(source: str) -> bool:
    """Whether an effect from `source` is in the latency: neither switched off, nor without cause in this set-up."""
    return not isinstance(source, Absent)


def source_of(effect: str, source: str, without: Collection[str]) -> str:
    """Where an effect comes from, or that it is off."""
    return OFF if effect in without else source


def common_sources(host: Mapping[str, str], *, asynchronous: bool, without: Collection[str]) -> dict[str, str]:
    """Sources of the effects that every latency model of hardware has; `host` has those of its terms.

    What is found again after a preemption lies in the engine, which adds its own source.
    """
    fixed, per_seq = host["fixed_us"], host["per_seq_us"]
    found = {
        HOST: fixed if fixed == per_seq else f"{fixed} (fixed), {per_seq} (per sequence)",
        OVERLAP: SPEC if asynchronous else Absent("none: synchronous scheduling"),
        SAMPLED_ROWS: SPEC,
        FIRST_TOKEN: host["first_token_us"],
    }
    return {effect: source_of(effect, source, without) for effect, source in found.items()}
