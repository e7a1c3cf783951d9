"""Memory: tokens of KV cache that public start-up logs print, against the rules.

A row of kv_capacity.csv is a start-up (flags, logged GiB of each part, KV tokens), which is read as settings. One that
leaves out what decides memory is completed by an assumption that it carries with it, or says why it cannot be judged.
"""

from __future__ import annotations

import csv
import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from evidence import NO_FIT, Curves, Line, Section, mape, off_pct
from simkit.errors import InputError
from simkit.memory.account import account
from simkit.memory.budget import MemorySettings, default_limits
from simkit.specs.hardware import GpuSpec, load_gpu
from simkit.specs.models import ModelSpec, load_model
from simkit.validation.rows.names import gpu_of, model_of
from simkit.validation.rows.refusals import Unsuitable

TABLE = "data/evidence/kv_capacity.csv"
SOURCE = "public start-up logs (kv_capacity.csv)"
GROUPS = ("V1 since 0.17, TP 1", "V1 since 0.17, TP", "V1 before 0.17", "V0")
LABELS = {"V1 since 0.17, TP": "V1 since 0.17, TP 2 and more"}
Verdicts = list[dict[str, Any]]
"""What is said of each start-up."""

NOT_JUDGED = "not judged"
FITTED = "the memory rules of the version (simkit/data/engine_memory.yaml names the rows each rests on)"


def _lines(shared: Path) -> list[Line]:
    """A line a group of engine versions, one for refusals, one for each reason why rows are not judged."""
    verdicts = _verdicts(shared)
    found = [_group(name, verdicts) for name in GROUPS]
    return [*(line for line in found if line is not None), _refusals(verdicts), *_left_out(verdicts)]


def _curves(shared: Path) -> Curves:
    """Logged and predicted KV tokens of every start-up that prints them, by group."""
    points = {name: _tokens(name, _verdicts(shared)) for name in GROUPS}
    named = {LABELS.get(name, name): [list(point[1:]) for point in found] for name, found in points.items()}
    return {"kv_tokens": named}


@functools.cache
def _verdicts(shared: Path) -> Verdicts:
    return [judge(row) for row in read_evidence(shared / TABLE)]


def _tokens(group: str, verdicts: Verdicts) -> list[tuple[str, float, float]]:
    """(row, logged, predicted) where the start-up printed a pool and neither side refused it."""
    return [
        (verdict["id"], verdict["kv_tokens"]["logged"], float(verdict["kv_tokens"]["predicted"]))
        for verdict in verdicts
        if verdict["group"] == group
        and verdict["kv_tokens"]["logged"]
        and verdict["kv_tokens"]["predicted"]
        and not verdict["refused"]["logged"]
        and not verdict["refused"]["predicted"]
    ]


def _group(group: str, verdicts: Verdicts) -> Line | None:
    found = _tokens(group, verdicts)
    if not found:
        return None
    errors = {row: off_pct(predicted, logged) for row, logged, predicted in found}
    worst = max(errors, key=lambda row: abs(errors[row]))
    in_group = sum(verdict["group"] == group for verdict in verdicts)
    return Line(
        evidence=f"KV tokens, {LABELS.get(group, group)}",
        source=SOURCE,
        n=len(found),
        metric="KV tokens, MAPE",
        error_pct=mape(errors.values()),
        fitted=FITTED,
        text=f"median {median(abs(error) for error in errors.values()):.2f} %, bias {fmean(errors.values()):+.2f} %",
        note=f"worst: {worst} {errors[worst]:+.1f} %; {in_group - len(found)} further rows print no pool or refuse",
    )


def _refusals(verdicts: Verdicts) -> Line:
    told = [(bool(v["refused"]["logged"]), bool(v["refused"]["predicted"])) for v in verdicts if "refused" in v]
    wrong = sum(logged != predicted for logged, predicted in told)
    return Line(
        evidence="starts or is refused",
        source=SOURCE,
        n=len(told),
        metric="start-ups told wrongly",
        error_pct=100.0 * wrong / len(told),
        fitted="none",
        rests_on=NO_FIT,
        text=f"{wrong} of {len(told)} wrong",
        note=f"{sum(logged for logged, _ in told)} of them were refused",
    )


def _left_out(verdicts: Verdicts) -> list[Line]:
    why: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict["group"] == NOT_JUDGED:
            why[_reason(str(verdict["why_not"]))] += 1
    return [
        Line(evidence="start-ups not judged", source=SOURCE, n=count, metric="rows", judged=False, text=reason)
        for reason, count in sorted(why.items())
    ]


def _reason(text: str) -> str:
    """The first clause of a message, without the list of everything that is known."""
    return text.split(";")[0]


MEMORY = Section("Memory", _lines, curves=_curves, needs=(TABLE,))


# --- start-up logs as settings ----------------------------------------------------------------------------------------

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
