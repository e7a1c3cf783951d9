"""What a log measured of its requests beside what their simulation gives. Imports metrics.definitions and terms."""

from __future__ import annotations

from typing import Any

import numpy as np

from simkit.metrics import record as rec
from simkit.metrics.definitions import stats_ms
from simkit.metrics.terms import Bools, gaps
from simkit.types import Floats, Ints

STATS = ("mean", "p50", "p90", "p95", "p99")


def compare_measured(table: dict[str, Ints], ttft_ns: Ints, e2e_ns: Ints, *, stream: bool) -> dict[str, Any] | None:
    """{metric: {num_requests, stat: {measured, predicted, error_pct}}} in ms; None where nothing can be compared.

    `table` holds the requests of a run with `measured` (counts for the statistics); the times of the log are by request
    id, -1 = unknown. A metric is over the requests that finished in both and have it in both: TPOT, which is
    (E2E - TTFT) / (tokens - 1), needs both times and two tokens. Positive errors: the prediction is too slow.
    """
    counted = (table["status"] == rec.FINISHED) & (table["measured"] != 0)
    ttft, e2e = ttft_ns[table["id"]], e2e_ns[table["id"]]
    arrival, first, last = (table[name] for name in ("arrival_ns", "first_token_ns", "last_token_ns"))
    wanted = table["wanted_tokens"] // np.maximum(table["samples"], 1) - 1
    made = gaps(table)
    several = counted & (ttft >= 0) & (e2e >= ttft) & (wanted > 0) & (made > 0)
    compared: dict[str, Any] = {}
    _add(compared, "ttft_ms", counted & (ttft >= 0), ttft, first - arrival)
    if stream:
        _add(compared, "tpot_ms", several, (e2e - ttft) / np.maximum(wanted, 1), (last - first) / np.maximum(made, 1))
    _add(compared, "e2e_ms", counted & (e2e >= 0), e2e, last - arrival)
    return compared or None


def _add(compared: dict[str, Any], metric: str, chosen: Bools, log: Ints | Floats, run: Ints | Floats) -> None:
    if not chosen.any():
        return
    measured, predicted = stats_ms(log[chosen]), stats_ms(run[chosen])
    compared[metric] = {"num_requests": int(chosen.sum())} | {
        stat: {
            "measured": measured[stat],
            "predicted": predicted[stat],
            "error_pct": 100 * (predicted[stat] / measured[stat] - 1) if measured[stat] else None,
        }
        for stat in STATS
    }
