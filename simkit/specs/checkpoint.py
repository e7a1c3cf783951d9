"""The format of a published checkpoint's weights, from the `quantization_config` of its `config.json`.

Owns what the tools that quantise call their formats. `hf_quant_config.json` of NVIDIA's tool says the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from simkit.errors import InputError, nearest
from simkit.specs.dtypes import NOT_QUANTIZED

Config = Mapping[str, Any]

_BY_BITS = {"awq": {4: "awq"}, "gptq": {4: "gptq", 8: "gptq_int8"}, "auto-round": {4: "gptq", 8: "gptq_int8"}}
_MODELOPT = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_AWQ": "awq",
}
_FP4_GROUPS = {16: "nvfp4", 32: "mxfp4"}
METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", *_BY_BITS, "mxfp4", "modelopt", "bitsandbytes")
"""Values of `quant_method` that are understood."""

_IGNORED = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers")
_ATTENTION = ("self_attn.q_proj", "self_attn.o_proj")
_OUTSIDE = 1
"""A layer that is neither the first nor the last, which tools like to leave alone."""


def format_of(config: Config, where: str) -> str | None:
    """The format, None where a config says that nothing is quantised. Raises InputError that begins with `where`."""
    config = config.get("quantization") or config  # hf_quant_config.json, also where config.json quotes it
    method = str(config.get("quant_method") or ("modelopt" if "quant_algo" in config else "")).lower()
    if method in ("modelopt", "modelopt_fp4", "nvfp4"):
        return _of_modelopt(config, where)
    if method == "compressed-tensors":
        return _of_groups(config, where)
    if method in _BY_BITS:
        return _of_bits(config, method, where)
    if method == "bitsandbytes":
        eight = config.get("load_in_8bit") or config.get("_load_in_8bit")
        return "int8" if eight else "bitsandbytes"
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8_block" if config.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return method
    known = f"expected one of {', '.join(METHODS)}, got {method!r}{nearest(method, METHODS)}"
    raise InputError(f"{where}: quant_method: {known}", key="model")


def leaves_attention(config: Config) -> bool:
    """Whether the attention of the layers is among the modules that are not quantised."""
    config = config.get("quantization") or config
    patterns = [str(one) for key in _IGNORED for one in config.get(key) or ()]
    names = [f"model.layers.{_OUTSIDE}.{part}" for part in _ATTENTION]
    return all(any(_matches(pattern, name) for pattern in patterns) for name in names)


def _matches(pattern: str, name: str) -> bool:
    """A name, a part of one, a glob, or ``re:`` and an expression; engines take all of them."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern.removeprefix("re:"), name) is not None
        except re.error:
            return False
    words = ".*".join(map(re.escape, pattern.split("*")))
    return re.search(rf"(?:^|\.){words}(?:\.|$)" if pattern[:1] != "*" else rf"{words}(?:\.|$)", name) is not None


def _of_modelopt(config: Config, where: str) -> str | None:
    algorithm = config.get("quant_algo")
    if algorithm is None:
        return None
    if algorithm in _MODELOPT:
        return _MODELOPT[algorithm]
    if algorithm == "MIXED_PRECISION":
        parts = (config.get("quantized_layers") or {}).values()
        found = {_MODELOPT.get(str(part.get("quant_algo"))) for part in parts if isinstance(part, dict)}
        if len(found) == 1 and None not in found:
            return found.pop()
    hint = nearest(str(algorithm), _MODELOPT)
    raise InputError(
        f"{where}: quant_algo: expected one of {', '.join(_MODELOPT)}, got {algorithm!r}{hint}", key="model"
    )


def _of_bits(config: Config, method: str, where: str) -> str:
    bits, known = config.get("bits", config.get("w_bit")), _BY_BITS[method]
    if not isinstance(bits, int) or bits not in known:
        expected = " or ".join(map(str, known))
        raise InputError(f"{where}: bits: expected {expected} with {method}, got {bits!r}", key="model")
    return known[bits]


def _of_groups(config: Config, where: str) -> str | None:
    """Of the groups of modules that compressed-tensors lists, if all have the same format."""
    if str((config.get("sparsity_config") or {}).get("format", "dense")) != "dense":
        raise InputError(f"{where}: sparsity_config: sparse weights are not modelled", key="model")
    found = sorted(set(_formats_of_groups(config, where)))
    if len(found) > 1:
        raise InputError(f"{where}: config_groups: {' and '.join(found)} in one model is not modelled", key="model")
    return found[0] if found else None


def _formats_of_groups(config: Config, where: str) -> Iterator[str]:
    groups = config.get("config_groups") or {}
    for name, group in groups.items() if isinstance(groups, dict) else ():
        weights, inputs = group.get("weights"), group.get("input_activations")
        if not weights:  # of a cache or of activations alone
            continue
        kind, bits = str(weights.get("type", "int")), weights.get("num_bits")
        found = {
            ("float", 8): "fp8_block" if weights.get("strategy") == "block" else "fp8",
            ("float", 4): _FP4_GROUPS.get(weights.get("group_size") or 16),
            ("int", 8): "int8" if inputs else "gptq_int8",
            ("int", 4): None if inputs else "gptq",
        }.get((kind, bits))
        if found is None:
            acts = "" if not inputs else f" with {inputs.get('num_bits')}-bit activations"
            expected = "fp8, int8, w4a16, w8a16 or nvfp4"
            raise InputError(
                f"{where}: config_groups.{name}: expected {expected}, got {bits}-bit {kind} weights{acts}", key="model"
            )
        yield found


def stated(quantization: str | None) -> str | None:
    """A format as a model has it: nothing where its name says 16 bits."""
    return None if quantization == NOT_QUANTIZED else quantization
