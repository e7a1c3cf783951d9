"""Step times from a calibrated profile. Owns how measured kernels are put together into a step.

step = host overhead and GPU: layers x (GEMMs, elementwise kernels, all-reduce, attention) + LM head and sampler + swaps
over PCIe. Attention is priced as it is launched: decodes alone, chunks alone, or both together.

Imports numpy, `simkit.models`, `simkit.hardware` and its siblings; never an engine. All arithmetic is elementwise, and
single steps are priced by the same operations in the same order as arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simkit.hardware import GpuSpec
from simkit.latency.kernels import TABLE_ROWS, Kernels
from simkit.latency.launches import ARRAYS, SCALARS, added, equal_chunks, launch_us, skewed, windowed
from simkit.latency.profile import Profile
from simkit.latency.roofline import HOST_FIXED_NS, HOST_PER_SEQ_NS, SCALAR_STEPS, to_ns
from simkit.latency.sheets import Bools
from simkit.latency.step_tables import RowTable, TableBuilder
from simkit.models import ModelSpec
from simkit.types import Floats, Ints, OneStep, StepShapes
from simkit.units import NS_PER_US


class Calibrated:
    """Calibrated latency model of one replica. Implements `simkit.types.LatencyModel`.

    Several chunks of one step are priced as equal ones with the same tokens, cached tokens and (query, key) pairs.
    Decodes of sliding layers read min(sum of contexts, sequences x window) tokens, an upper bound as on the roofline.

    Raises ProfileError when the profile lacks an op that the model needs, InputError as `Kernels` does.
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        profile: Profile,
        *,
        tensor_parallel_size: int,
        interconnect: str,
        dtype: str,
        quantization: str | None,
        kv_cache_dtype: str,
        async_scheduling: bool,
    ) -> None:
        self.kernels = Kernels(
            model,
            gpu,
            tensor_parallel_size=tensor_parallel_size,
            interconnect=interconnect,
            dtype=dtype,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
        )
        tables = TableBuilder(
            model,
            self.kernels,
            profile,
            dtype=dtype,
            quantization=quantization,
            nvlink=interconnect == "nvlink",
        )
        # MFU and MBU are shares of the GPU that the times are of.
        measured_here = profile.gpu.get("name") == gpu.name
        peaks = tables.limits if not measured_here else None
        self.peak_flops_per_s: float | None = (
            self.kernels.peak_flops_per_s if peaks is None else peaks.flops_per_s * tensor_parallel_size
        )
        self.peak_bytes_per_s: float | None = (
            self.kernels.peak_bytes_per_s if peaks is None else peaks.bytes_per_s * tensor_parallel_size
        )
        tokens, samples = tables.token_table(), tables.sample_table()
        self._token_ns, self._sample_ns = _Rows(tokens.ns), _Rows(samples.ns)
        self._token_shares, self._sample_shares = _shares(tokens), _shares(samples)
        self._attention = _Attention(tables, profile)
        swap_in, swap_out = tables.swap_ns_per_byte(gpu.pcie_bytes_per_s)
        self._swap_in_ns, self._swap_out_ns = swap_in / tensor_parallel_size, swap_out / tensor_parallel_size
        self._async = async_scheduling
        host = profile.host
        # What a calibration measures is the launching of a step: the engine's own work is no less than assumed.
        self._host_fixed_ns = float(HOST_FIXED_NS) if host is None else max(HOST_FIXED_NS, host.fixed_us * NS_PER_US)
        self._host_per_seq_ns = float(HOST_PER_SEQ_NS) if host is None else host.per_seq_us * NS_PER_US
        self.num_clamped = tables.num_clamped
        self.source = f"profile {profile.name} ({_calibrated(profile, gpu, dtype, tables.measured_dtype)})"

    def step_ns(self, shapes: StepShapes) -> Ints:
        """Duration of each step, int64[k] >= 1: host + GPU, or the larger with async scheduling, + swaps."""
        gpu = self._gpu_float_ns(shapes)
        host = self._host_fixed_ns + self._host_per_seq_ns * np.maximum(shapes.decode_seqs, shapes.sampled_seqs)
        total = np.maximum(gpu, host) if self._async else gpu + host
        return to_ns(total + shapes.swap_in_bytes * self._swap_in_ns + shapes.swap_out_bytes * self._swap_out_ns)

    def one_ns(self, step: OneStep) -> int:
        """`step_ns` of one step without arrays."""
        gpu = self._token_ns.one(step.num_decode + step.prefill_tokens) + self._sample_ns.one(step.num_sampled)
        gpu = gpu + self._attention.one(step)
        host = self._host_fixed_ns + self._host_per_seq_ns * max(step.num_decode, step.num_sampled)
        total = max(gpu, host) if self._async else gpu + host
        return max(round(total + step.swap_in_bytes * self._swap_in_ns + step.swap_out_bytes * self._swap_out_ns), 1)

    def decode_ns(self, step: OneStep, num_steps: int) -> list[int] | Ints:
        """`step_ns` of `step.shapes(num_steps)`; short runs without arrays."""
        seqs = step.num_decode
        if num_steps > SCALAR_STEPS or not seqs:
            return self.step_ns(step.shapes(num_steps))
        base = self._token_ns.one(seqs) + self._sample_ns.one(step.num_sampled)
        host = self._host_fixed_ns + self._host_per_seq_ns * max(seqs, step.num_sampled)
        attention, context, longest = self._attention, step.decode_context_sum, step.decode_context_max
        gpus = [base + attention.decode_one(seqs, context + seqs * i, longest + i) for i in range(num_steps)]
        if self._async:
            return [max(round(max(gpu, host)), 1) for gpu in gpus]
        return [max(round(gpu + host), 1) for gpu in gpus]

    def gpu_ns(self, shapes: StepShapes) -> Ints:
        """Time in which the GPU computes, int64[k] >= 1; copies over PCIe do not count."""
        return to_ns(self._gpu_float_ns(shapes))

    def work(self, shapes: StepShapes) -> tuple[Floats, Floats]:
        """(FLOPs, bytes) of each step, float64[k], as `Kernels.work` counts them."""
        return self.kernels.work(shapes)

    def gpu_and_extrapolated_ns(self, shapes: StepShapes) -> tuple[Ints, dict[str, Floats]]:
        """(`gpu_ns`, the part of it that does not rest on measurements by what it is, float64[k] each)."""
        rows, attention = shapes.decode_seqs + shapes.prefill_tokens, self._attention.ns(shapes)
        token_ns, sample_ns = self._token_ns.at(rows), self._sample_ns.at(shapes.sampled_seqs)
        found = self._attention.extrapolated(shapes, attention)
        for shares, ns, count in (
            (self._token_shares, token_ns, rows),
            (self._sample_shares, sample_ns, shapes.sampled_seqs),
        ):
            for name, share in shares.items():
                found[name] = found.get(name, 0.0) + ns * share[np.minimum(count, TABLE_ROWS)]
        return to_ns(token_ns + sample_ns + attention), found

    def _gpu_float_ns(self, shapes: StepShapes) -> Floats:
        tokens = self._token_ns.at(shapes.decode_seqs + shapes.prefill_tokens)
        return tokens + self._sample_ns.at(shapes.sampled_seqs) + self._attention.ns(shapes)


def _calibrated(profile: Profile, gpu: GpuSpec, dtype: str, measured_dtype: str) -> str:
    """What a reader must know of the profile in a few words."""
    words, measured_on = "calibrated", str(profile.gpu.get("name", "another GPU"))
    if measured_on != gpu.name:
        words += f" on {measured_on}, not on {gpu.name}"
    return words if measured_dtype == dtype else f"{words}, in {measured_dtype} for {dtype}"


def _shares(table: RowTable) -> dict[str, Floats]:
    """Which share of the time of so many rows is extrapolated, by name."""
    return {name: ns / np.maximum(table.ns, 1.0) for name, ns in table.tagged.items()}


class _Rows:
    """A table over 0, 1, ... rows; beyond its end the slope of its second half goes on."""

    def __init__(self, ns: Floats) -> None:
        self._ns = ns
        self._list: list[float] = ns.tolist()
        self._last = len(ns) - 1
        half = self._last // 2
        self._slope = (self._list[-1] - self._list[half]) / (self._last - half)

    def at(self, rows: Ints) -> Floats:
        inside = np.minimum(rows, self._last)
        ns: Floats = self._ns[inside]
        if len(rows) and rows.max() > self._last:
            ns = ns + (rows - inside) * self._slope
        return ns

    def one(self, rows: int) -> float:
        if rows <= self._last:
            return self._list[rows]
        ns: float = self._list[self._last] + (rows - self._last) * self._slope
        return ns


class _Attention:
    """Attention of all layers of a step, ns. A launch in which every query is one token is one of decodes."""

    def __init__(self, tables: TableBuilder, profile: Profile) -> None:
        self._heads, self._kv_measured = tables.heads, tables.kv_is_measured
        self._decode, self._decode_outside = tables.decode()
        self._chunks, self._chunks_outside = tables.chunks()
        self._mixed, self._skew = profile.mixed, profile.skew
        kinds = ((tables.layers, 0), (tables.sliding_layers, tables.window))
        self._kinds = [(layers * float(NS_PER_US), window) for layers, window in kinds if layers]

    def ns(self, shapes: StepShapes) -> Floats:
        total = np.zeros(len(shapes))
        for scale, window in self._kinds:
            total = total + self._layer_us(shapes, window) * scale
        return total

    def one(self, step: OneStep) -> float:
        """`ns` of one step without arrays."""
        if not step.prefill_tokens:
            return self.decode_one(step.num_decode, step.decode_context_sum, step.decode_context_max)
        total = 0.0
        for scale, window in self._kinds:
            total = total + self._layer_one(step, window) * scale
        return total

    def decode_one(self, seqs: int, context: int, longest: int) -> float:
        """ns of a step of decodes alone."""
        total = 0.0
        for scale, window in self._kinds:
            if window:
                total = total + self._decodes_one(seqs, min(context, seqs * window), min(longest, window)) * scale
            else:
                total = total + self._decodes_one(seqs, context, longest) * scale
        return total

    def _layer_us(self, shapes: StepShapes, window: int) -> Floats:
        """One layer: decodes alone everywhere, then the steps that hold chunks, which are few, over it."""
        context, longest = _within(shapes, window)
        us = self._decodes(shapes.decode_seqs, context, longest)
        some = np.flatnonzero(shapes.prefill_tokens)
        if len(some):
            chunks, q, before = _chunks_of(shapes, some, window)
            seqs, context = shapes.decode_seqs[some], context[some]
            alone = self._chunks.at(chunks, q, before)
            both = self._both(alone, us[some], chunks, q, before, seqs, context, longest[some], ARRAYS)
            # The chunks' context counts as a decode's does, with the token that is computed.
            rows = seqs + shapes.prefill_tokens[some]
            tokens = (context + chunks * (before + 1.0)) / rows
            decodes = np.maximum(us[some], self._decode.at(rows, tokens))
            us[some] = np.where(q <= 1.0, decodes, np.where(seqs > 0, both, alone))
        return us

    def _layer_one(self, step: OneStep, window: int) -> float:
        context, longest, seqs = step.decode_context_sum, step.decode_context_max, step.num_decode
        if window:
            context, longest = min(context, seqs * window), min(longest, window)
        chunks, q, before = equal_chunks(step.prefill_tokens, step.prefill_context_tokens, step.prefill_pairs, SCALARS)
        if window:
            chunks, q, before = windowed(chunks, q, before, window, SCALARS)
        if q <= 1.0:
            rows = seqs + step.prefill_tokens
            us = self._decode.one(rows, (context + chunks * (before + 1.0)) / rows)
            return max(self._decodes_one(seqs, context, longest), us)
        alone = self._chunks.one(chunks, q, before)
        if not seqs:
            return alone
        decodes = self._decodes_one(seqs, context, longest)
        return float(self._both(alone, decodes, chunks, q, before, seqs, context, longest, SCALARS))

    def _decodes(self, seqs: Ints, context: Ints, longest: Ints) -> Floats:
        mean = context / np.maximum(seqs, 1)
        us = self._decode.at(seqs, mean)
        if self._skew is None:
            return us
        longest_us = self._decode.at(seqs, longest.astype(np.float64))
        found: Floats = skewed(self._skew, self._heads.num_kv_heads, seqs, us, longest_us, mean, longest, ARRAYS)
        return found

    def _decodes_one(self, seqs: int, context: int, longest: int) -> float:
        mean = context / max(seqs, 1)
        us = self._decode.one(seqs, mean)
        if self._skew is None:
            return us
        longest_us = self._decode.one(seqs, float(longest))
        return float(skewed(self._skew, self._heads.num_kv_heads, seqs, us, longest_us, mean, longest, SCALARS))

    def _both(
        self,
        alone: Any,
        decodes: Any,
        chunks: Any,
        q: Any,
        before: Any,
        seqs: Any,
        context: Any,
        longest: Any,
        lib: Any,
    ) -> Any:
        """Chunks and decodes in one launch; never faster than either of them alone."""
        if self._mixed.varlen is None:
            return added(alone, decodes, self._mixed.floor_us, lib)
        us = launch_us(self._mixed.varlen, self._heads, chunks, q, before, seqs, context, longest, lib)
        return lib.maximum(lib.maximum(alone, decodes), us)

    def extrapolated(self, shapes: StepShapes, ns: Floats) -> dict[str, Floats]:
        """What of `ns`, the attention of each step, lies beyond what was measured; no part of it counts twice."""
        if not self._kv_measured:
            return {"attention: KV format not measured": ns}
        seqs, prefill = shapes.decode_seqs, shapes.prefill_tokens > 0
        some, (context, longest) = seqs > 0, _within(shapes, 0)
        mean = context / np.maximum(seqs, 1)
        outside = some & ~prefill & self._decode.is_marked(self._decode_outside, seqs, mean)
        found = {
            "decode attention: beyond the measured sizes": ns * outside,
            "prefill attention: beyond the measured sizes": ns * (self._beyond(shapes, prefill & ~some) > 0),
            MIXED_TAG[self._mixed.measured]: ns * (some & prefill & self._mixed_beyond(shapes)),
        }
        if not self._skew_covers():
            found[SKEW_TAG] = np.minimum(self._skew_ns(seqs, context, longest), ns) * (~outside & ~prefill)
        return found

    def _skew_covers(self) -> bool:
        """Whether decodes of unequal length were measured at these heads, or cost nothing more."""
        skew, heads = self._skew, self._heads
        return skew is None or (heads.num_heads, heads.num_kv_heads, heads.head_dim) in skew.heads

    def _skew_ns(self, seqs: Ints, context: Ints, longest: Ints) -> Floats:
        """What unequal lengths add, all layers."""
        scale = sum(scale for scale, _ in self._kinds)
        extra: Floats = self._decodes(seqs, context, longest) - self._decode.at(seqs, context / np.maximum(seqs, 1))
        return extra * scale

    def _mixed_beyond(self, shapes: StepShapes) -> Bools:
        """Whether a mixed launch of these sizes and this model's heads lies beyond those that were measured."""
        mixed, heads = self._mixed, self._heads
        if not mixed.measured or (heads.num_heads, heads.num_kv_heads, heads.head_dim) not in mixed.heads:
            return np.ones(len(shapes), dtype=bool)
        most_tokens, most_before, most_seqs, longest = mixed.largest
        beyond: Bools = (
            (shapes.prefill_tokens > most_tokens)
            | (shapes.prefill_context_tokens > most_before)
            | (shapes.decode_seqs > most_seqs)
            | (shapes.decode_context_max > longest)
        )
        return beyond

    def _beyond(self, shapes: StepShapes, alone: Bools) -> Floats:
        """More than 0 where the chunks of a step that holds nothing else are priced beyond what was measured."""
        beyond, steps = np.zeros(len(shapes)), np.flatnonzero(alone)
        if len(steps):
            beyond[steps] = self._chunks_outside.at(*_chunks_of(shapes, steps, 0))
        return beyond


MIXED_TAG = {True: "mixed launches: beyond the measured sizes", False: "mixed launches: rule not measured on this GPU"}
SKEW_TAG = "decodes of unequal length: rule not measured on this GPU"


def _within(shapes: StepShapes, window: int) -> tuple[Ints, Ints]:
    """Sum and maximum of the decodes' context tokens, of each no more than a window."""
    context, longest = shapes.decode_context_sum, shapes.decode_context_max
    if window:
        return np.minimum(context, shapes.decode_seqs * window), np.minimum(longest, window)
    return context, longest


def _chunks_of(shapes: StepShapes, steps: Ints, window: int) -> tuple[Floats, Floats, Floats]:
    """The equal chunks of some steps."""
    tokens, before = shapes.prefill_tokens[steps], shapes.prefill_context_tokens[steps]
    chunks, q, each = equal_chunks(tokens, before, shapes.prefill_pairs[steps], ARRAYS)
    return windowed(chunks, q, each, window, ARRAYS) if window else (chunks, q, each)
