"""How numbers read in a report: as text, what they are of where there are several replicas, and why one is missing.

Strings only; a missing number is ``-``, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from simkit.metrics.catalogue import ALL, EACH, FULLEST, SHARE, Kind, Metric, Place, value
from simkit.plain import Json

MISSING = "-"

TOLD_SHARE = 0.05
"""Extrapolated shares of GPU time from which on a reader is told."""

Show = Callable[[Any], str]
"""How a value reads."""


def plain(value: Any) -> str:
    """A number with about three significant digits, thousands apart; text as it is; None and NaN as ``-``."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if value == 0 or size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def plain_down(value: float | None) -> str:
    """A number that is promised, of three digits: not rounded up."""
    if value is None or not math.isfinite(value) or value <= 0:
        return plain(value)
    step = 1.0 if value >= 100 else 10.0 ** (math.floor(math.log10(value)) - 2)
    return plain(math.floor(value / step + 1e-9) * step)


def count(value: Any) -> str:
    """A number of things; means over replications may have a fraction."""
    return plain(int(value) if isinstance(value, float) and value.is_integer() else value)


def percent(value: Any) -> str:
    """A share as per cent."""
    return MISSING if plain(value) == MISSING else f"{100 * float(value):.1f} %"


def signed(value: Any, share: bool = False) -> str:
    """A difference with its sign; shares in percentage points."""
    text = plain(100 * float(value) if share else value) if plain(value) != MISSING else MISSING
    if text == MISSING:
        return text
    unit = " pp" if share else ""
    return f"{'+' if float(value) > 0 else ''}{text}{unit}"


def known(value: Any) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def or_nan(value: Any) -> float:
    """A finite number, else NaN: what a line of a chart is broken by."""
    found = known(value)
    return math.nan if found is None else found


def formed(value: float | None, form: str) -> str:
    """A number in a given form, where there is one."""
    return MISSING if value is None else format(value, form)


def error(value: Any) -> str:
    """An error in per cent with its sign."""
    found = known(value)
    return MISSING if found is None else f"{found:+.1f} %"


def times(value: float | None, of: float | None) -> str:
    """How many times `of` a value is."""
    return f"{value / of:.3g}x" if value is not None and of else MISSING


def difference(found: Json, share: bool) -> tuple[str, str]:
    """A paired difference that is known, and its 95 % interval, which may be empty."""
    text, interval = signed(found["difference"], share), found.get("ci95")
    if isinstance(interval, list | tuple):
        return text, f"[{signed(interval[0], share)}, {signed(interval[1], share)}]"
    return text, "" if interval is None else f"± {signed(interval, share).lstrip('+')}"


def largest_parts(parts: Json) -> list[tuple[str, float]]:
    """The parts of a share by size, without those that are 0 and without intervals."""
    found = [(name, share) for name, share in parts.items() if not name.endswith("_ci95") and share]
    return sorted(found, key=lambda part: -part[1])


def scenario_yaml(scenario: Json) -> str:
    """A scenario as its file would say it, every default written out."""
    return yaml.safe_dump(dict(scenario), sort_keys=False, allow_unicode=True, width=100).rstrip("\n")


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
