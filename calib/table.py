"""The kernel table: the neutral CSV in which measurements of GPU kernels travel. Imports no torch and no triton."""

from __future__ import annotations

COLUMNS = (
    "op",
    "dtype",
    "m",
    "n",
    "k",
    "batch",
    "q_len",
    "kv_len",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "decode_batch",
    "decode_kv_len",
    "world_size",
    "bytes",
    "latency_us",
    "source",
)
"""In this order. Cells that do not apply to an op are empty; `latency_us` is one call in microseconds."""
