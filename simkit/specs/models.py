"""The model registry: short names, Hugging Face ids and config files to `ModelSpec`.

The registry is `simkit/data/models.yaml`. Nothing here knows GPUs, memory or time.
"""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from simkit.errors import InputError, nearest
from simkit.specs.hf_config import read_config
from simkit.specs.model_spec import FAMILIES, ModelSpec, complete

__all__ = ["NOT_MODELLED", "ModelSpec", "list_models", "load_model"]

NOT_MODELLED: tuple[str, ...] = (
    "multi-head latent attention (DeepSeek V2, V3, R1 and their kin): listed for memory questions, runs are refused",
    "Mamba, linear attention and hybrids of them with attention (Jamba, Qwen3-Next, Granite 4, Nemotron-H, ...)",
    "encoder-decoder and encoder-only models (T5, BART, Whisper, BERT, ...)",
    "image and audio towers: of a multimodal model only the text part is read (from text_config)",
    "chunked attention (Llama 4), KV shared between layers (Gemma 3n), layers of unequal shape",
    "mixture-of-experts families other than Mixtral, Qwen2-MoE, Qwen3-MoE and gpt-oss",
    "quantised checkpoint configs: give the unquantised model and set engine.quantization",
    "sliding windows: KV memory is counted as if every layer kept the whole context, an upper bound",
    "LoRA adapters, speculative decoding, pipeline and expert parallelism",
)


def load_model(name_or_path: str) -> ModelSpec:
    """The model of a short name or Hugging Face id (any case), else of a config.json or a directory that holds one.

    Raises InputError for a name that is not known (naming the nearest), a missing file, or what is not modelled.
    """
    registry = _registry()
    key = name_or_path.strip().lower()
    if key in registry:
        return registry[key]
    path = Path(name_or_path).expanduser()
    if path.exists():
        return read_config(path)
    if _looks_like_path(name_or_path):
        raise InputError(f"{name_or_path}: file not found", key="model")
    # A bare name is compared with short names, an id with ids: their lengths differ too much to share a list.
    candidates = [name for name in registry if ("/" in name) == ("/" in key)]
    raise InputError(f"{name_or_path!r} is not known{nearest(key, candidates)} (list: simkit models)", key="model")


def list_models() -> list[ModelSpec]:
    """All models of the registry, sorted by name, aliases left out."""
    return sorted({spec.name: spec for spec in _registry().values()}.values(), key=lambda spec: spec.name)


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.endswith(".json") or text.count("/") > 1


@functools.cache
def _registry() -> dict[str, ModelSpec]:
    """Lower-case short name, Hugging Face id or alias to spec. Read once; the values are frozen."""
    text = resources.files("simkit").joinpath("data/models.yaml").read_text(encoding="utf-8")
    registry: dict[str, ModelSpec] = {}
    for name, row in yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)).items():
        aliases = row.pop("aliases", [])
        spec = _build(name, row)
        for key in (name, spec.hf_id, *aliases):
            if key.lower() in registry:
                raise ValueError(f"models.yaml: {key} is listed twice")
            registry[key.lower()] = spec
    return registry


def _build(name: str, row: dict[str, Any]) -> ModelSpec:
    family = FAMILIES[row["family"]]
    values = {"gated_mlp": family.gated_mlp, "tie_word_embeddings": False, "num_params": 0} | row
    return complete(ModelSpec(name=name, **values), family)
