"""What a calibration hands to each kernel is what the kernel takes: every op of a GPU, in Triton's interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

SCRIPT = """
import json
from dataclasses import replace
import torch
from calib.device import find_device
from calib.gpu_ops import KERNELS_OF_OP, GpuOps
from calib.shapes import Point, parse_model

heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
points = [
    Point("gemm_triton", m=3, n=32, k=16),
    Point("attention_decode", batch=3, kv_len=40, **heads),
    Point("attention_skew", batch=3, kv_len=8, decode_batch=1, decode_kv_len=40, **heads),
    Point("attention_prefill", batch=2, q_len=5, kv_len=20, **heads),
    Point("attention_mixed", q_len=5, kv_len=7, decode_batch=2, decode_kv_len=20, **heads),
    Point("rms_norm", m=3, n=32),
    Point("silu_and_mul", m=3, n=24),
    Point("rotary_kv_write", m=20, n=64, **heads),
    Point("host_overhead", m=2),
]
cpu = find_device("cpu")
model = replace(
    parse_model("llama-3-8b"), gemms=((512, 32), (32, 256), (48, 32), (32, 24)), head=(64, 32), **heads, hidden=32,
    mlp_width=24, vocab=64, num_layers=1,
)
ops = GpuOps(replace(cpu, cache_bytes=1, software={**cpu.software, "triton": "3"}), model)
ops.dtype, ops._dtype = "float16", torch.float16  # the interpreter gets products of bfloat16 wrong
found = {}
with ops.session():
    for point in points:
        for way, calls in ops.prepare(point).ways.items():
            out = calls[0]()
            finite = out is None or bool(torch.isfinite(out[0] if isinstance(out, tuple) else out).all())
            found.setdefault(point.op, []).append(finite)
assert set(found) == set(KERNELS_OF_OP), set(KERNELS_OF_OP) - set(found)
print(json.dumps(found))
"""


def test_every_kernel_takes_what_it_is_handed(run_python: Callable[..., Any]) -> None:
    done = run_python(SCRIPT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(all(ways) for ways in found.values())
    assert len(found["gemm_triton"]) > 1
