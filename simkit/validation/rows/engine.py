"""The engine of a row of a benchmark table: its name, its own rules and what the row says."""

from __future__ import annotations

import re
from dataclasses import replace

from simkit.scenario.engine import Engine
from simkit.scenario.yaml import parse_set
from simkit.specs.dtypes import BLOCK_SCALED, computed_in
from simkit.specs.model_spec import ModelSpec
from simkit.validation.rows.names import SGLANG, TRTLLM, VLLM, EngineName, engine_of, formats_of
from simkit.validation.rows.read import SETTINGS, Row, Section
from simkit.validation.rows.refusals import Assumptions, Unsuitable

WHOLE_PROMPTS_BUDGET = 8192
"""Tokens of a step of TensorRT-LLM (`max_num_tokens`) and of a prefill of SGLang (`--chunked-prefill-size` of GPUs with
80 GB and more)."""

OF_2024 = {VLLM: (0, 6), TRTLLM: (0, 14)}
"""Engines of 2024, the year of the tables of fixed batches."""

BLOCK_SIZE: int = Engine.model_fields["block_size"].default
FIRST_CHUNKED = (0, 8)
FIRST_ASYNC = (0, 14)

_LATER = re.compile(r"\bV1\b|\b20(?:2[5-9]|[3-9]\d)\b")
"""What vLLM of 2024 is not called."""


def name_of(row: Row, known: Section, assumed: Assumptions) -> EngineName:
    """The engine, of the version that is `known`: settings that the base scenario, the row, or all rows are given."""
    name = engine_of(row.text("engine"), row.text("engine_version"))
    if name.family != VLLM:
        assumed.add(f"{name.family}: schedules and takes memory as vLLM does, but for what is said of it")
        if name.version is None and name.family in OF_2024 and _is_of_2024(row):
            assumed.add(
                f"{name.family} without a version, of 2024: as {OF_2024[name.family][0]}.{OF_2024[name.family][1]}"
            )
            return replace(name, version=OF_2024[name.family])
        return name
    if known.get("version") is not None:
        return replace(engine_of(f"vLLM {known['version']}"), text=name.text)
    if _is_of_2024(row):
        assumed.add("vLLM without a version, fixed batches: as 0.6, of 2024")
        return EngineName(VLLM, OF_2024[VLLM], name.text)
    assumed.add("vLLM without a version: the newest that simkit knows")
    return name


def takes_whole_prompts(name: EngineName, known: Section) -> bool:
    """Whether prompts are not cut."""
    chunked = known.get("enable_chunked_prefill")
    if isinstance(chunked, bool):
        return not chunked
    return name.family in (TRTLLM, SGLANG) or _is_early(name)


def rules(name: EngineName, context_tokens: int, known: Section, assumed: Assumptions) -> Section:
    """What an engine does unless it is told otherwise."""
    found: Section = {"max_model_len": context_tokens}
    if name.family == VLLM and name.version is not None:
        found |= {"version": "{}.{}".format(*name.version), "async_scheduling": name.version >= FIRST_ASYNC}
    if _is_early(name):
        whole = takes_whole_prompts(name, known)
        found |= {"enable_chunked_prefill": False, "enable_prefix_caching": False, "prefill_first": whole}
        assumed.add("vLLM before 0.8: whole prompts, before decodes", "engine.enable_chunked_prefill")
    if name.family != VLLM:
        prompts_first = name.family == SGLANG
        budget = max(WHOLE_PROMPTS_BUDGET, context_tokens)
        found |= {"enable_chunked_prefill": False, "enable_prefix_caching": False, "max_num_batched_tokens": budget}
        if name.family == TRTLLM:
            found["capacity_scheduler_policy"] = "guaranteed_no_evict"
        text = f"{name.family}: {WHOLE_PROMPTS_BUDGET} tokens a step (more where requests are longer)"
        assumed.add(text, "engine.max_num_batched_tokens")
        text = f"{name.family}: whole prompts{', before decodes' if prompts_first else ''}"
        assumed.add(text, "engine.enable_chunked_prefill")
        if prompts_first:
            found["prefill_first"] = takes_whole_prompts(name, known)
    return found


_FOUR_BITS = re.compile(r"\b(?:nv|mx)?fp4\b", re.IGNORECASE)


def stated(row: Row, model: ModelSpec, by_model: str, assumed: Assumptions) -> Section:
    """What the row says; `by_model` is the number format in the model's name, empty for none.

    A model that is published in one format of 4 bits alone has that one, whatever a table calls it: the tools that
    call it nvfp4 have no other word. So has one of fp8 with scales by block.
    """
    found: Section = {key: row.count(key) for key in SETTINGS if row.count(key) is not None}
    found |= {f"enable_{flag}": value for flag, value in row.flags.items()}
    name = engine_of(row.text("engine"), row.text("engine_version"))
    if name.family == VLLM and name.version is not None:
        found["version"] = "{}.{}".format(*name.version)
    cell, published = row.text("dtype_quant"), model.quantization
    if published == "mxfp4" and _FOUR_BITS.search(cell):
        if "nvfp4" in cell.lower():
            assumed.add("nvfp4 of a model that is published in mxfp4 alone: mxfp4")
        cell = _FOUR_BITS.sub("mxfp4", cell)
    format_, of_model = formats_of(cell), formats_of(by_model)
    both = (format_.weights, of_model.weights)
    if format_.is_stated and of_model.is_stated and len({computed_in(weights) for weights in both}) > 1:
        raise Unsuitable(f"number format {cell or '16 bits'} of a model that is called {by_model}")
    if re.search(r"\b(?:fp16|float16|half)\b", cell, re.IGNORECASE):
        assumed.add("fp16: as bfloat16, which has its size and speed", "engine.dtype", "engine.quantization")
    if format_.is_stated or of_model.is_stated:
        found["quantization"] = next((one for one in both if one in BLOCK_SCALED), both[0] or both[1])
        if found["quantization"] is not None and BLOCK_SCALED.get(published or "") == found["quantization"]:
            found["quantization"] = published
    if format_.kv is not None:
        found["kv_cache_dtype"] = format_.kv
    return found


def _is_of_2024(row: Row) -> bool:
    """Whether a row without a version is of a table of fixed batches of 2024."""
    is_batch = row.count("batch_size") is not None and row.count("max_concurrency") is None
    return is_batch and not _LATER.search(row.text("engine"))


def cached(share: float, known: Section) -> Section:
    """The prefix cache that a row needs whose prompts were in it before; Unsuitable where there is known to be none."""
    if not share:
        return {}
    if known.get("enable_prefix_caching") is False:
        raise Unsuitable("prompts that were cached before, without a prefix cache")
    return {"enable_prefix_caching": True}


def keeping_host(sets: tuple[str, ...], latency: Section) -> tuple[str, ...]:
    """`sets` in which a whole `latency.host` leaves the host terms to the engine of the row, unless it names one."""
    own = latency.get("host")
    if not isinstance(own, dict):
        return sets
    found: list[str] = []
    for text in sets:
        key, value = parse_set(text)
        found.append(text)
        if key == "latency.host" and (value is None or (isinstance(value, dict) and "engine" not in value)):
            found.append(f"latency.host.engine={own['engine']}")
    return tuple(found)


def kv_rule(row: Row, name: EngineName, known: Section, assumed: Assumptions) -> Section:
    """The fp8 checkpoints of NVIDIA ask for a KV cache in fp8 (`kv_cache_quant_algo` in their `hf_quant_config.json`),
    and TensorRT-LLM goes by that: with scales for whole tensors it serves no others. Others say nothing."""
    if known.get("quantization") not in ("fp8", "fp8_block"):
        return {}
    by_tensor = known["quantization"] == "fp8"
    if by_tensor:
        assumed.add("fp8: one scale a tensor, not by block", "engine.quantization")
    is_asked = row.text("model").lower().startswith("nvidia/") or (name.family == TRTLLM and by_tensor)
    where = "fp8, of a checkpoint of NVIDIA" if is_asked else "16 bits"
    assumed.add(f"fp8: KV cache in {where}", "engine.kv_cache_dtype")
    return {"kv_cache_dtype": "fp8"} if is_asked else {}


def blocks(row: Row, known: Section) -> Section:
    """The pool that the row states, in whole blocks, beside the one that the scheduler keeps as a dummy."""
    tokens = row.count("kv_cache_tokens")
    return {} if tokens is None else {"num_gpu_blocks": tokens // block_size(known) + 1}


def pool_tokens(known: Section) -> int | None:
    """What the pool holds, where its size is known."""
    num_blocks = known.get("num_gpu_blocks")
    return (num_blocks - 1) * block_size(known) if isinstance(num_blocks, int) else None


def block_size(known: Section) -> int:
    """Tokens of a block; of a size that is none, the usual one: it is refused with the scenario."""
    size = known.get("block_size", BLOCK_SIZE)
    return size if isinstance(size, int) and size > 0 else BLOCK_SIZE


def _is_early(name: EngineName) -> bool:
    return name.family == VLLM and name.version is not None and name.version < FIRST_CHUNKED
