"""The metrics sink: takes facts of one run in column buffers and running integer sums, and computes nothing else.

Memory grows with requests and spans, never with tokens. `check_run` says what must hold at the end of every run,
whatever the scenario; it is checked always, never switched off.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

import numpy as np

from simkit.errors import CheckError
from simkit.metrics.histogram import DurationHistogram
from simkit.types import Ints

FINISHED, REJECTED, REFUSED, ABORTED, UNFINISHED = range(5)
STATUS_NAMES = ("finished", "rejected", "refused", "aborted", "unfinished")
RESIDENCY_ENDS = ("finished", "preempted", "aborted", "unfinished", "failed")

SPAN_COLUMNS = (
    "replica",
    "t_start_ns",
    "t_end_ns",
    "num_steps",
    "num_decode",
    "prefill_tokens",
    "context_tokens",
    "running",
    "waiting",
    "dead_slots",
    "kv_allocated_tokens",
    "kv_used_tokens",
    "kv_reserved_tokens",
    "kv_internal_tokens",
    "kv_external_tokens",
    "kv_free_tokens",
    "num_preemptions",
)


class RequestRow(NamedTuple):
    """A request that has left: times are ns, -1 = never. Its tokens are those of all its samples."""

    id: int
    arrival_ns: int
    first_scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    generated_first_ns: int
    generated_last_ns: int
    prompt_tokens: int
    output_tokens: int
    wanted_tokens: int
    samples: int
    num_preemptions: int
    cached_tokens: int
    status: int
    reject_reason: int
    replica: int
    tenant: int
    priority: int
    left_ns: int


REQUEST_COLUMNS = RequestRow._fields
SLOT_COLUMNS = ("replica", "id", "admitted_ns", "prefill_end_ns", "generated_last_ns", "released_ns", "end")

FRESH_VALUES = 1 << 17
"""Integers that wait as rows before they are spread over columns: 1 MB."""


class Columns:
    """Named int64 columns that grow by rows, and are read when all rows are there.

    Rows wait in a small buffer before they are spread over the columns. A long column grows where it is (the operating
    system moves its pages) and is given out as it is, so nothing is ever held twice.
    """

    __slots__ = ("_columns", "_fresh", "_pack", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._fresh = array("q")
        self._pack = Struct(f"{len(names)}q").pack
        self._columns = [array("q") for _ in names]

    def __len__(self) -> int:
        return len(self._columns[0]) + len(self._fresh) // len(self.names)

    def append(self, row: tuple[int, ...]) -> None:
        """Add one row, values in the order of `names`."""
        self._fresh.frombytes(self._pack(*row))
        if len(self._fresh) >= FRESH_VALUES:
            self._spread()

    def extend(self, rows: Ints) -> None:
        """Add many rows, int64[n, len(names)]."""
        self._fresh.frombytes(rows.tobytes())
        if len(self._fresh) >= FRESH_VALUES:
            self._spread()

    def _spread(self) -> None:
        rows = np.frombuffer(self._fresh, dtype=np.int64).reshape(-1, len(self.names))
        for column, values in zip(self._columns, rows.T, strict=True):
            column.frombytes(values.tobytes())
        self._fresh = array("q")

    def to_dict(self) -> dict[str, Ints]:
        """Column name to int64 array: the columns themselves, to be read only. While they live no row can be added."""
        if self._fresh:
            self._spread()
        return {
            name: np.frombuffer(column, dtype=np.int64) for name, column in zip(self.names, self._columns, strict=True)
        }

    def sort(self, *keys: str) -> dict[str, Ints]:
        """Put the rows in the order of some columns, the first of them leading; what `to_dict` then gives."""
        columns = self.to_dict()
        order = np.lexsort([columns[key] for key in reversed(keys)])
        if (np.diff(order) < 0).any():
            for column in columns.values():
                column[:] = column[order]
        return columns


@dataclass(slots=True)
class Totals:
    """Running integer sums over all steps of all replicas; `*_ns` sums are weighted by step time.

    `extrapolated_ns` has names only where the latency model says what it measured.
    """

    busy_ns: int = 0
    extrapolated_ns: dict[str, int] = field(default_factory=dict)
    flops: int = 0
    gpu_ns: int = 0
    held_slot_ns: int = 0
    kv_allocated_ns: int = 0
    kv_external_ns: int = 0
    kv_internal_ns: int = 0
    kv_peak_tokens: int = 0
    kv_used_ns: int = 0
    live_slot_ns: int = 0
    moved_bytes: int = 0
    num_steps: int = 0
    padded_tokens: int = 0
    prefill_tokens: int = 0

    def add_work(self, gpu_ns: int, flops: int, moved_bytes: int, extrapolated_ns: Mapping[str, int]) -> None:
        """Add the work of one replica: time its GPUs computed, FLOPs, bytes moved in GPU memory; and of the time what
        does not rest on measurements, by what it is."""
        for name, ns in extrapolated_ns.items():
            self.extrapolated_ns[name] = self.extrapolated_ns.get(name, 0) + ns
        self.gpu_ns += gpu_ns
        self.flops += flops
        self.moved_bytes += moved_bytes


class Record:
    """Facts of one run. `requests`, `spans` and `slots` are column buffers; `itl` is pooled over delivered gaps."""

    def __init__(self, keep_slots: bool) -> None:
        self.requests = Columns(REQUEST_COLUMNS)
        self.spans = Columns(SPAN_COLUMNS)
        self.slots = Columns(SLOT_COLUMNS)
        self.totals = Totals()
        self.gpu_ns_of: dict[int, int] = {}
        """Of the GPU time, what each replica computed."""
        self.num_requeued: int | None = None
        """Requests that a failed replica gave back, each time anew; None where no replica can fail."""
        self.itl = DurationHistogram()
        self.reasons: list[str] = [""]
        self.num_arrived = 0
        self.num_tokens_delivered = 0
        self._keep_slots = keep_slots
        self._in_system = 0
        self._in_system_since_ns = 0
        self.in_system_area_ns = 0
        self.sojourn_ns = 0

    def arrive(self, now_ns: int) -> None:
        """A request enters the system."""
        self.num_arrived += 1
        self.in_system_area_ns += self._in_system * (now_ns - self._in_system_since_ns)
        self._in_system_since_ns = now_ns
        self._in_system += 1

    def leave(self, now_ns: int, arrival_ns: int) -> None:
        """A request leaves the system, whether it was served or not."""
        self.in_system_area_ns += self._in_system * (now_ns - self._in_system_since_ns)
        self._in_system_since_ns = now_ns
        self._in_system -= 1
        self.sojourn_ns += now_ns - arrival_ns

    def reason(self, text: str) -> int:
        """The number of a reject reason; a new one gets the next."""
        if text not in self.reasons:
            self.reasons.append(text)
        return self.reasons.index(text)

    def residency(self, row: tuple[int, ...]) -> None:
        """A sequence gave back its slot; `row` has the values of SLOT_COLUMNS."""
        if self._keep_slots:
            self.slots.append(row)


def check_run(record: Record, unfinished: int) -> None:
    """Check that no request and no token is lost, that times are in order, and Little's law. Raises CheckError.

    The law is an identity of integers here: the integral of the number in the system is the sum of the times in it.
    """
    table = record.requests.to_dict()
    if len(record.requests) + unfinished != record.num_arrived:
        raise CheckError(
            f"broken invariant: {record.num_arrived} requests arrived, {len(record.requests)} left and "
            f"{unfinished} are still inside"
        )
    delivered = int(table["output_tokens"].sum())
    if delivered != record.num_tokens_delivered:
        raise CheckError(f"broken invariant: {record.num_tokens_delivered} tokens delivered, requests hold {delivered}")
    _check_stamps(table)
    if unfinished == 0 and record.in_system_area_ns != record.sojourn_ns:
        raise CheckError(
            f"broken invariant (Little's law): integral of the number in system is {record.in_system_area_ns} ns, "
            f"sojourn times add up to {record.sojourn_ns} ns"
        )


def _check_stamps(table: dict[str, Ints]) -> None:
    """arrival <= first scheduled <= first token <= last token for everybody who was served."""
    served = table["status"] == FINISHED
    stamps = ("arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns")
    for earlier, later in pairwise(stamps):
        wrong = np.flatnonzero(served & (table[earlier] > table[later]))
        if len(wrong):
            row = int(wrong[0])
            raise CheckError(
                f"broken invariant: request {int(table['id'][row])} has {earlier} {int(table[earlier][row])} "
                f"after {later} {int(table[later][row])}"
            )
    short = np.flatnonzero(served & (table["output_tokens"] < 1))
    if len(short):
        raise CheckError(f"broken invariant: request {int(table['id'][short[0]])} finished without a token")
