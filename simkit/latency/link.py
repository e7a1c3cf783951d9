"""The link between the GPUs of a replica: how long they take to add up their results.

Owns what an all-reduce costs by the data sheet. A constant is the median of the medians of A100-SXM4-80GB, H100-SXM5
and H200 in tables of NVIDIA's aiconfigurator-core 0.12.0 (Apache-2.0), named in this order.
"""

from __future__ import annotations

from simkit.errors import InputError
from simkit.specs.hardware import GpuSpec
from simkit.types import Floats
from simkit.units import NS_PER_S

LINK_FRACTION = 0.76
"""All-reduce of 64 MiB or more over NVLink, 2 to 8 GPUs: medians 0.67, 0.76, 0.76 of a ring at the one-way rate.
Assumed for PCIe, which no table covers, and taken as 1 for host copies."""

NVLINK_FLOOR_NS, NVLINK_HOP_NS = 4_300.0, 30.0
"""All-reduce of at most 4 KiB: medians 4.4, 4.6, 4.7 us on 2, 4, 8 GPUs; a line over the 2 (n - 1) hops of a ring."""

PCIE_HOP_NS = 2_000.0
"""Assumed latency a hop where GPUs talk over PCIe."""


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
