"""The numbers of a real run that host terms are fitted to: TTFT and TPOT of groups of requests, and how sure each is.

Owns the choice of requests, groups and weights.

Requests are put into groups by how many others they met in the simulation at the start, few to many: work of a step
for each of its sequences tells itself from work whatever it holds only between few and many. TPOT of a group is its
time between first and last tokens over all its gaps, so that short answers do not carry their noise into it. What was
measured decides neither groups nor order, or its noise would be taken for an effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simkit.errors import CheckError, InputError
from simkit.metrics import record as rec
from simkit.metrics.latencies import PER_REQUEST, gaps, span_ns
from simkit.metrics.measured import in_both, log_columns
from simkit.types import Bools, Floats, Ints

MOST_GROUPS = 10
LEAST_IN_GROUP = 4
"""Requests: fewer say too little of how sure their mean is."""

LEAST_REQUESTS = 20
"""Of a metric, so that it has five groups."""

SURE = 0.002
"""Relative error that every number has at least: simulation and engine never start a request at the same instant."""

Table = dict[str, Ints]


@dataclass(frozen=True, slots=True)
class Sums:
    """A metric of each request as an amount over a count, so that those of a group are sum over sum."""

    amount_ns: Floats
    count: Floats


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of requests that are one number of a metric, and how many others they met on average."""

    metric: str
    rows: Ints
    met: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """What was measured in ms, float64[n], each with a weight: the inverse square of how unsure it is, relatively.

    `ids` are those of all rows of the simulation at the start.
    """

    ids: Ints
    groups: tuple[Group, ...]
    measured_ms: Floats
    weights: Floats

    def predicted_ms(self, table: Table, *, stream: bool) -> Floats:
        """The same numbers of a simulation. CheckError when a request that has one did not finish in it."""
        finished = table["status"] == rec.FINISHED
        same = np.array_equal(table["id"], self.ids)
        if not (same and all(finished[group.rows].all() for group in self.groups)):
            raise CheckError(
                "--from-run: other host terms let other requests finish, so that nothing can be compared: "
                "leave out workload.timeout_s and queue_limit"
            )
        found = _sums(table, stream=stream)
        return np.array([_ratio_ms(found[group.metric], group.rows) for group in self.groups])


def numbers_of(table: Table, ttft_ns: Ints, e2e_ns: Ints, *, stream: bool) -> Numbers:
    """The numbers of a run from its simulation at the start and the times of its log, by request id, -1 = unknown.

    TTFT, and TPOT of requests with both times and two tokens; E2E only where there is no TPOT. InputError where too few
    requests were measured, or in no time at all.
    """
    measured, chosen = _measured(table, ttft_ns, e2e_ns, stream=stream)
    met, simulated = requests_met(table), _sums(table, stream=stream)
    groups = [
        Group(metric, rows, float(met[rows].mean()))
        for metric, mask in chosen.items()
        if mask.sum() >= LEAST_REQUESTS
        for rows in _split(np.flatnonzero(mask), met)
    ]
    if not groups:
        most = max((int(mask.sum()) for mask in chosen.values()), default=0)
        raise InputError(
            f"--from-run: expected a log with TTFT or E2E of {LEAST_REQUESTS} requests or more that also finish in the "
            f"simulation, got {most}"
        )
    numbers = np.array([_ratio_ms(measured[group.metric], group.rows) for group in groups])
    if not (numbers > 0).all():
        raise InputError(f"--from-run: {groups[int(numbers.argmin())].metric} of the log is 0 for many requests")
    unsure = np.array([_unsure(measured[g.metric], simulated[g.metric], g.rows) for g in groups])
    return Numbers(table["id"], tuple(groups), numbers, 1 / (unsure**2 + SURE**2))


def requests_met(table: Table) -> Floats:
    """Mean number of requests in the system, itself included, while each was there, float64[n]; 0 if not finished."""
    finished = table["status"] == rec.FINISHED
    start, end = table["arrival_ns"][finished], table["last_token_ns"][finished]
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    present = np.cumsum(np.concatenate([np.ones(len(start)), -np.ones(len(end))])[order])
    area = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(times))])
    found = np.zeros(len(finished))
    inside = area[np.searchsorted(times, end)] - area[np.searchsorted(times, start)]
    found[finished] = inside / np.maximum(end - start, 1)
    return found


def _measured(
    table: Table, ttft_ns: Ints, e2e_ns: Ints, *, stream: bool
) -> tuple[Mapping[str, Sums], Mapping[str, Bools]]:
    """Metric to what the log measured, and to the requests that have it there and, whole, in the simulation."""
    log = log_columns(table, ttft_ns, e2e_ns)
    chosen = {"ttft_ms": in_both(table, log, "ttft_ms")}
    several = in_both(table, log, "tpot_ms")
    if stream and several.sum() >= LEAST_REQUESTS:
        chosen["tpot_ms"] = several
    else:
        chosen["e2e_ms"] = in_both(table, log, "e2e_ms")
    return _sums(log, stream=True), chosen


def _sums(table: Table, *, stream: bool) -> Mapping[str, Sums]:
    """Each latency of requests as an amount over a count; without `stream` there is no TPOT."""
    ones = np.ones(len(table["arrival_ns"]))
    return {
        metric: Sums(span_ns(table, metric).astype(float), gaps(table).astype(float) if metric == "tpot_ms" else ones)
        for metric in PER_REQUEST
        if stream or metric != "tpot_ms"
    }


def _split(rows: Ints, met: Floats) -> list[Ints]:
    num_groups = min(MOST_GROUPS, len(rows) // LEAST_IN_GROUP)
    return np.array_split(rows[np.argsort(met[rows], kind="stable")], num_groups)


def _ratio_ms(sums: Sums, rows: Ints) -> float:
    return float(sums.amount_ns[rows].sum() / sums.count[rows].sum()) / 1e6


def _unsure(measured: Sums, simulated: Sums, rows: Ints) -> float:
    """Relative standard error of a number, by how unevenly its requests differ from their simulation."""
    amount = simulated.amount_ns[rows] * (measured.count[rows] / np.maximum(simulated.count[rows], 1))
    off = amount - measured.amount_ns[rows]
    rest = off - measured.count[rows] * (off.sum() / measured.count[rows].sum())
    return float(np.sqrt(np.square(rest).sum()) / measured.amount_ns[rows].sum())
