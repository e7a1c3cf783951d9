"""Public start-up logs read as settings, so that the memory rules can be held against them.

Reads a file in the form of kv_capacity.csv (a row a start-up: flags, logged GiB of each part, KV tokens). A row that
leaves out what decides memory is completed by an assumption that it carries with it, or says why it cannot be judged.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simkit.errors import InputError
from simkit.memory.account import account
from simkit.memory.budget import MemorySettings, default_limits
from simkit.specs.hardware import GpuSpec, load_gpu
from simkit.specs.models import ModelSpec, load_model
from simkit.validation.rows.names import gpu_of, model_of
from simkit.validation.rows.refusals import Unsuitable

# Names in the logs that benchmarks do not use.
_MODELS = {
    "neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8": "llama-3.1-70b",
    "Qwen/Qwen2.5-7B-Instruct (4-bit)": "qwen2.5-7b",
    "QAnything Qwen-7B": "qwen-7b",
    "Yi-34B AWQ": "yi-34b",
}
# The same of GPUs, by the beginning of the name; with a memory in GiB, a GPU that the registry does not have.
_GPUS = {
    "RTX 4060": ("rtx-4090", 8.0),
    "RTX 3050": ("rtx-3090", 6.0),
    "A10 24GB": ("a10g-24gb", None),
    "80GB class": ("a100-sxm4-80gb", None),
    "24GB class": ("rtx-3090", None),
    "~40-48GB class": ("l40s-48gb", None),
}
_QUANTIZATIONS = {
    "int8 w8a8": "int8", "fp8": "fp8", "runtime fp8": "fp8", "int4": "awq", "bnb int4": "awq", "int4 w4a16": "gptq",
}  # fmt: skip
_DTYPES = {"fp16": "float16", "fp32": "float32"}
_REFUSED = ("refused", "failed:", "no KV room")


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One logged start-up. `settings` None: `why_not` says why nothing can be predicted. GiB are of one GPU.

    `assumed` names what the log leaves out. `logged` holds the numbers of the row, by column.
    """

    id: str
    settings: MemorySettings | None
    why_not: str
    assumed: tuple[str, ...]
    logged: Mapping[str, float]
    quality: str
    v1: bool
    lora: bool
    refused: bool

    @property
    def started(self) -> bool:
        """Whether the log shows a pool and no refusal."""
        return not self.refused and self.logged.get("kv_tokens", 0) > 0


def read_evidence(path: Path) -> list[EvidenceRow]:
    """All rows of the file, in its order. OSError passes through."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_read_row(row) for row in csv.DictReader(file)]


def judge(row: EvidenceRow) -> dict[str, Any]:
    """What the log says beside what the rules say, GiB of one GPU; None where either says nothing.

    `group` is "V1 since 0.17, TP 1", "V1 since 0.17, TP", "V1 before 0.17", "V0" or "not judged".
    """
    settings = row.settings
    if settings is None:
        return {"id": row.id, "group": "not judged", "why_not": row.why_not}
    found = account(settings).to_json()
    columns = {
        "weights_gib": "weights_gib", "activation_gib": "act_gib", "non_torch_gib": "nontorch_gib", "kv_gib": "kv_gib",
        "kv_tokens": "kv_tokens",
    }  # fmt: skip
    numbers = {key: {"logged": row.logged.get(column), "predicted": found[key]} for key, column in columns.items()}
    if not row.v1:
        group = "V0"
    elif settings.version < (0, 17, 0):
        group = "V1 before 0.17"
    else:
        group = "V1 since 0.17, TP 1" if settings.tensor_parallel_size == 1 else "V1 since 0.17, TP"
    return {
        "id": row.id,
        "group": group,
        "assumed": list(row.assumed),
        **numbers,
        "refused": {"logged": row.refused, "predicted": found["refusal"]},
    }


def _read_row(row: Mapping[str, str]) -> EvidenceRow:
    assumed: list[str] = []
    why_not, settings = "", None
    try:
        settings = _settings(row, assumed)
    except InputError as error:
        why_not = str(error)
    numbers = ("gpu_mem_gib", "gmu", "weights_gib", "nontorch_gib", "act_gib", "cudagraph_gib", "kv_gib",
               "kv_tokens", "kv_blocks", "conc_x", "max_model_len")  # fmt: skip
    return EvidenceRow(
        id=row["id"],
        settings=settings,
        why_not=why_not,
        assumed=tuple(assumed),
        logged={name: float(row[name]) for name in numbers if row[name]},
        quality=row["quality"],
        v1="V1" in row["engine"],
        lora="LoRA" in row["dtype_quant"],
        refused=row["quality"] == "error text" or any(word in row["notes"] for word in _REFUSED),
    )


def _settings(row: Mapping[str, str], assumed: list[str]) -> MemorySettings:
    if "SGLang" in row["engine"]:
        raise InputError("another engine, whose memory flag means something else")
    if "pre-MLA" in row["engine"]:
        raise InputError("an engine that kept full keys and values of a model with a latent cache")
    model = _model(row["model"])
    gpu = _gpu(row, assumed)
    version = _version(row["engine"], assumed)
    length = int(row["max_model_len"] or model.max_position)
    budget, seqs = default_limits(gpu, version, length)
    if not row["gmu"]:
        assumed.append("gpu_memory_utilization 0.9")
    if row["block_size"] == "":
        assumed.append("block_size 16")
    return MemorySettings(
        model=_long_enough(model, length),
        gpu=gpu,
        max_num_seqs=int(row["max_num_seqs"] or seqs),
        max_num_batched_tokens=int(row["max_num_batched_tokens"] or budget),
        max_model_len=length,
        tensor_parallel_size=int(row["tp"]),
        pipeline_parallel_size=int(row["pp"]),
        gpu_memory_utilization=float(row["gmu"] or 0.9),
        block_size=int(row["block_size"] or 16),
        dtype=_DTYPES.get(row["dtype_quant"], "bfloat16"),
        kv_cache_dtype=row["kv_dtype"],
        quantization=_QUANTIZATIONS.get(row["dtype_quant"]),
        engine_version=version,
        enforce_eager=row["eager"] == "1",
    )


def _long_enough(model: ModelSpec, length: int) -> ModelSpec:
    """The logs stretch contexts; memory does not care."""
    return replace(model, max_position=max(model.max_position, length))


def _model(text: str) -> ModelSpec:
    try:
        return model_of(_MODELS.get(text, text))[0]
    except Unsuitable:
        return load_model(text)  # which says what is wrong


def _gpu(row: Mapping[str, str], assumed: list[str]) -> GpuSpec:
    name, memory_gib = next((ours for text, ours in _GPUS.items() if row["gpu"].startswith(text)), ("", None))
    try:
        gpu = load_gpu(name or gpu_of(row["gpu"].removesuffix(" (not stated)"))[0])
    except Unsuitable:
        raise InputError(f"GPU {row['gpu']!r}: neither its kind nor its memory is stated") from None
    stated = row["gpu_mem_gib"]
    if stated and (memory_gib is not None or not float(stated).is_integer()):
        return replace(gpu, memory_gib=float(stated))
    # A whole number is what the box says; the engine is given less.
    gpu = gpu if memory_gib is None else replace(gpu, memory_gib=memory_gib)
    assumed.append(f"{gpu.memory_gib:g} GiB of GPU memory")
    return gpu


def _version(engine: str, assumed: list[str]) -> str:
    found = re.search(r"\d+\.\d+(?:\.\d+)*", engine)
    if found is not None:
        return found[0]
    version = "0.2.0" if "2023" in engine else "0.19"
    assumed.append(f"engine version {version}")
    return version
