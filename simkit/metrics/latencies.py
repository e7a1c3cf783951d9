"""The latencies of requests: the one place where TTFT, TPOT, E2E and the time in the queue are computed.

Whatever shows, compares or judges them asks here, be the columns those of a run, of a file or of a log. Columns are in
ns and may be floats, with NaN where a time is unknown. Knows nothing of what is measured or shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from simkit.types import Bools, Floats, Ints

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
