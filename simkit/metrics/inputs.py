"""What the summary must know of the set-up of a run, beside its facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WarmupRule = str | tuple[str, float]

NOT_STREAMED = "not streamed"
PREFIX_UNKNOWN = "the log does not say which prompts are alike"


@dataclass(frozen=True, slots=True)
class SummaryInputs:
    """Set-up of a run as far as its numbers depend on it. `slo` maps metric name to {statistic: milliseconds}.

    `prefix_known`: it is known which prompts are alike, so that what a prefix cache finds means something. `finite`:
    the load is a batch that starts and ends empty. `warmup` is "none", "mser5", ("requests", n), ("seconds", s) or
    ("ns", n), and `auto` says how it came about where the scenario leaves it to simkit. Peaks are per replica, None
    without hardware. `path_ns` is how long a request is on its way to the engine, its answer's way back included.
    """

    max_num_seqs: int
    num_replicas: int
    capacity_tokens: int
    num_gpu_blocks: int
    stream: bool
    open_loop: bool
    prefix_caching: bool
    prefix_known: bool
    finite: bool
    warmup: WarmupRule
    slo: Mapping[str, Mapping[str, float]]
    price_per_hour: float | None
    peak_flops_per_s: float | None
    peak_bytes_per_s: float | None
    latency_source: str
    not_simulated: tuple[str, ...]
    path_ns: int = 0
    auto: str | None = None


def ratio(part: float, whole: float) -> float | None:
    """`part` of `whole`; None when there is no whole."""
    return part / whole if whole else None
