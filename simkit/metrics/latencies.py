"""TTFT, TPOT and E2E of each request: the one place where they are computed.

Everything that shows, compares or judges them asks here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simkit.metrics.terms import Bools, gaps
from simkit.types import Floats, Ints

PER_REQUEST = ("ttft_ms", "tpot_ms", "e2e_ms")
"""Metrics with a value a request."""


def values_ns(table: Mapping[str, Ints], metric: str) -> Ints | Floats:
    """The value of each request, in ns. Only what is `defined`, of requests that finished, means anything.

    TPOT is (last - first token) / (n - 1), for n tokens a sample.
    """
    if metric == "tpot_ms":
        return (table["last_token_ns"] - table["first_token_ns"]) / np.maximum(gaps(table), 1)
    end = {"ttft_ms": "first_token_ns", "e2e_ms": "last_token_ns"}[metric]
    return table[end] - table["arrival_ns"]


def defined(table: Mapping[str, Ints], metric: str) -> Bools:
    """Whether a finished request has the metric: TPOT needs two tokens, and is never 0 for want of them."""
    if metric == "tpot_ms":
        return np.asarray(gaps(table) > 0)
    return np.ones(len(table["arrival_ns"]), dtype=bool)
