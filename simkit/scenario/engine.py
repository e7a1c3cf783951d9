"""Schema of the sections beside the workload: hardware, engine, latency, slo, warm-up, failures of replicas.

Names and defaults are vLLM's. None means that the value is decided later, by the GPU, the model or `batching`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from simkit.scenario import block_sizes
from simkit.scenario.types import (
    Blocks,
    BlockSize,
    Count,
    EngineVersion,
    Flag,
    LinkRate,
    Microseconds,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    PositiveSeconds,
    Seconds,
    Share,
    Strict,
    Text,
    Watermark,
    conflict,
    expecting,
)
from simkit.units import ns_to_s, s_to_ns

ROUTINGS = "balanced, {power_law: 1.01} or a file with a share for each expert"


class LinkKeys(Strict):
    """A ring between the GPUs of one replica: microseconds a hop, and GB/s of a GPU in one direction."""

    latency_us: Microseconds
    gb_per_s: LinkRate


class Hardware(Strict):
    """The GPUs of one replica. `link` takes the place of what is known of `interconnect`. `expert_parallel`: each GPU
    holds whole experts, not a part of every expert."""

    gpu: Text
    tensor_parallel_size: Annotated[PositiveInt, Field(le=1024)] = 1
    interconnect: Literal["nvlink", "pcie"] = "nvlink"
    link: LinkKeys | None = None
    expert_parallel: Flag = False
    price_per_gpu_hour: NonNegativeFloat | None = None


Quantization = Literal[
    "fp8",
    "fp8_block",
    "int8",
    "awq",
    "gptq",
    "gptq_int8",
    "mxfp4",
    "nvfp4",
    "bitsandbytes",
    "none",
    "awq_marlin",
    "gptq_marlin",
    "w4a16",
    "int4",
    "w8a16",
    "w8a8",
    "fbgemm_fp8",
    "modelopt",
    "modelopt_fp4",
    "gpt_oss_mxfp4",
    "nf4",
    "compressed-tensors",
]
"""Formats of weights, no format, and the words of engines and checkpoints for them (`simkit.specs.dtypes`)."""


class PowerLawRouting(Strict):
    """Loads of experts by a power law, whose exponent is given."""

    power_law: Annotated[float, Field(gt=0.0, le=3.0), expecting("an exponent > 0 (and <= 3)")]


class Engine(Strict):
    """The serving engine; names and defaults are vLLM's. None = decided by GPU, model or `batching`."""

    batching: Literal["static", "dynamic", "continuous"] = "continuous"
    max_num_seqs: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt | None = None
    max_model_len: PositiveInt | None = None
    enable_chunked_prefill: Flag = True
    policy: Literal["fcfs", "priority", "sjf", "fair"] = "fcfs"
    async_scheduling: Flag | None = None
    enforce_eager: Flag = False
    version: EngineVersion = "0.33"
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    quantization: Quantization | None = None
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    moe_routing: Annotated[PowerLawRouting | Text | None, expecting(ROUTINGS)] = None
    gpu_memory_utilization: Share = 0.92
    num_gpu_blocks: Blocks | None = None
    kv_allocator: Literal["paged", "contiguous"] = "paged"
    block_size: BlockSize = 16
    enable_prefix_caching: Flag = True
    preemption: Literal["recompute", "swap", "auto"] = "recompute"
    max_wait_s: Seconds | None = None
    max_queue_delay_s: Seconds = 0.0
    stream: Flag | None = None
    prefill_first: Flag = False
    reservation: Literal["max", "pow2", "oracle"] = "max"
    placement: Literal["first_fit", "best_fit", "buddy"] = "first_fit"
    watermark: Watermark = 0.0
    scheduler_reserve_full_isl: Flag = True
    capacity_scheduler_policy: Literal["max_utilization", "guaranteed_no_evict"] = "max_utilization"
    long_prefill_token_threshold: Count = 0
    long_prefill_token_threshold_adaptive: Flag = False
    prefill_schedule_interval: PositiveInt = 1
    max_num_active_seqs: PositiveInt | None = None
    host_pool_gib: NonNegativeFloat = 4.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_limits(self)
        return self

    @property
    def weight_format(self) -> str | None:
        """Format of quantised weights; None for those in 16 bits. In a resolved scenario it has its one name."""
        return None if self.quantization == "none" else self.quantization


def check_limits(engine: Engine) -> None:
    """Refuse limits that the real engine refuses (scheduler spec, section 8), as far as both values are known.

    Raises pydantic's custom error inside validation. Run again, as part of validation, on the resolved scenario.
    """
    seqs, budget, length = engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_model_len
    expected = block_sizes.refusal(engine.block_size, engine.version) if engine.kv_allocator == "paged" else None
    if expected is not None:
        raise conflict(("block_size", "version"), expected, str(engine.block_size))
    if budget is not None and engine.batching == "continuous":
        if seqs is not None and budget < seqs:
            raise conflict(("max_num_batched_tokens", "max_num_seqs"), f">= max_num_seqs ({seqs})", str(budget))
        if length is not None and budget < length and not engine.enable_chunked_prefill:
            raise conflict(
                ("max_num_batched_tokens", "max_model_len", "enable_chunked_prefill"),
                f">= max_model_len ({length}) with enable_chunked_prefill: false",
                str(budget),
            )
    threshold = engine.long_prefill_token_threshold
    if length is not None and threshold > length:
        keys = ("long_prefill_token_threshold", "max_model_len")
        raise conflict(keys, f"<= max_model_len ({length})", str(threshold))
    active = engine.max_num_active_seqs
    if seqs is not None and active is not None and active > seqs:
        raise conflict(("max_num_active_seqs", "max_num_seqs"), f"<= max_num_seqs ({seqs})", str(active))


Effect = Literal[
    "host",
    "overlap",
    "gap",
    "graph_padding",
    "launches",
    "sampled_rows",
    "unequal_decodes",
    "mixed_launches",
    "chunk_context",
    "all_reduce",
    "first_token",
    "prefix_rehits",
]
"""What a step time and a latency are made of, as `simkit.latency.effects` lists it."""


LaunchMicroseconds = Annotated[NonNegativeFloat, Field(le=1e6)]


class HostKeys(Strict):
    """What an engine adds to its kernels, in microseconds. None: as the profile has it, or as it ships for `engine`.

    To a step: fixed, for each sequence, for each request whose prompt ends in it, for each doubling of the GPUs (`tp`);
    `gap`: what the GPU waits between steps although the host works ahead; `first_token`: to a request;
    `launch`: to a kernel outside CUDA graphs.
    """

    engine: Text | None = None
    fixed_us: NonNegativeFloat | None = None
    per_seq_us: NonNegativeFloat | None = None
    per_request_us: NonNegativeFloat | None = None
    gap_us: NonNegativeFloat | None = None
    tp_us: NonNegativeFloat | None = None
    first_token_us: NonNegativeFloat | None = None
    launch_us: LaunchMicroseconds | None = None


ErrorOfTimes = Annotated[
    Literal["drawn", "none"] | Annotated[int, Field(ge=0, le=999_999)],
    expecting("drawn, none or the number of a draw from 0 to 999999"),
]


class Latency(Strict):
    """Where step times come from: auto | roofline | unit | a shipped profile's name | a path.

    `without` switches effects off, `host` replaces host terms. `error`: whether replications draw the error of the step
    times too, for intervals that hold it, or none; a number: all of them err by the draw of this number.
    """

    profile: Text = "auto"
    without: list[Effect] = Field(default_factory=list)
    host: HostKeys | None = None
    error: ErrorOfTimes = "drawn"


Stat = Literal["mean", "p50", "p90", "p95", "p99"]
SloValues = Annotated[dict[Stat, PositiveFloat], Field(min_length=1)]


class Slo(Strict):
    """Service level objectives in milliseconds, e.g. ``ttft_ms: {p99: 500}``."""

    ttft_ms: SloValues | None = None
    tpot_ms: SloValues | None = None
    itl_ms: SloValues | None = None
    e2e_ms: SloValues | None = None


class WarmupRequests(Strict):
    """Leave the first `requests` requests out of the statistics."""

    requests: Count


class WarmupSeconds(Strict):
    """Leave requests that arrived in the first `seconds` out of the statistics."""

    seconds: Seconds


def _warmup_kind(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return str(next(iter(value))) if len(value) == 1 else ""
    if isinstance(value, WarmupRequests | WarmupSeconds):
        return "requests" if isinstance(value, WarmupRequests) else "seconds"
    return "name"


Warmup = Annotated[
    Annotated[
        Literal["auto", "none", "mser5"],
        expecting("auto, none, mser5, {requests: N} or {seconds: S}"),
        Tag("name"),
    ]
    | Annotated[WarmupRequests, Tag("requests")]
    | Annotated[WarmupSeconds, Tag("seconds")],
    Discriminator(_warmup_kind),
]


class Failure(Strict):
    """Replica `replica` is down from `at_s` on, for `for_s` seconds or, without a value, for good."""

    replica: Count
    at_s: Seconds
    for_s: PositiveSeconds | None = None

    @property
    def start_ns(self) -> int:
        """When it stops."""
        return s_to_ns(self.at_s)

    @property
    def end_ns(self) -> int | None:
        """When it is up again, at least 1 ns later; None = never."""
        return None if self.for_s is None else self.start_ns + max(1, s_to_ns(self.for_s))


def check_failures(failures: Sequence[Failure], replicas: int) -> None:
    """Refuse a replica that is not there, and outages of one replica that overlap."""
    for index, failure in enumerate(failures):
        if failure.replica >= replicas:
            raise conflict(
                (f"failures.{index}.replica", "replicas"),
                f"a replica from 0 to {replicas - 1} (replicas is {replicas})",
                str(failure.replica),
            )
    for replica in {failure.replica for failure in failures}:
        own = [(failure.start_ns, index) for index, failure in enumerate(failures) if failure.replica == replica]
        for (_, before), (start_ns, index) in pairwise(sorted(own)):
            end_ns = failures[before].end_ns
            if end_ns is None or end_ns > start_ns:
                until = "for good" if end_ns is None else f"until {ns_to_s(end_ns):g} s"
                raise conflict(
                    (f"failures.{index}.at_s",),
                    f"outages of replica {replica} that do not overlap (failures[{before}] lasts {until})",
                    f"{failures[index].at_s:g}",
                )
