"""Values that cross module borders.

Values are frozen. A `Request` is what a client asked; the engine's state of it is `simkit.sequence.Sequence`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
