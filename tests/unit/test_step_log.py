"""The step log against adding up step by step in Python's own integers: the same, however steps were grouped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from simkit.batching.plan import StepPlan
from simkit.engine import step_log
from simkit.engine.step_log import DETAIL_COLUMNS, StepLog, StepRun
from simkit.errors import CheckError
from simkit.metrics.histogram import DurationHistogram
from simkit.metrics.record import SPAN_COLUMNS, Record, Totals
from simkit.types import Floats, Ints, StepShapes

CAPACITY = 1 << 40
PERIOD = 4


@dataclass(frozen=True)
class Run:
    """Equal steps as the engine tells them; `growth` are the blocks that its second and further steps take, by what the
    number of the step leaves when it is divided by the block size."""

    start_ns: int
    durations_ns: tuple[int, ...]
    number: int
    continues: bool
    num_decode: int
    context_sum: int
    context_max: int
    dead_slots: int
    held_slots: int
    waiting: int
    allocated: int
    used: int
    num_gaps: int
    num_gaps_last: int
    growth: tuple[int, ...] = (0,) * PERIOD
    detail: dict[str, int] = field(default_factory=dict)

    @property
    def ends_ns(self) -> list[int]:
        return [self.start_ns + done for done in itertools.accumulate(self.durations_ns)]

    def begun(self, offset: int) -> int:
        """Blocks begun until its step `offset`, counted from 0."""
        return sum(self.growth[(self.number + ahead) % PERIOD] for ahead in range(1, offset + 1))

    def cut(self, at: int) -> tuple[Run, Run]:
        """The first `at` steps, and the others as a run that continues them."""
        first = replace(self, durations_ns=self.durations_ns[:at], num_gaps_last=self.num_gaps)
        second = replace(
            self,
            start_ns=first.ends_ns[-1],
            durations_ns=self.durations_ns[at:],
            number=self.number + at,
            continues=True,
            context_sum=self.context_sum + at * self.num_decode,
            context_max=self.context_max + at,
            allocated=self.allocated + self.begun(at) * PERIOD,
            used=self.used + at * (self.num_decode - self.dead_slots),
            detail={"kv_external_tokens": self.detail.get("kv_external_tokens", 0)} if self.detail else {},
        )
        return first, second

    def single_steps(self) -> list[Run]:
        rest, singles = self, []
        while len(rest.durations_ns) > 1:
            first, rest = rest.cut(1)
            singles.append(first)
        return [*singles, rest]


class Work:
    """A latency model whose work is a sum of shapes; FLOPs are large and exact in a double."""

    source, peak_flops_per_s, peak_bytes_per_s = "test", None, None

    def step_ns(self, shapes: StepShapes) -> Ints:
        raise AssertionError("the log prices nothing")

    def gpu_ns(self, shapes: StepShapes) -> Ints:
        return 1 + shapes.decode_context_sum + 3 * shapes.prefill_tokens + 5 * shapes.sampled_seqs

    def work(self, shapes: StepShapes) -> tuple[Floats, Floats]:
        flops = (shapes.decode_seqs + shapes.prefill_pairs).astype(np.float64) * 2.0**50
        moved = shapes.decode_context_max + shapes.prefill_context_tokens + shapes.swap_in_bytes + shapes.swap_out_bytes
        return flops, moved.astype(np.float64)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Run], dict[int, int]]:
    """Runs one after the other with idle time between some, and changes of internal fragmentation by step number."""
    scale = draw(st.sampled_from([1, 1000, 10**6, 10**9, 10**12]))
    tokens = draw(st.sampled_from([100, 10**6, 10**8]))
    now, number, runs, last = 0, 1, [], None
    for _ in range(draw(st.integers(1, 6))):
        now += draw(st.sampled_from([0, 0, 5, scale]))
        prefill = draw(st.booleans())
        num_steps = 1 if prefill else draw(st.integers(1, 30))
        duration = st.integers(1, 50).map(lambda value: value * scale + value)
        durations = tuple(draw(st.lists(duration, min_size=num_steps, max_size=num_steps)))
        num_decode = draw(st.integers(0 if prefill else 1, 9))
        dead = draw(st.integers(0, num_decode))
        used = draw(st.integers(0, tokens))
        external = draw(st.sampled_from([0, 0, tokens]))
        detail = {"kv_external_tokens": external} if external else {}
        if prefill:
            detail |= {name: draw(st.integers(0, 1000)) for name in DETAIL_COLUMNS if name != "kv_external_tokens"}
        gaps = draw(st.integers(0, num_decode))
        # A run can go on with what the one before it did.
        whole = last is not None and not prefill and draw(st.booleans()) and not last.detail and not detail
        run = Run(
            start_ns=now,
            durations_ns=durations,
            number=number,
            continues=whole,
            num_decode=num_decode,
            context_sum=draw(st.integers(0, tokens)),
            context_max=draw(st.integers(0, tokens)),
            dead_slots=dead,
            held_slots=draw(st.integers(num_decode, num_decode + 3)),
            waiting=draw(st.integers(0, 5)),
            allocated=used + 40 * 9 + 3 * tokens,
            used=used,
            num_gaps=gaps,
            num_gaps_last=draw(st.integers(0, gaps)),
            growth=tuple(draw(st.lists(st.integers(0, 3), min_size=PERIOD, max_size=PERIOD))),
            detail=detail,
        )  # fmt: skip
        runs.append(run)
        now, number, last = run.ends_ns[-1], number + num_steps, run
    level, changes = 0, {}
    for step in sorted(draw(st.sets(st.integers(1, number + 3), max_size=6))):
        wanted = draw(st.integers(0, 3 * tokens))
        changes[step], level = wanted - level, wanted
    return runs, changes


def begin_changes(runs: list[Run]) -> Iterator[tuple[int, int, int]]:
    """From which step on how many more begin a block, by residue."""
    now = [0] * PERIOD
    for run in runs:
        for residue, wanted in enumerate(run.growth):
            if wanted != now[residue]:
                yield run.number, residue, wanted - now[residue]
                now[residue] = wanted


def note(runs: list[Run], changes: dict[int, int], flush_steps: int, early: bool) -> Record:
    """A record of these runs; changes are told as early as possible, or just before their step."""
    record, left = Record(keep_slots=False), dict(changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_log, "FLUSH_STEPS", flush_steps)
        log = StepLog(3, record, Work(), CAPACITY, PERIOD)
        begins = list(begin_changes(runs))
        for run in runs:
            while begins and (early or begins[0][0] == run.number):
                log.begins(*begins.pop(0))
            upto = 10**9 if early else run.number + len(run.durations_ns)
            for step in [step for step in left if step < upto]:
                log.internal(step, left.pop(step))
            shape = StepPlan()
            shape.num_decode, shape.dead_slots = run.num_decode, run.dead_slots
            shape.decode_context_sum, shape.decode_context_max = run.context_sum, run.context_max
            noted = StepRun(
                shape, run.number, run.start_ns, continues=run.continues, held_slots=run.held_slots,
                waiting=run.waiting, allocated_tokens=run.allocated, used_tokens=run.used, num_gaps=run.num_gaps,
            )  # fmt: skip
            noted.num_steps, noted.num_gaps_last = len(run.durations_ns), run.num_gaps_last
            if run.detail:
                noted.detail = tuple(run.detail.get(name, 0) for name in DETAIL_COLUMNS)
            ends = run.ends_ns
            log.add(noted, np.array(ends) if len(ends) > 9 else ends)
        log.close()
    return record


def by_hand(
    runs: list[Run], changes: dict[int, int]
) -> tuple[dict[str, int], DurationHistogram, list[tuple[int, ...]]]:
    """Totals, gaps and spans from the definitions, one step at a time."""
    totals, gaps, spans = dict.fromkeys(Totals.__slots__, 0), DurationHistogram(), []
    last_end = 0
    for run in runs:
        for offset, (duration, end) in enumerate(zip(run.durations_ns, run.ends_ns, strict=True)):
            detail = {name: run.detail.get(name, 0) for name in DETAIL_COLUMNS}
            allocated = run.allocated + run.begun(offset) * PERIOD
            used = run.used + offset * (run.num_decode - run.dead_slots)
            internal = sum(change for step, change in changes.items() if step <= run.number + offset)
            live = run.num_decode + detail["num_prefills"] - run.dead_slots
            sampled = run.num_decode + detail["num_sampled_prefills"]
            context = run.context_sum + offset * run.num_decode
            longest = run.context_max + (offset if run.num_decode else 0)
            totals["busy_ns"] += duration
            totals["num_steps"] += 1
            for name, value in {
                "live_slot": live, "held_slot": run.held_slots, "kv_external": detail["kv_external_tokens"],
                "kv_allocated": allocated, "kv_used": used, "kv_internal": internal,
            }.items():  # fmt: skip
                totals[f"{name}_ns"] += value * duration
            totals["kv_peak_tokens"] = max(totals["kv_peak_tokens"], allocated)
            totals["prefill_tokens"] += detail["prefill_tokens"]
            totals["padded_tokens"] += detail["padded_tokens"]
            totals["gpu_ns"] += 1 + context + 3 * detail["prefill_tokens"] + 5 * sampled
            totals["flops"] += (run.num_decode + detail["prefill_pairs"]) << 50
            totals["moved_bytes"] += (
                longest + detail["prefill_context_tokens"] + detail["swap_in_bytes"] + detail["swap_out_bytes"]
            )
            num_gaps = run.num_gaps_last if offset == len(run.durations_ns) - 1 else run.num_gaps
            if num_gaps:
                gaps.add(end - last_end, num_gaps)
            last_end = end
            if offset or run.continues:
                spans[-1] |= {"t_end_ns": end, "num_steps": spans[-1]["num_steps"] + 1}
                continue
            spans.append(
                detail
                | {
                    "replica": 3, "t_start_ns": run.start_ns, "t_end_ns": end, "num_steps": 1,
                    "num_decode": run.num_decode, "running": run.held_slots, "waiting": run.waiting,
                    "dead_slots": run.dead_slots, "kv_allocated_tokens": allocated, "kv_used_tokens": used,
                    "kv_internal_tokens": internal, "kv_reserved_tokens": allocated - used - internal,
                    "kv_free_tokens": CAPACITY - allocated,
                    "context_tokens": context + detail["prefill_context_tokens"] + detail["prefill_tokens"],
                }
            )  # fmt: skip
    return totals, gaps, [tuple(span[name] for name in SPAN_COLUMNS) for span in spans]


def rows(record: Record) -> list[tuple[int, ...]]:
    columns = record.spans.to_dict()
    return list(zip(*(columns[name].tolist() for name in SPAN_COLUMNS), strict=True))


def assert_equal(record: Record, runs: list[Run], changes: dict[int, int]) -> None:
    totals, gaps, spans = by_hand(runs, changes)
    assert {name: getattr(record.totals, name) for name in Totals.__slots__} == totals | {"extrapolated_ns": {}}
    assert rows(record) == spans
    assert (record.itl.count, record.itl.total_ns) == (gaps.count, gaps.total_ns)
    for percent in (0, 37, 50, 90, 100):
        assert record.itl.percentile_ns(percent) == gaps.percentile_ns(percent)


@given(case=cases(), data=st.data())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_the_grouping_of_steps_changes_nothing(case: tuple[list[Run], dict[int, int]], data: st.DataObject) -> None:
    runs, changes = case
    pieces: list[Run] = []
    for run in runs:
        rest = run
        while len(rest.durations_ns) > 1 and data.draw(st.booleans()):
            first, rest = rest.cut(data.draw(st.integers(1, len(rest.durations_ns) - 1)))
            pieces.append(first)
        pieces.append(rest)
    singles = [single for run in runs for single in run.single_steps()]
    for kind in (runs, pieces, singles):
        flush_steps, early = data.draw(st.sampled_from([1, 2, 7, 40, 1 << 13])), data.draw(st.booleans())
        assert_equal(note(kind, changes, flush_steps, early), runs, changes)


def plain(**changed: int | tuple[int, ...] | None) -> Run:
    """A run of three decodes whose pool takes no further block."""
    run = Run(0, (10,), 1, False, 3, 30, 10, 0, 3, 0, 100, 30, 3, 3)
    return replace(run, **changed)  # type: ignore[arg-type]


def test_a_day_of_a_million_tokens_is_added_up_exactly() -> None:
    """Tokens x nanoseconds do not fit 64 bits, nor do the FLOPs of many large steps."""
    second, day, at_once = 10**9, 86_400, 4096
    step = plain(num_decode=512, held_slots=1024, context_sum=10**6, allocated=10**8, used=10**7)
    runs, number, now = [], 1, 0
    while number <= day:
        durations = (second + 7,) * min(at_once, day + 1 - number)
        runs.append(replace(step, durations_ns=durations, number=number, start_ns=now, continues=number > 1))
        number, now = number + len(durations), runs[-1].ends_ns[-1]
    record = note(runs, {5: 10**7}, 1 << 13, early=True)
    totals = record.totals
    assert totals.busy_ns == day * (second + 7)
    assert totals.kv_allocated_ns == 10**8 * totals.busy_ns > 2**63
    used = sum(10**7 + 512 * (number % at_once) for number in range(day))
    assert totals.kv_used_ns == used * (second + 7) > 2**63
    assert totals.kv_internal_ns == 10**7 * (day - 4) * (second + 7) > 2**63
    assert totals.held_slot_ns == 1024 * totals.busy_ns
    assert totals.flops == (512 * day) << 50
    assert totals.flops > 2**63
    (span,) = rows(record)
    names = ("t_start_ns", "t_end_ns", "num_steps")
    assert [span[SPAN_COLUMNS.index(name)] for name in names] == [0, totals.busy_ns, day]
    whole = note([plain(durations_ns=(day * second,), allocated=10**8)], {}, 1, early=False)
    assert whole.totals.kv_allocated_ns == 10**8 * day * second > 2**63


@pytest.mark.parametrize(
    ("run", "changes"),
    [
        (plain(used=101), {}),
        (plain(used=-1), {}),
        (plain(), {1: 71}),
        (plain(), {1: -1}),
        (plain(allocated=CAPACITY + 1), {}),
        (plain(durations_ns=(10,) * 25), {}),
        (plain(durations_ns=(10,) * 25, growth=(0, 0, 0, 0)), {}),
        (plain(durations_ns=(10,) * 4, used=92, growth=(0, 3, 0, 0)), {}),
    ],
)
def test_books_that_do_not_balance_are_noticed(run: Run, changes: dict[int, int]) -> None:
    """Three tokens a step more fill 70 free ones with step 25, unless blocks are taken in time."""
    with pytest.raises(CheckError, match="broken invariant: replica 3, step that ends at"):
        note([run], changes, 1 << 13, early=True)
    note([plain(durations_ns=(10,) * 24)], {}, 1 << 13, early=True)
    note([plain(durations_ns=(10,) * 25, growth=(1, 0, 1, 1))], {1: 70}, 1 << 13, early=True)
    note([plain(durations_ns=(10,) * 4, used=92, growth=(3, 0, 0, 0))], {}, 1 << 13, early=True)
