"""Step times from model shapes and GPU data sheets. Owns how a step is put together.

step = host overhead + sum over layers of {GEMMs, prefill attention, decode attention, elementwise, all-reduce if
TP > 1} + LM head and sampler + swaps over PCIe. Every kernel is the larger of its compute roof and its memory roof, at
the achievable fractions of `simkit.latency.kernels`, and of a floor that no launch beats.

All arithmetic is elementwise, so k steps at once give the same bytes as k single calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from simkit.latency.deployment import Deployment
from simkit.latency.effects import (
    ALL_REDUCE,
    FIRST_TOKEN,
    GAP,
    HOST,
    LAUNCHES,
    ONE_GPU,
    OVERLAP,
    PREFIX_REHITS,
    SAMPLED_ROWS,
    check_known,
)
from simkit.latency.kernels import (
    ATTENTION_FLOOR_NS,
    ELEMENTWISE_FLOOR_NS,
    SAMPLER_FLOOR_NS,
    TABLE_ROWS,
    Kernels,
    Rates,
    attended,
)
from simkit.latency.protocol import OneStep
from simkit.latency.shapes import AttentionShape
from simkit.latency.step import SCALAR_STEPS, HardwareLatency, to_ns
from simkit.types import Basis, Floats, Ints, StepShapes
from simkit.units import NS_PER_S

KNOWN = (HOST, OVERLAP, GAP, LAUNCHES, SAMPLED_ROWS, ALL_REDUCE, FIRST_TOKEN, PREFIX_REHITS)
"""Effects that the roofline has."""

RowNs = Callable[[Floats], Floats]


def erring_data_sheet(deployment: Deployment) -> Deployment:
    """A GPU whose rates are those of kernels that take so much longer; the error of products stands for all of them."""
    gpu, by = deployment.gpu, deployment.errors.products
    peaks = {name: flops / by for name, flops in gpu.peak_flops_per_s.items()}
    return replace(deployment, gpu=replace(gpu, hbm_bytes_per_s=gpu.hbm_bytes_per_s / by, peak_flops_per_s=peaks))


class Roofline(HardwareLatency):
    """Uncalibrated latency model of one replica. Implements `simkit.latency.protocol.LatencyModel`.

    Decode attention reads context_sum tokens a full layer and min(context_sum, sequences x window) a sliding-window
    layer. The latter is an upper bound of sum(min(context, window)) by Jensen's inequality (min is concave); prefill
    uses min(pairs, tokens x window) in the same way. Chunks and decodes of one step are priced as the sum of their
    attention. `Kernels` says what quantisation and experts do.

    `swap_*_bytes` are of all ranks together, cross each rank's own host link, and are not overlapped with anything.
    Raises InputError for formats, interconnects and splits the GPU or the model cannot do.
    """

    basis = Basis.DATA_SHEET

    def __init__(self, deployment: Deployment, why_not: str = "") -> None:
        """`why_not`: why a profile cannot be used in its place."""
        self.source = Basis.DATA_SHEET.text(f": {why_not}" if why_not else "")
        check_known(deployment.without, KNOWN, Basis.DATA_SHEET.text())
        deployment, by = erring_data_sheet(deployment), deployment.errors.products
        super().__init__(deployment, kernels := Kernels(deployment))
        # What the GPU can do at most does not change with the time that its kernels take.
        self.peak_flops_per_s, self.peak_bytes_per_s = kernels.peak_flops_per_s * by, kernels.peak_bytes_per_s * by
        self._swap_ns_per_byte = NS_PER_S / deployment.gpu.pcie_bytes_per_s / deployment.tensor_parallel_size
        self._reduces = kernels.link is not None and deployment.has(ALL_REDUCE)
        self.effects = deployment.sources({ALL_REDUCE: kernels.link.source if kernels.link else ONE_GPU})
        rows = np.arange(TABLE_ROWS + 1, dtype=np.float64)
        self._token_ns: RowNs = self._layers_ns
        self._sample_ns: RowNs = self._head_ns
        if not deployment.has(SAMPLED_ROWS):
            self._token_ns = lambda rows: self._layers_ns(rows) + self._head_ns(rows)
            self._sample_ns = lambda rows: 0.0 * rows
        self._token_table, self._sample_table = self._token_ns(rows), self._sample_ns(rows)
        # Python floats: faster one by one than numpy's, and equal to them.
        self._token_list: list[float] = self._token_table.tolist()
        self._sample_list: list[float] = self._sample_table.tolist()
        self._attention_costs = _AttentionCosts(kernels.attention, kernels.rates)

    def decode_ns(self, step: OneStep, num_steps: int) -> list[int] | Ints:
        """`step_ns` of `step.shapes(num_steps)`; short runs without arrays."""
        costs, seqs, context = self._attention_costs, step.num_decode, step.decode_context_sum
        if not costs.is_line or max(seqs, step.num_sampled) > TABLE_ROWS or self._launches.least_ns(seqs):
            return self.step_ns(step.shapes(num_steps))
        base = self._token_list[seqs] + self._sample_list[step.num_sampled]
        loop, host = self._loop, self._loop.host_ns(seqs, step.num_sampled)
        slope, floor, layers = costs.context_ns, ATTENTION_FLOOR_NS, costs.full_layers
        if num_steps > SCALAR_STEPS:
            total: Floats = np.arange(context, context + seqs * num_steps, seqs).astype(np.float64)
            total *= slope
            total -= floor
            np.maximum(total, 0.0, out=total)
            total *= layers
            total += base
            return to_ns(loop.steps_ns(total, host))
        contexts, gap = range(context, context + seqs * num_steps, seqs), loop.gap_ns
        if not loop.overlaps:
            return [max(round(base + max(c * slope - floor, 0.0) * layers + host), 1) for c in contexts]
        if base + gap >= max(host, 1.0) and context * slope >= floor:  # and so is every step that follows
            return [round(base + (c * slope - floor) * layers + gap) for c in contexts]
        return [max(round(max(base + max(c * slope - floor, 0.0) * layers + gap, host)), 1) for c in contexts]

    def _gpu_float_ns(self, shapes: StepShapes) -> Floats:
        tokens = _look_up(self._token_table, self._token_ns, shapes.decode_seqs + shapes.prefill_tokens)
        samples = _look_up(self._sample_table, self._sample_ns, shapes.sampled_seqs)
        return tokens + samples + self._attention_costs.ns(shapes)

    def _one_gpu_ns(self, step: OneStep) -> float:
        rows, samples = step.num_decode + step.prefill_tokens, step.num_sampled
        if rows > TABLE_ROWS or samples > TABLE_ROWS:
            return float(self._gpu_float_ns(step.shapes(1))[0])
        return self._token_list[rows] + self._sample_list[samples] + self._attention_costs.one(step)

    def _with_swaps(self, ns: Any, step: StepShapes | OneStep) -> Any:
        return ns + (step.swap_in_bytes + step.swap_out_bytes) * self._swap_ns_per_byte

    def _layers_ns(self, tokens: Floats) -> Floats:
        """Everything but attention in the layers of a step of `tokens` tokens, with the floor of attention."""
        kernels, some = self.kernels, np.minimum(tokens, 1.0)
        total = some * (kernels.layers * ATTENTION_FLOOR_NS)
        for gemm in kernels.gemms:
            total = total + gemm.layers * kernels.gemm_ns(gemm, tokens, some)
        for kernel in kernels.elementwise:
            total = total + kernel.layers * kernels.elementwise_ns(kernel, tokens, some, ELEMENTWISE_FLOOR_NS)
        if kernels.link and self._reduces:
            total = total + 2 * kernels.layers * kernels.link.all_reduce_ns(kernels.reduce_bytes * tokens, some)
        return total

    def _head_ns(self, samples: Floats) -> Floats:
        """LM head, gathering of the logits, and sampler for `samples` sequences."""
        kernels, some = self.kernels, np.minimum(samples, 1.0)
        total = kernels.gemm_ns(kernels.head, samples, some)
        total = total + kernels.elementwise_ns(kernels.sampler, samples, some, SAMPLER_FLOOR_NS)
        if kernels.link and self._reduces:
            total = total + kernels.link.all_reduce_ns(kernels.gather_bytes * samples, some)
        return total


class _AttentionCosts:
    """Attention of all layers, above the floor that the token table already holds. Prices are linear, so scalars."""

    def __init__(self, shape: AttentionShape, rates: Rates) -> None:
        self._shape = shape
        flop_ns = shape.flops_per_pair * rates.attention_ns_per_flop
        kv_ns = shape.kv_bytes_per_token * rates.decode_ns_per_byte
        self.context_ns = max(kv_ns, flop_ns)
        self.full_layers = shape.full_layers
        self.is_line = not shape.sliding_layers
        self._pair_ns, self._cached_ns = shape.prefill_flops_per_pair * rates.attention_ns_per_flop, kv_ns

    def one(self, step: OneStep) -> float:
        """`ns` of one step without arrays."""
        shape, tokens, before = self._shape, step.prefill_tokens, step.prefill_context_tokens
        if not tokens and self.is_line:
            return max(step.decode_context_sum * self.context_ns - ATTENTION_FLOOR_NS, 0.0) * shape.full_layers
        context, pairs = step.decode_context_sum, step.prefill_pairs
        full = self._one_layer(context, pairs, before + tokens)
        if self.is_line:
            return full * shape.full_layers
        reach = tokens * shape.window
        context, pairs = min(context, step.num_decode * shape.window), min(pairs, reach)
        sliding = self._one_layer(context, pairs, min(before, reach) + tokens)
        return full * shape.full_layers + sliding * shape.sliding_layers

    def _one_layer(self, context: int, pairs: int, cached: int) -> float:
        prefill = max(pairs * self._pair_ns, cached * self._cached_ns)
        return max(context * self.context_ns + prefill - ATTENTION_FLOOR_NS, 0.0)

    def ns(self, shapes: StepShapes) -> Floats:
        shape = self._shape
        if not shape.sliding_layers:
            return self._layer_ns(shapes, 0) * shape.full_layers
        return (
            self._layer_ns(shapes, 0) * shape.full_layers + self._layer_ns(shapes, shape.window) * shape.sliding_layers
        )

    def _layer_ns(self, shapes: StepShapes, window: int) -> Floats:
        context, pairs, cached = attended(shapes, window)
        prefill = np.maximum(pairs * self._pair_ns, cached * self._cached_ns)
        over: Floats = np.maximum(context * self.context_ns + prefill - ATTENTION_FLOOR_NS, 0.0)
        return over


def _look_up(table: Floats, formula: RowNs, rows: Ints) -> Floats:
    """`formula(rows)`, from the table of its values where that covers every row; the two are equal to the bit."""
    if len(rows) and rows.max() > TABLE_ROWS:
        return formula(rows.astype(np.float64))
    found: Floats = table[rows]
    return found
