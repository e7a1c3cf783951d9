"""Shapes, least work and the grid: pure, so checked against numbers worked out by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from calib import CalibrationError
from calib.measure.bench import MAX_COPIES, copies, is_out_of_memory, is_refusal
from calib.measure.grid import (
    CORE_CPU,
    FULL_CPU,
    FULL_GPU,
    QUICK_CPU,
    QUICK_GPU,
    Plan,
    default_models,
    gemm_rows,
    make_plan,
)
from calib.measure.shapes import COLUMNS_OF, NOT_IN_TABLE, Point, groups, memory_bytes, parse_model, point_of, work
from calib.table import COLUMNS

L2_BYTES = 60 << 20
HEADS = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}


def plan(*, cpu: bool, quick: bool) -> Plan:
    models = [parse_model(name) for name in default_models(cpu=cpu, quick=quick)]
    return make_plan(models, cpu=cpu, quick=quick, cache_bytes=L2_BYTES)


def test_the_products_of_a_model_on_one_gpu() -> None:
    shapes = parse_model("llama-3-8b")
    assert shapes.gemms == ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    assert shapes.head == (128256, 4096)
    assert (shapes.num_heads, shapes.num_kv_heads, shapes.head_dim) == (32, 8, 128)
    assert (shapes.hidden, shapes.mlp_width, shapes.vocab, shapes.num_layers) == (4096, 14336, 128256, 32)


def test_tensor_parallelism_divides_heads_mlp_and_vocabulary() -> None:
    shapes = parse_model("llama-3-70b@4")
    assert shapes.gemms == ((2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168))
    assert shapes.head == (32064, 8192)
    assert (shapes.num_heads, shapes.num_kv_heads) == (16, 2)
    # KV heads are repeated where there are fewer of them than ranks.
    assert parse_model("llama-3-70b@16").num_kv_heads == 1


def test_a_mixture_of_experts_has_a_router_and_the_products_of_one_expert() -> None:
    shapes = parse_model("mixtral-8x7b")
    assert shapes.gemms == ((6144, 4096), (4096, 4096), (8, 4096), (28672, 4096), (4096, 14336))


@pytest.mark.parametrize(("name", "words"), [("llama-3-8b@3", "divisor of its 32"), ("deepseek-v3", "latent")])
def test_what_cannot_be_split_or_run_is_refused(name: str, words: str) -> None:
    with pytest.raises(CalibrationError, match=words):
        parse_model(name)


def test_every_column_of_an_op_is_a_column_of_the_table() -> None:
    for columns in COLUMNS_OF.values():
        assert set(columns) <= set(COLUMNS)


@pytest.mark.parametrize("cpu", [False, True])
@pytest.mark.parametrize("quick", [False, True])
def test_a_point_survives_its_cells_and_none_is_planned_twice(cpu: bool, quick: bool) -> None:
    points = [planned.point for planned in plan(cpu=cpu, quick=quick).points]
    assert [point_of(point.cells()) for point in points] == points
    assert len(set(points)) == len(points)
    assert len({point.sort_key() for point in points}) == len(points)


def test_the_ceilings_come_first() -> None:
    for cpu in (False, True):
        first = [planned.point.op for planned in plan(cpu=cpu, quick=True).points[:3]]
        assert first == ["memcpy_d2d", "gemm", "memcpy_d2d_cached"]


@pytest.mark.parametrize(("quick", "limit_s"), [(True, 100), (False, 300)])
def test_a_gpu_plan_fits_its_time_and_holds_every_op(quick: bool, limit_s: float) -> None:
    made = plan(cpu=False, quick=quick)
    assert 10 < made.estimated_s < limit_s
    assert {planned.point.op for planned in made.points} == set(COLUMNS_OF) - {"all_reduce"}
    assert f"{len(made.points):,} points, about " in made.describe()


def test_a_cpu_plan_fits_its_time_and_holds_every_op_but_those_of_a_gpu() -> None:
    made = plan(cpu=True, quick=True)
    assert made.estimated_s < 25
    only_gpu = {"gemm_triton", "memcpy_h2d", "memcpy_d2h", "host_overhead", "all_reduce"}
    assert {planned.point.op for planned in made.points} == set(COLUMNS_OF) - only_gpu
    products = {(planned.point.n, planned.point.k) for planned in made.points if planned.point.op == "gemm"}
    assert {*parse_model("llama-3-8b").gemms, parse_model("llama-3-8b").head} <= products


@pytest.mark.parametrize(
    ("coarse", "fine"), [(QUICK_GPU, FULL_GPU), (CORE_CPU, QUICK_CPU), (QUICK_CPU, FULL_CPU)], ids=str
)
def test_a_coarse_stage_is_part_of_the_finer_one(coarse: object, fine: object) -> None:
    for name in type(coarse).__slots__:
        values, finer = getattr(coarse, name), getattr(fine, name)
        if isinstance(values, tuple):
            assert set(values) <= set(finer), name


def test_rows_lie_on_both_sides_of_tile_edges() -> None:
    rows = gemm_rows(8192)
    for edge in (64, 128, 256, 512, 1024, 2048):
        assert {edge - 16, edge, edge + 1, edge + 16} <= set(rows)
    assert rows[0] == 1
    assert rows[-1] == 8192
    assert list(rows) == sorted(set(rows))


def test_the_least_work_of_a_product() -> None:
    least = work(Point("gemm", m=16, n=4096, k=1024), 2)
    assert least.flops == 2 * 16 * 4096 * 1024
    assert least.bytes == 2 * (16 * 1024 + 4096 * 1024 + 16 * 4096)


def test_the_least_work_of_attention() -> None:
    decode = work(Point("attention_decode", batch=4, kv_len=100, **HEADS), 2)
    assert decode.flops == 4 * 32 * 128 * 4 * 100
    assert decode.bytes == 2 * 128 * 4 * (2 * 32 + 2 * 8 * 100)
    prefill = work(Point("attention_prefill", batch=1, q_len=3, kv_len=5, **HEADS), 2)
    assert prefill.flops == 4 * 32 * 128 * (6 + 7 + 8)
    parts = [
        Point("attention_decode", batch=7, kv_len=64, **HEADS),
        Point("attention_prefill", batch=1, q_len=16, kv_len=32, **HEADS),
    ]
    mixed = Point("attention_mixed", q_len=16, kv_len=32, decode_batch=7, decode_kv_len=64, **HEADS)
    assert work(mixed, 2).flops == sum(work(part, 2).flops for part in parts)
    assert work(mixed, 2).bytes == sum(work(part, 2).bytes for part in parts)


def test_the_groups_of_unequal_decodes_and_of_a_launch_without_decodes() -> None:
    skew = Point("attention_skew", batch=8, kv_len=64, decode_batch=2, decode_kv_len=1024, **HEADS)
    assert groups(skew) == ((6, 1, 64), (2, 1, 1024))
    chunk = Point("attention_mixed", q_len=16, kv_len=8, decode_batch=0, decode_kv_len=0, **HEADS)
    assert groups(chunk) == ((1, 16, 24),)


def test_the_least_work_of_copies_and_of_elementwise_ops() -> None:
    assert work(Point("memcpy_d2d", bytes=100), 2).bytes == 200
    assert work(Point("memcpy_h2d", bytes=100), 2).bytes == 100
    assert work(Point("rms_norm", m=3, n=10), 2).bytes == 2 * 4 * 30
    assert memory_bytes(Point("sampler", m=2, n=10), 2) == 2 * 20 + 8 * 20
    with pytest.raises(ValueError, match="no batch"):
        Point("rms_norm", m=3, n=10).get("batch")


def test_copies_exceed_the_cache_but_are_not_without_number() -> None:
    assert copies(4 * L2_BYTES, L2_BYTES) == 1
    assert copies(L2_BYTES, L2_BYTES) == 3
    assert copies(8192, L2_BYTES) == MAX_COPIES


def test_a_cached_copy_is_smaller_than_the_cache_and_stays_out_of_the_table() -> None:
    sizes = {planned.point.op: planned.point.bytes for planned in plan(cpu=False, quick=True).points}
    assert 2 * (sizes["memcpy_d2d_cached"] or 0) < L2_BYTES
    assert frozenset({"memcpy_d2d_cached"}) == NOT_IN_TABLE


def test_which_failures_skip_a_point() -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    assert is_out_of_memory(OutOfMemoryError("CUDA"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    assert not is_out_of_memory(RuntimeError("an illegal memory access"))
    assert not is_out_of_memory(ValueError("out of memory"))
    resources = type("OutOfResources", (Exception,), {"__module__": "triton.runtime.errors"})
    assert is_refusal(resources())
    assert is_refusal(ValueError("head_dim must be a power of two"))
    assert not is_refusal(RuntimeError("an illegal memory access"))


def test_planning_a_measurement_imports_no_torch() -> None:
    heavy = ["torch", "triton", "pynvml"]
    script = f"import calib.measure.sweep, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
