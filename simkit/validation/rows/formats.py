"""Number formats as benchmarks write them: of weights and of the KV cache."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simkit.validation.rows.names import Unsuitable

_UNQUANTISED = ("bf16", "bfloat16", "fp16", "float16", "half", "16-bit", "16bit", "none", "unquantised")
_FORMATS = {
    "fp8": "fp8", "w8a8-fp8": "fp8", "float8": "fp8", "fp8_block": "fp8", "fp8_static": "fp8", "fp8-dynamic": "fp8",
    "int8": "int8", "w8a8": "int8", "w8a8-int8": "int8", "awq": "awq", "gptq": "gptq", "mxfp4": "mxfp4",
}  # fmt: skip
_KV_FORMATS = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"} | dict.fromkeys((*_UNQUANTISED, "auto"), "auto")
_PART = re.compile(r"(\w+)=(\S*)")
_WEIGHTS, _KV = ("gemm", "moe", "weights"), ("kv", "kv_cache", "kv_cache_dtype")


@dataclass(frozen=True, slots=True)
class Formats:
    """`weights`: `engine.quantization`, None for 16 bits, and whether the cell says so at all; `kv`: the
    `engine.kv_cache_dtype` that it states, else None."""

    weights: str | None
    is_stated: bool
    kv: str | None


def formats_of(text: str) -> Formats:
    """Of a cell such as ``bf16``, ``fp8``, ``gemm=fp8 moe=fp8`` (16 bits where both are empty) or ``bf16 kv=fp8``.

    Raises Unsuitable for a format that is not modelled, and for matrix products in different ones.
    """
    parts = [(key.lower(), value.lower()) for key, value in _PART.findall(text)]
    named = [value for key, value in parts if key in _WEIGHTS]
    words = [*_PART.sub(" ", text).lower().split(), *(value for value in named if value)]
    words = [word for word in words if word != "auto"]
    caches = {_KV_FORMATS.get(value) for key, value in parts if key in _KV and value}
    weights = {None if word in _UNQUANTISED else _FORMATS.get(word, "") for word in words}
    if len(weights) > 1 or "" in weights or len(caches) > 1 or None in caches or _is_unknown(parts):
        raise Unsuitable(f"number format {text.strip()} is not modelled")
    return Formats(next(iter(weights), None), bool(words or named), next(iter(caches), None))


def _is_unknown(parts: list[tuple[str, str]]) -> bool:
    return any(key not in (*_WEIGHTS, *_KV) for key, _ in parts)
