"""A row of a benchmark table as a scenario, by these rules.

What a row states holds; what it leaves out is the base scenario's, else a rule below, and is told as an assumption; a
row that leaves out too much raises `Unsuitable`. Settings given for all rows come last.

- Model, GPU, format and engine: `row_names`. Pipeline, expert and attention data parallelism and prefill apart from
  decoding are not simulated.
- vLLM: its version where stated. Before 0.8 prompts are taken whole and go before decodes, and there is no prefix
  cache; async scheduling is on from 0.14. A fixed batch without a version is one of 2024, as 0.6.
- TensorRT-LLM: 8,192 tokens a step and whole prompts, which are its defaults; its host work is hidden behind the GPU
  (overlap scheduler), so the host terms are 0.
- GPUs are linked by NVLink where they have it; cards with a bridge only in pairs; several nodes as if they were one.
- fp8: the KV cache is in 16 bits, but in fp8 for NVIDIA's own checkpoints.
- `kv_cache_tokens`: so many whole blocks, beside the block that the scheduler keeps as a dummy.
- Requests: `row_load`. What no such GPU can do: `row_limits`.

Imports the scenario's schema and siblings.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from simkit.hardware import load_gpu
from simkit.model_spec import ModelSpec
from simkit.scenario import Scenario, from_labelled
from simkit.validation.row_limits import TOO_FAST, is_impossible
from simkit.validation.row_load import generated_tokens, load_of
from simkit.validation.row_names import (
    PROFILE_OF,
    TRTLLM,
    VLLM,
    EngineName,
    Unsuitable,
    engine_of,
    gpu_of,
    model_of,
    quantization_of,
)
from simkit.validation.rows import Row

CONTEXT_TOKENS = 8192
"""`max_model_len` where the row does not state it, unless its requests are longer or the model allows less."""

CONTEXT_ASSUMED = "max_model_len not stated"
TRTLLM_BUDGET = 8192
BATCH_VERSION = (0, 6)
"""vLLM of 2024, the year of the tables of fixed batches."""

FIRST_CHUNKED = (0, 8)
FIRST_ASYNC = (0, 14)
NO_HOST = {"fixed_us": 0.0, "per_seq_us": 0.0, "first_token_us": 0.0}

BRIDGED = ("a100-pcie-40gb", "a100-pcie-80gb", "h100-pcie-80gb", "rtx-3090", "rtx-a6000")
"""GPUs whose NVLink bridge joins two cards only (their data sheets)."""

_RUNNING = re.compile(r"\bmax logged running\s+(\d{1,9})\b")
_NODES = re.compile(r"\b(?:[2-9]|\d\d) nodes\b")
_APART = {
    "attention data parallelism": re.compile(r"\battention_dp(?:_size)?\s*[=:]\s*(?:[2-9]|\d\d)"),
    "expert parallelism": re.compile(r"\b(?:moe_)?ep(?:_size)?\s*[=:]\s*(?:[2-9]|\d\d)"),
}
_DISAGGREGATED = re.compile(r"disagg|prefill[- ]decode separat|\bp/?d separat", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RowRun:
    """A row that can be simulated. `engine` is family and version, which share their host terms, unless `host_free`:
    then there are none. `concurrency`: clients, batch or requests at once; None at a finite rate. `assumed`: what the
    row left open, in words that are the same for all rows alike.
    """

    row: Row
    scenario: Scenario
    engine: str
    host_free: bool
    concurrency: int | None
    assumed: tuple[str, ...]

    @property
    def logged_running(self) -> int | None:
        """The largest number of running sequences that the engine logged."""
        found = _RUNNING.search(self.row.text("other_config"))
        return int(found[1]) if found is not None else None


def run_of(row: Row, base: Scenario | None = None, sets: tuple[str, ...] = ()) -> RowRun:
    """The simulation of a row. Raises Unsuitable, and InputError for a setting that cannot be."""
    assumed: list[str] = []
    _refuse(row)
    engine = _engine_name(row, assumed)
    model, stated_format, unsure = model_of(row.text("model"))
    gpu, open_gpu = gpu_of(row.text("gpu"))
    assumed += [text for text in (unsure, open_gpu) if text is not None]
    quantization = _format(row.text("dtype_quant"), stated_format, assumed)
    workload, concurrency = load_of(row, assumed)
    latency: dict[str, Any] = {"profile": PROFILE_OF.get(gpu, "auto")}
    if gpu in PROFILE_OF:
        assumed.append(f"{gpu}: the profile of {PROFILE_OF[gpu]}, scaled to its limits")
    if engine.family == TRTLLM:
        latency["host"] = dict(NO_HOST)
        assumed.append("TRT-LLM: host terms 0, hidden by its overlap scheduler")
    own = {} if base is None else base.engine.model_dump(mode="json", exclude_unset=True)
    data: dict[str, Any] = {
        "name": "row",
        "model": model.name,
        "hardware": _hardware(row, gpu, assumed),
        "engine": _engine(row, engine, model, own, assumed),
        "latency": latency,
        "workload": workload,
    }
    if quantization is not None:
        data["engine"].setdefault("quantization", quantization)
    kv_format = _kv_format(row, quantization, assumed)
    if kv_format is not None:
        data["engine"].setdefault("kv_cache_dtype", kv_format)
    if base is not None:
        _take_over(data, base)
    if row.count("tp") is None:
        assumed.append("tensor parallelism not stated: 1 GPU")
    scenario = from_labelled(data, {}, sets)
    if (
        scenario.engine.max_model_len != data["engine"]["max_model_len"]
        or "max_model_len" in own
        or _sets_context(sets)
    ):
        assumed = [text for text in assumed if not text.startswith(CONTEXT_ASSUMED)]
    most = scenario.workload.max_tokens
    if most is not None and most < math.ceil(row.numbers["output_len"]):
        raise Unsuitable("answers longer than workload.max_tokens, which would cut them")
    if scenario.engine.max_model_len is not None and longest_tokens(row) > scenario.engine.max_model_len:
        raise Unsuitable("requests longer than max_model_len")
    if is_impossible(row, model, scenario, whole_answers=generated_tokens(row) is None):
        raise Unsuitable(TOO_FAST)
    if base is not None and base.base_dir is not None:
        scenario = scenario.based_at(base.base_dir)
    return RowRun(row, scenario, engine.label, engine.family == TRTLLM, concurrency, tuple(assumed))


def _format(cell: str, stated_by_model: str, assumed: list[str]) -> str | None:
    """`engine.quantization`, of the cell, else of the model's name."""
    if re.search(r"\b(?:fp16|float16|half)\b", cell, re.IGNORECASE):
        assumed.append("fp16: as bfloat16, which has its size and speed")
    found = quantization_of(cell) or quantization_of(stated_by_model)
    if found == "fp8":
        assumed.append("fp8: by tensor or by block alike")
    return found


def _kv_format(row: Row, quantization: str | None, assumed: list[str]) -> str | None:
    """`engine.kv_cache_dtype`: none is stated. The fp8 checkpoints of NVIDIA ask for it (their `hf_quant_config.json`
    has `kv_cache_quant_algo`), which is what TensorRT-LLM goes by."""
    if quantization != "fp8":
        return None
    own = row.text("model").lower().startswith("nvidia/")
    assumed.append(f"fp8: KV cache in {'fp8, of a checkpoint of NVIDIA' if own else '16 bits'}")
    return "fp8" if own else None


def longest_tokens(row: Row) -> int:
    """Prompt and output of the longest request."""
    return math.ceil(row.numbers["input_len"]) + math.ceil(row.numbers["output_len"])


def _refuse(row: Row) -> None:
    """What is not simulated, and what nothing can be said of."""
    if row.odd:
        raise Unsuitable(f"unreadable: {row.odd[0].partition(': ')[2]}")
    if (row.count("pp") or 1) > 1:
        raise Unsuitable("pipeline parallelism is not simulated")
    if any(_DISAGGREGATED.search(row.text(column)) for column in ("engine", "other_config", "notes")):
        raise Unsuitable("prefill apart from decoding (disaggregated) is not simulated")
    for what, pattern in _APART.items():
        if pattern.search(row.text("other_config")):
            raise Unsuitable(f"{what} is not simulated")
    if "input_len" not in row.numbers or "output_len" not in row.numbers:
        raise Unsuitable("lengths are not stated")
    if not row.measured:
        raise Unsuitable("nothing was measured that simkit predicts")


def _engine_name(row: Row, assumed: list[str]) -> EngineName:
    name = engine_of(row.text("engine"), row.text("engine_version"))
    if name.family == VLLM and name.version is None:
        if row.count("batch_size") is not None and row.count("max_concurrency") is None:
            assumed.append("vLLM without a version, fixed batches: as 0.6, of 2024")
            return EngineName(VLLM, BATCH_VERSION, name.text)
        assumed.append("vLLM without a version: the newest that simkit knows")
    elif name.family != VLLM:
        assumed.append(f"{name.family}: schedules and takes memory as vLLM does, but for what is said of it")
    return name


def _engine(row: Row, name: EngineName, model: ModelSpec, own: dict[str, Any], assumed: list[str]) -> dict[str, Any]:
    """Rules, over them the base scenario, over that what the row states."""
    rules: dict[str, Any] = {"max_model_len": _context(row, model, assumed)}
    if name.family == VLLM and name.version is not None:
        rules["version"] = "{}.{}".format(*name.version)
        rules["async_scheduling"] = name.version >= FIRST_ASYNC
        if name.version < FIRST_CHUNKED:
            rules |= {"enable_chunked_prefill": False, "prefill_first": True, "enable_prefix_caching": False}
            assumed.append("vLLM before 0.8: whole prompts, before decodes")
    if name.family == TRTLLM:
        budget = max(TRTLLM_BUDGET, rules["max_model_len"])
        rules |= {"enable_chunked_prefill": False, "enable_prefix_caching": False, "max_num_batched_tokens": budget}
        assumed.append(f"TRT-LLM: {TRTLLM_BUDGET} tokens a step (more where requests are longer), whole prompts")
    stated = {
        key: value
        for key in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
        if (value := row.count(key)) is not None
    }
    stated |= {f"enable_{flag}": value for flag, value in row.flags.items()}
    engine = rules | own | stated
    tokens = row.count("kv_cache_tokens")
    if tokens is not None:
        engine["num_gpu_blocks"] = tokens // engine.get("block_size", 16) + 1
    whole = not engine.get("enable_chunked_prefill", True)
    if whole and engine.get("max_num_batched_tokens", engine["max_model_len"]) < engine["max_model_len"]:
        raise Unsuitable("a token budget below the context, with whole prompts")
    return engine


def _hardware(row: Row, gpu: str, assumed: list[str]) -> dict[str, Any]:
    """GPU, how many of them, and the link between them."""
    num_gpus = row.count("tp") or 1
    hardware = {"gpu": gpu, "tensor_parallel_size": num_gpus}
    if num_gpus > 1 and (not load_gpu(gpu).nvlink_bytes_per_s or (num_gpus > 2 and gpu in BRIDGED)):
        hardware["interconnect"] = "pcie"
        assumed.append(f"{gpu}: linked by PCIe")
    if _NODES.search(row.text("other_config")):
        assumed.append("several nodes: GPUs linked as within one")
    return hardware


def _context(row: Row, model: ModelSpec, assumed: list[str]) -> int:
    """`max_model_len`: what was asked for, else enough."""
    longest = longest_tokens(row)
    if longest > model.max_position:
        raise Unsuitable(f"requests longer than the context of {model.name}")
    if row.count("max_model_len") is None:
        assumed.append(
            f"{CONTEXT_ASSUMED}: {CONTEXT_TOKENS}, or what requests need, or what the model allows, or the pool holds"
        )
    elif longest > (row.count("max_model_len") or 0):
        raise Unsuitable("requests longer than max_model_len")
    pool = row.count("kv_cache_tokens")
    most = CONTEXT_TOKENS if pool is None else min(CONTEXT_TOKENS, pool)
    return min(model.max_position, max(most, longest))


def _sets_context(sets: tuple[str, ...]) -> bool:
    return any(text.partition("=")[0].strip() == "engine.max_model_len" for text in sets)


def _take_over(data: dict[str, Any], base: Scenario) -> None:
    """What the base scenario says beside its engine and that holds for all rows."""
    given = base.model_dump(mode="json", exclude_unset=True)
    data["seed"] = base.seed
    if "interconnect" in given["hardware"]:
        data["hardware"]["interconnect"] = given["hardware"]["interconnect"]
    for key, value in given.get("latency", {}).items():
        if not (key == "host" and "host" in data["latency"]):
            data["latency"][key] = value
