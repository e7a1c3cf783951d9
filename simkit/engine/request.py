"""One request inside the engine: the true output length, which nobody else may see, and its stamps so far.

The rows that the record keeps of a request are made here.
"""

from __future__ import annotations

from simkit.metrics.record import Record, RequestRow
from simkit.sequence import Phase, Sequence
from simkit.types import Request


class RequestState:
    """What the engine knows of a request in the system, or of one of several samples of it. Times are ns, -1 = not yet.

    `reserve_tokens` is what a contiguous allocator sets aside. `generated_*` are when the engine made the tokens;
    `admitted_ns`, `prefill_end_ns` and `held_last_ns` describe the present residency in a slot. Samples beyond the
    first point to the first as their `lead`, which adds up what all of them got (`total_*`) and is done when
    `num_parts` is 0. `stopped`: its sequence, grouped, only waits for its last token. `internal_tokens` of its memory
    will never be filled, from step `internal_from` on; while it is grouped it begins a block with each step whose
    number leaves `begins`.
    """

    __slots__ = (
        "abandoned",
        "admitted_ns",
        "arrival_ns",
        "begins",
        "cached_tokens",
        "final_tokens",
        "first_scheduled_ns",
        "generated_first_ns",
        "generated_last_ns",
        "held_last_ns",
        "high_water_tokens",
        "internal_from",
        "internal_tokens",
        "measured",
        "num_parts",
        "other_lead",
        "prefill_end_ns",
        "replica",
        "request",
        "reserve_tokens",
        "sequences",
        "stopped",
        "total_first_ns",
        "total_last_ns",
        "total_preemptions",
        "total_tokens",
        "true_output_tokens",
    )

    def __init__(
        self,
        request: Request,
        arrival_ns: int,
        replica: int,
        measured: bool,
        true_output_tokens: int,
        reserve_tokens: int = 0,
        lead: RequestState | None = None,
    ) -> None:
        self.request = request
        self.arrival_ns = arrival_ns
        self.replica = replica
        self.measured = measured
        self.true_output_tokens = true_output_tokens
        self.reserve_tokens = reserve_tokens
        self.final_tokens = request.prompt_tokens + true_output_tokens - 1
        self.other_lead = lead
        self.sequences: tuple[Sequence, ...] = ()
        self.num_parts = self.total_tokens = self.total_preemptions = 0
        self.cached_tokens = self.high_water_tokens = self.internal_tokens = self.internal_from = 0
        self.total_first_ns = self.total_last_ns = self.first_scheduled_ns = -1
        self.generated_first_ns = self.generated_last_ns = -1
        self.admitted_ns = self.prefill_end_ns = self.held_last_ns = -1
        self.begins = -1
        self.abandoned = self.stopped = False

    @property
    def lead(self) -> RequestState:
        """The first sample of the request; itself for most."""
        return self.other_lead or self

    def alive(self) -> list[Sequence]:
        """Its sequences that wait or run; samples that wait for their prompt are none of their own yet."""
        pending = self.sequences[0].forks if self.sequences else ()
        return [seq for seq in self.sequences if seq.phase is not Phase.FINISHED and seq not in pending]

    def start_again(self, *, keep_tokens: bool) -> None:
        """Its replica is gone: compute all again, beyond the tokens that the client has if these are kept.

        A client that has none yet, for they come all at once, waits for every sample anew.
        """
        if keep_tokens:
            for seq in self.alive():
                seq.owner.high_water_tokens = 0
                seq.start_again()
            return
        first, *others = self.sequences
        first.forks = tuple(others)
        self.num_parts, self.total_tokens, self.total_preemptions = len(self.sequences), 0, 0
        self.total_first_ns = self.total_last_ns = -1
        for seq in self.sequences:
            part: RequestState = seq.owner
            part.high_water_tokens = 0
            part.generated_first_ns = part.generated_last_ns = -1
            seq.num_output_tokens = 0
            seq.start_again()

    def add_part(self, part: RequestState, seq: Sequence, delivered_tokens: int) -> None:
        """A sample has ended, with `delivered_tokens` for the client."""
        self.num_parts -= 1
        self.total_tokens += delivered_tokens
        self.total_preemptions += seq.num_preemptions
        first = part.generated_first_ns
        if first >= 0:
            self.total_first_ns = first if self.total_first_ns < 0 else min(self.total_first_ns, first)
            self.total_last_ns = max(self.total_last_ns, part.generated_last_ns)

    def leave(self, record: Record, status: int, now_ns: int, *, stream: bool, reason: int = 0) -> None:
        """It leaves the system now: note what became of it. Without streaming everything is delivered at the end."""
        record.num_tokens_delivered += self.total_tokens
        record.leave(now_ns, self.arrival_ns)
        request, samples = self.request, len(self.sequences) or 1
        first_ns = last_ns = -1
        if self.total_tokens:
            first_ns, last_ns = (self.total_first_ns, self.total_last_ns) if stream else (now_ns, now_ns)
        record.requests.append(
            RequestRow(
                request.id,
                self.arrival_ns,
                self.first_scheduled_ns,
                first_ns,
                last_ns,
                self.total_first_ns,
                self.total_last_ns,
                request.prompt_tokens,
                self.total_tokens,
                request.output_tokens * samples,
                samples,
                self.total_preemptions,
                self.cached_tokens,
                status,
                reason,
                self.replica,
                request.tenant,
                request.priority,
                now_ns,
            )
        )

    def leave_slot(self, record: Record, now_ns: int, end: int) -> None:
        """It gives back its slot now: note its residency (SLOT_COLUMNS). `end` as in RESIDENCY_ENDS."""
        record.residency(
            (
                self.replica,
                self.request.id,
                self.admitted_ns,
                self.prefill_end_ns,
                self.held_last_ns,
                now_ns,
                end,
            )
        )
        self.admitted_ns = self.prefill_end_ns = self.held_last_ns = -1
