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
    # A 16-bit scale a group of 128; activations stay in 16 bits.
    "gptq_int8": Quantization(8, 16 / 128),
    # An 8-bit scale a group of 32, on experts only.
    "mxfp4": Quantization(4, 8 / 32),
    # An 8-bit scale a group of 16, on every matrix of the layers.
    "nvfp4": Quantization(4, 8 / 16),
    # nf4 with an 8-bit scale a group of 64, these with a 32-bit one for each 256 of them (QLoRA, section 3).
    "bitsandbytes": Quantization(4, 8 / 64 + 32 / (64 * 256)),
}

BLOCK_SCALED = {"fp8_block": "fp8"}
"""Formats with a scale for each block of weights, to what they are computed in and what engines call both."""

NOT_QUANTIZED = "none"
"""Says that weights have the 16 bits of `dtype`, also where those that were published have not."""

ALIASES = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "w4a16": "gptq",
    "int4": "gptq",
    "w8a16": "gptq_int8",
    "w8a8": "int8",
    "fbgemm_fp8": "fp8",
    "modelopt": "fp8",
    "modelopt_fp4": "nvfp4",
    "gpt_oss_mxfp4": "mxfp4",
    "nf4": "bitsandbytes",
}
"""What engines and checkpoints call a format, to its name here."""

OF_CHECKPOINT = "compressed-tensors"
"""The engine's word for a format that only the checkpoint's own configuration tells."""

_MEANS = {
    "fp8": ("fp8_block",),
    "gptq": ("gptq_int8",),
    "gptq_marlin": ("gptq_int8",),
    "modelopt": ("fp8_block", "nvfp4"),
    "bitsandbytes": ("int8",),
}
"""Words of engines that stand for several formats: those beside the first that a checkpoint may have."""

_COMPUTED_IN = {**BLOCK_SCALED, "gptq_int8": "gptq"}
_ENGINE_WORDS = {**_COMPUTED_IN, "nvfp4": "modelopt_fp4"}


def chosen(asked: str | None, own: str | None) -> str | None:
    """The format of weights where `engine.quantization` says `asked` and the published weights have `own`.

    An engine's word for several formats means that of the checkpoint where it is one of them. Raises InputError for a
    word that needs a checkpoint.
    """
    if asked is None or asked == own:
        return own
    if asked == NOT_QUANTIZED:
        return asked
    if own is not None and (asked == OF_CHECKPOINT or own in _MEANS.get(asked, ())):
        return own
    if asked == OF_CHECKPOINT:
        raise InputError(
            f"{OF_CHECKPOINT} does not say which format: expected fp8, int8, w4a16 or nvfp4, as config_groups of the "
            "checkpoint says, or a model whose name or config.json says it",
            key="engine.quantization",
        )
    return ALIASES.get(asked, asked)


def engine_word(name: str) -> str:
    """What vLLM's `--quantization` calls a format."""
    return _ENGINE_WORDS.get(name, name)


def computed_in(name: str | None) -> str | None:
    """The format that a quantised product is computed in, by whose name engines know it and GPUs have a peak."""
    return name if name is None else _COMPUTED_IN.get(name, name)


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
