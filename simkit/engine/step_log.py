"""The steps of one replica: noted run by run while they are made, added up thousands at a time.

Owns what a run of equal steps means for spans, totals, token gaps and work. Everything is a sum of ints, so the result
does not depend on how steps were grouped. Knows no batcher and no clock.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from struct import Struct

import numpy as np

from simkit.errors import CheckError
from simkit.latency.protocol import LatencyModel, OneStep, TaggedLatency
from simkit.metrics.histogram import dot, rounded_total
from simkit.metrics.record import SPAN_COLUMNS, Record
from simkit.types import Floats, Ints, StepShapes

RUN_COLUMNS = (
    "t_start_ns", "num_steps", "number", "continues", "num_decode", "context_sum", "context_max", "dead_slots",
    "held_slots", "waiting", "kv_allocated_tokens", "kv_used_tokens", "num_gaps", "num_gaps_last", "detail",
)  # fmt: skip
"""Of the table of runs, in which the last is the number of a detail, -1 for none."""

DETAIL_COLUMNS = (
    "prefill_tokens",
    "prefill_context_tokens",
    "prefill_pairs",
    "num_sampled_prefills",
    "num_prefills",
    "padded_tokens",
    "swap_in_bytes",
    "swap_out_bytes",
    "num_preemptions",
    "kv_external_tokens",
)
"""What most runs have none of."""

FLUSH_STEPS = 1 << 13

# Packed rows go into an array in half the time that lists take.
_pack_run, _pack_detail, _pack_begins = (
    Struct(f"{count}q").pack for count in (len(RUN_COLUMNS), len(DETAIL_COLUMNS), 3)
)


class StepRun:
    """A run of equal steps as the log notes it: when it starts, and the number of its first step.

    What each of its steps holds is that of the first where it grows (contexts and memory). `num_gaps` sequences had a
    token in the step before as well; in the last step `num_gaps_last`. `detail`, in the order of DETAIL_COLUMNS, is
    what most runs have none of. How many steps there are is known when it is noted.
    """

    __slots__ = RUN_COLUMNS

    def __init__(
        self,
        shape: OneStep,
        number: int,
        start_ns: int,
        continues: bool,
        held_slots: int,
        waiting: int,
        allocated_tokens: int,
        used_tokens: int,
        num_gaps: int,
    ) -> None:
        self.t_start_ns = start_ns
        self.num_steps = 0
        self.number = number
        self.continues = continues
        self.num_decode = shape.num_decode
        self.context_sum = shape.decode_context_sum
        self.context_max = shape.decode_context_max
        self.dead_slots = shape.dead_slots
        self.held_slots = held_slots
        self.waiting = waiting
        self.kv_allocated_tokens = allocated_tokens
        self.kv_used_tokens = used_tokens
        self.num_gaps = self.num_gaps_last = num_gaps
        self.detail: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Steps:
    """Runs unrolled: one entry a step."""

    run: Ints
    offset: Ints
    durations_ns: Ints
    gaps_ns: Ints


class StepLog:
    """Steps of replica `replica`; `growth_period` is the block size of the pool (1 without blocks)."""

    def __init__(
        self, replica: int, record: Record, latency: LatencyModel, capacity_tokens: int, growth_period: int
    ) -> None:
        self._replica = replica
        self._record = record
        self._latency = latency
        self._capacity_tokens = capacity_tokens
        self._period = growth_period
        self._clear()
        self._begins = np.zeros(growth_period, dtype=np.int64)
        self._begins_changes = array("q")
        self._internal_changes: dict[int, int] = {}
        self._internal_tokens = 0
        self._last_end_ns = 0
        self._open_span: Ints | None = None
        self._broken_off: tuple[int, int] | None = None

    def _clear(self) -> None:
        self._runs, self._details, self._ends = array("q"), array("q"), array("q")

    def internal(self, number: int, change_tokens: int) -> None:
        """From step `number` on (not yet noted) internal fragmentation is larger by `change_tokens`."""
        changes = self._internal_changes
        changes[number] = changes.get(number, 0) + change_tokens

    def begins(self, number: int, residue: int, change: int) -> None:
        """From step `number` on `change` more begin a block with each step whose number leaves `residue`."""
        self._begins_changes.frombytes(_pack_begins(number, residue, change))

    def add(self, run: StepRun, ends_ns: list[int] | Ints) -> None:
        """Note a run whose steps ended at `ends_ns`."""
        detail = -1
        if run.detail is not None:
            detail = len(self._details) // len(DETAIL_COLUMNS)
            self._details.frombytes(_pack_detail(*run.detail))
        self._runs.frombytes(
            _pack_run(
                run.t_start_ns, run.num_steps, run.number, run.continues, run.num_decode, run.context_sum,
                run.context_max, run.dead_slots, run.held_slots, run.waiting, run.kv_allocated_tokens,
                run.kv_used_tokens, run.num_gaps, run.num_gaps_last, detail,
            )
        )  # fmt: skip
        if isinstance(ends_ns, list):
            self._ends.fromlist(ends_ns)
        else:
            self._ends.frombytes(ends_ns.tobytes())
        if len(self._ends) >= FLUSH_STEPS:
            self.flush()

    def break_off(self, kept_ns: int, whole_ns: int) -> None:
        """The next run is the last one, a single step that lasts `kept_ns` instead of `whole_ns`: so much of its work
        was done."""
        self._broken_off = (kept_ns, whole_ns)

    def close(self) -> None:
        """The run is over, or the replica has failed."""
        self.flush()
        if self._open_span is not None:
            self._record.spans.extend(self._open_span[None, :])

    def flush(self) -> None:
        """Add up what was noted."""
        if not self._ends:
            return
        runs = self._table()
        ends = np.frombuffer(self._ends, dtype=np.int64)
        first = np.cumsum(runs["num_steps"]) - runs["num_steps"]
        steps = self._unroll(runs, ends, first)
        allocated = self._allocated(runs, steps)
        used = runs["kv_used_tokens"][steps.run] + (runs["num_decode"] - runs["dead_slots"])[steps.run] * steps.offset
        internal = self._internal(int(runs["number"][0]), len(ends))
        self._check(allocated, used, internal, ends)
        self._add_totals(runs, steps, first, allocated, used, internal)
        self._add_gaps(runs, steps)
        self._add_work(runs, steps, first)
        self._add_spans(runs, ends, first, allocated, used, internal)
        self._last_end_ns = int(ends[-1])
        self._clear()

    def _table(self) -> dict[str, Ints]:
        """Columns of the runs, details included."""
        table = np.frombuffer(self._runs, dtype=np.int64).reshape(-1, len(RUN_COLUMNS))
        runs = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(RUN_COLUMNS)}
        detailed = runs["detail"] >= 0
        details = np.frombuffer(self._details, dtype=np.int64).reshape(-1, len(DETAIL_COLUMNS))
        for i, name in enumerate(DETAIL_COLUMNS):
            runs[name] = np.zeros(len(table), dtype=np.int64)
            runs[name][detailed] = details[runs["detail"][detailed], i]
        runs["live_slots"] = runs["num_decode"] + runs["num_prefills"] - runs["dead_slots"]
        return runs

    def _unroll(self, runs: dict[str, Ints], ends: Ints, first: Ints) -> _Steps:
        counts = runs["num_steps"]
        run = np.repeat(np.arange(len(counts)), counts)
        before = np.empty_like(ends)
        before[1:], before[0] = ends[:-1], self._last_end_ns
        gaps = ends - before
        before[first] = runs["t_start_ns"]
        return _Steps(run, np.arange(len(ends)) - first[run], ends - before, gaps)

    def _allocated(self, runs: dict[str, Ints], steps: _Steps) -> Ints:
        """Tokens allocated in each step: what the run began with, and a block for everybody who began one since."""
        up_to = np.cumsum(self._begins_at(runs["number"]), axis=1)
        number = runs["number"][steps.run]
        begun = self._begun(up_to, steps.run, number + steps.offset) - self._begun(up_to, steps.run, number)
        return runs["kv_allocated_tokens"][steps.run] + self._period * begun

    def _begun(self, up_to: Ints, run: Ints, number: Ints) -> Ints:
        """Blocks begun until step `number`, counted from anywhere, by who is there in `run`."""
        rounds, rest = np.divmod(number, self._period)
        begun: Ints = rounds * up_to[run, -1] + up_to[run, rest]
        return begun

    def _begins_at(self, numbers: Ints) -> Ints:
        """How many begin a block, by residue, when each of the steps `numbers` is made: int64[runs, period]."""
        changes = np.frombuffer(self._begins_changes, dtype=np.int64).reshape(-1, 3)
        at = np.searchsorted(numbers, changes[:, 0])
        begins = np.zeros((len(numbers) + 1, self._period), dtype=np.int64)
        np.add.at(begins, (at, changes[:, 1]), changes[:, 2])
        begins[0] += self._begins
        begins = np.cumsum(begins[:-1], axis=0)
        self._begins = begins[-1]
        self._begins_changes = array("q", changes[at == len(numbers)].ravel().tolist())
        return begins

    def _internal(self, number: int, num_steps: int) -> Ints:
        """Internal fragmentation in each step; step `number` is the first."""
        level = np.zeros(num_steps, dtype=np.int64)
        level[0] = self._internal_tokens
        changes = self._internal_changes
        for step in [step for step in changes if step < number + num_steps]:
            level[max(step - number, 0)] += changes.pop(step)
        level = np.cumsum(level)
        self._internal_tokens = int(level[-1])
        return level

    def _check(self, allocated: Ints, used: Ints, internal: Ints, ends: Ints) -> None:
        right = (used >= 0) & (internal >= 0) & (used + internal <= allocated) & (allocated <= self._capacity_tokens)
        if not right.all():
            step = int(np.argmin(right))
            raise CheckError(
                f"broken invariant: replica {self._replica}, step that ends at {int(ends[step])} ns: KV used "
                f"{int(used[step])}, internal {int(internal[step])}, allocated {int(allocated[step])} tokens in a pool "
                f"of {self._capacity_tokens}"
            )

    def _add_totals(
        self, runs: dict[str, Ints], steps: _Steps, first: Ints, allocated: Ints, used: Ints, internal: Ints
    ) -> None:
        totals, durations = self._record.totals, steps.durations_ns
        run_ns = np.add.reduceat(durations, first)
        totals.busy_ns += int(run_ns.sum())
        totals.num_steps += len(durations)
        totals.live_slot_ns += dot(runs["live_slots"], run_ns)
        totals.held_slot_ns += dot(runs["held_slots"], run_ns)
        totals.kv_external_ns += dot(runs["kv_external_tokens"], run_ns)
        totals.kv_allocated_ns += dot(allocated, durations)
        totals.kv_used_ns += dot(used, durations)
        totals.kv_internal_ns += dot(internal, durations)
        totals.kv_peak_tokens = max(totals.kv_peak_tokens, int(allocated.max()))
        totals.prefill_tokens += int(runs["prefill_tokens"].sum())
        totals.padded_tokens += int(runs["padded_tokens"].sum())

    def _add_gaps(self, runs: dict[str, Ints], steps: _Steps) -> None:
        counts = runs["num_gaps"][steps.run]
        counts[np.cumsum(runs["num_steps"]) - 1] = runs["num_gaps_last"]
        some = counts > 0
        self._record.itl.add_many(steps.gaps_ns[some], counts[some])

    def _add_work(self, runs: dict[str, Ints], steps: _Steps, first: Ints) -> None:
        run, offset = steps.run, steps.offset
        decode_seqs = runs["num_decode"][run]

        def once(name: str) -> Ints:
            """Whatever is no decode happens in runs of one step."""
            values = np.zeros(len(run), dtype=np.int64)
            values[first] = runs[name]
            return values

        shapes = StepShapes(
            decode_seqs=decode_seqs,
            decode_context_sum=runs["context_sum"][run] + decode_seqs * offset,
            decode_context_max=runs["context_max"][run] + (decode_seqs > 0) * offset,
            prefill_tokens=once("prefill_tokens"),
            prefill_context_tokens=once("prefill_context_tokens"),
            prefill_pairs=once("prefill_pairs"),
            sampled_seqs=decode_seqs + once("num_sampled_prefills"),
            padded_tokens=once("padded_tokens"),
            dead_slots=runs["dead_slots"][run],
            swap_in_bytes=once("swap_in_bytes"),
            swap_out_bytes=once("swap_out_bytes"),
        )
        flops, moved_bytes = self._latency.work(shapes)
        extrapolated: dict[str, Floats] = {}
        if isinstance(self._latency, TaggedLatency):
            gpu_ns, extrapolated = self._latency.gpu_and_extrapolated_ns(shapes)
        else:
            gpu_ns = self._latency.gpu_ns(shapes)
        if self._broken_off is not None:
            kept_ns, whole_ns = self._broken_off
            gpu_ns = gpu_ns.copy()
            gpu_ns[-1] = int(gpu_ns[-1]) * kept_ns // whole_ns
            share = np.ones(len(run))
            share[-1] = kept_ns / whole_ns
            flops, moved_bytes = flops * share, moved_bytes * share
            extrapolated = {name: ns * share for name, ns in extrapolated.items()}
        busy_ns, gpu_ns_of = int(gpu_ns.sum()), self._record.gpu_ns_of
        gpu_ns_of[self._replica] = gpu_ns_of.get(self._replica, 0) + busy_ns
        # Rounded to ints: float sums would depend on how steps were grouped.
        self._record.totals.add_work(
            busy_ns,
            rounded_total(flops),
            rounded_total(moved_bytes),
            {name: rounded_total(ns) for name, ns in extrapolated.items()},
        )

    def _add_spans(
        self, runs: dict[str, Ints], ends: Ints, first: Ints, allocated: Ints, used: Ints, internal: Ints
    ) -> None:
        """A span is a run and those that continue it; the last one stays open."""
        heads = np.flatnonzero(runs["continues"] == 0)
        if self._open_span is not None and (not len(heads) or heads[0] > 0):
            upto = int(heads[0]) if len(heads) else len(first)
            self._open_span[_END] = ends[first[upto] - 1] if upto < len(first) else ends[-1]
            self._open_span[_STEPS] += int(runs["num_steps"][:upto].sum())
        if not len(heads):
            return
        at = first[heads]
        last = np.append(at[1:], len(ends)) - 1
        columns = {name: column[heads] for name, column in runs.items()} | {
            "replica": np.full(len(heads), self._replica),
            "t_end_ns": ends[last],
            "num_steps": last + 1 - at,
            "running": runs["held_slots"][heads],
            "kv_allocated_tokens": allocated[at],
            "kv_used_tokens": used[at],
            "kv_internal_tokens": internal[at],
            "kv_reserved_tokens": allocated[at] - used[at] - internal[at],
            "kv_free_tokens": self._capacity_tokens - allocated[at],
        }
        columns["context_tokens"] = (
            columns["context_sum"] + columns["prefill_context_tokens"] + columns["prefill_tokens"]
        )
        rows = np.stack([columns[name] for name in SPAN_COLUMNS], axis=1)
        if self._open_span is not None:
            self._record.spans.append(tuple(self._open_span.tolist()))
        self._open_span = rows[-1].copy()
        self._record.spans.extend(rows[:-1])


_END, _STEPS = SPAN_COLUMNS.index("t_end_ns"), SPAN_COLUMNS.index("num_steps")
