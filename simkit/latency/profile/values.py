"""What a calibrated profile holds, as values. Reads no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simkit.errors import InputError
from simkit.latency.ops.launches import Skew, Varlen
from simkit.latency.profile.op_fit import OpFit

SCHEMA = 1


class ProfileError(InputError):
    """A profile or kernel table that cannot be used: where, and what was expected."""


class NotMeasured(ProfileError):
    """A profile does not hold an operation that the model needs; `lacks` says which, `text` also what to do."""

    def __init__(self, text: str, *, lacks: str = "") -> None:
        super().__init__(text, key="latency.profile")
        self.lacks = lacks


@dataclass(frozen=True, slots=True)
class Host:
    """Work of the host for one step, in microseconds: fixed, and for each running sequence."""

    fixed_us: float
    per_seq_us: float


@dataclass(frozen=True, slots=True)
class HostTerms:
    """What the host of a whole engine adds, in microseconds: to a step, to it for each sequence, and to a request."""

    fixed_us: float
    per_seq_us: float
    first_token_us: float


@dataclass(frozen=True, slots=True)
class EngineHost:
    """Host terms fitted to a real run of one engine version; `provenance` says which run, what was fitted, how well."""

    terms: HostTerms
    provenance: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mixed:
    """How a launch of a chunk beside decodes is priced: by `varlen`, else as the sum of its parts less one floor.

    Where `measured`: the (num_heads, num_kv_heads, head_dim) and the largest q_len, kv_len before it, decodes, and
    longest decode.
    """

    varlen: Varlen | None
    floor_us: float
    measured: bool
    heads: frozenset[tuple[int, ...]] = frozenset()
    largest: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """A parsed profile. `gpu` has the limits it was fitted with, `provenance` who measured what, `report` the errors of
    each op, `launches` those of launches of unlike sequences. `engine_hosts` is by version of vLLM. `content` is the
    hash of the file."""

    name: str
    gpu: Mapping[str, Any]
    provenance: Mapping[str, Any]
    ops: Mapping[tuple[str, str], OpFit]
    report: Mapping[tuple[str, str], Mapping[str, Any]]
    launches: Mapping[str, Any]
    mixed: Mixed
    skew: Skew | None
    host: Host | None
    engine_hosts: Mapping[str, EngineHost]
    content: str

    def op(self, op: str, dtype: str) -> OpFit | None:
        """The fit of `op` on `dtype` operands; None when it was not measured."""
        return self.ops.get((op, dtype))
