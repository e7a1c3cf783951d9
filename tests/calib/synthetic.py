"""A kernel table of a GPU that does not exist: times by a formula, so that the right answer is known."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator
from typing import Any

from calib.table import COLUMNS

FLOPS, BYTES = 312e12, 2.039e12
"""The peaks of A100-SXM4-80GB, as which the table passes."""

M = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
N = (256, 1024, 2048, 4096, 8192, 16384)
K = (256, 1024, 2048, 4096, 8192)
BATCH = (1, 2, 4, 8, 16, 32, 64, 128)
KV = (16, 64, 256, 1024, 4096, 16384)
Q = (16, 64, 256, 1024, 2048, 4096)
HEADS = ((8, 8), (16, 8), (32, 8), (8, 1))


def gemm_us(m: float, n: float, k: float) -> float:
    """Half the peaks, a floor of 3 us, and a wave in the sizes that no roofline has."""
    compute = 2 * m * n * k / FLOPS * 2e6
    traffic = 2 * (m * k + n * k + m * n) / BYTES * 2e6
    return (max(compute, traffic) + 3.0) * (1 + 0.15 * math.sin(math.log(m * n)))


def decode_us(batch: float, kv_len: float, heads: float, kv_heads: float) -> float:
    """KV read at 60 % of bandwidth, and 0.002 us a head of a sequence."""
    return 2 * 2 * 128 * kv_heads * batch * kv_len / (0.6 * BYTES) * 1e6 + 0.002 * batch * heads + 10.0


def prefill_us(batch: float, q_len: float, kv_len: float, heads: float) -> float:
    """Half the peak on all (query, key) pairs."""
    pairs = batch * q_len * (kv_len + (q_len + 1) / 2)
    return 4 * 128 * heads * pairs / (0.5 * FLOPS) * 1e6 + 12.0


def rows() -> Iterator[dict[str, Any]]:
    """All measurements."""
    for m, n, k in itertools.product(M, N, K):
        yield {"op": "gemm", "m": m, "n": n, "k": k, "latency_us": gemm_us(m, n, k)}
    for (heads, kv_heads), batch, size in itertools.product(HEADS, BATCH, KV):
        shape = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": 128, "batch": batch}
        yield {"op": "attention_decode", "kv_len": size, **shape, "latency_us": decode_us(batch, size, heads, kv_heads)}
    for (heads, kv_heads), batch, size in itertools.product(HEADS, BATCH[:5], Q):
        shape = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": 128, "batch": batch, "kv_len": 0}
        yield {"op": "attention_prefill", "q_len": size, **shape, "latency_us": prefill_us(batch, size, 0, heads)}


def text(found: list[dict[str, Any]] | None = None) -> str:
    """The table as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="")
    writer.writeheader()
    for row in list(rows()) if found is None else found:
        writer.writerow({"dtype": "bfloat16", "source": "a formula", **row})
    return out.getvalue()
