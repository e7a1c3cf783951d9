"""The engine's state of a request. Imports nothing of simkit but `types`; knows no clock and no true output length.

Counters keep vLLM's names. *known* = prompt + generated tokens; a sequence always tries to bring
`num_computed_tokens` up to known, and decoding is the case where one token is missing.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from simkit.types import Request


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Sequence:
    """Mutable state of one request inside a replica.

    `arrival_ns` and `id` only order queues. `reserve_tokens` is what a contiguous allocator sets aside at admission,
    handed over by the engine. `kv` belongs to the allocator. `num_outstanding_tokens` counts sampled but unseen tokens
    and `num_in_flight_tokens` scheduled tokens whose output was not processed (both 0 without async scheduling);
    `num_stale_tokens` is what was in flight when the sequence was preempted. `in_prefill` tells whether the last pass
    left known tokens uncomputed. `siblings` are further samples of the prompt, which come to life when it is computed.
    """

    __slots__ = (
        "arrival_ns",
        "id",
        "in_prefill",
        "kv",
        "max_tokens",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_output_tokens",
        "num_outstanding_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_stale_tokens",
        "phase",
        "prefix_group",
        "prefix_tokens",
        "priority",
        "reserve_tokens",
        "samples",
        "siblings",
        "tenant",
        "tokens",
    )

    def __init__(self, request: Request, reserve_tokens: int = 0, tokens: Any = None) -> None:
        self.id = request.id
        self.arrival_ns = request.arrival_ns
        self.num_prompt_tokens = request.prompt_tokens
        self.max_tokens = request.max_tokens
        self.priority = request.priority
        self.tenant = request.tenant
        self.prefix_group = request.prefix_group
        self.prefix_tokens = request.prefix_tokens
        self.samples = request.samples
        self.siblings: list[Sequence] = []
        self.reserve_tokens = reserve_tokens
        self.tokens = tokens
        self.kv: Any = None
        self.in_prefill = True
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.num_outstanding_tokens = 0
        self.num_in_flight_tokens = 0
        self.num_stale_tokens = 0
        self.num_preemptions = 0
        self.phase = Phase.WAITING

    @property
    def num_known_tokens(self) -> int:
        """Prompt plus generated tokens."""
        return self.num_prompt_tokens + self.num_output_tokens

    def __repr__(self) -> str:
        return (
            f"Sequence({self.id}, {self.phase.value}, computed {self.num_computed_tokens} of {self.num_known_tokens} "
            f"tokens, {self.num_output_tokens} generated, preempted {self.num_preemptions} times)"
        )
