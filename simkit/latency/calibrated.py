"""Step times from a calibrated profile. Owns how measured kernels are put together into a step.

step = host overhead and GPU: layers x (GEMMs, elementwise kernels, all-reduce, attention) + LM head and sampler + swaps
over PCIe. Attention is priced as it is launched: decodes alone, chunks alone, or both together.

All arithmetic is elementwise, and single steps are priced by the same operations in the same order as arrays.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from simkit.latency.attention import Attention
from simkit.latency.deployment import Deployment, graph_rows
from simkit.latency.effects import ALL_REDUCE, EFFECTS, GRAPH_PADDING, RULES, SAMPLED_ROWS, check_known, nothing
from simkit.latency.error import erring
from simkit.latency.kernels import TABLE_ROWS, Kernels
from simkit.latency.latent import LatentAttention
from simkit.latency.lookup import RowLookup
from simkit.latency.profile import Profile
from simkit.latency.profile.values import is_scaled, transferred
from simkit.latency.protocol import OneStep
from simkit.latency.shapes import Gemm
from simkit.latency.step import SCALAR_STEPS, HardwareLatency, to_ns
from simkit.latency.step_tables import TableBuilder
from simkit.types import Basis, Floats, Ints, StepShapes
from simkit.units import NS_PER_S


class Calibrated(HardwareLatency):
    """Calibrated latency model of one replica. Implements `simkit.latency.protocol.LatencyModel`.

    Several chunks of one step are priced as equal ones with the same tokens, cached tokens and (query, key) pairs.
    Decodes of sliding layers read min(sum of contexts, sequences x window) tokens, an upper bound as on the roofline.

    No step is faster than its weights and KV cache read once at the memory's rate, nor than its FLOPs at peak;
    activations are left out, which may stay in the L2 cache. What would be faster is raised and counted: kernels of the
    tables in `num_clamped`, launches of unlike sequences as a part of the time that does not rest on measurements.

    Raises NotMeasured for an op that the model needs and the profile lacks, InputError as `Kernels` does.
    """

    def __init__(self, deployment: Deployment, profile: Profile) -> None:
        gpu, has = deployment.gpu, deployment.has
        check_known(deployment.without, EFFECTS, f"profile {profile.name}")
        profile = erring(transferred(profile, gpu), deployment.errors)
        super().__init__(deployment, kernels := Kernels(deployment))
        tables = TableBuilder(deployment, kernels, profile)
        tokens, samples = tables.token_table(), tables.sample_table()
        if has(GRAPH_PADDING):
            tokens = tokens.at(graph_rows(TABLE_ROWS, deployment.graph_sizes))
        of_tokens, of_samples = [*kernels.gemms], [kernels.head]
        if not has(SAMPLED_ROWS):
            tokens, samples = tokens.with_all_of(samples), samples.at(np.zeros(TABLE_ROWS + 1, dtype=np.int64))
            of_tokens, of_samples = [*of_tokens, *of_samples], []
        self._token_ns = RowLookup(tokens, self._least_row_ns(of_tokens))
        self._sample_ns = RowLookup(samples, self._least_row_ns(of_samples))
        self._attention = attention_of(tables, profile, deployment.without)
        swap_in, swap_out = tables.swap_ns_per_byte(gpu.pcie_bytes_per_s)
        self._swap_in_ns, self._swap_out_ns = swap_in / kernels.ranks, swap_out / kernels.ranks
        padding = RULES if deployment.graph_sizes else nothing("no CUDA graphs")
        own = {GRAPH_PADDING: padding, ALL_REDUCE: tables.all_reduce_source, **self._attention.sources}
        self.effects = deployment.sources(own)
        self.num_clamped = tables.num_clamped
        measured_on, own_format = str(profile.gpu.get("name", "another GPU")), tables.measured_dtype == deployment.dtype
        self.basis = Basis.PROFILE if measured_on == gpu.name and own_format else Basis.OTHER_PROFILE
        how = "" if measured_on == gpu.name else _elsewhere(measured_on, gpu.name, is_scaled(profile, gpu))
        how += "" if own_format else f", in {tables.measured_dtype} for {deployment.dtype}"
        self.source = self.basis.text(how, profile.name)

    def decode_ns(self, step: OneStep, num_steps: int) -> list[int] | Ints:
        """`step_ns` of `step.shapes(num_steps)`; short runs without arrays."""
        seqs = step.num_decode
        if num_steps > SCALAR_STEPS or not seqs:
            return self.step_ns(step.shapes(num_steps))
        base = self._token_ns.one(seqs) + self._sample_ns.one(step.num_sampled)
        loop, host = self._loop, self._loop.host_ns(seqs, step.num_sampled)
        run = self._attention.decode_run(seqs, step.decode_context_sum, step.decode_context_max, num_steps)
        gpus = [base + ns for ns in run]
        least = self._launches.least_ns(seqs)
        if least:
            gpus = [max(gpu, least) for gpu in gpus]
        if loop.overlaps:
            gap = loop.gap_ns
            return [max(round(max(gpu + gap, host)), 1) for gpu in gpus]
        return [max(round(gpu + host), 1) for gpu in gpus]

    def gpu_and_extrapolated_ns(self, shapes: StepShapes) -> tuple[Ints, dict[str, Floats]]:
        """(`gpu_ns`, the part of it that does not rest on measurements by what it is, float64[k] each)."""
        rows, raised = shapes.decode_seqs + shapes.prefill_tokens, np.zeros(len(shapes))
        attention = self._attention.ns(shapes, raised)
        token_ns, sample_ns = self._token_ns.at(rows), self._sample_ns.at(shapes.sampled_seqs)
        found = self._attention.extrapolated(shapes, attention, raised)
        for lookup, ns, count in (
            (self._token_ns, token_ns, rows),
            (self._sample_ns, sample_ns, shapes.sampled_seqs),
        ):
            for name, part in lookup.extrapolated(count, ns):
                found[name] = found.get(name, 0.0) + part
        return to_ns(token_ns + sample_ns + attention), found

    def _least_row_ns(self, gemms: Seq[Gemm]) -> float:
        """What a further row takes at peak."""
        assert self.peak_flops_per_s is not None
        flops = sum(gemm.layers * gemm.flops for gemm in gemms)
        return flops * NS_PER_S * self.kernels.ranks / self.peak_flops_per_s

    def _gpu_float_ns(self, shapes: StepShapes) -> Floats:
        tokens = self._token_ns.at(shapes.decode_seqs + shapes.prefill_tokens)
        return tokens + self._sample_ns.at(shapes.sampled_seqs) + self._attention.ns(shapes)

    def _one_gpu_ns(self, step: OneStep) -> float:
        rows = self._token_ns.one(step.num_decode + step.prefill_tokens) + self._sample_ns.one(step.num_sampled)
        return rows + self._attention.one(step)

    def _with_swaps(self, ns: Any, step: StepShapes | OneStep) -> Any:
        return ns + step.swap_in_bytes * self._swap_in_ns + step.swap_out_bytes * self._swap_out_ns


def attention_of(tables: TableBuilder, profile: Profile, without: Collection[str]) -> Attention | LatentAttention:
    """Attention of keys and values, or of latents."""
    modules = tables.modules
    return Attention(tables, profile, without) if modules is None else LatentAttention(tables, modules, without)


def _elsewhere(measured_on: str, gpu: str, scaled: bool) -> str:
    """What a reader must know of times that were measured on another GPU."""
    return f" on {measured_on}, {'scaled to the limits of' if scaled else 'not on'} {gpu}"
