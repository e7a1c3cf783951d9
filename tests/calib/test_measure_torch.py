"""The ops with PyTorch: a CPU measured for real, in seconds, and what a GPU's calls would hand to each kernel."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calib.measure import grid
from calib.measure.bench import Refused
from calib.measure.device import find_device
from calib.measure.grid import CORE_CPU, Axes
from calib.measure.shapes import COLUMNS_OF, NOT_IN_TABLE, Point, parse_model
from calib.measure.sweep import JOURNAL_NAME, SweepSettings, measure
from calib.measure.timing import CpuTimer

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'simkit-llm[calibrate]'")

from calib.measure.cpu_ops import CpuOps, choose_dtype  # noqa: E402
from calib.measure.gpu_ops import KERNELS_OF_OP, GpuOps  # noqa: E402

NEEDS_A_GPU = ("host_overhead", "memcpy_h2d", "memcpy_d2h", "gemm_triton", "all_reduce")
HEADS = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
SMALL = (
    Point("gemm", m=3, n=32, k=16),
    Point("attention_decode", batch=3, kv_len=33, **HEADS),
    Point("attention_skew", batch=3, kv_len=8, decode_batch=1, decode_kv_len=40, **HEADS),
    Point("attention_prefill", batch=2, q_len=5, kv_len=0, **HEADS),
    Point("attention_prefill", batch=2, q_len=5, kv_len=7, **HEADS),
    Point("attention_mixed", q_len=5, kv_len=7, decode_batch=2, decode_kv_len=20, **HEADS),
    Point("attention_mixed", q_len=0, kv_len=0, decode_batch=2, decode_kv_len=20, **HEADS),
    Point("attention_mixed", q_len=5, kv_len=0, decode_batch=0, decode_kv_len=0, **HEADS),
    Point("rms_norm", m=3, n=32),
    Point("silu_and_mul", m=3, n=32),
    Point("rotary_kv_write", m=20, n=16, **HEADS),
    Point("embedding", m=3, n=16),
    Point("sampler", m=2, n=100),
    Point("memcpy_d2d", bytes=1000),
    Point("memcpy_d2d_cached", bytes=1000),
)


@pytest.fixture
def cpu() -> Any:
    return replace(find_device("cpu"), cache_bytes=1 << 10)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("point", SMALL, ids=Point.label)
def test_every_op_runs_on_a_cpu(cpu: Any, point: Point, dtype: str) -> None:
    ops = CpuOps(cpu, dtype)
    with ops.session():
        (calls,) = ops.prepare(point).ways.values()
        for call in calls:
            call()
    assert ops.source(point.op).endswith(" cpu")
    assert ops.element_bytes == (4 if dtype == "float32" else 2)


@pytest.mark.parametrize("op", NEEDS_A_GPU)
def test_a_cpu_refuses_what_only_a_gpu_has(cpu: Any, op: str) -> None:
    with pytest.raises(Refused, match="not measured on a CPU"):
        CpuOps(cpu, "float32").prepare(Point(op, m=1, n=1, k=1, bytes=1))


def test_tiny_operands_have_copies_and_large_ones_none(cpu: Any) -> None:
    ops = CpuOps(cpu, "bfloat16")
    assert len(ops.prepare(Point("rms_norm", m=1, n=4)).ways[""]) == 64
    assert len(ops.prepare(Point("rms_norm", m=64, n=64)).ways[""]) == 1
    assert len(ops.prepare(Point("memcpy_d2d_cached", bytes=4)).ways[""]) == 1


def test_the_attention_of_a_cpu_is_that_of_the_formula(cpu: Any) -> None:
    """Recorded from the call: the gathered cache and mask must give causal attention over cached tokens."""
    ops = CpuOps(cpu, "float32")
    seen = []
    real = torch.nn.functional.scaled_dot_product_attention
    ops._functional = SimpleNamespace(scaled_dot_product_attention=lambda *a, **k: seen.append((a, k, real(*a, **k))))
    (call, *_) = ops.prepare(Point("attention_prefill", batch=2, q_len=5, kv_len=7, **HEADS)).ways[""]
    call()
    ((query, key, value), _, out) = seen[0]
    assert (query.shape, key.shape) == ((2, 4, 5, 16), (2, 2, 12, 16))
    scores = query @ key.repeat_interleave(2, dim=1).transpose(2, 3) / math.sqrt(16)
    unseen = torch.ones(5, 12, dtype=torch.bool).triu(8)
    expected = scores.masked_fill(unseen, -math.inf).softmax(-1) @ value.repeat_interleave(2, dim=1)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_a_core_is_left_to_others_and_the_threads_are_given_back(cpu: Any) -> None:
    before = torch.get_num_threads()
    assert int(cpu.software["threads"]) == max(1, before - 1)
    with CpuOps(replace(cpu, software={**cpu.software, "threads": "1"}), "float32").session():
        assert torch.get_num_threads() == 1
        assert torch.is_inference_mode_enabled()
    assert torch.get_num_threads() == before


def test_bfloat16_unless_it_is_slow() -> None:
    class Fixed(CpuTimer):
        def __init__(self, *times_us: float) -> None:
            self.times_us = list(times_us)

        def time(self, calls: Any, budget_s: float) -> Any:
            calls[0]()
            return SimpleNamespace(median_us=self.times_us.pop(0))

    assert choose_dtype(torch, Fixed(19.0, 10.0)) == "bfloat16"
    assert choose_dtype(torch, Fixed(21.0, 10.0)) == "float32"


def test_a_cpu_is_measured_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's own path, over few points of a small model."""
    one = {name: values[:1] for name in Axes.__slots__ if isinstance(values := getattr(CORE_CPU, name), tuple)}
    monkeypatch.setattr(grid, "CORE_CPU", replace(CORE_CPU, **one))
    monkeypatch.setattr(grid, "QUICK_CPU", replace(CORE_CPU, **one))
    monkeypatch.setattr(grid, "_CEILING_S", 0.02)
    monkeypatch.setitem(grid.CPU_PACE, True, replace(grid.CPU_PACE[True], point_s=0.001))
    settings = SweepSettings("cpu", ("qwen2.5-0.5b",), quick=True, out_dir=tmp_path, budget_s=math.inf)
    measured = measure(settings)
    rows = list(csv.DictReader(measured.table_path.read_text().splitlines()))
    assert measured.skipped == ()
    assert len({row["op"] for row in rows}) == len(COLUMNS_OF) - len(NOT_IN_TABLE) - len(NEEDS_A_GPU)
    assert all(float(row["latency_us"]) > 0 for row in rows)
    assert {row["dtype"] for row in rows} <= {"bfloat16", "float32"}
    assert not (tmp_path / JOURNAL_NAME).exists()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Stand-ins for simkit's kernels, which keep what they were called with."""
    seen: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    for name in sorted({name for names in KERNELS_OF_OP.values() for name in names}):
        launcher = lambda *args, _name=name, **kwargs: seen.update({_name: (args, kwargs)})  # noqa: E731
        candidates = lambda m, n, k, capability: ["first", "second"]  # noqa: E731
        module = SimpleNamespace(**{name: launcher, "candidates": candidates})
        monkeypatch.setitem(sys.modules, f"calib.kernels.{name}", module)
    return seen


def gpu_ops(cpu: Any) -> GpuOps:
    """The GPU's ops with their operands on the CPU."""
    return GpuOps(replace(cpu, software={"simkit": "0.2.0", "torch": "2.13.0+cu130", "triton": "3.7.0"}), SMALL_MODEL)


SMALL_MODEL = replace(
    parse_model("llama-3-8b"),
    gemms=((32, 16), (16, 16), (48, 16), (16, 24)),
    head=(64, 16),
    **HEADS,
    hidden=16,
    mlp_width=24,
    vocab=64,
    num_layers=3,
)


@pytest.mark.parametrize(
    "point", [*SMALL, Point("memcpy_h2d", bytes=10), Point("memcpy_d2h", bytes=10)], ids=Point.label
)
def test_every_op_of_a_gpu_has_operands_and_a_call(cpu: Any, kernels: dict[str, Any], point: Point) -> None:
    (calls,) = gpu_ops(cpu).prepare(point).ways.values()
    calls[0]()
    assert set(kernels) == set(KERNELS_OF_OP.get(point.op, ()))


def test_decode_is_handed_scattered_blocks_and_every_length(cpu: Any, kernels: dict[str, Any]) -> None:
    gpu_ops(cpu).prepare(SMALL[2]).ways[""][0]()
    (query, keys, values, table, lengths), options = kernels["paged_decode"]
    assert query.shape == options["out"].shape == (3, 4, 16)
    assert keys.shape == values.shape == (1 + 1 + 3, 16, 2, 16)
    assert lengths.tolist() == [8, 8, 40]
    assert (table.dtype, lengths.dtype, table.shape) == (torch.int32, torch.int32, (3, 3))
    assert sorted([*table[:2, 0].tolist(), *table[2].tolist()]) == [0, 1, 2, 3, 4]
    assert query.dtype == torch.bfloat16


def test_a_mixed_launch_is_handed_decodes_then_the_chunk(cpu: Any, kernels: dict[str, Any]) -> None:
    gpu_ops(cpu).prepare(SMALL[5]).ways[""][0]()
    (query, _, _, table, starts, lengths, longest), _ = kernels["mixed"]
    assert (starts.tolist(), lengths.tolist(), longest) == ([0, 1, 2, 7], [20, 20, 12], 5)
    assert query.shape == (7, 4, 16)
    assert table.shape == (3, 2)


def test_rotation_writes_each_token_to_a_slot_of_its_own(cpu: Any, kernels: dict[str, Any]) -> None:
    gpu_ops(cpu).prepare(SMALL[10]).ways[""][0]()
    (q, k, v, cos_sin, positions, keys, _, slots), _ = kernels["rotary_kv_write"]
    assert (q.shape, k.shape, v.shape, cos_sin.shape) == ((20, 4, 16), (20, 2, 16), (20, 2, 16), (20, 16))
    assert keys.shape == (2, 16, 2, 16)
    assert positions.tolist() == list(range(20))
    assert len(set(slots.tolist())) == 20
    assert max(slots.tolist()) < 32


def test_simkits_gemm_is_offered_in_every_candidate(cpu: Any, kernels: dict[str, Any]) -> None:
    ways = gpu_ops(cpu).prepare(Point("gemm_triton", m=3, n=32, k=16)).ways
    assert list(ways) == ["first", "second"]
    ways["second"][0]()
    (x, weight), options = kernels["gemm"]
    assert (x.shape, weight.shape, options["out"].shape, options["config"]) == ((3, 16), (32, 16), (3, 32), "second")


def test_the_products_and_copies_of_a_gpu_are_computed(cpu: Any, kernels: dict[str, Any]) -> None:
    matmul = gpu_ops(cpu).prepare(SMALL[0]).ways[""][0]()
    assert matmul.shape == (3, 32)
    assert gpu_ops(cpu).prepare(Point("memcpy_d2d", bytes=10)).ways[""][0]().tolist() == [1] * 10
    assert gpu_ops(cpu).prepare(SMALL[12]).ways[""][0]().shape == (2,)


def test_a_step_launches_the_kernels_of_all_layers(cpu: Any, kernels: dict[str, Any], monkeypatch: Any) -> None:
    counts: dict[str, int] = {}

    def count(name: str) -> Any:
        return lambda *args, **kwargs: counts.update({name: counts.get(name, 0) + 1})

    for name in KERNELS_OF_OP["host_overhead"]:
        monkeypatch.setattr(sys.modules[f"calib.kernels.{name}"], name, count(name))
    prepared = gpu_ops(cpu).prepare(Point("host_overhead", m=5))
    assert prepared.launch
    prepared.ways[""][0]()
    assert counts == {"paged_decode": 3, "rms_norm": 2 * 3 + 1, "silu_and_mul": 3, "rotary_kv_write": 3}


def test_rows_say_who_computed_them(cpu: Any, kernels: dict[str, Any]) -> None:
    ops = gpu_ops(cpu)
    assert ops.source("gemm") == "simkit 0.2.0 torch 2.13.0 cublas"
    assert ops.source("gemm_triton") == ops.source("attention_decode") == "simkit 0.2.0 triton 3.7.0"
    assert ops.source("sampler") == ops.source("memcpy_h2d") == "simkit 0.2.0 torch 2.13.0"
