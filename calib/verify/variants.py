"""The launches of a calibration, to be compiled before any is timed: what a usual model needs, some 60 kernels.

Built by the launchers' own builders from tensors that hold no data, so what is compiled is what will be launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from calib.kernels import gemm, mixed, paged_decode, paged_prefill, rms_norm, rotary_kv_write, silu_and_mul
from calib.kernels.launch import Launch
from calib.kernels.limits import Capability, shared_limit_bytes
from calib.verify.compiled import Variant, variant_of

HIDDEN_SIZES = (2048, 4096, 8192, 16384)
UNEVEN_K = 4096 + 16
HEAD_DIMS_AND_BLOCK_SIZES = ((64, 16), (64, 32), (64, 64), (128, 16), (128, 32), (128, 64), (256, 16))

Named = Iterator[tuple[str, Launch]]


def variants(capability: Capability, dtype: torch.dtype) -> tuple[Variant, ...]:
    """Every kernel that a calibration in `dtype` launches on a GPU of that capability, each once."""
    found: dict[Variant, Variant] = {}
    for name, launch in named_launches(capability, dtype):
        variant = variant_of(name, launch)
        found.setdefault(replace(variant, name=""), variant)
    return tuple(found.values())


def named_launches(capability: Capability, dtype: torch.dtype) -> Named:
    """The launches that `variants` are of, on tensors of the device "meta"; some compile to the same."""
    yield from _gemms(capability, dtype)
    yield from _attention(capability, dtype)
    yield from _elementwise(dtype)


def _empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _gemms(capability: Capability, dtype: torch.dtype) -> Named:
    configs = gemm.CONFIGS if dtype.itemsize == 2 else gemm.FULL_CONFIGS
    fitting = [c for c in configs if c.shared_bytes(dtype.itemsize) <= shared_limit_bytes(capability)]
    uneven = [c for c in fitting if c in (gemm.SQUARE, gemm.FEW_16, gemm.FULL, gemm.FULL_FEW)]
    for k, chosen in ((4096, fitting), (UNEVEN_K, uneven)):
        for c in chosen:
            m, n = c.block_m, 1024
            out = _empty(m, n, dtype=dtype)
            parts = _empty(c.split_k, m, n, dtype=torch.float32) if c.split_k > 1 else None
            x, weight = _empty(m, k, dtype=dtype), _empty(n, k, dtype=dtype)
            name = f"{c.block_m}x{c.block_n}x{c.block_k}/{c.split_k}" + (" uneven" if k % c.block_k else "")
            product, *total = gemm.launches(x, weight, out, parts, c)
            yield f"gemm {name}", product
            for launch in total:
                yield f"sum_splits {c.split_k}", launch


def _attention(capability: Capability, dtype: torch.dtype) -> Named:
    batch, heads, kv_heads, tokens = 4, 32, 8, 128
    seq_lens, starts = _empty(batch, dtype=torch.int32), _empty(batch + 1, dtype=torch.int32)
    for head_dim, block_size in HEAD_DIMS_AND_BLOCK_SIZES:
        name = f"d{head_dim} block{block_size}"
        cache = _empty(64, block_size, kv_heads, head_dim, dtype=dtype)
        table = _empty(batch, 16, dtype=torch.int32)
        one, many = _empty(batch, heads, head_dim, dtype=dtype), _empty(tokens, heads, head_dim, dtype=dtype)
        values = _empty(batch, heads, 2, head_dim, dtype=torch.float32)
        split = (values, _empty(*values.shape[:3], dtype=torch.float32))
        for parts in (None, split):
            decodes = paged_decode.launches(one, cache, cache, table, seq_lens, one, parts, None, capability)
            yield f"decode {name}" + (" split" if parts else ""), decodes[0]
            if parts:
                yield f"join_splits d{head_dim}", decodes[1]
        prefill = paged_prefill.launches(many, cache, cache, table, starts, seq_lens, tokens, many, None, capability)
        yield f"prefill {name}", prefill[0]
        yield f"mixed {name}", mixed.launches(many, cache, cache, table, starts, seq_lens, many, None, capability)[0]


def _elementwise(dtype: torch.dtype) -> Named:
    tokens = 16
    for hidden in HIDDEN_SIZES:
        x, weight = _empty(tokens, hidden, dtype=dtype), _empty(hidden, dtype=dtype)
        yield f"rms_norm {hidden}", rms_norm.launches(x, weight, None, 1e-6, x)[0]
        yield f"add_rms_norm {hidden}", rms_norm.launches(x, weight, x, 1e-6, x)[0]
    x = _empty(tokens, 4096, dtype=dtype)
    yield "silu_and_mul", silu_and_mul.launches(x, _empty(tokens, 2048, dtype=dtype))[0]
    whole = _empty(tokens, dtype=torch.int64)
    for head_dim in (64, 128, 256):
        q, kv = _empty(tokens, 32, head_dim, dtype=dtype), _empty(tokens, 8, head_dim, dtype=dtype)
        cache, cos_sin = _empty(64, 16, 8, head_dim, dtype=dtype), _empty(4096, head_dim, dtype=dtype)
        yield (
            f"rotary_kv_write d{head_dim}",
            rotary_kv_write.launches(q, kv, kv, cos_sin, whole, cache, cache, whole, q)[0],
        )
