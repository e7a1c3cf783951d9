"""What a kernel has to do (FLOPs, bytes, serial chain) and the shape of its time.

A kernel's time is a smooth maximum of three roofs and a launch floor on top:

    t = (compute^q + traffic^q + chain^q)^(1/q) + pieces + floor

compute = FLOPs over the achievable share of peak, traffic = bytes over the achievable share of bandwidth, chain = the
longest run of work that one processor does by itself (the inner dimension of a matrix product, the keys of one query),
pieces = what handing out each piece of work costs (attention: a head of a sequence). The shares, the rates and q are
fitted to measurements by `calib.fit`; what the formula misses is a residual that `profile.residuals` interpolates.

Attention launches that hold unlike sequences, a prefill chunk beside decodes or decodes of unequal length, have
formulas of their own, whose constants `calib.fit.launches` fits. The same code prices arrays and single launches, so
that both give the same bits.

In a FlashAttention-2 kernel any chunk in the launch makes the longest query longer than 1, so that decodes lose the
packing of the query heads of a KV head and the split of long contexts. Each decode becomes one thread block (CTA) for
each query head, serial over KV blocks of 128 tokens, and the grid has as many CTAs for it as for the chunk, which
exit at once. Many decodes read K and V once for each query head instead of once a group as soon as those no longer fit
the L2 cache. FlashAttention-3 packs and splits in such launches too, so there the parts add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from simkit.latency import latent_work
from simkit.specs.dtypes import MODEL_DTYPES, element_bytes
from simkit.types import Floats
from simkit.units import US_PER_S

Sizes = Mapping[str, Floats]
"""Sizes of calls by column name of the kernel table (`m`, `kv_len`, ...), arrays of one length or scalars."""

ELEMENT_BYTES = {name: element_bytes(name) for name in (*MODEL_DTYPES, "fp8", "int8")} | {"fp8_block": 1.0}
SIXTEEN_BIT = ("bfloat16", "float16")
"""Formats that stand for each other: the same operand size, and where a GPU has both the same peak."""

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

    def slower(self, by: float) -> Physics:
        """The same, taking `by` times as long."""
        return Physics(
            compute_fraction=self.compute_fraction / by,
            bandwidth_fraction=self.bandwidth_fraction / by,
            chain_us=self.chain_us * by,
            piece_us=self.piece_us * by,
            floor_us=self.floor_us * by,
            sharpness=self.sharpness,
        )

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


MEMORY_BOUND_OPS = (
    "gemm", "gemm_triton", "attention_decode", "attention_prefill", "attention_decode_window",
    "attention_prefill_window", "mla_decode_module", "mla_prefill_module", "memcpy_d2d",
)  # fmt: skip
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


def _windowed_decode(width: float, out: float, s: Sizes) -> Work:
    return _decode(width, out, {**s, "kv_len": s["window"]})


def _windowed_prefill(width: float, out: float, s: Sizes) -> Work:
    """Each query sees the keys of a window that ends with itself."""
    q, window = s["q_len"], s["window"]
    before = np.minimum(s["kv_len"], window)
    whole = np.maximum(q - (window - before), 0.0)  # queries that see a whole window
    part = q - whole
    pairs = part * (before + (part + 1.0) / 2.0) + whole * window
    heads, kv_heads, batch = s["num_heads"], s["num_kv_heads"], s["batch"]
    moved = batch * s["head_dim"] * (2.0 * out * heads * q + 2.0 * width * kv_heads * (before + q))
    chain = np.minimum(before + q, window) + 0.0 * batch
    return Work(4.0 * s["head_dim"] * heads * batch * pairs, moved, chain, batch * heads)


def _latent(counts: Callable[[float, float, Mapping[str, Floats]], latent_work.Counts]) -> _Formula:
    return lambda width, out, s: Work(*counts(width, out, s))


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
    "attention_decode_window": _windowed_decode,
    "attention_prefill_window": _windowed_prefill,
    "mla_decode_module": _latent(latent_work.decode),
    "mla_prefill_module": _latent(latent_work.prefill),
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


# --- launches of unlike sequences
ROWS_PER_CTA = 64.0
KV_BLOCK_TOKENS = 128.0

ARRAYS = SimpleNamespace(maximum=np.maximum, minimum=np.minimum, ceil=np.ceil)
SCALARS = SimpleNamespace(maximum=max, minimum=min, ceil=lambda value: float(math.ceil(value)))


@dataclass(frozen=True, slots=True)
class Varlen:
    """Constants of a launch of unlike sequences for head_dim 128, in microseconds unless the name says otherwise.

    `block_us`: a KV block of one CTA among many; `lone_block_us`: of one that runs alone. `cta_us`: a CTA that works,
    `empty_cta_us`: one that exits. `tail_share` of the longest chain runs after all others are done. `crowded_share`:
    how much slower decodes get when the K and V of one KV head come to 64 MB. Between `l2_from_mb` and `l2_to_mb` of
    them memory traffic grows to `reread_base + reread_per_64_seqs x n / 64` times theirs, at most the group size.
    """

    floor_us: float
    cta_us: float
    block_us: float
    lone_block_us: float
    empty_cta_us: float
    tail_share: float
    crowded_share: float
    reread_base: float
    reread_per_64_seqs: float
    l2_from_mb: float
    l2_to_mb: float
    slots: float
    bytes_per_us: float


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer on one GPU; `kv_element_bytes` as stored in the cache."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_element_bytes: float


def launch_us(
    varlen: Varlen, heads: Heads, chunks: Any, q: Any, before: Any, seqs: Any, context: Any, longest: Any, lib: Any,
    *, decode_edge: Any = 0.5, chunk_edge: Any = 0.5,
) -> Any:  # fmt: skip
    """Time of a launch of `chunks` chunks of `q` tokens over `before` cached ones and `seqs` decodes.

    `context` is the sum and `longest` the maximum of the decodes' context tokens; `lib` is ARRAYS or SCALARS. The edges
    are the mean part of a KV block that a sequence begins and does not fill: 0.5 for lengths of no special kind.
    """
    wide = heads.head_dim / 128.0
    block_us, kv_bytes = varlen.block_us * wide, 2.0 * heads.head_dim * heads.kv_element_bytes
    tiles = lib.ceil(q / ROWS_PER_CTA)
    chunk_blocks = tiles * (before / KV_BLOCK_TOKENS + (tiles + 1.0) / 4.0 + chunk_edge)
    set_mb = context * (kv_bytes * 1e-6)
    crowd = 1.0 + varlen.crowded_share * lib.minimum(set_mb / 64.0, 1.0)
    work = chunks * (tiles * varlen.cta_us + block_us * chunk_blocks)
    work = work + seqs * varlen.cta_us + block_us * (context / KV_BLOCK_TOKENS + decode_edge * seqs) * crowd
    work = work + seqs * (tiles - 1.0) * varlen.empty_cta_us
    chain = (varlen.lone_block_us * wide) * lib.maximum(
        (before + q) / KV_BLOCK_TOKENS + 2.0 * chunk_edge - 0.5, longest / KV_BLOCK_TOKENS + decode_edge
    )
    group = heads.num_heads / heads.num_kv_heads
    reads = varlen.reread_base + varlen.reread_per_64_seqs * seqs / 64.0
    reads = lib.minimum(lib.maximum(reads, 1.0), group)
    over = (set_mb - varlen.l2_from_mb) / (varlen.l2_to_mb - varlen.l2_from_mb)
    over = lib.minimum(lib.maximum(over, 0.0), 1.0)
    tokens = context * (1.0 + (reads - 1.0) * over) + chunks * (before + q)
    traffic = tokens * (kv_bytes * heads.num_kv_heads / varlen.bytes_per_us)
    busy = work * (heads.num_heads / varlen.slots) + varlen.tail_share * chain
    return varlen.floor_us + lib.maximum(chain, lib.maximum(busy, traffic))


@dataclass(frozen=True, slots=True)
class Skew:
    """What decodes of unequal length in one launch cost: `us_per_token` that the longest exceeds the mean.

    Only where the kernel no longer splits contexts: from `min_sequence_heads` sequences times KV heads. `heads` are the
    (num_heads, num_kv_heads, head_dim) at which it was measured.

    Of the upper tail the longest alone counts, since a launch ends with its last thread block. That is measured for two
    lengths, where one long decode costs as much as eight; no table of drawn spreads is at hand. For those it rests on a
    model of the launch (`tests/calib/one_launch.py`) that predicts two lengths to 0.9 % (the rule: 1.7 %): by it the
    rule is 0.5 to 2.3 % off, the mean 5 to 25 %; and on the end of a real run, where it is 2.5 % low, the mean 8.3 %.
    """

    us_per_token: float
    min_sequence_heads: float
    heads: frozenset[tuple[int, ...]] = frozenset()


def skewed(
    skew: Skew, num_kv_heads: int, seqs: Any, mean_us: Any, longest_us: Any, mean: Any, longest: Any, lib: Any
) -> Any:
    """Time of `seqs` decodes from that of as many equal ones of mean and of maximal length. `seqs` is one number or an
    array; at least `mean_us`, at most `longest_us`."""
    unsplit = 1.0 * (seqs * num_kv_heads >= skew.min_sequence_heads)
    return lib.minimum(lib.maximum(longest_us, mean_us), mean_us + unsplit * skew.us_per_token * (longest - mean))


def added(prefill_us: Any, decode_us: Any, floor_us: float, lib: Any) -> Any:
    """Time of a launch whose parts do not hinder each other: they add up, with one launch floor."""
    return lib.maximum(lib.maximum(prefill_us, decode_us), prefill_us + decode_us - floor_us)


def equal_chunks(tokens: Any, before_sum: Any, pairs: Any, lib: Any) -> tuple[Any, Any, Any]:
    """(number, new tokens each, cached tokens each) of equal chunks with these totals; exact for one chunk.

    From pairs = number x q x (before + (q + 1) / 2): q = (2 pairs - tokens) / (2 before_sum + tokens).
    """
    q = (2.0 * pairs - tokens) / (2.0 * before_sum + tokens)
    q = lib.minimum(lib.maximum(q, 1.0), 1.0 * tokens)
    chunks = tokens / q
    return chunks, q, before_sum / chunks


def windowed(chunks: Any, q: Any, before: Any, window: int, lib: Any) -> tuple[Any, Any, Any]:
    """Equal chunks with the (query, key) pairs of a sliding window: at most `window` keys a query.

    A chunk longer than the window is as many of its length; what lies before is cut to what the mean query sees.
    """
    short = lib.minimum(q, 1.0 * window)
    return chunks * (q / short), short, lib.minimum(before, window - short / 2.0)
