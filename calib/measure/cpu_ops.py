"""The ops of this CPU by PyTorch's own operators: what lets calibration run, for real, where there is no GPU.

Paged attention is a gather of the blocks and then scaled_dot_product_attention. Decides no shapes and times no point;
the one thing it times is which number format the CPU is good at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from calib.measure.bench import EMBEDDING_ROWS, KV_BLOCK_SIZE, Prepared, Refused, copies
from calib.measure.device import Device, import_torch
from calib.measure.shapes import Point, groups, memory_bytes, work
from calib.measure.timing import Call, CpuTimer, Timer

_POOL_ELEMENTS = 1 << 20
_PROBE_WIDTH = 512
_PROBE_BUDGET_S = 0.02


def choose_dtype(torch: Any, timer: Timer) -> str:
    """bfloat16, the format of serving, unless this CPU takes more than twice as long in it as in float32."""

    def probe_us(dtype: Any) -> float:
        x = torch.randn(_PROBE_WIDTH, _PROBE_WIDTH).to(dtype)
        return timer.time((partial(torch.nn.functional.linear, x, x),), _PROBE_BUDGET_S).median_us

    return "bfloat16" if probe_us(torch.bfloat16) <= 2 * probe_us(torch.float32) else "float32"


class CpuOps:
    """Ops in the given number format, by default the one that `choose_dtype` finds."""

    def __init__(self, device: Device, dtype: str | None = None) -> None:
        self._torch = import_torch()
        self._functional = self._torch.nn.functional
        self._device = device
        with self.session():
            self.dtype = dtype or choose_dtype(self._torch, CpuTimer())
        self._dtype = getattr(self._torch, self.dtype)
        self.element_bytes = 4 if self.dtype == "float32" else 2
        generator = self._torch.Generator().manual_seed(0)
        self._pool = self._torch.randn(_POOL_ELEMENTS, generator=generator).to(self._dtype)
        self._generator = generator
        self._weights: tuple[tuple[int, int], list[Any]] = ((0, 0), [])

    def source(self, op: str) -> str:
        """simkit's and PyTorch's version; every op is PyTorch's."""
        software = self._device.software
        return f"simkit {software.get('simkit', 'unknown')} torch {software['torch'].partition('+')[0]} cpu"

    @contextmanager
    def session(self) -> Iterator[None]:
        """PyTorch's inference mode, on the device's number of threads."""
        before = self._torch.get_num_threads()
        self._torch.set_num_threads(int(self._device.software["threads"]))
        try:
            with self._torch.inference_mode():
                yield
        finally:
            self._torch.set_num_threads(before)

    def release(self) -> None:
        """Let go of the weights that are kept between points."""
        self._weights = ((0, 0), [])

    def prepare(self, point: Point) -> Prepared:
        """Operands and the call. Raises Refused for what only a GPU has."""
        make = getattr(self, f"_{point.op}", None)
        if make is None:
            raise Refused(f"{point.op} is not measured on a CPU")
        if point.op == "gemm":
            return self._gemm(point)
        self.release()
        cached = point.op == "memcpy_d2d_cached"
        count = 1 if cached else copies(memory_bytes(point, self.element_bytes), self._device.cache_bytes)
        return Prepared({"": tuple(make(point) for _ in range(count))})

    def _random(self, *shape: int, scale: float = 1.0) -> Any:
        """Random values, repeated beyond a million: drawing a billion would take longer than timing them."""
        count = 1
        for size in shape:
            count *= size
        repeats = -(-count // _POOL_ELEMENTS)
        values = self._pool[:count].clone() if repeats <= 1 else self._pool.repeat(repeats)[:count]
        values = values.view(shape)
        return values if scale == 1.0 else values.mul_(scale)

    def _gemm(self, point: Point) -> Prepared:
        m, n, k = point.get("m"), point.get("n"), point.get("k")
        if self._weights[0] != (n, k):
            self.release()
            count = copies(n * k * self.element_bytes, self._device.cache_bytes)
            self._weights = ((n, k), [self._random(n, k, scale=k**-0.5) for _ in range(count)])
        linear = self._functional.linear
        return Prepared({"": tuple(partial(linear, self._random(m, k), weight) for weight in self._weights[1])})

    def _caches(self, point: Point) -> list[tuple[int, Any, Any, Any, int]]:
        """For each group of equal sequences: new tokens, caches, block table and length."""
        found = []
        for count, new, total in groups(point):
            if not count:
                continue
            blocks = -(-total // KV_BLOCK_SIZE)
            shape = (count * blocks, KV_BLOCK_SIZE, point.get("num_kv_heads"), point.get("head_dim"))
            table = self._torch.randperm(count * blocks, generator=self._generator).view(count, blocks)
            found.append((new, self._random(*shape), self._random(*shape), table, total))
        return found

    def _attention(self, point: Point) -> Call:
        """One call for each group of equal sequences: PyTorch has no attention over unequal lengths on a CPU."""
        torch, attend = self._torch, self._functional.scaled_dot_product_attention
        heads, kv_heads, dim = point.get("num_heads"), point.get("num_kv_heads"), point.get("head_dim")
        prepared = []
        for new, keys, values, table, total in self._caches(point):
            count = table.shape[0]
            # A decode's query heads that share a KV head stand in for queries of that head: the same sums, no copies.
            query = self._random(*((count, kv_heads, heads // kv_heads, dim) if new == 1 else (count, heads, new, dim)))
            mask = None
            if 1 < new < total:
                mask = torch.ones(new, total, dtype=torch.bool).tril(total - new)
            prepared.append((new, query, keys, values, table, total, mask))

        def gather(cache: Any, table: Any, total: int) -> Any:
            return cache[table].view(table.shape[0], -1, kv_heads, dim)[:, :total].transpose(1, 2)

        def call() -> None:
            for new, query, keys, values, table, total, mask in prepared:
                k, v = gather(keys, table, total), gather(values, table, total)
                if new == 1:
                    attend(query, k, v)
                else:
                    attend(query, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)

        return call

    _attention_decode = _attention_skew = _attention_prefill = _attention_mixed = _attention

    def _rms_norm(self, point: Point) -> Call:
        m, n = point.get("m"), point.get("n")
        x, residual, total, weight = self._random(m, n), self._random(m, n), self._random(m, n), self._random(n)
        norm, add = self._functional.rms_norm, self._torch.add

        def call() -> None:
            add(x, residual, out=total)
            norm(total, (n,), weight)

        return call

    def _silu_and_mul(self, point: Point) -> Call:
        n = point.get("n")
        x, silu = self._random(point.get("m"), 2 * n), self._functional.silu
        return lambda: silu(x[:, :n]) * x[:, n:]

    def _rotary_kv_write(self, point: Point) -> Call:
        m, dim, heads, kv_heads = (point.get(column) for column in ("m", "n", "num_heads", "num_kv_heads"))
        q, k, v = self._random(m, heads, dim), self._random(m, kv_heads, dim), self._random(m, kv_heads, dim)
        key_cache, value_cache = self._random(m, kv_heads, dim), self._random(m, kv_heads, dim)
        cos, sin = self._random(m, 1, dim // 2), self._random(m, 1, dim // 2)
        slots = self._torch.randperm(m, generator=self._generator)
        cat = self._torch.cat

        def rotated(x: Any) -> Any:
            first, second = x.chunk(2, dim=-1)
            return cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

        def call() -> None:
            rotated(q)
            key_cache[slots] = rotated(k)
            value_cache[slots] = v

        return call

    def _embedding(self, point: Point) -> Call:
        # One table is enough: it exceeds the cache by itself.
        table = self._table(point.get("n"))
        ids = self._torch.randint(EMBEDDING_ROWS, (point.get("m"),), generator=self._generator)
        return partial(self._functional.embedding, ids, table)

    def _table(self, n: int) -> Any:
        if self._weights[0] != (EMBEDDING_ROWS, n):
            self._weights = ((EMBEDDING_ROWS, n), [self._random(EMBEDDING_ROWS, n)])
        return self._weights[1][0]

    def _sampler(self, point: Point) -> Call:
        logits = self._random(point.get("m"), point.get("n"))
        return lambda: logits.float().softmax(dim=-1).argmax(dim=-1)

    def _memcpy_d2d(self, point: Point) -> Call:
        count = round(work(point, 1).bytes) // 2
        source = self._torch.ones(count, dtype=self._torch.uint8)
        return partial(self._torch.empty_like(source).copy_, source)

    _memcpy_d2d_cached = _memcpy_d2d
