"""The memory budget of one GPU, as a run needs it, or the refusal of a start-up.

Knows no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from simkit.errors import InputError
from simkit.memory.refusal import Refusal, refusal
from simkit.memory.rules import FIRST_V1, LONGEST_WHOLE_PROMPT, parse_version
from simkit.memory.sizing import MemorySettings, Sizing, size
from simkit.specs.hardware import GpuSpec, list_gpus
from simkit.units import bytes_to_gib

__all__ = ["MemoryBudget", "MemorySettings", "default_limits", "memory_budget", "refusal_of"]


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory of one GPU. `cuda_graph_gib` is inside the budget since engine 0.20 and outside it (on top) before.

    `num_gpu_blocks` includes the dummy block, `kv_tokens` does not. `bytes_per_block` and `kv_bytes_per_token` are of
    one GPU; blocks and tokens are those of the replica, since every TP rank holds its share of each block.
    `highest_gpu_memory_utilization` leaves room for what the engine keeps beside the budget; advice stays below it.
    """

    total_gib: float
    requested_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    cuda_graph_gib: float
    cuda_graph_in_budget: bool
    kv_gib: float
    bytes_per_block: int
    num_gpu_blocks: int
    kv_tokens: int
    kv_bytes_per_token: int
    highest_gpu_memory_utilization: float


def default_limits(gpu: GpuSpec, engine_version: str = "0.33", max_model_len: int | None = None) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) that the API server takes when they are not given.

    By GPU class (vLLM scheduler notes of 0.33, section 8). Engines before 0.8 took whole prompts, up to 32,768 tokens:
    their budget was max_model_len (A001, A021).
    """
    if parse_version(engine_version) < FIRST_V1:
        whole = max_model_len if max_model_len is not None and max_model_len <= LONGEST_WHOLE_PROMPT else 0
        return max(2048, whole), 256
    if gpu.memory_gib >= 160:
        return 16384, 1024
    if gpu.memory_gib >= 70 and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256


def refusal_of(sizing: Sizing) -> Refusal | None:
    """Why the engine would not start, with single changes after which it would; None when it starts.

    Where only an upper bound of the KV memory does not fit, the refusal says so (`Refusal.upper_bound`).
    """
    asked = sizing.settings
    limits = {gpu.name: default_limits(gpu, asked.engine_version, asked.max_model_len) for gpu in list_gpus()}
    return refusal(sizing, limits_of=limits)


def memory_budget(settings: MemorySettings) -> MemoryBudget:
    """How the engine splits the memory of each GPU, and how many KV blocks that leaves.

    Raises InputError when the engine would not start: the weights do not fit, nothing is left for KV, one sequence
    of `max_model_len` (where given) does not fit (sliding windows counted in full, as a run does, so that here the
    engine itself may start), or the token budget is below it where prompts are not chunked.
    `num_gpu_blocks` of the result is what memory gives, whatever the settings replace it with.
    """
    sizing = size(settings)
    refused = refusal_of(sizing)
    if refused is not None:
        of_engine = refused.kind in ("max_model_len", "max_num_batched_tokens")
        key = f"engine.{refused.kind}" if of_engine else "model"
        why = "; the engine itself may start, but a run counts every layer in full" if refused.upper_bound else ""
        raise InputError(f"{refused.text}{why}", key=key, says_key=of_engine)
    stage = sizing.stages[sizing.limiting]
    return MemoryBudget(
        total_gib=settings.gpu.memory_gib,
        requested_gib=bytes_to_gib(sizing.requested_bytes),
        weights_gib=bytes_to_gib(stage.weight_bytes),
        activation_gib=bytes_to_gib(stage.activation.num_bytes),
        non_torch_gib=bytes_to_gib(stage.non_torch.num_bytes),
        cuda_graph_gib=bytes_to_gib(stage.cuda_graphs.num_bytes),
        cuda_graph_in_budget=sizing.cuda_graphs_in_budget,
        kv_gib=bytes_to_gib(stage.kv_bytes),
        bytes_per_block=stage.bytes_per_block,
        num_gpu_blocks=stage.num_blocks,
        kv_tokens=(stage.num_blocks - sizing.num_dummy_blocks) * settings.block_size,
        kv_bytes_per_token=stage.bytes_per_block // settings.block_size,
        highest_gpu_memory_utilization=sizing.highest_utilization,
    )
