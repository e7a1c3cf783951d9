"""Every kernel agrees with its float64 reference, in Triton's interpreter, and stops doing so when it is broken."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS_OF = {
    "paged_decode": 24,
    "paged_prefill": 18,
    "mixed": 18,
    "gemm": 64,
    "rms_norm": 16,
    "silu_and_mul": 8,
    "rotary_kv_write": 8,
}

# What a reader could get wrong, one line each: (module, line, broken line).
BROKEN: dict[str, list[tuple[str, str, str]]] = {
    "paged_decode": [
        ("paged_attention", "mask=stored, other=0)\n", "mask=stored, other=0) * 0\n"),
        ("paged_attention", "stored = token < length", "stored = token < length // 16 * 16 + 16"),
        ("paged_attention", "row_sum * fade", "row_sum"),
        ("paged_decode", "tl.exp2(lse - origin)", "tl.where(written, 1.0, 0.0)"),
        ("paged_decode", "in_group < group", "in_group <= group"),
    ],
    "paged_prefill": [
        ("paged_attention", "(token[None, :] <= position[:, None]) & stored", "stored"),
        ("paged_attention", 'input_precision="tf32x3") * scale_log2', 'input_precision="tf32x3")'),
        ("paged_prefill", "(first_position + 1) // BLOCK_N", "(first_position + BLOCK_N) // BLOCK_N"),
        ("paged_prefill", "head // group * HEAD_DIM", "head % kv_heads * HEAD_DIM"),
        ("paged_prefill", "length - chunk + first", "first"),
    ],
    "mixed": [
        ("mixed", "<= tile:", "< tile:"),
        ("mixed", "row // group", "row % tile_tokens"),
        ("mixed", "(row < tile_tokens * group) & (token < chunk)", "row < tile_tokens * group"),
    ],
    "gemm": [
        ("gemm", "at + inner < k", "at + inner < k + 1"),
        ("gemm", "tl.static_range(SPLIT_K)", "tl.static_range(SPLIT_K - 1)"),
        ("gemm", "- group * GROUP_M, GROUP_M)", ", GROUP_M)"),
    ],
    "rms_norm": [
        ("rms_norm", "/ hidden + epsilon", "/ BLOCK + epsilon"),
        ("rms_norm", "/ hidden + epsilon", "/ hidden"),
    ],
    "silu_and_mul": [("silu_and_mul", "tl.exp(-gate)", "tl.exp(gate)")],
    "rotary_kv_write": [
        ("rotary_kv_write", "high * cos + low * sin", "high * cos - low * sin"),
        ("rotary_kv_write", "tl.where(slot >= 0, kv_heads, 0)", "kv_heads"),
    ],
}

# A process for each copy of calib, forked when torch and triton are there: importing these takes longest.
FIRST_FAILURES = """
import os, sys
import torch, triton
kernel, *roots = sys.argv[1:]
for root in roots:
    child = os.fork()
    if not child:
        sys.path.insert(0, root)
        from calib.verify.verify import applies, check
        from calib.verify.cases import CASES
        on = (torch.device("cpu"), torch.float32)
        checks = (check(case, *on) for case in CASES if case.kernel == kernel and applies(case, *on))
        failed = next((each for each in checks if not each.passed), None)
        print(f"broken: {failed}" if failed else "nothing found", flush=True)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0:
        print("broken: read at an address of no tensor", flush=True)
"""


@pytest.mark.parametrize("kernel", CHECKS_OF)
def test_a_kernel_agrees_with_its_reference(kernel: str, verify_kernel: Callable[[str], list[dict[str, Any]]]) -> None:
    checks = verify_kernel(kernel)
    assert [check for check in checks if not check["passed"]] == []
    assert all(check["name"].startswith(f"{kernel} ") for check in checks)
    assert {check["dtype"] for check in checks} == {"float16", "float32"}
    assert len(checks) == CHECKS_OF[kernel]


@pytest.mark.parametrize("kernel", BROKEN)
def test_a_broken_kernel_is_found_out(kernel: str, run_python: Any, tmp_path: Path) -> None:
    roots = [tmp_path / str(number) for number in range(len(BROKEN[kernel]))]
    for root, (module, line, broken) in zip(roots, BROKEN[kernel], strict=True):
        shutil.copytree(ROOT / "calib", root / "calib", ignore=shutil.ignore_patterns("__pycache__", "profiles"))
        source = root / "calib" / "kernels" / f"{module}.py"
        text = source.read_text(encoding="utf-8")
        assert text.count(line) == 1, f"{module} has {line!r} not once"
        source.write_text(text.replace(line, broken), encoding="utf-8")
    done = run_python(FIRST_FAILURES, kernel, *map(str, roots), root=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("broken:")]
    assert len(found) == len(roots), done.stdout


# The calls that a calibration makes, with kernels that are real: on the CPU, so computed by the interpreter.
CALLS = """
from dataclasses import replace
import torch
from calib.measure.device import find_device
from calib.measure.gpu_ops import KERNELS_OF_OP, GpuOps
from calib.measure.shapes import Point, parse_model

heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
device = replace(find_device("cpu"), cache_bytes=1 << 10)
device = replace(device, software={**device.software, "triton": ""}, capability=(9, 0))
small = {"gemms": ((128, 64), (64, 64), (96, 64), (64, 48)), "head": (80, 64), "hidden": 64, "mlp_width": 48}
model = replace(parse_model("llama-3-8b"), **small, **heads, vocab=80, num_layers=1)
points = [
    Point("gemm_triton", m=3, n=32, k=16),
    Point("attention_decode", batch=3, kv_len=33, **heads),
    Point("attention_skew", batch=3, kv_len=8, decode_batch=1, decode_kv_len=40, **heads),
    Point("attention_prefill", batch=2, q_len=5, kv_len=7, **heads),
    Point("attention_mixed", q_len=5, kv_len=7, decode_batch=2, decode_kv_len=20, **heads),
    Point("attention_mixed", q_len=5, kv_len=0, decode_batch=0, decode_kv_len=0, **heads),
    Point("rms_norm", m=3, n=32),
    Point("silu_and_mul", m=3, n=32),
    Point("rotary_kv_write", m=20, n=64, **heads),
    Point("host_overhead", m=5),
]
assert {point.op for point in points} == set(KERNELS_OF_OP)
ops = GpuOps(device, model)
with ops.session():
    for point in points:
        for calls in ops.prepare(point).ways.values():
            for call in calls:
                call()
"""


def test_the_ops_of_a_gpu_call_every_kernel_as_it_wants_to_be_called(run_python: Any) -> None:
    done = run_python(CALLS)
    assert done.returncode == 0, done.stderr
