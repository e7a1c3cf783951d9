"""Which points are measured, in which order, and how long that should take. Pure: the same models give the same plan.

Owns the values that the grid combines, for a GPU and a CPU, quick and full. GEMM rows are dense around tile edges,
where another wave of blocks begins.

A plan goes in stages, coarse before fine, so that time that runs out costs resolution and not an op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from calib.measure.shapes import ModelShapes, Point, work

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
    link_bytes: tuple[int, ...] = ()
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
    link_bytes=_powers(4 << 10, 128 << 20)[::3],
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
    link_bytes=_powers(2 << 10, 256 << 20),
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
    link_bytes=(4 << 10, 64 << 10, 1 << 20),
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


_GPU_MODELS = ("llama-3-8b", "llama-3-70b@4", "qwen2.5-7b", "qwen2.5-32b")

MOST_LINKED = 8
"""GPUs between which links are measured at most: a node has no more."""

LINK_START_S = 15.0
"""What processes on the GPUs of a group take to start and to find each other: for the plan alone."""

_CEILING_S = 0.5
"""For each ceiling: long enough that the clocks have risen from idle for most samples."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A point, the time to spend on its samples, and the time that it should take in all."""

    point: Point
    point_s: float
    estimated_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Points in the order of measuring: the ceilings first, then copies, host, links, and the grid stage by stage."""

    points: tuple[Planned, ...]

    @property
    def estimated_s(self) -> float:
        """Seconds for all of them."""
        return sum(planned.estimated_s for planned in self.points)

    def describe(self) -> str:
        """One line, e.g. ``1,204 points, about 3.1 min``."""
        seconds = self.estimated_s
        length = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
        return f"{len(self.points):,} points, about {length}"


def default_models(*, cpu: bool, quick: bool) -> tuple[str, ...]:
    """Models, as `parse_model` reads them, whose shapes cover what is served.

    On a GPU head groups of 4, 5, 7 and 8, hidden widths from 3,584 to 8,192, whole and divided MLPs.
    """
    if cpu:
        return ("llama-3-8b",) if quick else ("llama-3-8b", "qwen2.5-7b")
    return _GPU_MODELS[:2] if quick else _GPU_MODELS


def make_plan(models: Sequence[ModelShapes], *, cpu: bool, quick: bool, cache_bytes: int, num_gpus: int = 1) -> Plan:
    """The plan for a kind of device. `cache_bytes` sizes the copy that stays in the cache; links are measured between
    2, 4, 8 of `num_gpus`."""
    if cpu:
        stages, pace = [CORE_CPU, QUICK_CPU, FULL_CPU], CPU_PACE[quick]
    else:
        stages, pace = [QUICK_GPU, FULL_GPU], GPU_PACE[quick]
    if quick:
        stages = stages[:-1]
    ceilings = tuple(_ceilings(cpu, cache_bytes))
    ordered = list(ceilings)
    ordered += [point for axes in stages for point in _copies_and_host(axes)]
    ordered += sorted((point for axes in stages for point in _links(axes, num_gpus)), key=Point.sort_key)
    for axes in stages:
        ordered += sorted(_stage(axes, models), key=Point.sort_key)
    grid = [point for point in dict.fromkeys(ordered) if point not in ceilings]
    element_bytes = 4 if cpu else 2
    longer = replace(pace, point_s=_CEILING_S)
    return Plan((*_planned(ceilings, longer, element_bytes), *_planned(grid, pace, element_bytes)))


def _planned(points: Iterable[Point], pace: Pace, element_bytes: int) -> Iterator[Planned]:
    seen: set[tuple[object, ...]] = set()
    for point in points:
        least = work(point, element_bytes)
        call_s = max(least.flops / pace.flops_per_s, least.bytes / pace.bytes_per_s)
        estimate = pace.setup_s + max(pace.point_s, pace.min_calls * call_s)
        kind = (point.op, point.n, point.k, point.num_heads, point.num_kv_heads, point.world_size)
        if kind not in seen and point.op.startswith(("attention_", "gemm_triton", "rotary")):
            estimate += pace.first_use_s
        if kind not in seen and point.op == "all_reduce":
            estimate += LINK_START_S
        seen.add(kind)
        yield Planned(point, pace.point_s, estimate)


def _ceilings(cpu: bool, cache_bytes: int) -> Iterator[Point]:
    """A copy and a product large enough to reach what the device can do; then a copy within the cache."""
    yield Point("memcpy_d2d", bytes=max(4 * cache_bytes, (128 if cpu else 2048) << 20))
    size = 1024 if cpu else 8192
    yield Point("gemm", m=size, n=size, k=size)
    yield Point("memcpy_d2d_cached", bytes=cache_bytes // 16)


def _copies_and_host(axes: Axes) -> Iterator[Point]:
    for op, size in product(("memcpy_h2d", "memcpy_d2h"), axes.pcie_bytes):
        yield Point(op, bytes=size)
    for m in axes.step_m:
        yield Point("host_overhead", m=m)


def _links(axes: Axes, num_gpus: int) -> Iterator[Point]:
    for size, num_bytes in product(_powers(2, MOST_LINKED), axes.link_bytes):
        if size <= num_gpus:
            yield Point("all_reduce", world_size=size, bytes=num_bytes)


def _stage(axes: Axes, models: Sequence[ModelShapes]) -> Iterator[Point]:
    for size in axes.square_gemms:
        yield Point("gemm", m=size, n=size, k=size)
    for index, model in enumerate(models):
        yield from _gemms(axes, model, triton=index < axes.triton_models)
        # Mixed and unequal launches of the first two shapes of heads are enough: the others differ in scale.
        yield from _attention(axes, model, mixed=index < 2)
        yield from _elementwise(axes, model)


def _gemms(axes: Axes, model: ModelShapes, triton: bool) -> Iterator[Point]:
    shapes = [*((n, k, axes.gemm_m) for n, k in model.gemms), (*model.head, axes.head_m)]
    for n, k, rows in shapes:
        for m in rows:
            if 2.0 * m * n * k <= axes.max_gemm_flops:
                yield Point("gemm", m=m, n=n, k=k)
    if triton:
        for (n, k), m in product(model.gemms, axes.triton_m):
            yield Point("gemm_triton", m=m, n=n, k=k)


def _attention(axes: Axes, model: ModelShapes, mixed: bool) -> Iterator[Point]:
    heads = {"num_heads": model.num_heads, "num_kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    for batch, kv_len in product(axes.decode_batch, axes.decode_kv):
        if batch * kv_len <= axes.max_kv_tokens:
            yield Point("attention_decode", batch=batch, kv_len=kv_len, **heads)
    for q_len, cached in product(axes.prefill_q, axes.prefill_cached):
        yield Point("attention_prefill", batch=1, q_len=q_len, kv_len=cached, **heads)
    for batch, q_len in product(axes.prefill_batch, axes.prefill_q):
        if q_len <= 1024:
            yield Point("attention_prefill", batch=batch, q_len=q_len, kv_len=0, **heads)
    if mixed:
        yield from _unequal(axes, heads)


def _unequal(axes: Axes, heads: dict[str, int]) -> Iterator[Point]:
    for q_len, decodes, kv_len in product(axes.mixed_q, axes.mixed_decodes, axes.mixed_kv):
        if q_len == 0 and decodes == 0:
            continue
        decode = {"decode_batch": decodes, "decode_kv_len": kv_len if decodes else 0}
        for cached in (0, 2 * q_len) if q_len else (0,):
            yield Point("attention_mixed", q_len=q_len, kv_len=cached, **decode, **heads)
    for batch, long in product(axes.skew_batch, axes.skew_long):
        for count in (1, batch // 8, batch // 2):
            tokens = {"kv_len": max(64, long // 16), "decode_batch": count, "decode_kv_len": long}
            yield Point("attention_skew", batch=batch, **tokens, **heads)


def _elementwise(axes: Axes, model: ModelShapes) -> Iterator[Point]:
    heads = {"num_heads": model.num_heads, "num_kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
    for m in axes.element_m:
        yield Point("rms_norm", m=m, n=model.hidden)
        yield Point("silu_and_mul", m=m, n=model.mlp_width)
        yield Point("rotary_kv_write", m=m, n=model.head_dim, **heads)
        yield Point("embedding", m=m, n=model.hidden)
    for m in axes.sampler_m:
        yield Point("sampler", m=m, n=model.vocab)
