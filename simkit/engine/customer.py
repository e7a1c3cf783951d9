"""One request inside the engine: the true output length, which nobody else may see, and its stamps so far."""

from __future__ import annotations

from simkit.sequence import Sequence
from simkit.types import Request


class Customer:
    """A request in the system. Times are ns, -1 = not yet.

    `delivered_*` are what the client sees; `generated_*` are when the engine made the tokens. They differ where an
    arm does not stream. `admitted_ns`, `prefill_end_ns` and `held_last_ns` describe the present residency in a slot.
    """

    __slots__ = (
        "abandoned",
        "admitted_ns",
        "arrival_ns",
        "cached_tokens",
        "delivered_first_ns",
        "delivered_last_ns",
        "final_tokens",
        "first_scheduled_ns",
        "generated_first_ns",
        "generated_last_ns",
        "held_last_ns",
        "high_water_tokens",
        "measured",
        "prefill_end_ns",
        "replica",
        "request",
        "seq",
        "true_output_tokens",
    )

    def __init__(self, request: Request, arrival_ns: int, replica: int, measured: bool) -> None:
        self.request = request
        self.arrival_ns = arrival_ns
        self.replica = replica
        self.measured = measured
        self.true_output_tokens = request.output_tokens
        self.final_tokens = request.prompt_tokens + request.output_tokens - 1
        self.seq: Sequence | None = None
        self.first_scheduled_ns = -1
        self.delivered_first_ns = -1
        self.delivered_last_ns = -1
        self.generated_first_ns = -1
        self.generated_last_ns = -1
        self.admitted_ns = -1
        self.prefill_end_ns = -1
        self.held_last_ns = -1
        self.cached_tokens = 0
        self.high_water_tokens = 0
        self.abandoned = False
