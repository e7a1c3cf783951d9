"""Drives batcher and allocator with the workload of a recording and tells what they decided, record by record.

The clock is the integer formula of the recording; the objects are those of a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from simkit.batching.continuous import ContinuousBatcher
from simkit.batching.outputs import FinishCalendar
from simkit.batching.plan import ContinuousSettings, ScheduledChunk, StepPlan
from simkit.conformance.recorded import Record, RecordedRequest, Recording
from simkit.kv.paged import PagedAllocator
from simkit.sequence import Sequence
from simkit.types import Request


class SegmentTokens:
    """Identity of a prompt made of stream segments followed by generated tokens of one stream.

    Keys are chains interned as ints: `interned` maps (key of the block before, pieces of this block) to a number, and
    is shared by all sequences of a replay. Token j of a stream is known by (stream, j) itself.
    """

    __slots__ = ("_block_size", "_interned", "_keys", "_pieces")

    def __init__(self, request: RecordedRequest, block_size: int, interned: dict[Hashable, int]) -> None:
        self._block_size = block_size
        self._interned = interned
        self._keys: list[int] = []
        self._pieces = self._cut([*request.segments, (request.output_stream, -1)])

    def _cut(self, segments: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int, int], ...]]:
        """Blocks as tuples of (stream, first token, length); the last segment has no end."""
        block: list[tuple[int, int, int]] = []
        room = self._block_size
        for stream, length in segments:
            first = 0
            while first != length:
                taken = room if length < 0 else min(room, length - first)
                block.append((stream, first, taken))
                first += taken
                room -= taken
                if room == 0:
                    yield tuple(block)
                    block, room = [], self._block_size

    def block_key(self, index: int) -> Hashable:
        """Number of the whole prefix up to the end of block `index`."""
        while len(self._keys) <= index:
            before = self._keys[-1] if self._keys else -1
            entry = (before, next(self._pieces))
            self._keys.append(self._interned.setdefault(entry, len(self._interned)))
        return self._keys[index]


class _Limits:
    """OutputListener for the batcher: everybody ends at its visible limit; remembers who ended, in order."""

    def __init__(self, max_model_len: int) -> None:
        self.ended: list[int] = []
        self.first_token_ns: dict[int, int] = {}
        self.end_ns: dict[int, int] = {}
        self.now_ns = 0
        self._max_model_len = max_model_len
        self._calendar = FinishCalendar()

    def token(self, seq: Sequence, ends: bool) -> bool:
        """Every token is delivered; only the limits end a sequence."""
        self.first_token_ns.setdefault(seq.id, self.now_ns)
        return ends

    def joined(self, seq: Sequence, commit: int) -> None:
        """`seq` gets a token with every commit from now on."""
        most = min(seq.max_tokens, self._max_model_len - seq.num_prompt_tokens)
        self._calendar.follow(seq, commit + most - seq.num_output_tokens)

    def stopped(self, seq: Sequence) -> None:
        """Its last token is under way."""

    def left(self, seq: Sequence) -> None:
        """`seq` is told of one by one again."""
        self._calendar.drop(seq)

    def tokens(self, commit: int) -> list[Sequence]:
        """Who reached its limit."""
        return self._calendar.take(commit)

    def released(self, seq: Sequence) -> None:
        """`seq` ended."""
        self.ended.append(seq.id)
        self.end_ns[seq.id] = self.now_ns

    def take(self) -> list[int]:
        """Who ended since the last call."""
        ended, self.ended = self.ended, []
        return ended


@dataclass(slots=True)
class _Batch:
    """A scheduled pass whose output was not processed yet."""

    index: int
    plan: StepPlan
    end_ns: int


class Replay:
    """One case. Iterate over `records()`; `batcher` shows the queues at any time, `summary()` the totals at the end."""

    def __init__(self, recording: Recording) -> None:
        config = recording.config
        self._recording = recording
        self._arrivals = deque(recording.requests)
        self._interned: dict[Hashable, int] = {}
        self.num_passes = 0
        self.num_preemptions = 0
        self._sequences: dict[int, Sequence] = {}
        self._cached_tokens: dict[int, int] = {}
        self._listener = _Limits(config["max_model_len"])
        self._clock_ns = 0
        self.kv = PagedAllocator(
            config["num_gpu_blocks"], config["block_size"], config["watermark"], config["enable_prefix_caching"]
        )
        shared = ContinuousSettings.__slots__  # the settings that both sides have, under the same names
        settings = ContinuousSettings(**{name: value for name, value in Record(config).items() if name in shared})
        self.batcher = ContinuousBatcher(settings, self.kv, self._listener)

    def records(self) -> Iterator[Record]:
        """What was decided, in the form of the recording's records."""
        return self._asynchronous() if self._recording.config["async_scheduling"] else self._synchronous()

    def summary(self) -> Record:
        """Totals in the form of the recording's last line."""
        listener = self._listener
        return {
            "end": True,
            "schedule_calls": self.num_passes,
            "t_end": self._clock_ns,
            "preemptions": self.num_preemptions,
            "req": [
                [
                    seq.id,
                    self._cached_tokens[seq.id],
                    seq.num_preemptions,
                    listener.first_token_ns[seq.id],
                    listener.end_ns[seq.id],
                    seq.num_output_tokens,
                ]
                for seq in (self._sequences[request.id] for request in self._recording.requests)
            ],
        }

    def _synchronous(self) -> Iterator[Record]:
        while self._arrivals or self.batcher.has_work():
            if not self.batcher.has_work():
                self._clock_ns = self._arrivals[0].at_ns
            record, plan = self._pass()
            self._clock_ns += record["d"]
            yield record | self._output(plan)

    def _asynchronous(self) -> Iterator[Record]:
        in_flight: deque[_Batch] = deque()
        device_free_ns = 0
        while self._arrivals or in_flight or self.batcher.has_work():
            if not in_flight and not self.batcher.has_work():
                self._clock_ns = max(self._clock_ns, self._arrivals[0].at_ns)
            if self.batcher.has_work() or (self._arrivals and self._arrivals[0].at_ns <= self._clock_ns):
                record, plan = self._pass()
                # A batch of no tokens takes no time and waits for nothing.
                start_ns = max(self._clock_ns, device_free_ns) if record["n"] else self._clock_ns
                end_ns = start_ns + record["d"]
                device_free_ns = max(device_free_ns, end_ns)
                in_flight.append(_Batch(record["i"], plan, end_ns))
                yield {"ev": "s"} | record | {"g": start_ns}
                if len(in_flight) < 2 and (record["n"] or self.batcher.has_work()):
                    continue
            batch = in_flight.popleft()
            self._clock_ns = max(self._clock_ns, batch.end_ns)
            yield {"ev": "u", "i": batch.index, "t": self._clock_ns} | self._output(batch.plan)

    def _pass(self) -> tuple[Record, StepPlan]:
        arrived = self._admit_arrivals()
        before = {seq.id: len(self.kv.blocks_of(seq)) for seq in self.batcher.members()}
        plan = self.batcher.plan()
        assert plan is not None, "a pass is made only when there is work"
        schedule = self.batcher.schedule(plan)
        self._note_admissions(plan)
        self.num_preemptions += len(plan.preemptions)
        record: Record = {
            "i": self.num_passes,
            "t": self._clock_ns,
            "a": arrived,
            "s": [_entry(chunk) for chunk in schedule],
            "n": plan.num_scheduled_tokens,
            "c": plan.context_tokens,
            "p": [[preemption.seq.id, preemption.lost_tokens] for preemption in plan.preemptions],
            "r": len(self.batcher.running),
            "w": len(self.batcher.waiting),
            "fs": self.kv.num_free_blocks,
            "d": self._duration_ns(plan),
        }
        if self._recording.blocks_recorded:
            record["b"] = self._added_blocks(schedule, before)
        self.num_passes += 1
        return record, plan

    def _admit_arrivals(self) -> list[int]:
        arrived = []
        while self._arrivals and self._arrivals[0].at_ns <= self._clock_ns:
            request = self._arrivals.popleft()
            seq = Sequence(
                Request(
                    id=request.id,
                    arrival_ns=request.at_ns,
                    prompt_tokens=request.prompt_tokens,
                    output_tokens=request.output_tokens,
                    max_tokens=request.output_tokens,
                    priority=request.priority,
                ),
                tokens=SegmentTokens(request, self.kv.block_size, self._interned),
            )
            self._sequences[request.id] = seq
            self.batcher.add(seq)
            arrived.append(request.id)
        return arrived

    def _note_admissions(self, plan: StepPlan) -> None:
        for chunk in plan.explicit:
            if chunk.kind == "N":
                self._cached_tokens[chunk.seq.id] = chunk.num_computed_tokens

    def _added_blocks(self, schedule: list[ScheduledChunk], before: dict[int, int]) -> dict[str, list[int]]:
        added = {}
        for chunk in schedule:
            seq = chunk.seq
            blocks = self.kv.blocks_of(seq)[0 if chunk.kind in "NR" else before[seq.id] :]
            if blocks:
                added[str(seq.id)] = blocks
        return added

    def _duration_ns(self, plan: StepPlan) -> int:
        if not plan.num_scheduled_tokens:
            return 0
        duration = self._recording.duration
        return (
            duration["base_ns"]
            + duration["per_token_ns"] * plan.num_scheduled_tokens
            + duration["per_context_token_ns"] * plan.context_tokens
        )

    def _output(self, plan: StepPlan) -> Record:
        self._listener.now_ns = self._clock_ns
        self.batcher.commit(plan)
        return {"f": self._listener.take(), "fu": self.kv.num_free_blocks}


def _entry(chunk: ScheduledChunk) -> int | list[Any]:
    # The recordings do not tell the last token of a prompt from a decode.
    if chunk.kind == "D" or (chunk.kind == "C" and chunk.num_tokens == 1 and chunk.samples):
        return chunk.seq.id
    return [chunk.seq.id, chunk.kind, chunk.num_computed_tokens, chunk.num_tokens]
