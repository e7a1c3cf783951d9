"""Inputs on which every kernel must agree with its reference. Owns the sizes, the random numbers and the poison.

Sizes are odd where kernels have edges. Whatever a kernel must not read is NaN (cache blocks of no sequence, the rest of
a last block) or points nowhere (the rest of a row of the block table); outputs are NaN beforehand and longer than
needed. So a kernel that reads or writes too much or too little cannot agree.

Inputs and references live on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from calib.kernels import gemm, mixed, paged_decode, paged_prefill, rms_norm, rotary_kv_write, silu_and_mul
from calib.verify import reference

GUARD = 4096
"""Elements past the end of an output that must stay as they are."""

NOWHERE = (2**30, -1)
"""Entries of a block table past a sequence's blocks: reading there is an error, not a wrong number."""


@dataclass(frozen=True, slots=True)
class Compared:
    """An output beside what it should be, and whether what lies past its end was left alone."""

    got: torch.Tensor
    want: torch.Tensor
    intact: bool = True


Run = Callable[[torch.device, torch.dtype], tuple[Compared, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """`large`: too slow for Triton's interpreter, so for a GPU only. `config`: the tile it asks for, where it does."""

    kernel: str
    name: str
    run: Run
    large: bool = False
    config: gemm.Config | None = None


class Output:
    """A tensor full of NaN with more NaN behind it."""

    def __init__(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        size = torch.Size(shape).numel()
        self._whole = torch.full((size + GUARD,), float("nan"), dtype=dtype, device=device)
        self._size = size
        self.tensor = self._whole[:size].view(shape)

    def compared(self, want: torch.Tensor) -> Compared:
        return Compared(self.tensor.cpu(), want, bool(self._whole[self._size :].isnan().all()))


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Standard normal numbers that depend on the shape and the seed only."""
    source = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=source).to(dtype)


@dataclass(frozen=True, slots=True)
class Paged:
    """A batch: `chunks` query tokens of sequences of `lengths` tokens, chunk included."""

    lengths: tuple[int, ...]
    chunks: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 1
    head_dim: int = 64
    block_size: int = 16
    scale: float | None = None
    splits: int | None = 1


@dataclass(frozen=True, slots=True)
class PagedInputs:
    """Tensors of a batch, on the CPU."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor

    def cached(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What all attention kernels take first, moved to a device."""
        return (
            self.query.to(device),
            self.key_cache.to(device),
            self.value_cache.to(device),
            self.block_table.to(device),
        )


def paged_inputs(batch: Paged, dtype: torch.dtype) -> PagedInputs:
    """Caches whose blocks lie in no order, with poison wherever no token is."""
    needed = [-(-length // batch.block_size) for length in batch.lengths]
    width, spare = max([*needed, 1]) + 2, 3
    order = torch.randperm(sum(needed) + spare, generator=torch.Generator().manual_seed(7)).to(torch.int32)
    shape = (len(order), batch.block_size, batch.kv_heads, batch.head_dim)
    caches = [torch.full(shape, float("nan"), dtype=dtype) for _ in range(2)]
    nowhere = torch.tensor([int(order[0]), *NOWHERE], dtype=torch.int32)
    table = nowhere.repeat(len(needed) * width)[: len(needed) * width].reshape(len(needed), width)
    first = spare
    for seq, (length, blocks) in enumerate(zip(batch.lengths, needed, strict=True)):
        table[seq, :blocks] = order[first : first + blocks]
        first += blocks
        token = torch.arange(length)
        block = table[seq, :blocks].long()[token // batch.block_size]
        for which, cache in enumerate(caches):
            rows = normal(length, batch.kv_heads, batch.head_dim, dtype=dtype, seed=100 * seq + which)
            cache[block, token % batch.block_size] = rows
    starts = torch.tensor([0, *batch.chunks]).cumsum(0).to(torch.int32)
    # Twice a usual query, so that a few tokens matter most and one more or less is seen.
    query = 2 * normal(sum(batch.chunks), batch.heads, batch.head_dim, dtype=dtype, seed=5)
    return PagedInputs(query, caches[0], caches[1], table, starts, torch.tensor(batch.lengths, dtype=torch.int32))


def _decode(batch: Paged, device: torch.device, dtype: torch.dtype) -> tuple[Compared, ...]:
    i = paged_inputs(batch, dtype)
    out = Output(tuple(i.query.shape), device, dtype)
    seq_lens = i.seq_lens.to(device)
    paged_decode.paged_decode(*i.cached(device), seq_lens, out.tensor, batch.scale, batch.splits)
    want = reference.paged_decode(i.query, i.key_cache, i.value_cache, i.block_table, i.seq_lens, batch.scale)
    return (out.compared(want),)


def _chunks(kernel: str, batch: Paged, device: torch.device, dtype: torch.dtype) -> tuple[Compared, ...]:
    i = paged_inputs(batch, dtype)
    out = Output(tuple(i.query.shape), device, dtype)
    starts, seq_lens, longest = i.query_start_loc.to(device), i.seq_lens.to(device), max(batch.chunks)
    if kernel == "mixed":
        mixed.mixed(*i.cached(device), starts, seq_lens, longest, out.tensor, batch.scale)
    else:
        paged_prefill.paged_prefill(*i.cached(device), starts, seq_lens, longest, out.tensor, batch.scale)
    want = reference.paged_prefill(
        i.query, i.key_cache, i.value_cache, i.block_table, i.query_start_loc, i.seq_lens, batch.scale
    )
    return (out.compared(want),)


def _gemm(
    m: int, n: int, k: int, config: gemm.Config | None, device: torch.device, dtype: torch.dtype
) -> tuple[Compared, ...]:
    x, weight = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype, seed=1)
    out = Output((m, n), device, dtype)
    gemm.gemm(x.to(device), weight.to(device), out.tensor, config)
    return (out.compared(reference.gemm(x, weight)),)


def _rms_norm(tokens: int, hidden: int, device: torch.device, dtype: torch.dtype) -> tuple[Compared, ...]:
    x, weight = normal(tokens, hidden, dtype=dtype), normal(hidden, dtype=dtype, seed=1)
    out = Output((tokens, hidden), device, dtype)
    rms_norm.rms_norm(x.to(device), weight.to(device), None, 0.25, out.tensor)  # an epsilon that shows
    return (out.compared(reference.rms_norm(x, weight, 0.25)),)


def _add_rms_norm(tokens: int, hidden: int, device: torch.device, dtype: torch.dtype) -> tuple[Compared, ...]:
    x, weight = normal(tokens, hidden, dtype=dtype), normal(hidden, dtype=dtype, seed=1)
    residual = normal(tokens, hidden, dtype=dtype, seed=2)
    out = Output((tokens, hidden), device, dtype)
    total = Output((tokens, hidden), device, dtype)
    total.tensor.copy_(residual)
    rms_norm.rms_norm(x.to(device), weight.to(device), total.tensor, out=out.tensor)
    want = reference.add_rms_norm(x, residual, weight)
    return out.compared(want[0]), total.compared(want[1])


def _silu_and_mul(tokens: int, inner: int, device: torch.device, dtype: torch.dtype) -> tuple[Compared, ...]:
    x = normal(tokens, 2 * inner, dtype=dtype)
    out = Output((tokens, inner), device, dtype)
    silu_and_mul.silu_and_mul(x.to(device), out.tensor)
    return (out.compared(reference.silu_and_mul(x)),)


def _rotary(
    tokens: int, heads: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> tuple[Compared, ...]:
    query = normal(tokens, heads, head_dim, dtype=dtype)
    key, value = (normal(tokens, kv_heads, head_dim, dtype=dtype, seed=seed) for seed in (1, 2))
    source = torch.Generator().manual_seed(3)
    positions = torch.randint(0, 90, (tokens,), generator=source)
    angles = positions.new_tensor(range(90)).double()[:, None] / 10 ** torch.linspace(0, 2, head_dim // 2).double()
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype)
    blocks, block_size = tokens // 16 + 2, 16
    slots = torch.randperm(blocks * block_size, generator=source)[:tokens]
    slots[1::3] = -1
    before = torch.full((blocks, block_size, kv_heads, head_dim), float("nan"), dtype=dtype)
    out = Output(tuple(query.shape), device, dtype)
    caches = [Output(tuple(before.shape), device, dtype) for _ in range(2)]
    rotary_kv_write.rotary_kv_write(
        query.to(device),
        key.to(device),
        value.to(device),
        cos_sin.to(device),
        positions.to(device),
        caches[0].tensor,
        caches[1].tensor,
        slots.to(device),
        out.tensor,
    )
    keys = reference.kv_write(before, reference.rotary(key, positions, cos_sin), slots)
    values = reference.kv_write(before, value, slots)
    turned = reference.rotary(query, positions, cos_sin)
    return out.compared(turned), caches[0].compared(keys), caches[1].compared(values)


ODD = Paged(lengths=(150, 33, 16, 1), chunks=(1, 1, 1, 1))
DECODES = {
    "odd lengths": ODD,
    "batch 1": Paged((77,), (1,), heads=8, kv_heads=2),
    "an empty sequence": Paged((0, 70, 0), (1, 1, 1)),
    "group 1": Paged((65, 40), (1, 1), heads=3, kv_heads=3),
    "group 7, own scale": Paged((65, 40), (1, 1), heads=14, kv_heads=2, scale=0.5),
    "group 20": Paged((65, 40), (1, 1), heads=20, kv_heads=1),
    "head 128, block 32": Paged((130, 31), (1, 1), heads=16, kv_heads=2, head_dim=128, block_size=32),
    "head 256, block 64": Paged((130, 64), (1, 1), heads=8, kv_heads=1, head_dim=256, block_size=64),
    "2 splits": Paged((150, 33, 16, 1), (1, 1, 1, 1), splits=2),
    "more splits than tiles": Paged((150, 0, 70), (1, 1, 1), heads=16, kv_heads=2, splits=19),
    "splits of one block": Paged((300, 257), (1, 1), block_size=64, splits=8),
    "splits by choice": Paged((600,), (1,), heads=8, kv_heads=1, head_dim=128, splits=None),
}
CHUNKS = {
    "from nothing": Paged((70, 16, 1), (70, 16, 1), heads=2),
    "after a prefix": Paged((150, 70, 33), (40, 6, 17), heads=2),
    "longer than a tile": Paged((200,), (150,), heads=2),
    "decodes among chunks": Paged((90, 65, 40, 1), (1, 30, 1, 1), heads=8, kv_heads=2),
    "empty chunks": Paged((20, 0, 35, 40), (0, 0, 35, 0), heads=4, kv_heads=2),
    "group 7, own scale": Paged((50, 67), (11, 20), heads=14, kv_heads=2, scale=0.5),
    "group 1": Paged((50, 67), (11, 20), heads=3, kv_heads=3),
    "head 128, block 32": Paged((70, 64), (20, 64), heads=2, kv_heads=1, head_dim=128, block_size=32),
    "head 256, block 64": Paged((70, 64), (9, 12), heads=2, kv_heads=1, head_dim=256, block_size=64),
}
LONG = Paged((5000, 1, 8193, 300), (1, 1, 1, 1), heads=32, kv_heads=8, head_dim=128, splits=16)
LONG_CHUNKS = Paged((700, 2500, 1), (700, 130, 1), heads=8, kv_heads=2, head_dim=128)
GEMMS = ((5, 70, 200), (1, 1, 1), (37, 150, 512), (16, 64, 73))


def _cases() -> tuple[Case, ...]:
    found = [Case("paged_decode", name, partial(_decode, batch)) for name, batch in DECODES.items()]
    found.append(Case("paged_decode", "long", partial(_decode, LONG), large=True))
    for kernel in ("paged_prefill", "mixed"):
        found += [Case(kernel, name, partial(_chunks, kernel, batch)) for name, batch in CHUNKS.items()]
        found.append(Case(kernel, "long", partial(_chunks, kernel, LONG_CHUNKS), large=True))
    for m, n, k in GEMMS:
        for c in gemm.CONFIGS + gemm.FULL_CONFIGS:
            name = f"{m}x{n}x{k} by {c.block_m}x{c.block_n}x{c.block_k}/{c.split_k}"
            found.append(Case("gemm", name, partial(_gemm, m, n, k, c), config=c))
    for c in (gemm.LOW_SMALL, gemm.FULL):
        found.append(Case("gemm", "more rows of tiles than a group", partial(_gemm, 643, 130, 70, c), config=c))
    for m in (1, 20, 40, 100, 300):
        found.append(Case("gemm", f"{m} rows by choice", partial(_gemm, m, 96, 1024, None)))
        found.append(Case("gemm", f"{m} long rows by choice", partial(_gemm, m, 4096, 4096, None), large=True))
    for tokens, width in ((1, 1), (3, 100), (5, 2048), (2, 5120)):
        found.append(Case("rms_norm", f"{tokens}x{width}", partial(_rms_norm, tokens, width)))
        found.append(Case("rms_norm", f"{tokens}x{width} after addition", partial(_add_rms_norm, tokens, width)))
        found.append(Case("silu_and_mul", f"{tokens}x{width}", partial(_silu_and_mul, tokens, width)))
    for tokens, heads, kv_heads, head_dim in ((1, 1, 1, 64), (7, 9, 3, 64), (5, 16, 10, 128), (3, 8, 1, 256)):
        name = f"{tokens}x{heads}/{kv_heads}x{head_dim}"
        found.append(Case("rotary_kv_write", name, partial(_rotary, tokens, heads, kv_heads, head_dim)))
    return tuple(found)


CASES = _cases()
KERNELS = tuple(dict.fromkeys(case.kernel for case in CASES))
