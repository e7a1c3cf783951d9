"""The `memory` command: parses vLLM's flags or a scenario, sizes the start-up, prints and writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simkit.cli import console, output
from simkit.cli.options import File, Printing, Sets, flag_of, given, option
from simkit.errors import CheckError, InputError

if TYPE_CHECKING:
    from simkit.scenario import Scenario

# vLLM's flags and the scenario keys that they stand for.
_KEYS = {
    "model": ("model",),
    "gpu": ("hardware", "gpu"),
    "tensor_parallel_size": ("hardware", "tensor_parallel_size"),
    "gpu_memory_utilization": ("engine", "gpu_memory_utilization"),
    "max_model_len": ("engine", "max_model_len"),
    "max_num_seqs": ("engine", "max_num_seqs"),
    "max_num_batched_tokens": ("engine", "max_num_batched_tokens"),
    "block_size": ("engine", "block_size"),
    "dtype": ("engine", "dtype"),
    "kv_cache_dtype": ("engine", "kv_cache_dtype"),
    "quantization": ("engine", "quantization"),
    "engine_version": ("engine", "version"),
}
_DTYPES = {"auto": "bfloat16", "half": "float16", "float": "float32"}
# Any workload will do where only memory is asked for; lengths come from flags of their own.
_WORKLOAD = {
    "arrivals": {"process": "all_at_once"},
    "prompt_tokens": {"dist": "fixed", "value": 1},
    "output_tokens": {"dist": "fixed", "value": 1},
}


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """vLLM's flags, in place of a scenario; stages and eager execution may stand beside one."""

    model: str | None = given("--model", "Instead of a file: model name.")
    gpu: str | None = given("--gpu", "Instead of a file: GPU name.")
    tensor_parallel_size: int | None = given("--tensor-parallel-size", "GPUs that share a layer.")
    pipeline_parallel_size: int = given(
        "--pipeline-parallel-size", "Stages of layers; sized here only, runs have one.", default=1
    )
    gpu_memory_utilization: float | None = given(
        "--gpu-memory-utilization", "Share of a GPU to ask for (default 0.92)."
    )
    max_model_len: int | None = given("--max-model-len", "Default: the model's longest context.")
    max_num_seqs: int | None = given("--max-num-seqs", "Default: by GPU class.")
    max_num_batched_tokens: int | None = given("--max-num-batched-tokens", "Default: by GPU class.")
    block_size: int | None = given("--block-size", "Tokens of a KV block (default 16).")
    dtype: str | None = given("--dtype", "auto (bfloat16), bfloat16, float16, half, float32.")
    kv_cache_dtype: str | None = given("--kv-cache-dtype", "auto, fp8, ... (default auto).")
    quantization: str | None = given(
        "--quantization", "fp8, fp8_block, int8, awq, gptq (also w4a16), mxfp4, nvfp4, ... (default: as published)."
    )
    engine_version: str | None = given("--engine-version", "vLLM's (default 0.33).")
    enforce_eager: bool = given("--enforce-eager", "Capture no CUDA graphs.", default=False)

    @property
    def given(self) -> dict[str, Any]:
        """Flags that a scenario has a key for, by name."""
        return {name: value for name in _KEYS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class LengthOptions:
    """Lengths of requests where there is no scenario to draw them from."""

    mean_tokens: float | None = given("--mean-tokens", "Without a file: mean length of a request, prompt and answer.")
    p95_tokens: float | None = given("--p95-tokens", "Without a file: its 95th percentile.")

    @property
    def given(self) -> dict[str, float]:
        """By statistic. Raises InputError for what is no length."""
        lengths = {"mean": self.mean_tokens, "p95": self.p95_tokens}
        for stat, value in lengths.items():
            if value is not None and not 1 <= value <= 1e9:
                raise InputError(f"--{stat}-tokens: expected a number of tokens from 1 to 1e9, got {value:g}")
        return {stat: value for stat, value in lengths.items() if value is not None}


def memory(
    *,
    scenario: File = None,
    engine: EngineFlags,
    activation_gib: Annotated[
        float | None, option("--activation-gib", "Activation peak that you measured, in place of the table.")
    ] = None,
    gpu_memory_used: Annotated[
        float, option("--gpu-memory-used", "Memory of each GPU that others use (default 0).", "GiB")
    ] = 0.0,
    lengths: LengthOptions,
    sets: Sets = None,
    out: Annotated[
        Path | None, option("--out", "Write memory.json and a picture (default: print only).", "DIR")
    ] = None,
    printing: Printing,
) -> None:
    """Size the start-up: where every GiB goes, how many sequences fit, and what the engine would refuse."""
    asked = lengths.given
    if scenario is None:
        chosen = _from_flags(engine.given, sets or [])
    else:
        chosen = _from_file(scenario, [*map(flag_of, engine.given), *(f"--{stat}-tokens" for stat in asked)], sets)
    from simkit.report.sections.memory import memory_tables
    from simkit.studies.memory import scenario_account

    target = None if out is None else output.Target.choose(out, "memory")
    found = scenario_account(
        chosen,
        pipeline_parallel_size=_at_least_one("--pipeline-parallel-size", engine.pipeline_parallel_size),
        enforce_eager=engine.enforce_eager,
        activation_gib=_gib("--activation-gib", activation_gib),
        gpu_memory_used_gib=_gib("--gpu-memory-used", gpu_memory_used) or 0.0,
        lengths=None if scenario is not None else asked,
        simulated=scenario is not None,
    )
    content = found.to_json()
    output.say(printing, (f"note: {line}" for line in _names(chosen)))
    if target is not None:
        from simkit.api import write_memory

        with target.writing() as path:
            written = write_memory(content, path, overwrite=True)
        output.say(printing, [f"wrote {written}; open {written / 'memory.svg'}"])
    output.finish(printing, lambda: memory_tables(content, console.width()), content)
    if found.refusal is not None:
        raise CheckError(f"start-up refused: {found.refusal}")


def _names(scenario: Scenario) -> tuple[str, ...]:
    """What names of the scenario were read as."""
    from simkit.engine.build import resolve
    from simkit.engine.names import names_read

    _, model, gpu = resolve(scenario)
    return names_read(scenario, model, gpu)


def _from_file(path: Path, given: Sequence[str], sets: list[str] | None) -> Scenario:
    from simkit.scenario import load

    if given:
        raise InputError(f"{given[0]}: expected a scenario file or flags, got both; use --set with a file")
    return load(path, sets or [])


def _from_flags(flags: Mapping[str, Any], sets: Sequence[str]) -> Scenario:
    from simkit.scenario import from_labelled

    missing = [flag_of(name) for name in ("model", "gpu") if name not in flags]
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
    return from_labelled(data, {key: flag_of(name) for name, key in _KEYS.items()}, sets)


def _vllm_name(name: str, value: Any) -> Any:
    """The scenario's word for a value that vLLM calls otherwise."""
    if name == "dtype":
        return _DTYPES.get(value.lower(), value)
    if name == "quantization":
        return value.lower()
    return value


def _at_least_one(flag: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{flag}: expected an integer >= 1, got {value}")
    return value


def _gib(flag: str, gib: float | None) -> float | None:
    if gib is not None and not (0 <= gib <= 1e6 and math.isfinite(gib)):
        raise InputError(f"{flag}: expected GiB >= 0 (and <= 1e6), got {gib:g}")
    return gib
