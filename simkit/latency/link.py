"""The link between the GPUs of a replica: how long they take to add up their results.

Owns what an all-reduce costs without a table of it, as a scenario states it or by the data sheet of the GPU, and how
many GPUs a node holds. The constants for NVLink and PCIe are medians of measured all-reduces (tables of NVIDIA's
aiconfigurator-core 0.12.0, Apache-2.0): vLLM's custom all-reduce replayed in CUDA graphs, as in the tables of the
profiles that ship. Other engines (TensorRT-LLM, or NCCL without custom kernels) are priced alike although they have
kernels of their own: from NCCL's over PCIe, in the same tables, these formulas are 4 to 38 % off in the median.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simkit.errors import InputError
from simkit.latency.effects import DATA_SHEET, STATED
from simkit.specs.hardware import GpuSpec
from simkit.types import Floats
from simkit.units import NS_PER_S, NS_PER_US

NODE_GPUS = 8
"""GPUs of a node: no data sheet says how more of them are linked."""

NVLINK_FRACTION = 0.76
"""All-reduce of 64 MiB or more over NVLink, 2 to 8 GPUs: medians 0.67 (A100-SXM4-80GB), 0.76 (H100-SXM5), 0.76 (H200)
of a ring at the one-way rate; their median."""

NVLINK_FLOOR_NS, NVLINK_HOP_NS = 4_300.0, 30.0
"""All-reduce of at most 4 KiB: medians 4.4, 4.6, 4.7 us on 2, 4, 8 GPUs; a line over the 2 (n - 1) hops of a ring."""

ONE_SHOT_FRACTION = 0.58
"""All-reduce in which each GPU reads the whole message of every other one, against the one-way rate: on 2 GPUs, where
vLLM's kernel always does that, a further byte between 1 and 4 MiB gets 0.59 (H100-SXM5) and 0.58 (H200)."""

RANKS = (2, 4, 8)
"""GPUs between which all-reduces over PCIe were measured."""


@dataclass(frozen=True, slots=True)
class PcieBus:
    """All-reduces of `RANKS` GPUs over PCIe in one server: latency of small messages, and the share of the one-way rate
    of a GPU's bus that a ring of large ones gets."""

    latency_ns: tuple[float, float, float]
    share: tuple[float, float, float]

    def at(self, ranks: int) -> tuple[float, float]:
        """(latency, share), between the measured numbers of GPUs in proportion to the logarithm."""
        place, places = np.log2(ranks), np.log2(RANKS)
        return float(np.interp(place, places, self.latency_ns)), float(np.interp(place, places, self.share))


GEN4 = PcieBus((5_300.0, 13_500.0, 25_600.0), (0.592, 0.116, 0.061))
"""L40S, vLLM 0.14: medians up to 4 KiB, and of 16 to 64 MiB. Against the 15 sizes from 4 KiB to 64 MiB the formula is
off by 1, 3, 12 % in the median on 2, 4, 8 GPUs, at most by 11, 21, 66 % (on 8: too slow at 1 MiB)."""

GEN5 = PcieBus((4_200.0, 12_700.0, 25_000.0), (0.564, 0.444, 0.364))
"""RTX PRO 6000, vLLM 0.24, likewise: off by 4, 5, 4 % in the median, at most by 14, 54, 59 % (on 4 and 8: too fast
from 256 to 512 KiB)."""

NVLINK_SPREAD, LEAST_SPREAD = 0.1, 0.1
"""How far links of one kind are apart: standard deviation of the logarithm, over NVLink that of the three medians."""


def spread(interconnect: str, ranks: int) -> float:
    """How far the link of a server may be from the formula for its kind: over PCIe as far as the two servers that were
    measured, whose buses carry 4 and 8 GPUs in very different ways, are from each other."""
    if interconnect != "pcie" or ranks == 1:
        return NVLINK_SPREAD
    one, other = GEN4.at(ranks)[1], GEN5.at(ranks)[1]
    return max(LEAST_SPREAD, abs(math.log(one / other)) / math.sqrt(2.0))


GEN5_BYTES_PER_S = 48e9
"""A bus of a higher one-way rate is taken as `GEN5`, any other as `GEN4`."""


@dataclass(frozen=True, slots=True)
class StatedLink:
    """A ring as a scenario states it: the latency of a hop in microseconds, and the GB/s of a GPU in one direction."""

    latency_us: float
    gb_per_s: float


class Link:
    """All-reduce between the ranks of a replica as a ring: a latency, and 2 (n - 1)/n of the message over each link.

    Where no link is stated it takes `by` times as long as the data sheet has it.

    `source` says where it is from, `reads_others` whether it is NVLink within a node. Raises InputError for GPUs
    that have no such link, and for more than a node has.
    """

    def __init__(
        self, gpu: GpuSpec, ranks: int, interconnect: str, stated: StatedLink | None = None, *, by: float = 1.0
    ) -> None:
        hops = 2 * (ranks - 1)
        if stated is not None:
            self.source = STATED
            self._latency_ns, bytes_per_s = hops * stated.latency_us * NS_PER_US, stated.gb_per_s * 1e9
        else:
            self.source = DATA_SHEET
            latency_ns, rate = _within_a_node(gpu, ranks, interconnect)
            self._latency_ns, bytes_per_s = latency_ns * by, rate / by
        self._ns_per_byte = hops / ranks * NS_PER_S / bytes_per_s
        read_bytes_per_s = gpu.nvlink_bytes_per_s * ONE_SHOT_FRACTION
        self.reads_others = stated is None and interconnect == "nvlink"
        self._one_shot_ns_per_byte = (ranks - 1) * NS_PER_S / read_bytes_per_s * by if self.reads_others else 0.0

    def all_reduce_ns(self, num_bytes: Floats, some: Floats) -> Floats:
        """Time to reduce messages of `num_bytes`; nothing where `some` is 0."""
        return some * self._latency_ns + num_bytes * self._ns_per_byte

    def one_shot_ns(self, num_bytes: Floats, some: Floats) -> Floats:
        """The same where each GPU reads all messages whole, which only NVLink is fast enough for (`reads_others`)."""
        return some * self._latency_ns + num_bytes * self._one_shot_ns_per_byte


def _within_a_node(gpu: GpuSpec, ranks: int, interconnect: str) -> tuple[float, float]:
    """(latency, bytes a second of a ring) of `ranks` GPUs of one node."""
    if ranks > NODE_GPUS:
        raise InputError(
            f"missing; a node has {NODE_GPUS} GPUs, not {ranks}: state the link between them, such as "
            "{latency_us: 10, gb_per_s: 40}",
            key="hardware.link",
        )
    if interconnect == "nvlink":
        if not gpu.nvlink_bytes_per_s:
            raise InputError(f"{gpu.name} has no NVLink; use hardware.interconnect: pcie", key="hardware.interconnect")
        return NVLINK_FLOOR_NS + NVLINK_HOP_NS * 2 * (ranks - 1), gpu.nvlink_bytes_per_s * NVLINK_FRACTION
    if interconnect == "pcie":
        rate = gpu.pcie_bytes_per_s
        latency_ns, share = (GEN5 if rate > GEN5_BYTES_PER_S else GEN4).at(ranks)
        return latency_ns, rate * share
    raise InputError(f"expected nvlink or pcie, got {interconnect!r}", key="hardware.interconnect")
