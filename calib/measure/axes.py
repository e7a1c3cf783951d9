"""The values that the grid combines, for a GPU and a CPU, quick and full, and how long points should take. Pure.

GEMM rows are dense around tile edges, where another wave of blocks begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_TILE_EDGES = (64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True)
class Axes:
    """Values that a stage combines for each model; `step_m` is the running sequences of host_overhead.

    `max_kv_tokens` bounds the cache of a decode batch, `max_gemm_flops` one product; `triton_models` is how many
    models have their products done by simkit's kernel too.
    """

    gemm_m: tuple[int, ...]
    head_m: tuple[int, ...]
    decode_batch: tuple[int, ...]
    decode_kv: tuple[int, ...]
    prefill_q: tuple[int, ...]
    prefill_cached: tuple[int, ...]
    element_m: tuple[int, ...]
    sampler_m: tuple[int, ...]
    prefill_batch: tuple[int, ...] = ()
    mixed_q: tuple[int, ...] = ()
    mixed_decodes: tuple[int, ...] = ()
    mixed_kv: tuple[int, ...] = ()
    skew_batch: tuple[int, ...] = ()
    skew_long: tuple[int, ...] = ()
    triton_m: tuple[int, ...] = ()
    triton_models: int = 1
    step_m: tuple[int, ...] = ()
    pcie_bytes: tuple[int, ...] = ()
    max_kv_tokens: int = 1 << 20
    max_gemm_flops: float = float("inf")
    square_gemms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a point takes on a kind of device, for the plan alone: nothing measured depends on it.

    A point costs `setup_s` (operands, warm-up, capture) and then `point_s`, or `min_calls` calls at the assumed rates
    where that is longer. `first_use_s` is the compilation of a kernel for one shape of heads or widths.
    """

    point_s: float
    setup_s: float
    min_calls: int
    flops_per_s: float
    bytes_per_s: float
    first_use_s: float = 0.0


def _powers(low: int, high: int) -> tuple[int, ...]:
    values = [low]
    while values[-1] < high:
        values.append(2 * values[-1])
    return tuple(values)


def gemm_rows(limit: int) -> tuple[int, ...]:
    """Row counts up to `limit`: powers of two, points between them, and both sides of tile edges."""
    values = {*_powers(1, limit), 12, 24, 48, 80, 96, 112, 160, 192, 224, 320, 384, 448, 768, 1536, 3072, 6144, 12288}
    for edge in _TILE_EDGES:
        values |= {edge - 16, edge, edge + 1, edge + 16}
    return tuple(sorted(value for value in values if value <= limit))


QUICK_GPU = Axes(
    gemm_m=(*_powers(1, 8192), 144, 272),
    head_m=_powers(1, 1024),
    decode_batch=(1, 8, 32, 128, 256),
    decode_kv=(128, 512, 1024, 4096, 16384),
    prefill_q=(16, 128, 512, 1024, 2048, 8192),
    prefill_cached=(0, 2048, 8192),
    prefill_batch=(4,),
    mixed_q=(128, 512, 2048),
    mixed_decodes=(32, 128),
    mixed_kv=(1024, 4096),
    skew_batch=(64, 256),
    skew_long=(8192,),
    element_m=_powers(1, 8192)[::2],
    sampler_m=(1, 8, 32, 128, 512),
    triton_m=(16, 256, 2048),
    step_m=(1, 16, 64, 256),
    pcie_bytes=(1 << 20, 16 << 20, 256 << 20),
)
FULL_GPU = replace(
    QUICK_GPU,
    gemm_m=gemm_rows(16384),
    decode_batch=_powers(1, 512),
    decode_kv=(16, *_powers(64, 32768)),
    prefill_q=_powers(16, 8192),
    prefill_cached=(0, 512, 2048, 8192),
    prefill_batch=(4, 16),
    mixed_q=(0, 64, 128, 256, 512, 1024, 2048),
    mixed_decodes=(0, 8, 32, 128, 256),
    mixed_kv=(256, 1024, 4096),
    skew_batch=(16, 64, 256),
    skew_long=(2048, 8192, 16384),
    element_m=_powers(1, 16384),
    sampler_m=_powers(1, 1024),
    triton_m=(1, 16, 64, 128, 256, 512, 1024, 2048, 8192),
    triton_models=2,
    step_m=_powers(1, 256),
    pcie_bytes=(4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20),
)
CORE_CPU = Axes(
    gemm_m=(1, 8, 64, 256),
    head_m=(1, 16),
    decode_batch=(1, 16),
    decode_kv=(64, 1024),
    prefill_q=(16, 256),
    prefill_cached=(0, 256),
    element_m=(1, 64, 512),
    sampler_m=(1, 16),
    mixed_q=(64,),
    mixed_decodes=(4,),
    mixed_kv=(256,),
    skew_batch=(8,),
    skew_long=(1024,),
    square_gemms=(512, 1024),
    max_gemm_flops=70e9,
)
QUICK_CPU = replace(
    CORE_CPU,
    gemm_m=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    head_m=(1, 4, 16),
    decode_batch=(1, 4, 16),
    decode_kv=(64, 256, 1024),
    prefill_q=(16, 64, 256),
    prefill_cached=(0, 256),
    prefill_batch=(4,),
    element_m=(1, 4, 16, 64, 512),
    sampler_m=(1, 4, 16),
    mixed_q=(0, 64, 128),
    mixed_decodes=(4, 8),
    mixed_kv=(256, 1024),
)
FULL_CPU = replace(
    QUICK_CPU,
    gemm_m=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024),
    head_m=(1, 2, 4, 8, 16, 32, 64),
    decode_batch=(1, 2, 4, 8, 16, 32),
    decode_kv=(64, 128, 256, 512, 1024, 2048),
    prefill_q=(16, 32, 64, 128, 256, 512),
    prefill_cached=(0, 256, 1024),
    element_m=_powers(1, 2048),
    sampler_m=_powers(1, 32),
    skew_batch=(8, 16),
    skew_long=(1024, 2048),
    max_kv_tokens=1 << 15,
    max_gemm_flops=300e9,
)
GPU_PACE = {
    True: Pace(0.03, 0.03, 3, 5e14, 2e12, first_use_s=1.0),
    False: Pace(0.05, 0.03, 3, 5e14, 2e12, first_use_s=1.0),
}
CPU_PACE = {True: Pace(0.03, 0.03, 4, 2e11, 1e10), False: Pace(0.1, 0.05, 4, 2e11, 1e10)}
"""By `quick`. The rates are those of an H200-class card and of a few cores, halved for what a real kernel reaches."""
