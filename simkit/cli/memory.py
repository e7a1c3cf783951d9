"""The `memory` command: parses vLLM's flags or a scenario, sizes the start-up, prints and writes. Owns its options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simkit.cli import console
from simkit.cli.studies import File, Json, Quiet, Sets
from simkit.errors import CheckError, InputError

if TYPE_CHECKING:
    from simkit.scenario import Scenario

# vLLM's flags and the scenario keys that they stand for.
_KEYS = {
    "--model": ("model",),
    "--gpu": ("hardware", "gpu"),
    "--tensor-parallel-size": ("hardware", "tensor_parallel_size"),
    "--gpu-memory-utilization": ("engine", "gpu_memory_utilization"),
    "--max-model-len": ("engine", "max_model_len"),
    "--max-num-seqs": ("engine", "max_num_seqs"),
    "--max-num-batched-tokens": ("engine", "max_num_batched_tokens"),
    "--block-size": ("engine", "block_size"),
    "--dtype": ("engine", "dtype"),
    "--kv-cache-dtype": ("engine", "kv_cache_dtype"),
    "--quantization": ("engine", "quantization"),
    "--engine-version": ("engine", "version"),
}
_DTYPES = {"auto": "bfloat16", "half": "float16", "float": "float32"}
_QUANTIZATIONS = {"none": None, "w8a8": "int8", "int4": "gptq", "w4a16": "gptq"}
# Any workload will do where only memory is asked for; lengths come from flags of their own.
_WORKLOAD = {
    "arrivals": {"process": "all_at_once"},
    "prompt_tokens": {"dist": "fixed", "value": 1},
    "output_tokens": {"dist": "fixed", "value": 1},
}


def _flag(name: str, text: str) -> Any:
    return typer.Option(name, help=text)


def memory(
    scenario: File = None,
    model: Annotated[str | None, _flag("--model", "Instead of a file: model name.")] = None,
    gpu: Annotated[str | None, _flag("--gpu", "Instead of a file: GPU name.")] = None,
    tensor_parallel_size: Annotated[int | None, _flag("--tensor-parallel-size", "GPUs that share a layer.")] = None,
    pipeline_parallel_size: Annotated[
        int, _flag("--pipeline-parallel-size", "Stages of layers; sized here only, runs have one.")
    ] = 1,
    gpu_memory_utilization: Annotated[
        float | None, _flag("--gpu-memory-utilization", "Share of a GPU to ask for (default 0.92).")
    ] = None,
    max_model_len: Annotated[int | None, _flag("--max-model-len", "Default: the model's longest context.")] = None,
    max_num_seqs: Annotated[int | None, _flag("--max-num-seqs", "Default: by GPU class.")] = None,
    max_num_batched_tokens: Annotated[int | None, _flag("--max-num-batched-tokens", "Default: by GPU class.")] = None,
    block_size: Annotated[int | None, _flag("--block-size", "Tokens of a KV block (default 16).")] = None,
    dtype: Annotated[str | None, _flag("--dtype", "auto (bfloat16), bfloat16, float16, half, float32.")] = None,
    kv_cache_dtype: Annotated[str | None, _flag("--kv-cache-dtype", "auto, fp8, ... (default auto).")] = None,
    quantization: Annotated[
        str | None, _flag("--quantization", "fp8, int8, awq, gptq (also w4a16), mxfp4 (default none).")
    ] = None,
    engine_version: Annotated[str | None, _flag("--engine-version", "vLLM's (default 0.33).")] = None,
    enforce_eager: Annotated[bool, _flag("--enforce-eager", "Capture no CUDA graphs.")] = False,
    activation_gib: Annotated[
        float | None, _flag("--activation-gib", "Activation peak that you measured, in place of the table.")
    ] = None,
    mean_tokens: Annotated[
        float | None, _flag("--mean-tokens", "Without a file: mean length of a request, prompt and answer.")
    ] = None,
    p95_tokens: Annotated[float | None, _flag("--p95-tokens", "Without a file: its 95th percentile.")] = None,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write memory.json and a picture (default: print only).")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Size the start-up: where every GiB goes, how many sequences fit, and what the engine would refuse."""
    values = (
        model, gpu, tensor_parallel_size, gpu_memory_utilization, max_model_len, max_num_seqs, max_num_batched_tokens,
        block_size, dtype, kv_cache_dtype, quantization, engine_version,
    )  # fmt: skip
    flags = {name: value for name, value in zip(_KEYS, values, strict=True) if value is not None}
    lengths = _lengths({"--mean-tokens": mean_tokens, "--p95-tokens": p95_tokens})
    chosen = _from_flags(flags, sets or []) if scenario is None else _from_file(scenario, [*flags, *lengths], sets)
    from simkit.studies.memory import scenario_account

    out_dir = _out_dir(out)
    found = scenario_account(
        chosen,
        pipeline_parallel_size=_at_least_one("--pipeline-parallel-size", pipeline_parallel_size),
        enforce_eager=enforce_eager,
        activation_gib=_activation(activation_gib),
        lengths=None if scenario is not None else {name[2:].split("-")[0]: value for name, value in lengths.items()},
        simulated=scenario is not None,
    )
    if out_dir is not None:
        from simkit.api import write_memory
        from simkit.runs.directory import unwritable

        try:
            written = write_memory(found.to_json(), out_dir, overwrite=True)
        except OSError as error:
            raise unwritable(f"--out {out}", error) from None
        if not quiet:
            console.say(f"wrote {written}; open {written / 'memory.svg'}")
    _print(found.to_json(), json)
    if found.refusal is not None:
        raise CheckError(f"start-up refused: {found.refusal}")


def _print(found: dict[str, Any], json: bool) -> None:
    if json:
        from simkit.plain import canonical_json

        console.out_bytes(canonical_json(found))
        return
    from simkit.report.sections.memory import memory_tables

    console.out(*memory_tables(found, console.width()))


def _from_file(path: Path, given: list[str], sets: list[str] | None) -> Scenario:
    from simkit.scenario import load

    if given:
        raise InputError(f"{given[0]}: expected a scenario file or flags, got both; use --set with a file")
    return load(path, sets or [])


def _from_flags(flags: dict[str, Any], sets: list[str]) -> Scenario:
    from simkit.scenario import from_labelled

    missing = [name for name in ("--model", "--gpu") if name not in flags]
    if missing:
        more = "; `simkit init` prints a scenario" if len(missing) == 2 else ""
        raise InputError(
            f"memory: {' and '.join(missing)} missing; expected a scenario file or --model and --gpu{more}"
        )
    for text in sets:
        if text.strip().startswith("workload"):
            raise InputError(f"--set {text.partition('=')[0]}: expected --mean-tokens and --p95-tokens without a file")
    data: dict[str, Any] = {"name": "memory", "hardware": {}, "engine": {}, "workload": _WORKLOAD}
    for name, value in flags.items():
        *section, key = _KEYS[name]
        (data[section[0]] if section else data)[key] = _vllm_name(name, value)
    return from_labelled(data, {key: flag for flag, key in _KEYS.items()}, sets)


def _vllm_name(flag: str, value: Any) -> Any:
    """The scenario's word for a value that vLLM calls otherwise."""
    if flag == "--dtype":
        return _DTYPES.get(value.lower(), value)
    if flag == "--quantization":
        return _QUANTIZATIONS.get(value.lower(), value)
    return value


def _lengths(given: dict[str, float | None]) -> dict[str, float]:
    lengths = {name: value for name, value in given.items() if value is not None}
    for name, value in lengths.items():
        if not 1 <= value <= 1e9:
            raise InputError(f"{name}: expected a number of tokens from 1 to 1e9, got {value:g}")
    return lengths


def _at_least_one(flag: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{flag}: expected an integer >= 1, got {value}")
    return value


def _activation(gib: float | None) -> float | None:
    if gib is not None and not (0 <= gib <= 1e6 and math.isfinite(gib)):
        raise InputError(f"--activation-gib: expected GiB >= 0 (and <= 1e6), got {gib:g}")
    return gib


def _out_dir(out: Path | None) -> Path | None:
    from simkit.runs import directory

    return None if out is None else directory.choose(out, "memory")[0]
