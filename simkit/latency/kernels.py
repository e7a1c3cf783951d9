"""The kernels of one forward pass on one GPU: which there are, their times on the roofline, and what all of it moves.

Owns the roofs and floors of single kernels and the FLOPs and bytes of a step; `roofline` and `calibrated` put steps
together. Owns as well how fast one GPU really goes: achievable fractions of peak and launch floors.

None of these is fitted to a run. The constants are medians of measured kernels over large shapes (tables of NVIDIA's
aiconfigurator-core 0.12.0, Apache-2.0: A100-SXM4-80GB, H100-SXM5, H200, in this order), taken against the dense peaks
312, 989 TFLOP/s (16 bit) and 1,979 TFLOP/s (fp8) and 2.039, 3.35, 4.8 TB/s; a constant is the median of the three GPUs'
medians.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from simkit.errors import InputError
from simkit.latency.deployment import Deployment
from simkit.latency.link import Link
from simkit.latency.routing import load_over
from simkit.latency.shapes import (
    Elementwise,
    Gemm,
    attention_shape,
    check_experts,
    check_parallel,
    formats,
    head_gemm,
    layer_elementwise,
    layer_gemms,
    sampler,
)
from simkit.latency.unpacked import unpacked
from simkit.specs.dtypes import computed_in
from simkit.specs.hardware import GpuSpec
from simkit.specs.models import ModelSpec
from simkit.types import Floats, Ints, StepShapes
from simkit.units import NS_PER_S

# --- rates of one GPU
GEMM_COMPUTE_FRACTION = 0.79
"""16-bit GEMMs with m >= 2048, n >= 4096, k >= 2048: medians 0.87 (A100), 0.79 (H100), 0.78 (H200) of peak FLOP/s."""

GEMM_COMPUTE_FRACTION_8BIT = 0.52
"""fp8 GEMMs of the same shapes: medians 0.49 (H100), 0.55 (H200); their mean. int8 is assumed to be alike."""

GEMM_BANDWIDTH_FRACTION = 0.77
"""16-bit GEMMs with m <= 64 and weights of 64 MB or more: medians 0.70, 0.83, 0.77. Used for elementwise
kernels too."""

DECODE_BANDWIDTH_FRACTION = 0.74
"""16-bit decode attention over 256 MB of KV or more: medians 0.69, 0.81, 0.74 of bandwidth."""

PREFILL_COMPUTE_FRACTION = 0.54
"""16-bit prefill attention with q_len >= 1024 and 1e11 FLOPs or more: medians 0.52, 0.54, 0.54 of peak FLOP/s."""

GEMM_FLOOR_NS = 3_000.0
"""16-bit GEMMs with m <= 16 and n x k <= 2**18: medians 3.5, 2.9, 2.9 us."""

ATTENTION_FLOOR_NS = 12_000.0
"""Decode attention over at most 64 cached tokens in all: medians 12.9, 11.8, 11.6 us (prefill alike). One a layer."""

ELEMENTWISE_FLOOR_NS = 2_500.0
"""One-token norm, activation and rotary kernels: 2.4 to 2.7 us (LLMServingSim 5daddb2, RTX PRO 6000, MIT)."""

SAMPLER_FLOOR_NS = 25_000.0
"""Sampler of one sequence over 128,256 logits: 24.7 us (same table)."""


class Rates:
    """Nanoseconds a FLOP and a byte of one GPU, at the achievable fractions."""

    def __init__(self, bytes_per_s: float, flops_per_s: float, quantized_flops_per_s: float | None) -> None:
        self.gemm_ns_per_byte = NS_PER_S / (bytes_per_s * GEMM_BANDWIDTH_FRACTION)
        self.decode_ns_per_byte = NS_PER_S / (bytes_per_s * DECODE_BANDWIDTH_FRACTION)
        self.attention_ns_per_flop = NS_PER_S / (flops_per_s * PREFILL_COMPUTE_FRACTION)
        self._plain = NS_PER_S / (flops_per_s * GEMM_COMPUTE_FRACTION)
        self._quantized = (
            NS_PER_S / (quantized_flops_per_s * GEMM_COMPUTE_FRACTION_8BIT) if quantized_flops_per_s else self._plain
        )

    def gemm_ns_per_flop(self, quantized: bool) -> float:
        return self._quantized if quantized else self._plain


def dtype_peak(gpu: GpuSpec, dtype: str) -> float:
    """Dense peak FLOP/s of `dtype`. Raises InputError when the chip does not compute in it."""
    if dtype not in gpu.peak_flops_per_s:
        have = [name for name in ("float16", "bfloat16", "float32") if name in gpu.peak_flops_per_s]
        advice = f"use engine.dtype: {' or '.join(have)}" if have else "use another hardware.gpu"
        raise InputError(f"hardware.gpu {gpu.name} has no {dtype}; {advice}", key="engine.dtype")
    return gpu.peak_flops_per_s[dtype]


# --- kernels
TABLE_ROWS = 16_384
"""Rows (tokens, sequences) up to which times are looked up."""

Work = tuple[Floats, Floats]


class Kernels:
    """What the model of a deployment runs on one of its GPUs.

    MoE: a step of t tokens reads the weights of the share 1 - (1 - k/E)**t of E experts, the expectation when each
    token picks k experts uniformly. `quantization` fp8, int8 and nvfp4 use that format's peak where the GPU has one;
    everything else computes in `dtype`, bitsandbytes once its weights are `unpacked`. Raises InputError for formats,
    links and splits the GPU or the model cannot do.
    """

    def __init__(self, deployment: Deployment) -> None:
        model, gpu, dtype, quantization = deployment.model, deployment.gpu, deployment.dtype, deployment.quantization
        if model.not_modelled:
            raise InputError(f"{model.name} cannot be simulated: {model.not_modelled}", key="model")
        self.ranks = ranks = deployment.tensor_parallel_size
        check_parallel(model, ranks)
        self.formats = fmt = formats(
            model, dtype=dtype, quantization=quantization, kv_cache_dtype=deployment.kv_cache_dtype
        )
        peak = dtype_peak(gpu, dtype)
        self.layers = model.num_layers
        self.gemms, self.elementwise = layer_gemms(model, ranks, fmt), layer_elementwise(model, ranks, fmt)
        self._layer_kernels: list[Gemm | Elementwise] = [*self.gemms, *self.elementwise]
        self.head, self.sampler = head_gemm(model, ranks, fmt), sampler(model, fmt)
        self.attention = attention_shape(model, ranks, fmt)
        quantized_peak = gpu.peak_flops_per_s.get(computed_in(quantization) or "")
        self.rates = Rates(gpu.hbm_bytes_per_s, peak, quantized_peak)
        self.unpacked = unpacked(quantization, fmt, self.rates.gemm_ns_per_byte, GEMM_FLOOR_NS)
        by = deployment.errors.all_reduce
        self.link = None if ranks == 1 else Link(gpu, ranks, deployment.interconnect, deployment.link, by=by)
        self.reduce_bytes = model.hidden_size * fmt.activation_bytes
        self.gather_bytes = model.vocab_size * fmt.activation_bytes / 2  # an all-gather is half an all-reduce
        self._untouched, self._crowd = _untouched_experts(model), np.ones(TABLE_ROWS + 1)
        if deployment.expert_parallel:
            check_experts(model, ranks)
        if model.is_moe and (deployment.routing is not None or deployment.expert_parallel):
            self._untouched, self._crowd = _busiest_rank(deployment)
        uses_quantized_peak = quantized_peak is not None and any(g.quantized for g in self.gemms)
        self.peak_flops_per_s = ranks * (quantized_peak if quantized_peak and uses_quantized_peak else peak)
        self.peak_bytes_per_s = ranks * gpu.hbm_bytes_per_s
        rows = np.arange(TABLE_ROWS + 1, dtype=np.float64)
        self._token_work = self._row_work(self._layer_kernels, rows)
        self._sample_work = self._row_work([self.head, self.sampler], rows)

    @property
    def launches(self) -> int:
        """Kernels of a step: those of the layers with their attention and all-reduces, and embedding, last norm, LM
        head, gathering of the logits and sampler."""
        in_layers = self.layers + sum(kernel.layers for kernel in self._layer_kernels)
        return in_layers + 4 if self.link is None else in_layers + 2 * self.layers + 5

    def gemm_ns(self, gemm: Gemm, rows: Floats, some: Floats) -> Floats:
        """Time of one call on the roofline; `some` is 0 where there are no rows, else 1."""
        if gemm.quantized and self.unpacked is not None:
            return self.unpacked.around(gemm, rows, self.gemm_ns(self.unpacked.sixteen_bit(gemm), rows, some))
        moved = gemm.weight_bytes * self._share_read(gemm, rows) + gemm.row_bytes * rows
        compute = rows * (gemm.flops * self.rates.gemm_ns_per_flop(gemm.quantized))
        if gemm.routed:
            compute = compute * self._crowd[np.minimum(rows, TABLE_ROWS).astype(np.int64)]
        roofs = np.maximum(compute, moved * self.rates.gemm_ns_per_byte)
        return np.maximum(roofs, some * GEMM_FLOOR_NS)

    def elementwise_ns(self, kernel: Elementwise, rows: Floats, some: Floats, floor_ns: float) -> Floats:
        """Time of one call on the roofline."""
        return np.maximum(rows * (kernel.row_bytes * self.rates.gemm_ns_per_byte), some * floor_ns)

    def work(self, shapes: StepShapes) -> Work:
        """(FLOPs, bytes) of each step, float64[k], all ranks together: matrix products and attention as computed
        (padding and dead slots included); weights, activations, KV and swapped bytes."""
        flops, moved = self._work_of(self._token_work, self._layer_kernels, shapes.decode_seqs + shapes.prefill_tokens)
        sample_flops, sample_moved = self._work_of(self._sample_work, [self.head, self.sampler], shapes.sampled_seqs)
        flops, moved = flops + sample_flops, moved + sample_moved
        shape = self.attention
        for layers, window in ((shape.full_layers, 0), (shape.sliding_layers, shape.window)):
            if layers:
                context, pairs, cached = attended(shapes, window)
                flops = flops + layers * (shape.flops_per_pair * context + shape.prefill_flops_per_pair * pairs)
                moved = moved + layers * shape.kv_bytes_per_token * (context + cached)
        return flops * self.ranks, moved * self.ranks + shapes.swap_in_bytes + shapes.swap_out_bytes

    def _work_of(self, tables: Work, kernels: Seq[Gemm | Elementwise], rows: Ints) -> Work:
        """FLOPs and bytes of passes of `rows` rows, from the tables where these cover every row."""
        if len(rows) and rows.max() > TABLE_ROWS:
            return self._row_work(kernels, rows.astype(np.float64))
        return tables[0][rows], tables[1][rows]

    def _row_work(self, kernels: Seq[Gemm | Elementwise], rows: Floats) -> Work:
        flops, moved = np.zeros(len(rows)), np.zeros(len(rows))
        for kernel in kernels:
            if isinstance(kernel, Gemm):
                flops = flops + kernel.layers * kernel.flops * rows
                moved = moved + kernel.layers * kernel.weight_bytes * self._share_read(kernel, rows)
            moved = moved + kernel.layers * kernel.row_bytes * rows
        return flops, moved

    def _share_read(self, gemm: Gemm, rows: Floats) -> Floats:
        """Share of the weights that a pass of `rows` rows reads: all or, of experts, those touched; 0 without rows."""
        if not gemm.routed:
            return np.minimum(rows, 1.0)
        return 1.0 - self._untouched[np.minimum(rows, TABLE_ROWS).astype(np.int64)]


def attended(shapes: StepShapes, window: int) -> tuple[Ints, Ints, Ints]:
    """(decode context, prefill pairs, prefill KV tokens read) of one layer; `window` 0 = full attention.

    A chunk reads what was cached before it and itself. With a window it reads at most `window` cached tokens, and there
    are at most as many chunks as prefill tokens.
    """
    context, pairs, before = shapes.decode_context_sum, shapes.prefill_pairs, shapes.prefill_context_tokens
    if window:
        context = np.minimum(context, shapes.decode_seqs * window)
        reach = shapes.prefill_tokens * window
        pairs, before = np.minimum(pairs, reach), np.minimum(before, reach)
    return context, pairs, before + shapes.prefill_tokens


def _busiest_rank(deployment: Deployment) -> tuple[Floats, Floats]:
    """Share of its experts that the busiest rank does not touch, and how many times its part of the rows it computes,
    for 0 .. TABLE_ROWS tokens."""
    model, ranks = deployment.model, deployment.tensor_parallel_size if deployment.expert_parallel else 1
    rows = np.maximum(np.arange(TABLE_ROWS + 1, dtype=np.float64), 1.0)
    load = load_over(deployment.routing, model.num_experts, model.experts_per_token, ranks, rows)
    untouched: Floats = 1.0 - load.touched * (ranks / model.num_experts)
    untouched[0] = 1.0
    crowd: Floats = load.rows * (ranks / model.experts_per_token) / rows
    return untouched, crowd


def _untouched_experts(model: ModelSpec) -> Floats:
    """(1 - k/E)**t for t = 0 .. TABLE_ROWS, by repeated multiplication; it has vanished long before the end."""
    miss = 1.0 - model.experts_per_token / model.num_experts if model.num_experts else 0.0
    factors = np.full(TABLE_ROWS + 1, miss)
    factors[0] = 1.0
    return np.multiply.accumulate(factors)
