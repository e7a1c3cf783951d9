"""The ops of a CUDA device: operands and calls for each point. All calls of simkit's Triton kernels are here.

The GEMM of engines is the vendor's, so `gemm` is `torch.matmul`; `gemm_triton` is simkit's own. Attention, norms,
activation and rotation are simkit's kernels; embedding and sampler are PyTorch's. Decides no shapes and times nothing.
A kernel that `calib.verify` found wrong is not timed: correctness comes before speed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from calib.measure.bench import EMBEDDING_ROWS, KV_BLOCK_SIZE, Check, Prepared, copies
from calib.measure.device import Device, import_torch
from calib.measure.shapes import ModelShapes, Point, groups, memory_bytes
from calib.measure.timing import Call

KERNELS_OF_OP = {
    "gemm_triton": ("gemm",),
    "attention_decode": ("paged_decode",),
    "attention_skew": ("paged_decode",),
    "attention_prefill": ("paged_prefill",),
    "attention_mixed": ("mixed",),
    "rms_norm": ("rms_norm",),
    "silu_and_mul": ("silu_and_mul",),
    "rotary_kv_write": ("rotary_kv_write",),
    "host_overhead": ("paged_decode", "rms_norm", "silu_and_mul", "rotary_kv_write"),
}
"""The kernels under `calib.kernels` that an op launches; other ops are PyTorch's."""

_STEP_CONTEXT_TOKENS = 512


def kernel(name: str) -> Callable[..., Any]:
    """The launcher of a Triton kernel: `calib.kernels.NAME.NAME`."""
    launcher: Callable[..., Any] = getattr(importlib.import_module(f"calib.kernels.{name}"), name)
    return launcher


class GpuOps:
    """Ops in bfloat16, float16 where the chip has none. `host_overhead` launches a step of `step_model`."""

    element_bytes = 2

    def __init__(self, device: Device, step_model: ModelShapes) -> None:
        self._torch = import_torch()
        self._device = device
        self._model = step_model
        self.dtype = "float16" if device.kind == "cuda" and device.capability < (8, 0) else "bfloat16"
        self._dtype = getattr(self._torch, self.dtype)
        self._table: Any = None
        if device.kind == "cuda":
            self._torch.cuda.set_device(device.index)

    def source(self, op: str) -> str:
        """simkit's version and the library that computes the op."""
        software = self._device.software
        head = f"simkit {software.get('simkit', 'unknown')}"
        torch_version = software["torch"].partition("+")[0]
        if op in KERNELS_OF_OP and op != "host_overhead":
            return f"{head} triton {software.get('triton', 'unknown')}"
        return f"{head} torch {torch_version} cublas" if op == "gemm" else f"{head} torch {torch_version}"

    def session(self) -> AbstractContextManager[object]:
        """PyTorch's inference mode."""
        mode: AbstractContextManager[object] = self._torch.inference_mode()
        return mode

    def release(self) -> None:
        """Hand memory that no point uses back to the driver."""
        self._table = None
        self._torch.cuda.empty_cache()

    def prepare(self, point: Point) -> Prepared:
        """Random operands (the chip clocks higher on zeros) and the call."""
        self._torch.manual_seed(0)
        if point.op == "gemm_triton":
            return self._gemm_triton(point)
        if point.op == "host_overhead":
            return Prepared({"": (self._step(point.get("m")),)}, launch=True)
        make = getattr(self, f"_{point.op}")
        # Copies over PCIe and within the cache use one buffer each: their bytes are the point.
        again = point.op in ("memcpy_h2d", "memcpy_d2h", "memcpy_d2d_cached")
        count = 1 if again else copies(memory_bytes(point, self.element_bytes), self._device.cache_bytes)
        return Prepared({"": tuple(make(point) for _ in range(count))})

    def _randn(self, *shape: int, scale: float = 1.0) -> Any:
        values = self._torch.randn(shape, dtype=self._dtype, device=self._device.torch_name)
        return values if scale == 1.0 else values.mul_(scale)

    def _empty(self, *shape: int) -> Any:
        return self._torch.empty(shape, dtype=self._dtype, device=self._device.torch_name)

    def _ints(self, values: list[int]) -> Any:
        return self._torch.tensor(values, dtype=self._torch.int32, device=self._device.torch_name)

    def _operands(self, point: Point) -> tuple[Any, Any, Any]:
        m, n, k = point.get("m"), point.get("n"), point.get("k")
        return self._randn(m, k), self._randn(n, k, scale=k**-0.5), self._empty(m, n)

    def _gemm(self, point: Point) -> Call:
        x, weight, out = self._operands(point)
        matmul = self._torch.matmul
        return lambda: matmul(x, weight.t(), out=out)

    def _gemm_triton(self, point: Point) -> Prepared:
        """One way for each candidate configuration; the sweep keeps the fastest."""
        module = importlib.import_module("calib.kernels.gemm")
        m, n, k = point.get("m"), point.get("n"), point.get("k")
        count = copies(memory_bytes(point, self.element_bytes), self._device.cache_bytes)
        operands = [self._operands(point) for _ in range(count)]

        def way(config: Any) -> tuple[Call, ...]:
            return tuple(partial(module.gemm, x, weight, out=out, config=config) for x, weight, out in operands)

        candidates = module.candidates(m, n, k, self._device.capability)
        return Prepared({str(config): way(config) for config in candidates})

    def _cache(self, point: Point) -> tuple[Any, Any, Any, Any]:
        """Key and value cache, block table and lengths of a point's sequences, blocks scattered as in a pool."""
        lengths = [total for count, _, total in groups(point) for _ in range(count)]
        blocks = [-(-length // KV_BLOCK_SIZE) for length in lengths]
        shape = (sum(blocks), KV_BLOCK_SIZE, point.get("num_kv_heads"), point.get("head_dim"))
        ids = self._torch.randperm(sum(blocks), dtype=self._torch.int32)
        table = self._torch.zeros((len(lengths), max(blocks)), dtype=self._torch.int32)
        start = 0
        for row, count in enumerate(blocks):
            table[row, :count] = ids[start : start + count]
            start += count
        table = table.to(self._device.torch_name)
        return self._randn(*shape), self._randn(*shape), table, self._ints(lengths)

    def _attention_decode(self, point: Point) -> Call:
        key_cache, value_cache, table, lengths = self._cache(point)
        query = self._randn(len(lengths), point.get("num_heads"), point.get("head_dim"))
        out = self._torch.empty_like(query)
        decode = kernel("paged_decode")
        return lambda: decode(query, key_cache, value_cache, table, lengths, out=out)

    _attention_skew = _attention_decode

    def _attention_prefill(self, point: Point, name: str = "paged_prefill") -> Call:
        key_cache, value_cache, table, lengths = self._cache(point)
        new = [tokens for count, tokens, _ in groups(point) for _ in range(count)]
        starts = [0]
        for tokens in new:
            starts.append(starts[-1] + tokens)
        query = self._randn(starts[-1], point.get("num_heads"), point.get("head_dim"))
        out, start_loc = self._torch.empty_like(query), self._ints(starts)
        launch, longest = kernel(name), max(new)
        return lambda: launch(query, key_cache, value_cache, table, start_loc, lengths, longest, out=out)

    def _attention_mixed(self, point: Point) -> Call:
        return self._attention_prefill(point, "mixed")

    def _rms_norm(self, point: Point) -> Call:
        m, n = point.get("m"), point.get("n")
        x, residual, out, weight = self._randn(m, n), self._randn(m, n), self._empty(m, n), self._randn(n)
        norm = kernel("rms_norm")
        return lambda: norm(x, weight, residual=residual, out=out)

    def _silu_and_mul(self, point: Point) -> Call:
        x = self._randn(point.get("m"), 2 * point.get("n"))
        silu = kernel("silu_and_mul")
        return lambda: silu(x)

    def _rotary_kv_write(self, point: Point) -> Call:
        m, dim, heads, kv_heads = (point.get(column) for column in ("m", "n", "num_heads", "num_kv_heads"))
        q, k, v = self._randn(m, heads, dim), self._randn(m, kv_heads, dim), self._randn(m, kv_heads, dim)
        num_blocks = -(-m // KV_BLOCK_SIZE)
        cache = (num_blocks, KV_BLOCK_SIZE, kv_heads, dim)
        key_cache, value_cache = self._empty(*cache), self._empty(*cache)
        cos_sin = self._randn(m, dim)
        positions = self._torch.arange(m, device=self._device.torch_name)
        slots = self._torch.randperm(num_blocks * KV_BLOCK_SIZE)[:m].to(self._device.torch_name)
        rotate = kernel("rotary_kv_write")
        return lambda: rotate(q, k, v, cos_sin, positions, key_cache, value_cache, slots)

    def _embedding(self, point: Point) -> Call:
        table = self._embedding_table(point.get("n"))
        ids = self._torch.randint(EMBEDDING_ROWS, (point.get("m"),), device=self._device.torch_name)
        lookup = self._torch.nn.functional.embedding
        return lambda: lookup(ids, table)

    def _embedding_table(self, n: int) -> Any:
        """One for all copies of a point: it exceeds the cache by itself."""
        if self._table is None or self._table.shape[1] != n:
            self._table = self._randn(EMBEDDING_ROWS, n)
        return self._table

    def _sampler(self, point: Point) -> Call:
        logits = self._randn(point.get("m"), point.get("n"))
        return lambda: logits.float().softmax(dim=-1).argmax(dim=-1)

    def _memcpy_d2d(self, point: Point) -> Call:
        return self._copy(point, self._device.torch_name, self._device.torch_name)

    _memcpy_d2d_cached = _memcpy_d2d

    def _memcpy_h2d(self, point: Point) -> Call:
        return self._copy(point, "cpu", self._device.torch_name)

    def _memcpy_d2h(self, point: Point) -> Call:
        return self._copy(point, self._device.torch_name, "cpu")

    def _copy(self, point: Point, source: str, target: str) -> Call:
        def buffer(where: str) -> Any:
            pinned = where == "cpu" and self._device.kind == "cuda"
            return self._torch.ones(point.get("bytes"), dtype=self._torch.uint8, device=where, pin_memory=pinned)

        from_buffer, to_buffer = buffer(source), buffer(target)
        return lambda: to_buffer.copy_(from_buffer, non_blocking=True)

    def _step(self, num_seqs: int) -> Call:
        """All launches of one decode step of the model. Layers share buffers: the host does not notice.

        Of a mixture of experts it launches the router and one expert, so its host time is too short there.
        """
        model = self._model
        heads = {"num_heads": model.num_heads, "num_kv_heads": model.num_kv_heads, "head_dim": model.head_dim}
        tokens = Point("rms_norm", m=num_seqs, n=model.hidden)
        norm = self._rms_norm(tokens)
        attention = self._attention_decode(
            Point("attention_decode", batch=num_seqs, kv_len=_STEP_CONTEXT_TOKENS, **heads)
        )
        rotate = self._rotary_kv_write(Point("rotary_kv_write", m=num_seqs, n=model.head_dim, **heads))
        activate = self._silu_and_mul(Point("silu_and_mul", m=num_seqs, n=model.mlp_width))
        qkv, output, *mlp = (self._gemm(Point("gemm", m=num_seqs, n=n, k=k)) for n, k in model.gemms)
        layer = (norm, qkv, rotate, attention, output, norm, *mlp[:-1], activate, mlp[-1])
        embed = self._embedding(Point("embedding", m=num_seqs, n=model.hidden))
        head = self._gemm(Point("gemm", m=num_seqs, n=model.head[0], k=model.head[1]))
        sample = self._sampler(Point("sampler", m=num_seqs, n=model.vocab))

        def step() -> None:
            embed()
            for _ in range(model.num_layers):
                for launch in layer:
                    launch()
            norm()
            head()
            sample()

        return step


def refused_ops(checks: Iterable[Check]) -> Mapping[str, str]:
    """Op to the reason why it is not timed. A failed check of no known kernel refuses all kernels."""
    kernels = {kernel for needed in KERNELS_OF_OP.values() for kernel in needed}
    reasons: dict[str, str] = {}
    for check in checks:
        if check.passed:
            continue
        known = [kernel for kernel in kernels if check.name.startswith(kernel)]
        blamed = {max(known, key=len)} if known else kernels
        for op, needed in KERNELS_OF_OP.items():
            if blamed.intersection(needed):
                reasons.setdefault(op, f"wrong result: {check.name} (max error {check.max_error:.3g})")
    return reasons
