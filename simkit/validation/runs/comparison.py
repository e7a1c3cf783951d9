"""A simulated run beside the real one whose requests it served: errors by metric, and what pictures of them need.

Owns what is compared, over which requests, and the count of those that are left out, by reason. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simkit.logs import PlayedLog
from simkit.logs.read.record import UNKNOWN, Gaps
from simkit.metrics import record as rec
from simkit.metrics.catalogue import MEASURED_LATENCIES, STATS
from simkit.metrics.histogram import DurationHistogram, total
from simkit.metrics.inputs import ratio
from simkit.metrics.latencies import pooled_stats_ms, stats_ms, values_ns
from simkit.metrics.measured import Compared, Pairs, compared, paired, whole
from simkit.runs.replication import Result
from simkit.types import Floats, Ints
from simkit.units import NS_PER_MS, NS_PER_S, ns_to_ms, ns_to_s
from simkit.validation.samples import Series

if TYPE_CHECKING:
    import pyarrow as pa


MAX_SHARE = 0.01
"""Of the requests that are played: with more left out by the simulation, no band holds."""

CUT = "cut"
_WORDS = {
    "rejected": "rejected here",
    "refused": "refused here",
    "aborted": "aborted here",
    "unfinished": "not finished here",
    CUT: "cut here, with a shorter answer than they had (max_model_len, max_tokens)",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Of the `num_played` requests that are measured, how many the simulation did not serve whole, by reason.

    `num_warm_up` is how many of them the scenario's `warmup` leaves out: these are no failures.
    """

    num_played: int
    num_warm_up: int
    by_reason: Mapping[str, int]

    @property
    def total(self) -> int:
        """All that the simulation did not serve whole."""
        return sum(self.by_reason.values())

    @property
    def is_too_much(self) -> bool:
        """Whether an error over the others says little of the run."""
        return self.total > MAX_SHARE * (self.num_played - self.num_warm_up)

    @property
    def are(self) -> str:
        """The verb for what is played."""
        return _are(self.num_played)

    def too_much(self) -> str:
        """Why no band holds, where it is too much."""
        measured = self.num_played - self.num_warm_up
        return (
            f"{self.total} of {measured} requests ({100 * self.total / measured:.3g} %) {_are(self.total)} left out: "
            f"{', '.join(_reasons(self.by_reason))}; expected at most {100 * MAX_SHARE:g} %"
        )

    def words(self) -> str:
        """The reasons with their numbers."""
        warm = [f"{self.num_warm_up} warm-up (warmup)"] if self.num_warm_up else []
        return ", ".join([*warm, *_reasons(self.by_reason)])

    def notes(self) -> list[str]:
        """A sentence a reason."""
        of = f"of {self.num_played} request{'' if self.num_played == 1 else 's'} of the log"
        found = [
            f"{number} {of} {'was' if number == 1 else 'were'} {_WORDS[reason]}: not compared"
            for reason, number in self.by_reason.items()
        ]
        if self.num_warm_up:
            found.append(f"{self.num_warm_up} {of} {_are(self.num_warm_up)} warm-up (warmup): not compared")
        return found

    def to_json(self) -> dict[str, object]:
        """Plain data for validation.json."""
        return {
            "played": self.num_played,
            "warm_up": self.num_warm_up,
            "left_out": dict(self.by_reason),
            "enough_for_bands": not self.is_too_much,
        }


def _reasons(by_reason: Mapping[str, int]) -> list[str]:
    return [f"{number} {_WORDS[reason]}" for reason, number in by_reason.items()]


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def left_out(table: Mapping[str, Ints], trace: PlayedLog) -> LeftOut:
    """Count what is not compared of the requests behind those that warm the caches. `table` is that of `compare`."""
    played = table["id"] >= trace.num_warm
    counts = played & (table["measured"] != 0)
    by_reason = {
        name: int(np.count_nonzero(counts & (table["status"] == number)))
        for number, name in enumerate(rec.STATUS_NAMES)
        if number != rec.FINISHED
    }
    num_played = len(trace) - trace.num_warm
    by_reason["unfinished"] += num_played - int(np.count_nonzero(played))
    by_reason[CUT] = int(
        np.count_nonzero(counts & (table["status"] == rec.FINISHED) & (table["output_tokens"] < table["wanted_tokens"]))
    )
    num_warm_up = int(np.count_nonzero(played & ~counts))
    return LeftOut(num_played, num_warm_up, {reason: number for reason, number in by_reason.items() if number})


MAX_CURVE_POINTS = 400
MAX_SHOWN_REQUESTS = 5000

Errors = dict[str, dict[str, Compared]]
"""By metric and statistic; a positive error: the prediction is too high."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was measured beside what was predicted.

    `num_requests` is how many requests are compared, in all and by metric. `pairs_ms` has (measured, predicted) of each
    of them by metric, in order of arrival. `curves` have by metric the times that given shares of the requests, or
    gaps, do not exceed. `series` is None without samples. `left_out` counts what is not compared, and `notes` say what
    limits the comparison.
    """

    errors: Errors
    num_requests: dict[str, int]
    pairs_ms: dict[str, tuple[Floats, Floats]]
    curves: dict[str, dict[str, list[float]]]
    series: Series | None
    left_out: LeftOut
    notes: tuple[str, ...]

    def error_pct(self, key: str) -> float | None:
        """The error of ``METRIC.STAT``; None where there is none."""
        metric, _, stat = key.partition(".")
        found = self.errors.get(metric, {}).get(stat)
        return None if found is None else found.error_pct


def has_times(trace: PlayedLog) -> bool:
    """Whether a log measured anything of the requests that are played."""
    return bool(np.any(trace.ttft_ns != UNKNOWN) or np.any(trace.e2e_ns != UNKNOWN))


def measured_metrics(trace: PlayedLog, *, stream: bool) -> set[str]:
    """Metrics that a log has something for, known before anything is simulated; samples over time have their own."""
    ttft, e2e = trace.ttft_ns != UNKNOWN, trace.e2e_ns != UNKNOWN
    several = trace.output_tokens > 1
    has = {
        "ttft_ms": bool(ttft.any()),
        "tpot_ms": stream and bool((ttft & e2e & several).any()),
        "itl_ms": stream and trace.gaps is not None and len(trace.gaps.values) > 0,
        **dict.fromkeys(("e2e_ms", "makespan_s", "throughput", "concurrency"), bool(e2e.any())),
    }
    return {metric for metric, found in has.items() if found}


def compare(
    result: Result, trace: PlayedLog, series: Series | None = None, itl: DurationHistogram | None = None
) -> Comparison:
    """Set the first replication of `result` beside what the log of `trace`, which it served, measured.

    A request is compared where it finished in both with the same tokens and counts for the statistics. Makespan is
    from the first arrival of these to the last of their last tokens (arrival + E2E), throughput is over it, and
    concurrency is the sum of their E2E divided by it: all three need E2E. ITL pools the gaps between the tokens of all
    of them; the predicted one those of all requests of the run. `itl` has these, for its curve.
    """
    manifest = result.manifest["scenario"]
    stream = manifest["engine"]["stream"] is not False
    table = _table(result.tables["requests"], trace, manifest["workload"]["samples"])
    pairs = paired(table, trace.ttft_ns, trace.e2e_ns, stream=stream)
    curves = {metric: _curve(*both) for metric, both in pairs.items()}
    errors: Errors = {}
    for metric in MEASURED_LATENCIES:
        if metric in pairs:
            errors[metric] = compared(STATS, *(stats_ms(values).by_stat for values in pairs[metric]))
        elif metric == "itl_ms" and stream:
            measured = _measured_gaps(table, trace.gaps)
            if measured is not None:
                errors[metric] = compared(STATS, pooled_stats_ms(measured).by_stat, result.replications[0]["itl_ms"])
                if itl is not None:
                    curves[metric] = _pooled_curve(measured, itl)
    num_requests = {"compared": _num_compared(table, trace), **{name: len(both[0]) for name, both in pairs.items()}}
    errors |= _rates(table, trace)
    if series is not None:
        errors |= series.errors
    pairs_ms = {name: (log / NS_PER_MS, run / NS_PER_MS) for name, (log, run) in pairs.items()}
    lost = left_out(table, trace)
    notes = tuple(_notes(table, trace, pairs, lost))
    return Comparison(errors, num_requests, pairs_ms, curves, series, lost, notes)


def _curve(measured_ns: Ints | Floats, predicted_ns: Ints | Floats) -> dict[str, list[float]]:
    share = np.linspace(0, 1, min(len(measured_ns), MAX_CURVE_POINTS))
    both = {"measured": np.quantile(measured_ns, share), "predicted": np.quantile(predicted_ns, share)}
    return {"share": share.tolist()} | {name: (values / NS_PER_MS).tolist() for name, values in both.items()}


def _pooled_curve(measured: DurationHistogram, predicted: DurationHistogram) -> dict[str, list[float]]:
    share = np.linspace(0, 1, min(measured.count, MAX_CURVE_POINTS)).tolist()
    both = {"measured": measured, "predicted": predicted}
    return {"share": share} | {
        name: [ns_to_ms(pool.percentile_ns(100 * part) or 0.0) for part in share] for name, pool in both.items()
    }


def shown_requests(pairs_ms: dict[str, tuple[Floats, Floats]]) -> dict[str, list[list[float]]]:
    """Metric to [measured, predicted] of requests: all, or so many of them, evenly thinned."""
    found = {}
    for metric, both in pairs_ms.items():
        count = len(both[0])
        rows = np.unique(np.linspace(0, count - 1, min(count, MAX_SHOWN_REQUESTS)).round().astype(np.int64))
        found[metric] = np.stack([values[rows] for values in both], axis=1).tolist()
    return found


def _table(requests: pa.Table, trace: PlayedLog, samples: int) -> dict[str, Ints]:
    """The columns of the first replication that are compared, -1 where a value is missing."""
    names = ("id", "arrival_ns", "first_token_ns", "last_token_ns", "output_tokens", "measured")
    table = {name: _ints(requests.column(name)) for name in names}
    numbers = {name: number for number, name in enumerate(rec.STATUS_NAMES)}
    table["status"] = np.array([numbers[name] for name in requests.column("status").to_pylist()], dtype=np.int64)
    first = _ints(requests.column("replication")) == 0
    table = {name: column[first] for name, column in table.items()}
    table["wanted_tokens"] = trace.output_tokens[table["id"]] * samples
    table["samples"] = np.full(len(table["id"]), samples, dtype=np.int64)
    return table


def _ints(column: pa.ChunkedArray) -> Ints:
    import pyarrow as pa

    found: Ints = column.cast(pa.int64()).fill_null(-1).to_numpy()
    return found


def _num_compared(table: dict[str, Ints], trace: PlayedLog) -> int:
    timed = (trace.ttft_ns != UNKNOWN) | (trace.e2e_ns != UNKNOWN)
    return int(np.count_nonzero(whole(table) & timed[table["id"]]))


def _measured_gaps(table: dict[str, Ints], gaps: Gaps | None) -> DurationHistogram | None:
    """The log's gaps, pooled as those of a run are, so that both are read alike.

    None unless it has those of every request of several tokens: the predicted ones are of all.
    """
    if gaps is None:
        return None
    have, several = _with_gaps(table, gaps)
    if not have or have < several:
        return None
    pooled = gaps.take(table["id"][whole(table)]).values
    histogram = DurationHistogram()
    histogram.add_many(pooled, 1)
    return histogram


def _with_gaps(table: dict[str, Ints], gaps: Gaps) -> tuple[int, int]:
    """Of the requests that are compared: those whose gaps the log has, and those of several tokens."""
    chosen = whole(table)
    have = np.diff(gaps.offsets)[table["id"][chosen]] > 0
    return int(np.count_nonzero(have)), int(np.count_nonzero(table["output_tokens"][chosen] > 1))


def _rates(table: dict[str, Ints], trace: PlayedLog) -> Errors:
    """Makespan, throughput and concurrency of the requests whose E2E is known; nothing without one."""
    chosen = whole(table) & (trace.e2e_ns[table["id"]] != UNKNOWN)
    if not chosen.any():
        return {}
    ids, arrival = table["id"][chosen], table["arrival_ns"][chosen]
    tokens = (int(table["wanted_tokens"][chosen].sum()), int(table["output_tokens"][chosen].sum()))
    e2e_of = (trace.e2e_ns[ids], values_ns(table, "e2e_ms")[chosen])
    begin = (trace.arrival_ns[ids], arrival)
    numbers = [_numbers(starts, e2e, count) for starts, e2e, count in zip(begin, e2e_of, tokens, strict=True)]
    measured, predicted = numbers
    return {
        "makespan_s": {"value": compared(("makespan_s",), measured, predicted)["makespan_s"]},
        "throughput": compared(("requests_per_s", "output_tokens_per_s"), measured, predicted),
        "concurrency": {"mean": compared(("concurrency",), measured, predicted)["concurrency"]},
    }


def _numbers(arrival: Ints, e2e: Ints, num_tokens: int) -> dict[str, float | None]:
    span_ns = int((arrival + e2e).max() - arrival.min())
    return {
        "makespan_s": ns_to_s(span_ns),
        "requests_per_s": ratio(len(arrival) * NS_PER_S, span_ns),
        "output_tokens_per_s": ratio(num_tokens * NS_PER_S, span_ns),
        "concurrency": ratio(total(e2e), span_ns),
    }


def _notes(table: dict[str, Ints], trace: PlayedLog, pairs: Pairs, lost: LeftOut) -> list[str]:
    notes = lost.notes()
    served = int(np.count_nonzero(whole(table)))
    for metric, (log, _) in pairs.items():
        if len(log) < served and metric != "tpot_ms":
            many = "" if served == 1 else "s"
            notes.append(f"{metric}: measured for {len(log)} of {served} request{many}, compared over these")
    if trace.gaps is not None:
        have, several = _with_gaps(table, trace.gaps)
        if have < several:
            notes.append(f"itl_ms: the log has the gaps of {have} of {several} requests: not compared")
        if trace.num_warm:
            notes.append("itl_ms: what is predicted includes the requests that warm the caches")
        if lost.by_reason:
            notes.append("itl_ms: what is predicted includes the requests that are left out")
    return notes
