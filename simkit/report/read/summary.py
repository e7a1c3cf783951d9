"""How the numbers of a summary read: what they are of where there are several replicas, and why one is missing."""

from __future__ import annotations

from collections.abc import Iterable

from simkit.metrics.catalogue import ALL, EACH, FULLEST, SHARE, Kind, Metric, Place, value
from simkit.plain import Json
from simkit.report.words import Show, percent, plain

REMARK = (
    "all: of all replicas together; each: of every replica; fullest: of the replica with most; shares are averages "
    "over replicas, and cost counts all GPUs"
)
OF = {ALL: "all replicas", EACH: "each replica", FULLEST: "fullest replica"}
"""What a number is of, in words. Shares (slots, KV, GPU) are averages over replicas; a latency is of a request,
wherever it was served, the makespan of the run, and the cost counts all GPUs and all tokens."""


def show_of(kind: Kind) -> Show:
    """How a number of a kind reads."""
    return percent if kind is SHARE else plain


def replicas_of(manifest: Json) -> int:
    """How many replicas a run has."""
    return int((manifest.get("scenario") or {}).get("replicas") or 1)


def are_several(manifests: Iterable[Json]) -> bool:
    """Whether any of some runs has several replicas, so that numbers must say what they are of."""
    return any(replicas_of(manifest) > 1 for manifest in manifests)


def marked(metric: Metric, place: Place, several: bool) -> str:
    """The name of a metric, which says what its number is of where there are `several` replicas."""
    name = metric.name(place)
    return f"{name}, {metric.scope.value}" if several and metric.scope else name


def gpus_text(manifest: Json) -> str:
    """The GPUs of a run: ``2 replicas x 4 h100-sxm5-80gb``, or ``4 x h100-sxm5-80gb`` for one replica."""
    hardware = (manifest.get("scenario") or {}).get("hardware") or {}
    each, name, replicas = hardware.get("tensor_parallel_size", 1), hardware.get("gpu", "?"), replicas_of(manifest)
    return f"{replicas:,} replicas x {each} {name}" if replicas > 1 else f"{each} x {name}"


NOT_STREAMED = "not streamed"


def why_missing(summary: Json, manifest: Json, key: str) -> str:
    """Why the number at a dotted key is null: the summary's own reason, else what the scenario implies."""
    top = key.partition(".")[0]
    given = value(summary, f"{top}.reason") or summary.get(f"{top.removesuffix('_per_s')}_reason")
    if isinstance(given, str):
        return given
    scenario = manifest.get("scenario") or {}
    engine = scenario.get("engine") or {}
    if top == "goodput_per_s" and not scenario.get("slo"):
        return "the scenario states no SLO"
    if top == "cost_per_million_output_tokens" and not (scenario.get("hardware") or {}).get("price_per_gpu_hour"):
        return "no hardware.price_per_gpu_hour"
    if top == "prefix_cache_hit_rate":
        return "no prefix caching"
    if key == "kv.num_gpu_blocks":
        return "contiguous memory has no blocks"
    if top == "num_requeued":
        return "no replica fails"
    if top == "gpu":
        return "the latency model has no hardware behind it"
    if not value(summary, "num_requests.finished"):
        return "no request finished"
    streams = engine.get("batching") == "continuous" or engine.get("stream")
    if top in ("tpot_ms", "itl_ms", "goodput_per_s") and not streams:
        return NOT_STREAMED
    if top in ("tpot_ms", "itl_ms"):
        return "no finished request has two or more output tokens"
    return "undefined in this run"
