"""What benchmarks call models, GPUs, engines and number formats, and what simkit calls them.

Owns the names. A name that is not known for certain is not guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simkit.errors import nearest
from simkit.specs.hardware import list_gpus
from simkit.specs.model_spec import ModelSpec
from simkit.specs.models import list_models, registered_model
from simkit.validation.rows.refusals import Unsuitable

# Names of the data sheets and of `nvidia-smi`, lower case, with one dash between words.
_GPUS = {
    "h100-sxm5-80gb": ("h100", "h100-sxm", "h100-sxm5", "h100-80gb", "h100-sxm-80gb", "h100-80gb-sxm", "h100-80gb-hbm3",
                       "h100-sxm5-80gb", "h100-80gb-sxm5"),
    "h100-pcie-80gb": ("h100-pcie", "h100-80gb-pcie"),
    "gh200-96gb": ("gh200-96gb-hbm3",),
    "h200-sxm-141gb": ("h200", "h200-sxm", "h200-sxm5", "h200-141gb", "h200-sxm-141gb", "h200-141gb-sxm"),
    "b200-sxm-180gb": ("b200", "b200-sxm", "b200-180gb", "b200-192gb"),
    "a100-sxm4-80gb": ("a100-80gb", "a100-sxm", "a100-sxm4", "a100-sxm-80gb", "a100-80gb-sxm", "a100-80gb-sxm4"),
    "a100-sxm4-40gb": ("a100-40gb", "a100-sxm-40gb", "a100-40gb-sxm", "a100-40gb-sxm4"),
    "a100-pcie-80gb": ("a100-80gb-pcie",),
    "a100-pcie-40gb": ("a100-40gb-pcie",),
    "l40s-48gb": ("l40s",),
    "l4-24gb": ("l4",),
    "a10g-24gb": ("a10g",),
    "t4-16gb": ("t4",),
    "rtx-3090": ("rtx-3090-24gb", "geforce-rtx-3090"),
    "rtx-4090": ("rtx-4090-24gb", "geforce-rtx-4090"),
    "rtx-5090": ("rtx-5090-32gb", "geforce-rtx-5090"),
    "rtx-a6000": ("a6000", "rtx-a6000-48gb"),
    "rtx-pro-6000": ("rtx-pro-6000-96gb", "rtx-pro-6000-blackwell"),
    "mi300x": ("amd-mi300x", "mi300x-192gb"),
}  # fmt: skip
_VARIANT_ASSUMED = {
    **dict.fromkeys(("h100", "h100-80gb", "h200", "h200-141gb", "a100-80gb", "a100-40gb"), "the SXM part"),
    "a100-sxm": "80 GB of memory",
    "a100-sxm4": "80 GB of memory",
}

PCIE_PART = {
    "h100-sxm5-80gb": "h100-pcie-80gb",
    "a100-sxm4-80gb": "a100-pcie-80gb",
    "a100-sxm4-40gb": "a100-pcie-40gb",
}
"""GPUs that are sold as a card too, which a name without a part may be: slower, and linked by PCIe."""

PROFILE_OF = {
    "a100-sxm4-40gb": "a100-sxm4-80gb",
    "a100-pcie-40gb": "a100-sxm4-80gb",
    "gh200-96gb": "h100-sxm5-80gb",
    "b200-sxm-180gb": "h200-sxm-141gb",
}
"""GPU to the profile of another, with the same cores or of the generation before, which is scaled to its limits
(`profile.values.transferred`)."""

_MODEL_FORMAT = re.compile(r"-(fp8|awq|gptq)(?:-dynamic|-block)?$", re.IGNORECASE)
_BLOCK_SCALED = re.compile(r"-fp8-block$|^(?:qwen/)?qwen3-[^/]*-fp8$", re.IGNORECASE)
"""Checkpoints with a scale for each 128 x 128 weights: llm-compressor's say so, Qwen's own of Qwen3 do in their
`config.json` (`weight_block_size`)."""
_ASSISTANT = re.compile(r"-(instruct|chat|it)(-hf)?$", re.IGNORECASE)

VLLM, TRTLLM, SGLANG = "vLLM", "TRT-LLM", "SGLang"
_FAMILIES = {"vllm": VLLM, "trt": TRTLLM, "tensorrt": TRTLLM, "sglang": SGLANG}
_VERSION = re.compile(
    r"(?:^|vllm|trt-?llm|tensorrt-?llm|sglang)\W*(?:version\W*)?v?(\d{1,2})\.(\d{1,3})", re.IGNORECASE
)
"""Right behind the name, or alone: other numbers are of CUDA or of PyTorch."""


@dataclass(frozen=True, slots=True)
class EngineName:
    """The engine of a row: its family, (major, minor) where the row says so, and how it is written."""

    family: str
    version: tuple[int, int] | None
    text: str

    @property
    def label(self) -> str:
        """Family and version: rows with the same one share their host terms."""
        return self.family if self.version is None else f"{self.family} {self.version[0]}.{self.version[1]}"


def engine_of(text: str, version: str = "") -> EngineName:
    """The engine, e.g. of ``vLLM 0.12.0`` or ``trtllm`` with a version of its own. Raises Unsuitable."""
    low = text.lower()
    family = next((name for key, name in _FAMILIES.items() if key in low), None)
    if family is None:
        raise Unsuitable(f"engine {text or '(not stated)'} is not modelled")
    found = _VERSION.search(version) or _VERSION.search(text)
    return EngineName(family, None if found is None else (int(found[1]), int(found[2])), text)


def gpu_of(text: str) -> tuple[str, str | None]:
    """(registered name, what of it the text leaves open). Raises Unsuitable."""
    key = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    key = re.sub(r"^(\d+x-?)?(nvidia-)?(tesla-)?", "", key)
    known = {gpu.name for gpu in list_gpus()}
    for name, others in _GPUS.items():
        if name in known and (key == name or key in others):
            return name, f"{text}: {_VARIANT_ASSUMED[key]}" if key in _VARIANT_ASSUMED else None
    if key in known:
        return key, None
    names = known.union(*(others for name, others in _GPUS.items() if name in known))
    raise Unsuitable(f"GPU {text or '(not stated)'} is unknown{nearest(key, names) if key else ''}")


def model_of(text: str) -> tuple[ModelSpec, str, str | None]:
    """(model, format that its name states or "", assumption or None). Raises Unsuitable.

    Tried in turn: the name or id as it stands, its part behind the last slash, and that part without the word that
    marks a model for conversation, whose shapes are those of the model it was made from.
    """
    stated = _MODEL_FORMAT.search(text)
    plain = text[: stated.start()] if stated is not None else text
    tail = plain.rpartition("/")[2]
    found = _known(plain) or _known(tail) or _by_tail(tail)
    assumed = None
    base = _ASSISTANT.sub("", tail)
    if found is None:
        found = _known(base) or _by_tail(base)
        assumed = f"{text}: the shapes of {found.name}" if found is not None else None
    if found is None:
        names = [spec.name for spec in list_models()]
        raise Unsuitable(f"model {text or '(not stated)'} is unknown{nearest(tail.lower(), names) if tail else ''}")
    if found.not_modelled:
        raise Unsuitable(f"model {text}: {found.not_modelled}")
    if _BLOCK_SCALED.search(text):
        return found, "fp8_block", assumed
    return found, stated[1].lower() if stated is not None else "", assumed


def _known(name: str) -> ModelSpec | None:
    """A short name or id of the registry."""
    return registered_model(name)


def _by_tail(tail: str) -> ModelSpec | None:
    """The only model whose id ends so."""
    found = [spec for spec in list_models() if spec.hf_id.rpartition("/")[2].lower() == tail.lower()]
    return found[0] if len(found) == 1 else None


# --- number formats
_UNQUANTISED = ("bf16", "bfloat16", "fp16", "float16", "half", "16-bit", "16bit", "none", "unquantised")
_FORMATS = {
    "fp8": "fp8", "w8a8-fp8": "fp8", "float8": "fp8", "fp8_block": "fp8_block", "fp8_static": "fp8",
    "fp8-dynamic": "fp8", "int8": "int8", "w8a8": "int8", "w8a8-int8": "int8", "awq": "awq", "gptq": "gptq",
    "mxfp4": "mxfp4",
}  # fmt: skip
_KV_FORMATS = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"} | dict.fromkeys((*_UNQUANTISED, "auto"), "auto")
_PART = re.compile(r"(\w+)=(\S*)")
_REMARK = re.compile(r"\([^()]*\)")
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

    A remark may stand in brackets. Raises Unsuitable for a format that is not modelled, and for matrix products in
    different ones.
    """
    text = _REMARK.sub(" ", text)
    parts = [(key.lower(), value.lower()) for key, value in _PART.findall(text)]
    named = [value for key, value in parts if key in _WEIGHTS]
    words = [*_PART.sub(" ", text).lower().split(), *(value for value in named if value)]
    words = [word for word in words if word != "auto"]
    caches = {_KV_FORMATS.get(value) for key, value in parts if key in _KV and value}
    weights = {None if word in _UNQUANTISED else _FORMATS.get(word, "") for word in words}
    if weights == {"fp8", "fp8_block"}:  # which says no more of the dense products than `gemm` does
        weights = {_FORMATS.get(dict(parts).get("gemm", ""), "fp8_block")}
    if len(weights) > 1 or "" in weights or len(caches) > 1 or None in caches or _is_unknown(parts):
        raise Unsuitable(f"number format {text.strip()} is not modelled")
    return Formats(next(iter(weights), None), bool(words or named), next(iter(caches), None))


def _is_unknown(parts: list[tuple[str, str]]) -> bool:
    return any(key not in (*_WEIGHTS, *_KV) for key, _ in parts)
