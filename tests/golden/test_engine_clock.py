"""The engine's own loop against recorded decisions: same arrivals, same step times, hence the same stamps.

`simkit conform` drives batcher and allocator with a loop of its own; here the replica that `simkit run` uses drives
them, in simulated time, single-stepped, in runs of equal steps, and riding while nobody waits, synchronously and
asynchronously.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simkit.batching.continuous import ContinuousBatcher
from simkit.batching.plan import ContinuousSettings
from simkit.conformance.recorded import RecordedRequest, Recording, find_recordings, read_recording
from simkit.conformance.replayed import SegmentTokens
from simkit.engine import clock as ranks
from simkit.engine.clock import Clock
from simkit.engine.fast_path.fast_replica import FastReplica
from simkit.engine.replica import Replica
from simkit.engine.request import RequestState
from simkit.kv.counted import CountedAllocator
from simkit.kv.paged import PagedAllocator
from simkit.metrics.record import Record
from simkit.sequence import Sequence
from simkit.types import Floats, Ints, Request, StepShapes

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared" / "data" / "vllm_scheduler_traces"
SHIPPED = find_recordings(HERE)
OTHERS = [p for p in (find_recordings(SHARED) if SHARED.is_dir() else []) if p.name not in {q.name for q in SHIPPED}]


@dataclass(frozen=True)
class Formula:
    """The step time of the traces: base + a share a token + a share a context token."""

    base_ns: int
    per_token_ns: int
    per_context_token_ns: int
    source = "formula"
    peak_flops_per_s = None
    peak_bytes_per_s = None

    def step_ns(self, shapes: StepShapes) -> Ints:
        tokens = shapes.decode_seqs + shapes.prefill_tokens
        context = shapes.decode_context_sum + shapes.prefill_context_tokens + shapes.prefill_tokens
        return self.base_ns + self.per_token_ns * tokens + self.per_context_token_ns * context

    gpu_ns = step_ns

    def work(self, shapes: StepShapes) -> tuple[Floats, Floats]:
        return np.zeros(len(shapes)), np.zeros(len(shapes))


class Door:
    """System of a single replica: nothing but arrivals from outside."""

    def __init__(self, trace: Recording) -> None:
        self._times = deque(sorted(row.at_ns for row in trace.requests))

    @property
    def next_arrival_ns(self) -> int | None:
        return self._times[0] if self._times else None

    def arrived(self) -> None:
        self._times.popleft()

    def no_arrival_pending(self) -> bool:
        return False

    def left(self, now_ns: int, request: int) -> None:
        pass

    def preempted(self) -> None:
        pass


def may_ride(config: dict[str, Any]) -> bool:
    """Whether a run with these settings would take the short way while nobody waits, as `build.may_ride` has it."""
    return (
        config["policy"] == "fcfs"
        and not config["enable_prefix_caching"]
        and config["prefill_schedule_interval"] == 1
        and config["long_prefill_token_threshold"] == 0
    )


def stamps(trace: Recording, way: str) -> list[list[int]]:
    """[id, cached tokens, preemptions, first token, last token, tokens] of each request, as the engine has it.

    `way` is single (steps), macro (runs of equal steps) or riding (neither plans nor sequences while nobody waits).
    """
    config = trace.config
    record, clock, door = Record(keep_slots=False), Clock(), Door(trace)
    pool = config["num_gpu_blocks"], config["block_size"], config["watermark"]
    caching = config["enable_prefix_caching"]
    # As a run would choose: blocks are only counted where nobody can ask for their names.
    kv = PagedAllocator(*pool, caching) if way == "single" or caching else CountedAllocator(*pool)
    settings = ContinuousSettings(**{n: config[n] for n in ContinuousSettings.__slots__ if n in config})
    rows: dict[int, RecordedRequest] = {row.id: row for row in trace.requests}
    interned: dict[object, int] = {}

    def make_sequences(state: RequestState) -> None:
        state.num_parts = 1
        tokens = SegmentTokens(rows[state.request.id], config["block_size"], interned)
        state.sequences = (Sequence(state.request, tokens=tokens, owner=state),)

    make: Callable[..., Replica] = partial(FastReplica, make_sequences=make_sequences) if way == "riding" else Replica
    replica = make(
        0,
        clock,
        kv,
        Formula(**trace.duration),
        lambda outcome: ContinuousBatcher(settings, kv, outcome, one_by_one=way == "single"),
        record,
        door,
        max_slots=settings.max_num_seqs,
        settings=trace.case,
        stream=True,
        async_scheduling=config["async_scheduling"],
        single_step=way == "single",
    )

    def arrive(row: RecordedRequest) -> None:
        output = min(row.output_tokens, config["max_model_len"] - row.prompt_tokens)
        request = Request(row.id, row.at_ns, row.prompt_tokens, output, row.output_tokens, row.priority)
        state = RequestState(request, row.at_ns, 0, True, output, row.prompt_tokens + row.output_tokens)
        record.arrive(clock.now_ns)
        door.arrived()
        if isinstance(replica, FastReplica):
            replica.welcome(state)
        else:
            make_sequences(state)
            replica.arrive(state.sequences[0])

    for row in trace.requests:
        clock.at(row.at_ns, ranks.ARRIVAL, lambda row=row: arrive(row))  # type: ignore[misc]
    clock.run()
    replica.close()
    table = record.requests.to_dict()
    names = ("id", "cached_tokens", "num_preemptions", "first_token_ns", "last_token_ns", "output_tokens")
    order = np.argsort(table["id"])
    return [[int(table[name][i]) for name in names] for i in order]


CASES = [
    pytest.param(path, way, id=f"{path.name.split('.')[0]}-{way}")
    for path in SHIPPED
    for way in ("macro", "single", *(["riding"] if may_ride(read_recording(path).config) else []))
]


@pytest.mark.parametrize(("path", "way"), CASES)
def test_the_engine_gives_every_token_when_the_real_one_did(path: Path, way: str) -> None:
    trace = read_recording(path)
    assert stamps(trace, way) == trace.summary["req"]


@pytest.mark.skipif(not OTHERS, reason="no recorded scheduler traces beside the checkout")
def test_the_engine_agrees_with_all_other_traces() -> None:
    for path in OTHERS:
        trace = read_recording(path)
        for way in ("macro", "riding") if may_ride(trace.config) else ("macro",):
            assert stamps(trace, way) == trace.summary["req"], (trace.case, way)
