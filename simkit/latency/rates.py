"""How fast one GPU and its links really go: achievable fractions of peak and launch floors, and the rates they give.

Nothing here is fitted to a run. The constants are medians of measured kernels over large shapes (tables of NVIDIA's
aiconfigurator-core 0.12.0, Apache-2.0: A100-SXM4-80GB, H100-SXM5, H200, in this order), taken against the dense peaks
312, 989 TFLOP/s (16 bit) and 1,979 TFLOP/s (fp8) and 2.039, 3.35, 4.8 TB/s; a constant is the median of the three GPUs'
medians. Knows no model.
"""

from __future__ import annotations

from simkit.errors import InputError
from simkit.specs.hardware import GpuSpec
from simkit.types import Floats
from simkit.units import NS_PER_S

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

LINK_FRACTION = 0.76
"""All-reduce of 64 MiB or more over NVLink, 2 to 8 GPUs: medians 0.67, 0.76, 0.76 of a ring at the one-way rate.
Assumed for PCIe, which no table covers, and taken as 1 for host copies."""

GEMM_FLOOR_NS = 3_000.0
"""16-bit GEMMs with m <= 16 and n x k <= 2**18: medians 3.5, 2.9, 2.9 us."""

ATTENTION_FLOOR_NS = 12_000.0
"""Decode attention over at most 64 cached tokens in all: medians 12.9, 11.8, 11.6 us (prefill alike). One a layer."""

ELEMENTWISE_FLOOR_NS = 2_500.0
"""One-token norm, activation and rotary kernels: 2.4 to 2.7 us (LLMServingSim 5daddb2, RTX PRO 6000, MIT)."""

SAMPLER_FLOOR_NS = 25_000.0
"""Sampler of one sequence over 128,256 logits: 24.7 us (same table)."""

NVLINK_FLOOR_NS, NVLINK_HOP_NS = 4_300.0, 30.0
"""All-reduce of at most 4 KiB: medians 4.4, 4.6, 4.7 us on 2, 4, 8 GPUs; a line over the 2 (n - 1) hops of a ring."""

SIXTEEN_BIT = ("bfloat16", "float16")
"""Formats that stand for each other: the same operand size, and where a GPU has both the same peak."""

PCIE_HOP_NS = 2_000.0
"""Assumed latency a hop where GPUs talk over PCIe."""


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


class Link:
    """All-reduce between the ranks of a replica as a ring: 2 (n - 1) hops, 2 (n - 1)/n of the message a link."""

    def __init__(self, gpu: GpuSpec, ranks: int, interconnect: str) -> None:
        hops = 2 * (ranks - 1)
        if interconnect == "nvlink":
            if not gpu.nvlink_bytes_per_s:
                raise InputError(
                    f"{gpu.name} has no NVLink; use hardware.interconnect: pcie", key="hardware.interconnect"
                )
            rate, self._latency_ns = gpu.nvlink_bytes_per_s, NVLINK_FLOOR_NS + NVLINK_HOP_NS * hops
        elif interconnect == "pcie":
            rate, self._latency_ns = gpu.pcie_bytes_per_s, PCIE_HOP_NS * hops
        else:
            raise InputError(f"expected nvlink or pcie, got {interconnect!r}", key="hardware.interconnect")
        self._ns_per_byte = hops / ranks * NS_PER_S / (rate * LINK_FRACTION)

    def all_reduce_ns(self, num_bytes: Floats, some: Floats) -> Floats:
        """Time to reduce messages of `num_bytes`; nothing where `some` is 0."""
        return some * self._latency_ns + num_bytes * self._ns_per_byte


def dtype_peak(gpu: GpuSpec, dtype: str) -> float:
    """Dense peak FLOP/s of `dtype`. Raises InputError when the chip does not compute in it."""
    if dtype not in gpu.peak_flops_per_s:
        have = [name for name in ("float16", "bfloat16", "float32") if name in gpu.peak_flops_per_s]
        advice = f"use engine.dtype: {' or '.join(have)}" if have else "use another hardware.gpu"
        raise InputError(f"hardware.gpu {gpu.name} has no {dtype}; {advice}", key="engine.dtype")
    return gpu.peak_flops_per_s[dtype]
