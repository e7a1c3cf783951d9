"""What is measured: one point is one call of one op, with the columns of the kernel table that its shape fills.

Owns `Point`, the per-GPU shapes of a model and the least work (FLOPs, bytes) that a point needs. Pure: no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calib import CalibrationError
from simkit.latency.profile import formats, head_gemm, layer_gemms
from simkit.specs.models import ModelSpec, load_model

_HEADS = ("num_heads", "num_kv_heads", "head_dim")

COLUMNS_OF: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "gemm_triton": ("m", "n", "k"),
    "attention_decode": ("batch", "kv_len", *_HEADS),
    "attention_skew": ("batch", "kv_len", *_HEADS, "decode_batch", "decode_kv_len"),
    "attention_prefill": ("batch", "q_len", "kv_len", *_HEADS),
    "attention_mixed": ("q_len", "kv_len", *_HEADS, "decode_batch", "decode_kv_len"),
    "rms_norm": ("m", "n"),
    "silu_and_mul": ("m", "n"),
    "rotary_kv_write": ("m", "n", *_HEADS),
    "embedding": ("m", "n"),
    "sampler": ("m", "n"),
    "memcpy_d2d": ("bytes",),
    "memcpy_d2d_cached": ("bytes",),
    "memcpy_h2d": ("bytes",),
    "memcpy_d2h": ("bytes",),
    "host_overhead": ("m",),
    "all_reduce": ("world_size", "bytes"),
}
"""The columns that each op fills, all of them. Their order is that in which points of the op are sorted.

- gemm, gemm_triton: (m x k) times (k x n), by the vendor's library and by simkit's Triton kernel.
- attention_skew: one launch of `batch` decodes, `decode_batch` of them over `decode_kv_len` tokens, the rest `kv_len`.
- attention_prefill: `batch` equal sequences, `q_len` new tokens each after `kv_len` cached ones.
- attention_mixed: one launch with a chunk (`q_len` after `kv_len`) and `decode_batch` decodes over `decode_kv_len`.
- rms_norm: the residual is added first; n = hidden. silu_and_mul: n = width of the MLP. embedding: n = hidden.
- rotary_kv_write: rotation of queries and keys and the write of keys and values to the cache; n = head_dim.
- sampler: m sequences, n = vocabulary.
- memcpy_*: `bytes` copied once, so a copy within the device reads and writes twice as many together.
- all_reduce: `bytes` on each of `world_size` GPUs, added up on all of them.
- host_overhead: host time to launch all kernels of one step with m running sequences.
"""

NOT_IN_TABLE = frozenset({"memcpy_d2d_cached"})
"""Measured for the ceilings only: a copy that stays in the cache says nothing about memory."""


@dataclass(frozen=True, slots=True)
class Point:
    """One call to measure. The fields are columns of the kernel table; None where a column does not apply."""

    op: str
    m: int | None = None
    n: int | None = None
    k: int | None = None
    batch: int | None = None
    q_len: int | None = None
    kv_len: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    decode_batch: int | None = None
    decode_kv_len: int | None = None
    bytes: int | None = None
    world_size: int | None = None

    def get(self, column: str) -> int:
        """The value of a column that this op fills."""
        value = getattr(self, column)
        if not isinstance(value, int):
            raise ValueError(f"{self.op} has no {column}")
        return value

    def cells(self) -> dict[str, str]:
        """Column to text, empty cells left out."""
        return {"op": self.op} | {column: str(self.get(column)) for column in COLUMNS_OF[self.op]}

    def sort_key(self) -> tuple[int, ...]:
        """Ops in the order of COLUMNS_OF, points of an op by size; weights and heads change slowest."""
        columns = COLUMNS_OF[self.op]
        slow = [column for column in ("n", "k", *_HEADS) if column in columns]
        rest = [column for column in columns if column not in slow]
        return (list(COLUMNS_OF).index(self.op), *(self.get(column) for column in (*slow, *rest)))

    def label(self) -> str:
        """Short text for progress and lists, e.g. ``gemm m=16 n=4096 k=4096``."""
        return " ".join([self.op, *(f"{column}={self.get(column)}" for column in COLUMNS_OF[self.op])])


def point_of(cells: Mapping[str, str]) -> Point:
    """The point of a row of a table; raises ValueError for an unknown op or a cell that is no integer."""
    op = cells["op"]
    if op not in COLUMNS_OF:
        raise ValueError(f"unknown op {op!r}")
    return Point(op, **{column: int(cells[column]) for column in COLUMNS_OF[op]})


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """What one of `ranks` GPUs computes for a model. GEMMs are (n, k); `head` is that of the LM head."""

    name: str
    ranks: int
    num_layers: int
    gemms: tuple[tuple[int, int], ...]
    head: tuple[int, int]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    mlp_width: int
    vocab: int


def parse_model(text: str) -> ModelShapes:
    """The shapes of ``NAME`` or ``NAME@TP``, e.g. ``llama-3-70b@4``. Raises InputError for an unknown name."""
    name, at, ranks = text.rpartition("@")
    if not at or not ranks.isdecimal():
        name, ranks = text, "1"
    return shapes_of(load_model(name), int(ranks))


def shapes_of(model: ModelSpec, ranks: int) -> ModelShapes:
    """The products that are measured are those that a profile prices; KV heads are repeated when too few."""
    heads, kv_heads = model.num_attention_heads, model.num_kv_heads
    if model.not_modelled is not None:
        raise CalibrationError(f"--model {model.name}: {model.not_modelled}")
    if model.latent is not None:
        raise CalibrationError(f"--model {model.name}: kernels of latent attention are not measured here")
    if not model.splits(ranks):
        raise CalibrationError(
            f"--model {model.name}@{ranks}: expected a divisor of its {heads} attention heads that divides or is a"
            f" multiple of its {kv_heads} KV heads"
        )
    plain = formats(model, dtype="bfloat16", quantization=None, kv_cache_dtype="auto")
    head = head_gemm(model, ranks, plain)
    is_dense = model.num_layers > model.num_moe_layers
    return ModelShapes(
        name=model.name,
        ranks=ranks,
        num_layers=model.num_layers,
        gemms=tuple((gemm.n, gemm.k) for gemm in layer_gemms(model, ranks, plain)),
        head=(head.n, head.k),
        num_heads=heads // ranks,
        num_kv_heads=model.kv_heads_on(ranks),
        head_dim=model.head_dim,
        hidden=model.hidden_size,
        mlp_width=-(-(model.intermediate_size if is_dense else model.moe_intermediate_size) // ranks),
        vocab=model.vocab_size,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """The least a call must do: FLOPs, and bytes through memory with everything read or written once."""

    flops: float
    bytes: float


def work(point: Point, element_bytes: int) -> Work:
    """FLOPs and bytes of one call. host_overhead and copies have no FLOPs; host_overhead has no bytes either.

    Bytes of an all_reduce are those that a ring moves over each link.
    """
    op = point.op
    if op in ("gemm", "gemm_triton"):
        m, n, k = point.get("m"), point.get("n"), point.get("k")
        return Work(2.0 * m * n * k, float(element_bytes * (m * k + n * k + m * n)))
    if op.startswith("attention_"):
        return _attention_work(point, element_bytes)
    if op.startswith("memcpy_"):
        return Work(0.0, point.get("bytes") * (2.0 if op.startswith("memcpy_d2d") else 1.0))
    if op == "host_overhead":
        return Work(0.0, 0.0)
    if op == "all_reduce":
        ranks = point.get("world_size")
        return Work(0.0, point.get("bytes") * 2.0 * (ranks - 1) / ranks)
    m, n = point.get("m"), point.get("n")
    if op == "rotary_kv_write":
        query, key = point.get("num_heads") * n, point.get("num_kv_heads") * n
        return Work(6.0 * m * (query + key), float(element_bytes * m * (2 * query + 2 * key + 2 * key)))
    vectors = {"rms_norm": 4, "silu_and_mul": 3, "embedding": 2, "sampler": 1}[op]
    return Work(4.0 * m * n, float(element_bytes * vectors * m * n))


def memory_bytes(point: Point, element_bytes: int) -> int:
    """Memory that the operands of one call take; those of host_overhead are left out."""
    needed = work(point, element_bytes).bytes
    if point.op == "sampler":
        needed += 8.0 * point.get("m") * point.get("n")  # logits and probabilities in 32 bits
    if point.op == "all_reduce":
        needed = float(point.get("bytes"))
    return round(needed)


def groups(point: Point) -> tuple[tuple[int, int, int], ...]:
    """The sequences of an attention point as (count, new tokens, tokens in the cache with the new ones)."""
    if point.op == "attention_decode":
        return ((point.get("batch"), 1, point.get("kv_len")),)
    if point.op == "attention_skew":
        long = point.get("decode_batch")
        return ((point.get("batch") - long, 1, point.get("kv_len")), (long, 1, point.get("decode_kv_len")))
    q_len, total = point.get("q_len"), point.get("q_len") + point.get("kv_len")
    if point.op == "attention_prefill":
        return ((point.get("batch"), q_len, total),)
    decodes = (point.get("decode_batch"), 1, point.get("decode_kv_len"))
    return tuple(group for group in (decodes, (1 if q_len else 0, q_len, total)) if group[0])


def _attention_work(point: Point, element_bytes: int) -> Work:
    heads, kv_heads, dim = (point.get(column) for column in _HEADS)
    flops = moved = 0.0
    for count, new, total in groups(point):
        pairs = new * (total - new) + new * (new + 1) / 2
        flops += 4.0 * count * heads * dim * pairs
        moved += count * dim * element_bytes * (2.0 * new * heads + 2.0 * total * kv_heads)
    return Work(flops, moved)
