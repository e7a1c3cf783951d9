"""The engine's own loop against recorded decisions: same arrivals, same step times, hence the same stamps.

`simkit conform` drives batcher and allocator with a loop of its own; here the replica that `simkit run` uses drives
them, in simulated time, single-stepped and in runs of equal steps, synchronously and asynchronously.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from simkit.batching.continuous import ContinuousBatcher
from simkit.batching.settings import ContinuousSettings
from simkit.conformance.replay import SegmentTokens
from simkit.conformance.trace import Trace, TraceRequest, find_traces, read_trace
from simkit.engine import clock as ranks
from simkit.engine.clock import Clock
from simkit.engine.customer import Customer
from simkit.engine.replica import Replica
from simkit.kv.counted import CountedAllocator
from simkit.kv.paged import PagedAllocator
from simkit.metrics.record import Record
from simkit.sequence import Sequence
from simkit.types import Floats, Ints, Request, StepShapes

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared" / "data" / "vllm_scheduler_traces"
SHIPPED = find_traces(HERE)
OTHERS = [p for p in (find_traces(SHARED) if SHARED.is_dir() else []) if p.name not in {q.name for q in SHIPPED}]


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
    """Surroundings of a single replica: nothing but arrivals from outside."""

    def __init__(self, trace: Trace) -> None:
        self._times = deque(sorted(row.at_ns for row in trace.requests))

    @property
    def next_arrival_ns(self) -> int | None:
        return self._times[0] if self._times else None

    def arrived(self) -> None:
        self._times.popleft()

    def no_arrival_pending(self) -> bool:
        return False

    def left(self, customer: Customer, now_ns: int) -> None:
        pass


def stamps(trace: Trace, single_step: bool) -> list[list[int]]:
    """[id, cached tokens, preemptions, first token, last token, tokens] of each request, as the engine has it."""
    config = trace.config
    record, clock, door = Record(keep_slots=False), Clock(), Door(trace)
    pool = config["num_gpu_blocks"], config["block_size"], config["watermark"]
    caching = config["enable_prefix_caching"]
    # As a run would choose: blocks are only counted where nobody can ask for their names.
    kv = PagedAllocator(*pool, caching) if single_step or caching else CountedAllocator(*pool)
    settings = ContinuousSettings(**{n: config[n] for n in ContinuousSettings.__slots__ if n in config})
    replica = Replica(
        0,
        clock,
        kv,
        Formula(**trace.duration),
        lambda outcome: ContinuousBatcher(settings, kv, outcome, one_by_one=single_step),
        record,
        door,
        max_slots=settings.max_num_seqs,
        settings=trace.case,
        stream=True,
        async_scheduling=config["async_scheduling"],
        single_step=single_step,
    )
    interned: dict[object, int] = {}

    def arrive(row: TraceRequest) -> None:
        output = min(row.output_tokens, config["max_model_len"] - row.prompt_tokens)
        request = Request(row.id, row.at_ns, row.prompt_tokens, output, row.output_tokens, row.priority)
        customer = Customer(request, row.at_ns, 0, True, output)
        customer.num_parts = 1
        tokens = SegmentTokens(row, config["block_size"], interned)
        customer.sequences = (Sequence(request, tokens=tokens, owner=customer),)
        record.arrive(clock.now_ns)
        door.arrived()
        replica.arrive(customer.sequences[0])

    for row in trace.requests:
        clock.at(row.at_ns, ranks.ARRIVAL, lambda row=row: arrive(row))  # type: ignore[misc]
    clock.run()
    replica.close()
    table = record.requests.to_dict()
    names = ("id", "cached_tokens", "num_preemptions", "first_token_ns", "last_token_ns", "output_tokens")
    order = np.argsort(table["id"])
    return [[int(table[name][i]) for name in names] for i in order]


@pytest.mark.parametrize("single_step", [False, True], ids=["macro", "single"])
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name.split(".")[0])
def test_the_engine_gives_every_token_when_the_real_one_did(path: Path, single_step: bool) -> None:
    trace = read_trace(path)
    assert stamps(trace, single_step) == trace.summary["req"]


@pytest.mark.skipif(not OTHERS, reason="no recorded scheduler traces beside the checkout")
def test_the_engine_agrees_with_all_other_traces() -> None:
    for path in OTHERS:
        trace = read_trace(path)
        assert stamps(trace, single_step=False) == trace.summary["req"], trace.case
