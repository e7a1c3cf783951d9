"""What a model is called: names of the registry and of its variants, ids of the hub, config files to `ModelSpec`.

The registry is `simkit/data/models.yaml`. Nothing here knows GPUs, memory or time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from simkit.errors import InputError, nearest
from simkit.specs import hub, names
from simkit.specs.checkpoint import stated
from simkit.specs.hf_config import read_config
from simkit.specs.model_spec import FAMILIES, Latent, ModelSpec, complete

__all__ = ["NOT_MODELLED", "ModelSpec", "known_model", "list_models", "load_model", "registered_model"]

NOT_MODELLED: tuple[str, ...] = (
    "sparse attention over latents (DeepSeek V3.2, GLM-5)",
    "Mamba, linear attention and hybrids of them with attention (Jamba, Granite 4, ...); Qwen3-Next has its memory",
    "encoder-decoder and encoder-only models (T5, BART, Whisper, BERT, ...)",
    "image and audio towers: of a multimodal model only the text part is read (from text_config)",
    "chunked attention (Llama 4): priced as a sliding window of the same length, an upper bound",
    "KV shared between layers (Gemma 3n), layers of unequal shape, the layers that predict tokens ahead (MTP)",
    "mixture-of-experts families other than Mixtral, Qwen2/3-MoE, DeepSeek, GLM-4.5, MiniMax-M2, Llama 4 and gpt-oss",
    "checkpoints of several formats, with sparse weights, or by GGUF, EXL2, HQQ, AQLM and Quark",
    "sliding windows in runs: blocks are counted in one table, to hold as many sequences of the workload's lengths",
    "LoRA adapters, speculative decoding, pipeline parallelism, data parallel attention",
)


def load_model(name_or_path: str) -> ModelSpec:
    """The model of a name, or of a config.json or a directory that holds one.

    A name is, in turn: one of the registry in any case; what re-uploads, tuned and quantised variants of one are called
    (`names`); an id of the hub whose config is in the cache of this machine, or that the hub shows. Raises InputError
    for a name that is none of them (naming the nearest), a missing file, or what is not modelled.
    """
    known = known_model(name_or_path)
    if known is not None:
        return known
    path = Path(name_or_path).expanduser()
    if path.exists():
        return read_config(path)
    if _looks_like_path(name_or_path):
        raise InputError(f"{name_or_path}: file not found", key="model")
    return _of_hub(name_or_path.strip())


def registered_model(name: str) -> ModelSpec | None:
    """The model of a name or id of the registry, in any case; None for others."""
    return _registry().get(name.strip().lower())


def known_model(name: str) -> ModelSpec | None:
    """The model of a name of the registry, or that was made from one; None for others. Reads no other file."""
    registered, key = registered_model(name), name.strip().lower()
    if registered is not None:
        return registered
    if Path(name).expanduser().exists() or _looks_like_path(name):
        return None
    tails = _tails()
    reading = names.read(key, tails)
    return None if reading is None else _variant(name.strip(), tails[reading.base], reading.quantization)


def _variant(name: str, base: ModelSpec, says: str | None) -> ModelSpec:
    """A known model under another name, with the format that its name says, else that of the known one."""
    quantization = base.quantization if says is None else stated(says)
    by_block = base.name.startswith("qwen3") and name.lower().startswith(("qwen/", "qwen3"))
    if says == "fp8" and (base.quantization == "fp8_block" or (by_block and names.tail_of(name).endswith("-fp8"))):
        quantization = "fp8_block"
    weights = f"{quantization} weights" if quantization else "16-bit weights"
    return replace(
        base,
        hf_id=name if "/" in name else base.hf_id,
        quantization=quantization,
        read_as=f"model {name}: read as {base.name} with {weights}",
    )


def _of_hub(name: str) -> ModelSpec:
    """The model of an id that the registry has nothing of."""
    if not hub.is_id(name):
        raise _unknown(name, "")
    cached = hub.cached_config(name)
    if cached is None:
        try:
            cached = hub.fetched_config(name)
        except hub.NoConfig as reason:
            raise _unknown(name, f"; {reason}, or give the path of its config.json") from None
    spec = read_config(cached, hf_id=name)
    weights = f"{spec.quantization} weights" if spec.quantization else "16-bit weights"
    return replace(spec, read_as=f"model {name}: read from its config.json, with {weights}")


def _unknown(name: str, advice: str) -> InputError:
    candidates = {names.tail_of(key) for key in _registry()}
    hint = nearest(names.stem(name), candidates)
    return InputError(f"{name!r} is not known{hint}{advice} (list: simkit models)", key="model")


def list_models() -> list[ModelSpec]:
    """All models of the registry, sorted by name, aliases left out."""
    return sorted({spec.name: spec for spec in _registry().values()}.values(), key=lambda spec: spec.name)


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.endswith(".json") or text.count("/") > 1


@functools.cache
def _tails() -> dict[str, ModelSpec]:
    """The names of the registry without their owners, as `names` spells them."""
    return {names.tail_of(key): spec for key, spec in _registry().items()}


@functools.cache
def _registry() -> dict[str, ModelSpec]:
    """Lower-case short name, Hugging Face id or alias to spec. Read once; the values are frozen."""
    text = resources.files("simkit").joinpath("data/models.yaml").read_text(encoding="utf-8")
    registry: dict[str, ModelSpec] = {}
    rows = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for name in rows:
        row = _whole(rows, name)
        aliases = row.pop("aliases", [])
        spec = _build(name, row)
        for key in (name, spec.hf_id, *aliases):
            if key.lower() in registry:
                raise ValueError(f"models.yaml: {key} is listed twice")
            registry[key.lower()] = spec
    return registry


def _whole(rows: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """A row with the values of the one that it is `like`, whose aliases are its own."""
    own = dict(rows[name])
    like = own.pop("like", None)
    if like is None:
        return own
    return {key: value for key, value in _whole(rows, like).items() if key != "aliases"} | own


def _build(name: str, row: dict[str, Any]) -> ModelSpec:
    family = FAMILIES[row["family"]]
    values = {"gated_mlp": family.gated_mlp, "tie_word_embeddings": False, "num_params": 0} | row
    if "latent" in values:
        values["latent"] = Latent(**values["latent"])
    return complete(ModelSpec(name=name, **values), family)
