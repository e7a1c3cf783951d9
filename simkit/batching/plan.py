"""What a batcher decided for a pass, and whom it tells about the outcome. Imports `types`, `sequence` and the
protocol of queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from simkit.batching.ordering import WaitingQueue
from simkit.sequence import Sequence
from simkit.types import StepShapes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill work: `num_tokens` of `seq` on top of `num_computed_tokens` that are there already.

    `kind` is N (first admission), R (admission after a preemption) or C (a running sequence goes on);
    `samples` tells that the chunk reaches the last known token, so that the step yields a token.
    """

    seq: Sequence
    kind: str
    num_computed_tokens: int
    num_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Preemption:
    """A sequence that lost its memory in this pass and the computed tokens it lost."""

    seq: Sequence
    lost_tokens: int


@dataclass(slots=True)
class StepPlan:
    """One pass. `decodes` and `chunks` together are the schedule; `order()` interleaves them as the scheduler did.

    `decode_context_*` count each decode sequence's tokens with the new one. `held_slots` counts the sequences that sit
    in a slot, `dead_slots` those of them that compute for nothing (finished members of a static batch). `padded_tokens`
    are prompt tokens computed only because of padding.
    `stable` tells that the next pass decides the same unless something arrives, ends or runs short of memory.
    """

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    order: list[Sequence | Chunk] = field(default_factory=list)
    num_decode: int = 0
    decode_context_sum: int = 0
    decode_context_max: int = 0
    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    prefill_pairs: int = 0
    num_sampled: int = 0
    padded_tokens: int = 0
    dead_slots: int = 0
    held_slots: int = 0
    num_scheduled: int = 0
    num_scheduled_tokens: int = 0
    context_tokens: int = 0
    swap_in_bytes: int = 0
    swap_out_bytes: int = 0
    stable: bool = False

    def add_chunk(self, chunk: Chunk) -> None:
        """Schedule prefill work."""
        self.chunks.append(chunk)
        self.order.append(chunk)

    def add_decode(self, seq: Sequence, context_tokens: int) -> None:
        """Schedule one token of `seq`, the last of `context_tokens`."""
        self.decodes.append(seq)
        self.order.append(seq)
        self.decode_context_sum += context_tokens
        if context_tokens > self.decode_context_max:
            self.decode_context_max = context_tokens

    def add_up(self) -> None:
        """Fill in the totals once everything is scheduled."""
        for chunk in self.chunks:
            n, before = chunk.num_tokens, chunk.num_computed_tokens
            self.prefill_tokens += n
            self.prefill_context_tokens += before
            self.prefill_pairs += n * before + n * (n + 1) // 2
            self.num_sampled += chunk.samples
        self.num_decode = len(self.decodes)
        self.num_sampled += self.num_decode
        self.context_tokens = self.decode_context_sum + self.prefill_context_tokens + self.prefill_tokens
        self.num_scheduled = len(self.order)
        self.num_scheduled_tokens = self.num_decode + self.prefill_tokens

    def shapes(self, num_steps: int) -> StepShapes:
        """Shapes of `num_steps` equal steps, each with one more context token per decode sequence."""
        if num_steps == 1:
            return StepShapes.single(
                self.num_decode,
                self.decode_context_sum,
                self.decode_context_max,
                self.prefill_tokens,
                self.prefill_context_tokens,
                self.prefill_pairs,
                self.num_sampled,
                self.padded_tokens,
                self.dead_slots,
                self.swap_in_bytes,
                self.swap_out_bytes,
            )
        return StepShapes.run(
            num_steps,
            self.num_decode,
            self.decode_context_sum,
            self.decode_context_max,
            self.num_sampled,
            self.dead_slots,
        )


class PassState:
    """The state of one scheduling pass while it is being made."""

    __slots__ = (
        "budget", "cap", "chunk_of", "hold", "preemptions", "scheduled", "swapped_in", "swapped_out", "with_prefill",
    )  # fmt: skip

    def __init__(self, budget: int, cap: int, hold: bool) -> None:
        self.budget = budget
        self.cap = cap
        self.hold = hold
        self.scheduled: dict[Sequence, int] = {}
        self.chunk_of: dict[Sequence, str] = {}
        self.preemptions: list[Preemption] = []
        self.with_prefill = False
        self.swapped_in = 0
        self.swapped_out = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing is launched yet: at the latest `max_wait_ns` (None = no limit) after `oldest_arrival_ns` something is."""

    max_wait_ns: int | None
    oldest_arrival_ns: int


class Outcome(Protocol):
    """The engine's ear: called by `commit` in schedule order, each call before the next output is looked at."""

    def token(self, seq: Sequence, ends: bool) -> bool:
        """`seq` produced a token, its last one if `ends` (a limit that everybody sees); True when it ends here."""

    def released(self, seq: Sequence) -> None:
        """`seq` gave back its slot and memory."""


class Batcher(Protocol):
    """Decides what a step holds and applies it to memory and queues."""

    @property
    def waiting(self) -> WaitingQueue:
        """The sequences that wait."""

    def add(self, seq: Sequence) -> bool:
        """A sequence arrives. True when the next pass may decide otherwise because of it."""

    def plan(self, *, closed: bool = False, expired: bool = False) -> StepPlan | Hold | None:
        """Make and apply one pass; None when there is nothing to do.

        `closed`: no further arrival is pending. `expired`: the oldest waiting sequence waited as long as `Hold` said.
        """

    def commit(self, plan: StepPlan, steps: int, scheduled: int = 0) -> None:
        """Process the outputs of the oldest uncommitted plan after `steps` equal steps; only the last may end anybody.

        `scheduled` equal steps beyond these have been scheduled as well and are still to be committed.
        """

    def abort(self, seq: Sequence) -> None:
        """The client left: remove `seq` and give back what it holds, between passes."""

    def has_work(self) -> bool:
        """Whether a pass could schedule something or must clear what has ended."""

    def members(self) -> list[Sequence]:
        """Sequences that hold a slot, in order of admission."""
