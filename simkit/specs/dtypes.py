"""Number formats: what an element of each takes, and which of them weights, activations and a KV cache may have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from simkit.errors import InputError, nearest

ELEMENT_BYTES = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
}
MODEL_DTYPES = ("bfloat16", "float16", "float32")
KV_DTYPES = (*MODEL_DTYPES, "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True)
class Quantization:
    """Bits of a quantised weight, and of its share of the scales and zero points."""

    bits: float
    scale_bits: float = 0.0

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight alone."""
        return self.bits / 8

    @property
    def held_bytes(self) -> float:
        """Bytes of a weight with its share of the scales."""
        return (self.bits + self.scale_bits) / 8


QUANTIZATIONS = {
    "fp8": Quantization(8),
    # A 32-bit scale a block of 128 x 128.
    "fp8_block": Quantization(8, 32 / 128**2),
    "int8": Quantization(8),
    # A 16-bit scale and a 4-bit zero point a group of 128.
    "awq": Quantization(4, 20 / 128),
    "gptq": Quantization(4, 20 / 128),
    # An 8-bit scale a group of 32, on experts only.
    "mxfp4": Quantization(4, 8 / 32),
}

BLOCK_SCALED = {"fp8_block": "fp8"}
"""Formats with a scale for each block of weights, to what they are computed in and what engines call both."""


def computed_in(name: str | None) -> str | None:
    """The format that a quantised product is computed in, by whose name engines know it and GPUs have a peak."""
    return name if name is None else BLOCK_SCALED.get(name, name)


def element_bytes(name: str, known: Collection[str] = tuple(ELEMENT_BYTES), key: str = "dtype") -> float:
    """Bytes of an element of one of the `known` formats. Raises InputError, which blames `key`, for another."""
    _check(name, known, key)
    return ELEMENT_BYTES[name]


def quantization(name: str) -> Quantization:
    """A format of quantised weights. Raises InputError for an unknown name."""
    _check(name, QUANTIZATIONS, "engine.quantization")
    return QUANTIZATIONS[name]


def _check(name: str, known: Collection[str], key: str) -> None:
    if name not in known:
        raise InputError(f"expected one of {', '.join(known)}, got {name!r}{nearest(name, known)}", key=key)
