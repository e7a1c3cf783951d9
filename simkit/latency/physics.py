"""What a kernel has to do (FLOPs, bytes, serial chain) and the shape of its time.

A kernel's time is a smooth maximum of three roofs and a launch floor on top:

    t = (compute^q + traffic^q + chain^q)^(1/q) + pieces + floor

compute = FLOPs over the achievable share of peak, traffic = bytes over the achievable share of bandwidth, chain = the
longest run of work that one processor does by itself (the inner dimension of a matrix product, the keys of one query),
pieces = what handing out each piece of work costs (attention: a head of a sequence). The shares, the rates and q are
fitted to measurements by `calib.fit`; what the formula misses is a residual that `profile.residuals` interpolates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from simkit.specs.dtypes import MODEL_DTYPES, element_bytes
from simkit.types import Floats
from simkit.units import US_PER_S

Sizes = Mapping[str, Floats]
"""Sizes of calls by column name of the kernel table (`m`, `kv_len`, ...), arrays of one length or scalars."""

ELEMENT_BYTES = {name: element_bytes(name) for name in (*MODEL_DTYPES, "fp8", "int8")}
_OUTPUT_BYTES = {"float32": 4.0}
_LOGIT_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Work:
    """What each call computes, moves, does one after the other, and is divided into; float64 arrays of one length."""

    flops: Floats
    moved_bytes: Floats
    chain: Floats
    pieces: Floats


@dataclass(frozen=True, slots=True)
class Limits:
    """What no kernel beats: peak FLOP/s of the operands' format and bytes/s of the memory it reads."""

    flops_per_s: float
    bytes_per_s: float

    def fastest_us(self, work: Work) -> Floats:
        """The time that hardware allows."""
        fastest: Floats = np.maximum(work.flops / self.flops_per_s, work.moved_bytes / self.bytes_per_s) * US_PER_S
        return fastest


@dataclass(frozen=True, slots=True)
class Physics:
    """The fitted numbers of the formula above; fractions of the limits, microseconds."""

    compute_fraction: float
    bandwidth_fraction: float
    chain_us: float
    piece_us: float
    floor_us: float
    sharpness: float

    def us(self, work: Work, limits: Limits) -> Floats:
        """Time of each call in microseconds, float64."""
        compute = work.flops * (US_PER_S / (limits.flops_per_s * self.compute_fraction))
        traffic = work.moved_bytes * (US_PER_S / (limits.bytes_per_s * self.bandwidth_fraction))
        chain = work.chain * self.chain_us
        # Scaled by the largest roof, so that no power overflows.
        largest = np.maximum(np.maximum(compute, traffic), np.maximum(chain, 1e-30))
        powers = sum((roof / largest) ** self.sharpness for roof in (compute, traffic, chain))
        total: Floats = (
            largest * np.asarray(powers) ** (1.0 / self.sharpness) + work.pieces * self.piece_us + self.floor_us
        )
        return total


_Formula = Callable[[float, float, Mapping[str, Floats]], Work]
"""(bytes of an operand, bytes of a result, sizes) to work."""


MEMORY_BOUND_OPS = ("gemm", "gemm_triton", "attention_decode", "attention_prefill", "memcpy_d2d")
"""Ops whose operands come from GPU memory. Activations between kernels live in the L2 cache, and switches add up what
crosses links, so that the rates of memory and links do not bound the other ops."""


def work_of(op: str, dtype: str, sizes: Sizes) -> Work:
    """What calls of `op` on `dtype` operands have to do, from their sizes. Raises KeyError for an op without formula.

    Q.K and A.V are 2 FLOPs each per head element, so 4 per (query, key) pair; K and V are read once a cached token.
    """
    width = ELEMENT_BYTES[dtype]
    return _FORMULAS[op](
        width, _OUTPUT_BYTES.get(dtype, 2.0), {name: np.asarray(v, float) for name, v in sizes.items()}
    )


def _gemm(width: float, out: float, s: Sizes) -> Work:
    m, n, k = s["m"], s["n"], s["k"]
    return Work(2.0 * m * n * k, width * (m * k + n * k) + out * m * n, k + 0.0 * m, 0.0 * m)


def _decode(width: float, out: float, s: Sizes) -> Work:
    tokens, row = s["batch"] * s["kv_len"], s["head_dim"] * s["num_heads"]
    moved = 2.0 * width * s["head_dim"] * s["num_kv_heads"] * tokens + 2.0 * out * row * s["batch"]
    return Work(4.0 * row * tokens, moved, s["kv_len"] + 0.0 * tokens, s["batch"] * s["num_heads"])


def _prefill(width: float, out: float, s: Sizes) -> Work:
    q, before, batch = s["q_len"], s["kv_len"], s["batch"]
    pairs = batch * q * (before + (q + 1.0) / 2.0)
    heads, kv_heads = s["num_heads"], s["num_kv_heads"]
    moved = batch * s["head_dim"] * (2.0 * out * heads * q + 2.0 * width * kv_heads * (before + q))
    return Work(4.0 * s["head_dim"] * heads * pairs, moved, before + q + 0.0 * batch, batch * heads)


def _only_moving(moved_bytes: Floats) -> Work:
    nothing = 0.0 * moved_bytes
    return Work(nothing, moved_bytes, nothing, nothing)


def _moving(vectors: float) -> _Formula:
    """A kernel without reuse that moves `vectors` vectors of the operands' format a row."""

    def formula(width: float, out: float, s: Sizes) -> Work:
        moved = vectors * width * s["m"] * s["n"]
        return _only_moving(moved)

    return formula


def _sampler(width: float, out: float, s: Sizes) -> Work:
    # Logits are read, written in 32 bits, and read again to choose a token.
    moved = (width + 2.0 * _LOGIT_BYTES) * s["m"] * s["n"]
    return _only_moving(moved)


def _rotary(vectors_of_kv: float) -> _Formula:
    def formula(width: float, out: float, s: Sizes) -> Work:
        rows = s["m"] * s["n"] * width
        moved = rows * (2.0 * s["num_heads"] + vectors_of_kv * s["num_kv_heads"])
        return _only_moving(moved)

    return formula


def _all_reduce(width: float, out: float, s: Sizes) -> Work:
    # A ring: 2 (n - 1)/n of the message crosses each link, in 2 (n - 1) hops.
    hops = 2.0 * (s["world_size"] - 1.0)
    moved = s["bytes"] * hops / s["world_size"]
    return Work(0.0 * moved, moved, hops + 0.0 * moved, 0.0 * moved)


def _copy(width: float, out: float, s: Sizes) -> Work:
    moved = s["bytes"] + 0.0
    return _only_moving(moved)


def _copy_inside(width: float, out: float, s: Sizes) -> Work:
    return _only_moving(2.0 * s["bytes"])  # read and written


_FORMULAS: dict[str, _Formula] = {
    "gemm": _gemm,
    "gemm_triton": _gemm,
    "attention_decode": _decode,
    "attention_prefill": _prefill,
    "rms_norm": _moving(4.0),
    "rms_norm_final": _moving(4.0),
    "qk_norm": _moving(2.0),
    "silu_and_mul": _moving(3.0),
    "embedding": _moving(2.0),
    "sampler": _sampler,
    "rotary_embedding": _rotary(2.0),
    "rotary_kv_write": _rotary(6.0),
    "all_reduce": _all_reduce,
    "memcpy_h2d": _copy,
    "memcpy_d2h": _copy,
    "memcpy_d2d": _copy_inside,
}
