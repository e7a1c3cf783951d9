"""The metrics sink: takes facts of one run in column buffers and running integer sums, and computes nothing else.

Memory grows with requests and spans, never with tokens. Imports numpy, `types` and `metrics.histogram`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from simkit.errors import CheckError
from simkit.metrics.histogram import DurationHistogram
from simkit.types import Ints

FINISHED, REJECTED, REFUSED, ABORTED, UNFINISHED = range(5)
STATUS_NAMES = ("finished", "rejected", "refused", "aborted", "unfinished")
RESIDENCY_ENDS = ("finished", "preempted", "aborted", "unfinished")

REQUEST_COLUMNS = (
    "id",
    "arrival_ns",
    "first_scheduled_ns",
    "first_token_ns",
    "last_token_ns",
    "generated_first_ns",
    "generated_last_ns",
    "prompt_tokens",
    "output_tokens",
    "wanted_tokens",
    "samples",
    "num_preemptions",
    "cached_tokens",
    "status",
    "reject_reason",
    "replica",
    "tenant",
    "priority",
    "left_ns",
)
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
SLOT_COLUMNS = ("replica", "id", "admitted_ns", "prefill_end_ns", "generated_last_ns", "released_ns", "end")

_START, _END, _STEPS = SPAN_COLUMNS.index("t_start_ns"), SPAN_COLUMNS.index("t_end_ns"), SPAN_COLUMNS.index("num_steps")


class Columns:
    """Named int64 columns that grow by rows."""

    __slots__ = ("_data", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._data = array("q")

    def __len__(self) -> int:
        return len(self._data) // len(self.names)

    def append(self, row: tuple[int, ...]) -> None:
        """Add one row, values in the order of `names`."""
        self._data.extend(row)

    def to_dict(self) -> dict[str, Ints]:
        """Column name to int64 array."""
        table = np.frombuffer(self._data, dtype=np.int64).reshape(-1, len(self.names)) if self._data else None
        empty = np.zeros(0, dtype=np.int64)
        return {name: empty if table is None else table[:, i].copy() for i, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What holds during a run of equal steps of one replica; the arrays have one entry a step."""

    replica: int
    start_ns: int
    durations_ns: Ints
    num_decode: int
    prefill_tokens: int
    padded_tokens: int
    context_tokens: int
    live_slots: int
    held_slots: int
    dead_slots: int
    waiting: int
    num_preemptions: int
    kv_capacity_tokens: int
    kv_allocated: Ints
    kv_used: Ints
    kv_internal: Ints
    kv_external_tokens: int
    continues: bool


class Totals:
    """Running integer sums over all steps of all replicas; `*_ns` sums are weighted by step time."""

    __slots__ = (
        "busy_ns",
        "flops",
        "gpu_ns",
        "held_slot_ns",
        "kv_allocated_ns",
        "kv_external_ns",
        "kv_internal_ns",
        "kv_peak_tokens",
        "kv_used_ns",
        "live_slot_ns",
        "moved_bytes",
        "num_steps",
        "padded_tokens",
        "prefill_tokens",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    busy_ns: int
    flops: int
    gpu_ns: int
    held_slot_ns: int
    kv_allocated_ns: int
    kv_external_ns: int
    kv_internal_ns: int
    kv_peak_tokens: int
    kv_used_ns: int
    live_slot_ns: int
    moved_bytes: int
    num_steps: int
    padded_tokens: int
    prefill_tokens: int

    def add(self, facts: StepFacts) -> int:
        """Add a run of steps; returns its duration in ns."""
        durations = facts.durations_ns
        duration = int(durations.sum())
        self.busy_ns += duration
        self.num_steps += len(durations)
        self.live_slot_ns += facts.live_slots * duration
        self.held_slot_ns += facts.held_slots * duration
        self.kv_allocated_ns += int((facts.kv_allocated * durations).sum())
        self.kv_used_ns += int((facts.kv_used * durations).sum())
        self.kv_internal_ns += int((facts.kv_internal * durations).sum())
        self.kv_external_ns += facts.kv_external_tokens * duration
        self.kv_peak_tokens = max(self.kv_peak_tokens, int(facts.kv_allocated.max()))
        self.prefill_tokens += facts.prefill_tokens
        self.padded_tokens += facts.padded_tokens
        return duration

    def add_work(self, gpu_ns: int, flops: int, moved_bytes: int) -> None:
        """Add the work of one replica: time its GPUs computed, FLOPs, bytes moved in GPU memory."""
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
        self.itl = DurationHistogram()
        self.reasons: list[str] = [""]
        self.num_arrived = 0
        self.num_tokens_delivered = 0
        self._keep_slots = keep_slots
        self._open: dict[int, list[int]] = {}
        self._in_system = 0
        self._in_system_since_ns = 0
        self.in_system_area_ns = 0
        self.sojourn_ns = 0

    def arrive(self, now_ns: int) -> None:
        """A request enters the system."""
        self.num_arrived += 1
        self._change_population(now_ns, 1)

    def leave(self, now_ns: int, arrival_ns: int) -> None:
        """A request leaves the system, served or not."""
        self._change_population(now_ns, -1)
        self.sojourn_ns += now_ns - arrival_ns

    def _change_population(self, now_ns: int, change: int) -> None:
        self.in_system_area_ns += self._in_system * (now_ns - self._in_system_since_ns)
        self._in_system_since_ns = now_ns
        self._in_system += change

    def reason(self, text: str) -> int:
        """Number of a reject reason."""
        if text not in self.reasons:
            self.reasons.append(text)
        return self.reasons.index(text)

    def residency(self, row: tuple[int, ...]) -> None:
        """Somebody gave back a slot; `row` as in SLOT_COLUMNS."""
        if self._keep_slots:
            self.slots.append(row)

    def steps(self, facts: StepFacts) -> None:
        """A run of equal steps. It lengthens the open span of its replica when nothing changed in between."""
        duration = self.totals.add(facts)
        end_ns = facts.start_ns + duration
        row = self._open.get(facts.replica)
        if row is not None:
            if facts.continues and row[_END] == facts.start_ns:
                row[_END] = end_ns
                row[_STEPS] += len(facts.durations_ns)
                return
            self.spans.append(tuple(row))
        self._open[facts.replica] = _span_row(facts, end_ns)

    def close(self) -> None:
        """The run is over: write the open spans, in replica order."""
        for replica in sorted(self._open):
            self.spans.append(tuple(self._open[replica]))
        self._open.clear()


def _span_row(facts: StepFacts, end_ns: int) -> list[int]:
    allocated, used, internal = int(facts.kv_allocated[0]), int(facts.kv_used[0]), int(facts.kv_internal[0])
    if not (0 <= used <= allocated - internal <= facts.kv_capacity_tokens - internal):
        raise CheckError(
            f"broken invariant: replica {facts.replica}, step at {facts.start_ns} ns: KV used {used}, internal "
            f"{internal}, allocated {allocated} tokens in a pool of {facts.kv_capacity_tokens}"
        )
    return [
        facts.replica,
        facts.start_ns,
        end_ns,
        len(facts.durations_ns),
        facts.num_decode,
        facts.prefill_tokens,
        facts.context_tokens,
        facts.held_slots,
        facts.waiting,
        facts.dead_slots,
        allocated,
        used,
        allocated - used - internal,
        internal,
        facts.kv_external_tokens,
        facts.kv_capacity_tokens - allocated,
        facts.num_preemptions,
    ]
