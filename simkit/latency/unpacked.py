"""GEMMs whose weights a kernel of its own widens to 16 bits before each product: bitsandbytes.

Owns what that adds to a 16-bit GEMM: packed weights are read and 16-bit ones written, at the bandwidth that GEMMs
reach. A single row goes through a kernel that reads packed weights alone (`matmul_4bit` of bitsandbytes: `gemv_4bit`
for one row, else `dequantize_4bit` and a linear layer). Nothing here is fitted to a run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simkit.latency.shapes import Formats, Gemm
from simkit.specs.dtypes import quantization as quantization_of
from simkit.types import Floats

FORMATS = ("bitsandbytes",)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Bytes of a weight as GEMMs count it, packed with its scales, and in 16 bits; what a byte moved takes, and the
    least that a call does."""

    counted_bytes: float
    packed_bytes: float
    wide_bytes: float
    ns_per_byte: float
    floor_ns: float

    def sixteen_bit(self, gemm: Gemm) -> Gemm:
        """The product that is left when the weights are wide."""
        wide = gemm.weight_bytes / self.counted_bytes * self.wide_bytes
        return replace(gemm, weight_bytes=wide, quantized=False)

    def around(self, gemm: Gemm, rows: Floats, product_ns: Floats) -> Floats:
        """ns of 0, 1, ... rows, of which the product takes `product_ns`; all experts are widened, whoever is used."""
        weights = gemm.weight_bytes / self.counted_bytes
        single_ns = max(weights * self.packed_bytes * self.ns_per_byte, self.floor_ns)
        widened_ns = max(weights * (self.packed_bytes + self.wide_bytes) * self.ns_per_byte, self.floor_ns)
        return np.where(rows > 1.0, product_ns + widened_ns, np.where(rows > 0.0, single_ns, 0.0))


def unpacked(quantization: str | None, formats: Formats, ns_per_byte: float, floor_ns: float) -> Unpacked | None:
    """What such weights add; None for other formats."""
    if quantization not in FORMATS:
        return None
    held = quantization_of(quantization).held_bytes
    return Unpacked(formats.weight_bytes, held, formats.activation_bytes, ns_per_byte, floor_ns)
