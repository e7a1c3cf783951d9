"""What of a run is measured: the window over which rates are counted, and the requests that count after warm-up.

The window goes from the first measured arrival to the last arrival of the run. A finished request, measured or not,
counts with the share of its stay (first scheduled to last token) that lies in the window, so that

- the filling at the start and the emptying at the end of a run do not weigh, and more requests change no rate;
- a batch that is delivered all at once makes no step: its members count where they were served;
- a saturated run shows what is served, and one that is not the rate at which requests arrive.

A finite load starts and ends empty and is meant to: there the window is the makespan, first arrival to last delivery,
as it is where all requests arrive at one instant. Sums of whole requests are integers, and those of the parts are
rounded once, so that they are the same everywhere.

Warm-up is left out by a fixed rule or by MSER-5 (White, 1997; White, Cobb and Spratt, 2000): average the series in
batches of five and cut the first d that minimise the standard error of the mean of what is left, d at most half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simkit.metrics.histogram import total
from simkit.metrics.inputs import SummaryInputs, ratio
from simkit.metrics.latencies import values_ns
from simkit.types import Bools, Floats, Ints
from simkit.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Window:
    """The time from `start_ns` to `end_ns`.

    By request, `inside_ns` is the time of its stay that lies inside, and `share` is that time over its stay. Both are 0
    for requests that did not finish.
    """

    start_ns: int
    end_ns: int
    inside_ns: Ints
    share: Floats

    @property
    def length_ns(self) -> int:
        """The length, 0 where nobody finished: then nothing is served in any time."""
        return self.end_ns - self.start_ns

    @property
    def concurrency(self) -> float | None:
        """Time average of the finished requests that were being served."""
        return ratio(total(self.inside_ns), self.length_ns)

    def per_s(self, amounts: Ints, chosen: Bools) -> float | None:
        """The sum of `amounts` of the chosen requests, each times its share, a second."""
        whole, part = chosen & (self.share == 1.0), chosen & (self.share > 0.0) & (self.share < 1.0)
        amount = total(amounts[whole]) + math.fsum((amounts[part] * self.share[part]).tolist())
        return ratio(amount * NS_PER_S, self.length_ns)


def makespan(table: Mapping[str, Ints], finished: Bools) -> Window:
    """The window from the first arrival to the last delivery; every finished request lies in it whole."""
    if not finished.any():
        return Window(0, 0, np.zeros(len(finished), dtype=np.int64), np.zeros(len(finished)))
    start_ns, end_ns = int(table["arrival_ns"].min()), int(table["last_token_ns"][finished].max())
    stay_ns = table["last_token_ns"] - table["first_scheduled_ns"]
    return Window(start_ns, end_ns, np.where(finished, stay_ns, 0), finished.astype(np.float64))


def measured_window(table: Mapping[str, Ints], finished: Bools, measured: Bools, *, finite: bool) -> Window:
    """The window from the first measured arrival to the last arrival.

    It is the makespan for a finite load, and where that time has no length.
    """
    start_ns = int(table["arrival_ns"][measured].min()) if measured.any() else 0
    end_ns = int(table["arrival_ns"].max()) if measured.any() else 0
    if finite or end_ns == start_ns or not finished.any():
        return makespan(table, finished if measured.any() else np.zeros_like(finished))
    scheduled, last = table["first_scheduled_ns"], table["last_token_ns"]
    inside_ns = np.maximum(np.minimum(last, end_ns) - np.maximum(scheduled, start_ns), 0)
    inside_ns = np.where(finished, inside_ns, 0)
    # Who is done at the instant of being scheduled lies in the window or outside, never in part.
    at_once = finished & (last == scheduled) & (start_ns <= last) & (last <= end_ns)
    share = np.where(at_once, 1.0, inside_ns / np.maximum(last - scheduled, 1))
    return Window(start_ns, end_ns, inside_ns, share)


@dataclass(frozen=True, slots=True)
class Rates:
    """Finished requests and their tokens a second."""

    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None


def rates(table: Mapping[str, Ints], finished: Bools, window: Window) -> Rates:
    """Requests and tokens a second of a window."""
    output = table["output_tokens"]
    amounts = (np.ones_like(output), output, output + table["prompt_tokens"])
    return Rates(*(window.per_s(values, finished) for values in amounts))


# --- warm-up ----------------------------------------------------------------------------------------------------------
BATCH = 5
"""Of MSER-5."""


@dataclass(frozen=True, slots=True)
class Warmup:
    """Which requests at the start do not count, why (where the rule left it to simkit), and what MSER-5 proposes."""

    method: str
    why: str | None
    dropped_requests: int
    mser5_proposal_requests: int | None
    note: str | None


def leave_out(table: Mapping[str, Ints], finished: Bools, inputs: SummaryInputs) -> tuple[Bools, Warmup]:
    """Which requests count, and what the manifest says of it. MSER-5 makes its proposal whatever the rule is."""
    arrival, rule = table["arrival_ns"], inputs.warmup
    proposal = mser5(values_ns(table, "e2e_ms")[finished].astype(np.float64))
    if rule == "none":
        method, measured = "none", np.ones(len(arrival), dtype=bool)
    elif rule == "mser5":
        finished_before: Ints = np.cumsum(finished) - finished
        method, measured = "mser5", np.asarray(finished_before >= (proposal or 0))
    else:
        assert not isinstance(rule, str), rule
        kind, value = rule
        method = f"first {value:g} {kind}"
        unit = {"requests": 1, "seconds": NS_PER_S, "ns": 1}[kind]
        measured = (table["id"] if kind == "requests" else arrival) >= value * unit
    return measured, Warmup(
        method=method if inputs.auto is None else "auto",
        why=inputs.auto,
        dropped_requests=int((~measured).sum()),
        mser5_proposal_requests=proposal,
        note=None if proposal is not None else "MSER-5 finds no steady state: its cut lies at half of the run",
    )


def mser5(series: Floats) -> int | None:
    """How many leading values to drop; None when the minimum lies at the half: no steady state was reached.

    A series of fewer than 10 batches is too short to say anything: 0.
    """
    num_batches = len(series) // BATCH
    if num_batches < 10:
        return 0
    means = series[: num_batches * BATCH].reshape(num_batches, BATCH).mean(axis=1)
    remaining = np.arange(num_batches, 0, -1, dtype=np.float64)
    tail_sum = np.cumsum(means[::-1])[::-1]
    tail_square_sum = np.cumsum((means * means)[::-1])[::-1]
    spread = np.maximum(tail_square_sum - tail_sum * tail_sum / remaining, 0.0) / (remaining * remaining)
    half = num_batches // 2
    best = int(np.argmin(spread[: half + 1]))
    return None if best >= half else best * BATCH
