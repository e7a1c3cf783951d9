"""What a log measured of its requests beside what their simulation gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from simkit.metrics import record as rec
from simkit.metrics.catalogue import STATS
from simkit.metrics.latencies import PER_REQUEST, defined, stats_ms, values_ns
from simkit.types import Bools, Floats, Ints

Pairs = dict[str, tuple[Ints | Floats, Ints | Floats]]
"""Metric to (measured, predicted) in ns of the requests that have it in both, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A number that was measured, the same as it was predicted, and by how many % the prediction is too high."""

    measured: float | None
    predicted: float | None
    error_pct: float | None


@dataclass(frozen=True, slots=True)
class ComparedLatency:
    """The statistics of a latency in ms, over the requests that have it in the log and in the run."""

    num_requests: int
    mean: Compared
    p50: Compared
    p90: Compared
    p95: Compared
    p99: Compared

    def stat(self, name: str) -> Compared:
        """The statistic of a name, as in STATS."""
        found: Compared = getattr(self, name)
        return found


ComparedLatencies = Mapping[str, ComparedLatency]
"""By metric; one that cannot be compared has none."""


def compare_measured(table: dict[str, Ints], ttft_ns: Ints, e2e_ns: Ints, *, stream: bool) -> ComparedLatencies:
    """What the log measured beside what the run gives. The arguments and the requests are those of `paired`."""
    return {
        metric: ComparedLatency(len(log), **compared(STATS, stats_ms(log).by_stat, stats_ms(run).by_stat))
        for metric, (log, run) in paired(table, ttft_ns, e2e_ns, stream=stream).items()
    }


def paired(table: dict[str, Ints], ttft_ns: Ints, e2e_ns: Ints, *, stream: bool) -> Pairs:
    """What was measured and predicted of each request; a metric that no request has in both is left out.

    `table` holds the requests of a run with `measured` (counts for the statistics); the times of the log are by request
    id, -1 = unknown. A metric is over the requests that are `whole` and have it in both: TPOT, which is
    (E2E - TTFT) / (tokens - 1), needs both times and two tokens.
    """
    log = log_columns(table, ttft_ns, e2e_ns)
    found: Pairs = {}
    for metric in PER_REQUEST:
        chosen = in_both(table, log, metric)
        if chosen.any() and (stream or metric != "tpot_ms"):
            found[metric] = values_ns(log, metric)[chosen], values_ns(table, metric)[chosen]
    return found


def log_columns(table: dict[str, Ints], ttft_ns: Ints, e2e_ns: Ints) -> dict[str, Ints]:
    """What a log measured of the requests of `table`, as columns of the same names; times count from the arrival."""
    return {
        "arrival_ns": np.zeros_like(table["id"]),
        "first_token_ns": ttft_ns[table["id"]],
        "last_token_ns": e2e_ns[table["id"]],
        "output_tokens": table["wanted_tokens"],
        "samples": np.maximum(table["samples"], 1),
    }


def in_both(table: dict[str, Ints], log: dict[str, Ints], metric: str) -> Bools:
    """The requests that are `whole` and have a latency in the run and in the columns of the log."""
    ttft, e2e = log["first_token_ns"], log["last_token_ns"]
    known = {"ttft_ms": ttft >= 0, "tpot_ms": (ttft >= 0) & (e2e >= ttft), "e2e_ms": e2e >= 0}[metric]
    return whole(table) & known & defined(log, metric) & defined(table, metric)


def whole(table: dict[str, Ints]) -> Bools:
    """The requests that finished with all the tokens of their log and count for the statistics."""
    finished: Bools = (table["status"] == rec.FINISHED) & (table["output_tokens"] >= table["wanted_tokens"])
    counted: Bools = finished & (table["measured"] != 0)
    return counted


def compared(
    names: Iterable[str], measured: Mapping[str, float | None], predicted: Mapping[str, float | None]
) -> dict[str, Compared]:
    """What was measured and predicted under each name."""
    return {
        name: Compared(measured[name], predicted[name], error_pct(measured[name], predicted[name])) for name in names
    }


def error_pct(measured: float | None, predicted: float | None) -> float | None:
    """By how many % the prediction is too high; None without both, and where 0 was measured."""
    if not measured or predicted is None:
        return None
    return 100 * (predicted / measured - 1)
