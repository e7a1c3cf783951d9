"""Which points are measured, in which order, and how long that should take. Pure: the same models give the same plan.

A plan goes in stages, coarse before fine, so that time that runs out costs resolution and not an op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from calib.measure.axes import CORE_CPU, CPU_PACE, FULL_CPU, FULL_GPU, GPU_PACE, QUICK_CPU, QUICK_GPU, Axes, Pace
from calib.measure.shapes import ModelShapes, Point, work

_GPU_MODELS = ("llama-3-8b", "llama-3-70b@4", "qwen2.5-7b", "qwen2.5-32b")

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
    """Points in the order of measuring: the ceilings first, then copies, host, and the grid stage by stage."""

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


def make_plan(models: Sequence[ModelShapes], *, cpu: bool, quick: bool, cache_bytes: int) -> Plan:
    """The plan for a kind of device. `cache_bytes` sizes the copy that stays in the cache."""
    if cpu:
        stages, pace = [CORE_CPU, QUICK_CPU, FULL_CPU], CPU_PACE[quick]
    else:
        stages, pace = [QUICK_GPU, FULL_GPU], GPU_PACE[quick]
    if quick:
        stages = stages[:-1]
    ceilings = tuple(_ceilings(cpu, cache_bytes))
    ordered = list(ceilings)
    ordered += [point for axes in stages for point in _links_and_host(axes)]
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
        kind = (point.op, point.n, point.k, point.num_heads, point.num_kv_heads)
        if kind not in seen and point.op.startswith(("attention_", "gemm_triton", "rotary")):
            estimate += pace.first_use_s
        seen.add(kind)
        yield Planned(point, pace.point_s, estimate)


def _ceilings(cpu: bool, cache_bytes: int) -> Iterator[Point]:
    """A copy and a product large enough to reach what the device can do; then a copy within the cache."""
    yield Point("memcpy_d2d", bytes=max(4 * cache_bytes, (128 if cpu else 2048) << 20))
    size = 1024 if cpu else 8192
    yield Point("gemm", m=size, n=size, k=size)
    yield Point("memcpy_d2d_cached", bytes=cache_bytes // 16)


def _links_and_host(axes: Axes) -> Iterator[Point]:
    for op, size in product(("memcpy_h2d", "memcpy_d2h"), axes.pcie_bytes):
        yield Point(op, bytes=size)
    for m in axes.step_m:
        yield Point("host_overhead", m=m)


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
