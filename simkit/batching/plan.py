"""What a batcher decides by, and what it decided: settings, one pass, and the plan that it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simkit.sequence import Sequence
from simkit.types import StepShapes


class ScheduledChunk(NamedTuple):
    """Work of one sequence: `num_tokens` of `seq` on top of `num_computed_tokens` that are there already.

    `kind` is N (first admission), R (admission after a preemption), S (back from the host pool), C (a running sequence
    goes on with its prompt) or D (a decode of a sequence that is not grouped, or was not when its output came);
    `samples` tells that the chunk reaches the last known token, so that the step yields a token.
    """

    seq: Sequence
    kind: str
    num_computed_tokens: int
    num_tokens: int
    samples: bool


class Preemption(NamedTuple):
    """A sequence that lost its memory in this pass and the computed tokens it lost."""

    seq: Sequence
    lost_tokens: int


class StepPlan:
    """One pass: O(changes), not O(batch).

    `explicit` lists what was scheduled for one sequence at a time, in schedule order; besides, every grouped sequence
    decodes one token. `outputs` are those entries whose output has to be processed one by one at the commit.
    `decode_context_*` count each decode sequence's tokens with the new one. `held_slots` counts the sequences that sit
    in a slot, `dead_slots` those of them that compute for nothing (finished members of a static batch). `padded_tokens`
    are prompt tokens computed only because of padding. `number` counts the plans with a step.
    `stable` tells that the next pass decides the same unless something arrives, ends or runs short of memory.
    `version` is the same for two plans of a batcher exactly when nobody took or left a slot in between.
    """

    explicit: list[ScheduledChunk] | tuple[()] = ()
    outputs: list[ScheduledChunk] | tuple[()] = ()
    preemptions: list[Preemption] | tuple[()] = ()
    number = 0
    version = 0
    num_decode = 0
    decode_context_sum = 0
    decode_context_max = 0
    prefill_tokens = 0
    prefill_context_tokens = 0
    prefill_pairs = 0
    num_sampled = 0
    padded_tokens = 0
    dead_slots = 0
    held_slots = 0
    num_scheduled = 0
    swap_in_bytes = 0
    swap_out_bytes = 0
    stable = False

    @property
    def context_tokens(self) -> int:
        """Tokens that sequences of this step have computed when it ends."""
        return self.decode_context_sum + self.prefill_context_tokens + self.prefill_tokens

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens that the step computes."""
        return self.num_decode + self.prefill_tokens

    def add(self, chunk: ScheduledChunk) -> None:
        """Schedule a chunk of a prompt or a decode of its own."""
        _, kind, before, n, samples = chunk
        self.num_scheduled += 1
        self.num_sampled += samples
        if kind == "D":
            self.num_decode += 1
            self.decode_context_sum += before + 1
            self.decode_context_max = max(self.decode_context_max, before + 1)
            return
        self.prefill_tokens += n
        self.prefill_context_tokens += before
        self.prefill_pairs += n * before + n * (n + 1) // 2

    def shapes(self, num_steps: int) -> StepShapes:
        """Shapes of `num_steps` equal steps, each with one more context token per decode sequence."""
        if num_steps > 1:
            return StepShapes.run(
                num_steps,
                self.num_decode,
                self.decode_context_sum,
                self.decode_context_max,
                self.num_sampled,
                self.dead_slots,
            )
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


class PassState:
    """One scheduling pass while it is being made; `group_size` are scheduled as one group, the rest alone."""

    __slots__ = (
        "budget",
        "cap",
        "group_size",
        "hold",
        "kind_of",
        "preemptions",
        "scheduled",
        "swapped_in",
        "swapped_out",
        "with_prefill",
    )  # fmt: skip

    def __init__(self, budget: int, cap: int, hold: bool) -> None:
        self.budget = budget
        self.cap = cap
        self.hold = hold
        self.group_size = 0
        self.scheduled: dict[Sequence, int] = {}
        self.kind_of: dict[Sequence, str] = {}
        self.preemptions: list[Preemption] = []
        self.with_prefill = False
        self.swapped_in = 0
        self.swapped_out = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing is launched yet: at the latest `max_wait_ns` (None = no limit) after `oldest_arrival_ns` something is."""

    max_wait_ns: int | None
    oldest_arrival_ns: int


@dataclass(frozen=True, slots=True)
class ContinuousSettings:
    """Scheduler settings under vLLM's names; `prefill_first` gives the older prefill-prioritised engine, `never_evicts`
    admits only who fits to the end, beside all who run."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    prefill_first: bool = False
    policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    never_evicts: bool = False
    prefill_schedule_interval: int = 1
    max_num_active_seqs: int | None = None
    async_scheduling: bool = False
