"""Values that cross module borders and the three seams (batcher, KV allocator, latency model).

Values are frozen. A `Request` is what a client asked; the engine's state of it is `simkit.sequence.Sequence`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from simkit.sequence import Sequence

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Request(NamedTuple):
    """What a client asked. `output_tokens` is the true length and is for the engine alone.

    `arrival_ns` is absolute for open-loop requests; the engine replaces it for closed-loop ones.
    `prefix_group` is -1 when the prompt shares nothing, else requests of one group share their first `prefix_tokens`.
    `shared` says the same of a prompt that begins as those of earlier requests: pairs (request id, upto_tokens) of
    rising `upto_tokens`; the prompt is equal to that of the request from its first token up to there.
    """

    id: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    priority: int = 0
    tenant: int = 0
    prefix_group: int = -1
    prefix_tokens: int = 0
    samples: int = 1
    shared: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StepShapes:
    """What k steps compute, each field an int64 array of length k.

    `decode_seqs`, `decode_context_*` and `prefill_*` count everything the hardware computes, so padding and dead slots
    (static and dynamic batching) are inside them; `padded_tokens` and `dead_slots` say how much of it is waste.
    A decode sequence's context includes the token being computed. `prefill_context_tokens` is the sum over chunks of
    tokens already cached before the chunk; `prefill_pairs` is the sum of (n * computed + n (n + 1) / 2), the number of
    (query, key) pairs of causal attention. `sampled_seqs` sequences go through the LM head and the sampler.
    """

    decode_seqs: Ints
    decode_context_sum: Ints
    decode_context_max: Ints
    prefill_tokens: Ints
    prefill_context_tokens: Ints
    prefill_pairs: Ints
    sampled_seqs: Ints
    padded_tokens: Ints
    dead_slots: Ints
    swap_in_bytes: Ints
    swap_out_bytes: Ints

    @classmethod
    def of(cls, num_steps: int, **values: int | Ints) -> StepShapes:
        """Shapes of `num_steps` steps from ints (the same in each step) or arrays; fields not named are 0."""
        unknown = values.keys() - set(_SHAPE_NAMES)
        assert not unknown, f"unknown shapes {unknown}"
        table = np.zeros((len(_SHAPE_NAMES), num_steps), dtype=np.int64)
        for row, name in enumerate(_SHAPE_NAMES):
            if name in values:
                table[row] = values[name]
        return cls(*table)

    @classmethod
    def single(cls, *values: int) -> StepShapes:
        """One step; `values` in the order of the fields."""
        return cls(*np.array(values, dtype=np.int64).reshape(-1, 1))

    @classmethod
    def concatenate(cls, parts: Seq[StepShapes]) -> StepShapes:
        """The steps of `parts` one after the other."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _SHAPE_NAMES))

    def part(self, first: int, upto: int) -> StepShapes:
        """Steps `first` (counted from 0) up to `upto` (not included)."""
        return StepShapes(*(getattr(self, name)[first:upto] for name in _SHAPE_NAMES))

    @classmethod
    def run(
        cls, num_steps: int, decode_seqs: int, context_sum: int, context_max: int, sampled_seqs: int, dead_slots: int
    ) -> StepShapes:
        """`num_steps` decode steps of the same sequences, each adding one token to every context."""
        ahead = np.arange(num_steps, dtype=np.int64)
        zero = np.zeros(num_steps, dtype=np.int64)
        return cls(
            decode_seqs=np.full(num_steps, decode_seqs, dtype=np.int64),
            decode_context_sum=context_sum + decode_seqs * ahead,
            decode_context_max=context_max + ahead,
            prefill_tokens=zero,
            prefill_context_tokens=zero,
            prefill_pairs=zero,
            sampled_seqs=np.full(num_steps, sampled_seqs, dtype=np.int64),
            padded_tokens=zero,
            dead_slots=np.full(num_steps, dead_slots, dtype=np.int64),
            swap_in_bytes=zero,
            swap_out_bytes=zero,
        )

    def __len__(self) -> int:
        return len(self.decode_seqs)


_SHAPE_NAMES = tuple(field.name for field in fields(StepShapes))


class Basis(Enum):
    """What step times rest on: nothing real, a data sheet, a profile of this GPU, or one of another GPU or format.

    The value is how the source of step times says so, where `how` and `name` say more.
    """

    UNIT = "unit"
    DATA_SHEET = "roofline (uncalibrated{how})"
    PROFILE = "profile {name} (calibrated)"
    OTHER_PROFILE = "profile {name} (calibrated{how})"

    def text(self, how: str = "", name: str = "") -> str:
        """The source in words, as all outputs print it."""
        return self.value.format(how=how, name=name)

    @classmethod
    def of(cls, source: str) -> Basis:
        """The basis of a source that was read back from an output."""
        if source == cls.UNIT.value:
            return cls.UNIT
        if not source.startswith("profile "):
            return cls.DATA_SHEET
        return cls.PROFILE if source.endswith(" (calibrated)") else cls.OTHER_PROFILE


class LatencyModel(Protocol):
    """Shapes to nanoseconds. Elementwise numpy only; the same shapes always give the same bytes."""

    @property
    def source(self) -> str:
        """Where the times come from, printed in every output, e.g. ``"roofline (uncalibrated)"`` or ``"unit"``."""

    @property
    def basis(self) -> Basis:
        """What they rest on, for whoever decides by it."""

    @property
    def peak_flops_per_s(self) -> float | None:
        """Dense peak of all GPUs of the replica, for MFU; None when the model has no hardware (`unit`)."""

    @property
    def peak_bytes_per_s(self) -> float | None:
        """Memory bandwidth of all GPUs of the replica, for MBU; None when the model has no hardware (`unit`)."""

    def step_ns(self, shapes: StepShapes) -> Ints:
        """Duration of each step, int64[k], every entry >= 1."""

    def gpu_ns(self, shapes: StepShapes) -> Ints:
        """The part of each step in which the GPU is busy, int64[k], never more than `step_ns`."""

    def work(self, shapes: StepShapes) -> tuple[Floats, Floats]:
        """(FLOPs, bytes moved to or from GPU memory) of each step, float64[k], all GPUs of the replica."""


class OneStep(Protocol):
    """What one step computes, or each step of a run of decodes; as the fields of `StepShapes`, but plain ints."""

    num_decode: int
    decode_context_sum: int
    decode_context_max: int
    prefill_tokens: int
    prefill_context_tokens: int
    prefill_pairs: int
    num_sampled: int
    padded_tokens: int
    dead_slots: int
    swap_in_bytes: int
    swap_out_bytes: int

    def shapes(self, num_steps: int) -> StepShapes:
        """The same as arrays, for `num_steps` equal steps, each with one more token in every decode context."""


@runtime_checkable
class ScalarLatency(Protocol):
    """What a latency model may offer beside `step_ns`: the same prices without arrays, for one step or a run."""

    def one_ns(self, step: OneStep) -> int:
        """`step_ns(step.shapes(1))`, equal to the bit."""

    def decode_ns(self, step: OneStep, num_steps: int) -> list[int] | Ints:
        """`step_ns(step.shapes(num_steps))`, equal to the bit."""


@runtime_checkable
class TaggedLatency(Protocol):
    """What a latency model may offer that rests on measurements: which part of its times does not."""

    def gpu_and_extrapolated_ns(self, shapes: StepShapes) -> tuple[Ints, dict[str, Floats]]:
        """(`gpu_ns`, the part of it that was not measured by what it is, float64[k] each, always the same names)."""


@dataclass(frozen=True, slots=True)
class KVUsage:
    """State of the KV memory. Tokens everywhere; `largest_free` is the largest request that could be placed now."""

    capacity_tokens: int
    allocated_tokens: int
    used_tokens: int
    free_tokens: int
    largest_free_tokens: int


class HostMemory(Protocol):
    """Where swapped sequences wait: a finite pool, `bytes_per_token` of all GPUs of a replica together."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that cross the host link per token of KV."""

    def holds(self, seq: Sequence) -> bool:
        """Whether `seq` waits here."""

    def try_store(self, seq: Sequence, num_tokens: int) -> bool:
        """Set room aside for `seq`; False when the pool is too full."""

    def release(self, seq: Sequence) -> int:
        """Give back what `seq` holds; the number of tokens."""


class KVAllocator(Protocol):
    """Who holds which memory. A False leaves no trace. Sequences own nothing but their `kv` slot, which is opaque."""

    @property
    def capacity_tokens(self) -> int:
        """All tokens the pool can hold."""

    @property
    def block_size(self) -> int | None:
        """Tokens of a block of the pool; None where memory is contiguous."""

    @property
    def caches(self) -> bool:
        """Whether there is a prefix cache, in which `enter` makes blocks known."""

    @property
    def blocks_are_alike(self) -> bool:
        """Whether memory comes in blocks of which nobody will ask which one it is."""

    def fits_ever(self, num_tokens: int, reserve_tokens: int) -> bool:
        """Whether a lone sequence of `num_tokens` (contiguous: that reserves `reserve_tokens`) can be held."""

    def lookup(self, seq: Sequence) -> int:
        """Tokens of `seq` whose KV is already cached and can be shared; 0 without prefix caching. Changes nothing."""

    def try_admit(self, seq: Sequence, num_tokens: int, gate_tokens: int, headroom: bool) -> bool:
        """Give a sequence without memory room for `num_tokens` (cached ones included).

        Refused unless also `gate_tokens` would fit (0 = no gate) and, with `headroom`, the watermark stays free.
        """

    def try_reserve(self, seq: Sequence, num_tokens: int) -> bool:
        """Give a sequence without memory exactly `num_tokens` (rounded up to what the pool hands out)."""

    def try_grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make room so that `seq` holds `num_tokens` in all."""

    def try_fork(self, parent: Sequence, child: Sequence) -> bool:
        """Give `child` the memory of `parent`: shared with copy-on-write if paged, else a region of its own."""

    def enter(self, seq: Sequence, num_tokens: int) -> None:
        """Make the first `num_tokens` of `seq` known to the prefix cache; nothing without prefix caching."""

    def free(self, seq: Sequence) -> None:
        """Return everything `seq` holds."""

    def can_join(self, seq: Sequence) -> bool:
        """Whether what `seq` writes to next is its own, so that it may `join`."""

    def join(self, seq: Sequence) -> None:
        """From now on `seq` grows by a token with every `grow_all`."""

    def leave(self, seq: Sequence) -> None:
        """`seq` grows no more by `grow_all`."""

    def grow_all(self, num_steps: int, known: int) -> bool:
        """Memory for `num_steps` further one-token steps of all who joined, in (step, order of admission).

        `known` tells how many of the tokens computed last can be entered in the prefix cache, since their value is
        known: 1, or 0 when passes run ahead of outputs.
        """

    def steps_until_full(self, limit: int) -> int:
        """How many further steps `grow_all` is sure to find memory for, at most `limit`."""

    def block_at(self, seq: Sequence, token: int) -> int | None:
        """The block that holds token number `token` (from 0) of `seq`; None where there is no such block."""

    def allocated_of(self, seq: Sequence) -> int:
        """Tokens of memory that `seq` holds, used or not."""

    def usage(self) -> KVUsage:
        """Totals now."""

    @property
    def allocated_tokens(self) -> int:
        """Tokens of memory that are held, what is shared counted once, O(1)."""

    @property
    def shared_tokens(self) -> int:
        """Tokens of memory that sequences hold together beyond the first of them, O(1)."""

    def external_tokens(self, need_tokens: int) -> int:
        """External fragmentation for a request of `need_tokens`: free - sum over holes of floor(hole/need) x need."""

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not balance. O(pool); for tests and the end of a run."""
