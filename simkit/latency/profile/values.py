"""What a calibrated profile holds, as values, and the same scaled to the limits of another GPU. Reads no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simkit.errors import InputError
from simkit.latency.physics import MEMORY_BOUND_OPS, SIXTEEN_BIT, Limits, Skew, Varlen
from simkit.latency.profile.experts import EXPERT_FORMATS, ExpertFit
from simkit.latency.profile.residuals import OpFit
from simkit.specs.dtypes import BLOCK_SCALED
from simkit.specs.hardware import GpuSpec

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
    """What an engine adds to its kernels, in microseconds.

    To a step of n sequences, c of which end their prompt in it: `fixed_us` + `per_seq_us` n + `per_request_us` c, and
    `tp_us` for each doubling of the GPUs that it is sent to. `gap_us`: what the GPU is idle between steps although the
    host works ahead. `first_token_us`: to a request, on its way to the queue and back.
    """

    fixed_us: float
    per_seq_us: float
    first_token_us: float
    per_request_us: float = 0.0
    gap_us: float = 0.0
    tp_us: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineHost:
    """Host terms fitted to a real run of one engine version; `provenance` says which run, what was fitted, how well."""

    terms: HostTerms
    provenance: Mapping[str, object]


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
    hash of the file. `experts` are routed experts by format, the op `moe`, whose errors stand in `report`, too."""

    name: str
    gpu: Mapping[str, object]
    provenance: Mapping[str, object]
    ops: Mapping[tuple[str, str], OpFit]
    report: Mapping[tuple[str, str], Mapping[str, object]]
    launches: Mapping[str, object]
    mixed: Mixed
    skew: Skew | None
    host: Host | None
    engine_hosts: Mapping[str, EngineHost]
    content: str
    experts: Mapping[str, ExpertFit] = field(default_factory=dict)

    @property
    def interconnect(self) -> str:
        """What its all-reduces went over: NVLink where its GPU has it, else PCIe."""
        return "nvlink" if self.gpu.get("nvlink_bytes_per_s") else "pcie"

    def op(self, op: str, dtype: str) -> OpFit | None:
        """The fit of `op` on `dtype` operands; None when it was not measured."""
        return self.ops.get((op, dtype))


CPU = "cpu"
"""Name of the device in a profile that was measured without a GPU."""


def is_scaled(profile: Profile, gpu: GpuSpec) -> bool:
    """Whether `profile` is of another GPU, so that its times are scaled."""
    return profile.gpu.get("name") not in (gpu.name, CPU)


def transferred(profile: Profile, gpu: GpuSpec) -> Profile:
    """`profile` itself on its own GPU; else with the bandwidth and the peak FLOP/s of `gpu` in what they bound.

    The shares of the limits that kernels reach, their floors and their residuals stay those that were measured, as do
    ops that memory does not bound. Of a format that `gpu` does not compute in, operands are taken to be widened to the
    16 bits that it has: its peak holds for them. What a CPU takes says nothing of a GPU, and is left as it is.
    """
    if not is_scaled(profile, gpu):
        return profile
    ops = {key: _on(fit, gpu) for key, fit in profile.ops.items()}
    experts = {dtype: replace(fit, limits=_experts_on(fit, gpu)) for dtype, fit in profile.experts.items()}
    return replace(profile, ops=ops, experts=experts, mixed=_mixed_on(profile, gpu))


def _mixed_on(profile: Profile, gpu: GpuSpec) -> Mixed:
    """Mixed launches with their memory traffic at the bandwidth of `gpu`."""
    mixed, own = profile.mixed, profile.gpu.get("hbm_bytes_per_s")
    if mixed.varlen is None or not isinstance(own, int | float) or own <= 0:
        return mixed
    bytes_per_us = mixed.varlen.bytes_per_us * (gpu.hbm_bytes_per_s / own)
    return replace(mixed, varlen=replace(mixed.varlen, bytes_per_us=bytes_per_us))


def _experts_on(fit: ExpertFit, gpu: GpuSpec) -> Limits:
    return _limits_of(EXPERT_FORMATS[fit.dtype].computed_in, gpu)


def _on(fit: OpFit, gpu: GpuSpec) -> OpFit:
    if fit.op not in MEMORY_BOUND_OPS:
        return fit
    return replace(fit, limits=_limits_of(BLOCK_SCALED.get(fit.dtype, fit.dtype), gpu))


def _limits_of(dtype: str, gpu: GpuSpec) -> Limits:
    peaks = gpu.peak_flops_per_s
    flops = next(peaks[name] for name in (dtype, *SIXTEEN_BIT, *peaks) if name in peaks)
    return Limits(flops, gpu.hbm_bytes_per_s)
