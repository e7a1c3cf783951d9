"""What a number of several replicas is of: all of them together, each one, or their average. Reads manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TOGETHER, EACH, FULLEST = "all", "each", "fullest"

SCOPES = {
    "throughput.requests_per_s": TOGETHER,
    "throughput.output_tokens_per_s": TOGETHER,
    "throughput.total_tokens_per_s": TOGETHER,
    "concurrency_mean": TOGETHER,
    "goodput_per_s": TOGETHER,
    "num_steps": TOGETHER,
    "num_preemptions": TOGETHER,
    "kv.capacity_tokens": EACH,
    "kv.num_gpu_blocks": EACH,
    "kv.peak_tokens": FULLEST,
}
"""By key of the summary. Shares (slots, KV, GPU) are averages over replicas; a latency is of a request, wherever it
was served, the makespan of the run, and the cost counts all GPUs and all tokens."""

REMARK = (
    "all: of all replicas together; each: of every replica; fullest: of the replica with most; shares are averages "
    "over replicas, and cost counts all GPUs"
)


def replicas_of(manifest: Mapping[str, Any]) -> int:
    """How many replicas a run has."""
    return int((manifest.get("scenario") or {}).get("replicas") or 1)


def are_several(manifests: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any of some runs has several replicas, so that numbers must say what they are of."""
    return any(replicas_of(manifest) > 1 for manifest in manifests)


def marked(label: str, key: str, several: bool) -> str:
    """A label that says what its number is of, where there are `several` replicas."""
    scope = SCOPES.get(key)
    return f"{label}, {scope}" if several and scope else label


def gpus_text(manifest: Mapping[str, Any]) -> str:
    """The GPUs of a run: ``2 replicas x 4 h100-sxm5-80gb``, or ``4 x h100-sxm5-80gb`` for one replica."""
    hardware = (manifest.get("scenario") or {}).get("hardware") or {}
    each, name, replicas = hardware.get("tensor_parallel_size", 1), hardware.get("gpu", "?"), replicas_of(manifest)
    return f"{replicas:,} replicas x {each} {name}" if replicas > 1 else f"{each} x {name}"
