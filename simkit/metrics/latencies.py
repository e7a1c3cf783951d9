"""The latencies of requests: the one place where TTFT, TPOT, E2E and the time in the queue are computed.

Whatever shows, compares or judges them asks here, be the columns those of a run, of a file or of a log. Columns are in
ns and may be floats, with NaN where a time is unknown. Owns their mean and percentiles as well, those of pooled gaps
between tokens included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar

import numpy as np

from simkit.metrics.catalogue import STATS
from simkit.metrics.histogram import DurationHistogram, total
from simkit.metrics.inputs import NOT_STREAMED, SummaryInputs
from simkit.metrics.record import Record
from simkit.plain import optional
from simkit.types import Bools, Floats, Ints
from simkit.units import ns_to_ms

Times = TypeVar("Times", Ints, Floats)
"""Columns of integers or of floats."""

SPANS = {
    "ttft_ms": ("arrival_ns", "first_token_ns"),
    "tpot_ms": ("first_token_ns", "last_token_ns"),
    "e2e_ms": ("arrival_ns", "last_token_ns"),
    "queue_ms": ("arrival_ns", "first_scheduled_ns"),
}
"""From when to when a latency goes; TPOT is divided by the gaps between the tokens."""

PER_REQUEST = ("ttft_ms", "tpot_ms", "e2e_ms")
"""Latencies that a client sees, with a value a request."""


def span_ns(table: Mapping[str, Times], latency: str) -> Times:
    """The time of each request that a latency is about."""
    begin, end = SPANS[latency]
    return table[end] - table[begin]


def values_ns(table: Mapping[str, Times], latency: str) -> Times | Floats:
    """The latency of each request. Only what is `defined`, of requests that finished, means anything.

    TPOT is (last token - first token) / (n - 1), for n tokens a sample.
    """
    span = span_ns(table, latency)
    return span / np.maximum(gaps(table), 1) if latency == "tpot_ms" else span


def gaps(table: Mapping[str, Times]) -> Times:
    """Gaps between the tokens of a sample; a table without `samples` has one a request."""
    tokens = table["output_tokens"]
    return (tokens // table["samples"] if "samples" in table else tokens) - 1


def defined(table: Mapping[str, Times], latency: str) -> Bools:
    """Whether a finished request has the latency: TPOT needs two tokens, and is never 0 for want of them."""
    if latency == "tpot_ms":
        return np.asarray(gaps(table) > 0)
    return np.ones(len(table["arrival_ns"]), dtype=bool)


def count_from_sending(table: dict[str, Ints], path_ns: int) -> None:
    """Let every request count from when its client sent it, `path_ns` before it arrived at the engine.

    All of the path lies before the arrival here, the way of an answer to its client too: so latencies, warm-up and
    window are those that the client sees, and the times at which tokens leave the engine stay what they are.
    """
    if path_ns:
        table["arrival_ns"] = table["arrival_ns"] - path_ns


# --- statistics -------------------------------------------------------------------------------------------------------
PERCENTILES = tuple(int(stat[1:]) for stat in STATS if stat != "mean")


@dataclass(frozen=True, slots=True)
class LatencyStats:
    """Mean and percentiles of a latency in ms. `reason` says why a run cannot have it at all."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    _: KW_ONLY
    reason: str | None = optional()

    def stat(self, name: str) -> float | None:
        """The statistic of a name, as in STATS."""
        return self.by_stat[name]

    @property
    def by_stat(self) -> Mapping[str, float | None]:
        """All statistics by name."""
        return {name: getattr(self, name) for name in STATS}


def latencies_of(
    record: Record, table: dict[str, Ints], counted: Bools, inputs: SummaryInputs
) -> Mapping[str, LatencyStats]:
    """Statistics of each latency over the counted requests; gaps between tokens are pooled over the whole run."""

    def stats(metric: str) -> LatencyStats:
        return stats_ms(values_ns(table, metric)[counted & defined(table, metric)])

    return {
        "ttft_ms": stats("ttft_ms"),
        "tpot_ms": stats("tpot_ms") if inputs.stream else LatencyStats(reason=NOT_STREAMED),
        "itl_ms": pooled_stats_ms(record.itl) if inputs.stream else LatencyStats(reason=NOT_STREAMED),
        "e2e_ms": stats("e2e_ms"),
        "queue_ms": stats("queue_ms"),
    }


def stats_ms(values_ns: Ints | Floats) -> LatencyStats:
    """Mean and percentiles in ms (numpy "linear"); all are None where there is nothing to describe."""
    if not len(values_ns):
        return LatencyStats()
    percentiles = np.percentile(values_ns, PERCENTILES)
    whole = total(values_ns.astype(np.int64)) if values_ns.dtype == np.int64 else float(values_ns.sum())
    return LatencyStats(ns_to_ms(whole / len(values_ns)), *(ns_to_ms(float(value)) for value in percentiles))


def pooled_stats_ms(durations: DurationHistogram) -> LatencyStats:
    """Mean and percentiles in ms of pooled durations, exact to the width of their bins."""
    mean = durations.mean_ns()
    if mean is None:
        return LatencyStats()
    return LatencyStats(ns_to_ms(mean), *(ns_to_ms(durations.percentile_ns(p) or 0.0) for p in PERCENTILES))
