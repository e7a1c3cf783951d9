"""Compares a replay with its recording and says where they first differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from simkit.conformance.recorded import Record, Recording, read_recording
from simkit.conformance.replayed import Replay


@dataclass(frozen=True, slots=True)
class Difference:
    """The first record that differs: its line in the file, the keys, both sides, and simkit's queues after it."""

    line: int
    keys: tuple[str, ...]
    recorded: Record | None
    simkit: Record | None
    running: tuple[int, ...]
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """OutputListener of one case."""

    path: str
    case: str
    source: str
    num_requests: int
    num_passes: int
    num_preemptions: int
    difference: Difference | None

    @property
    def exact(self) -> bool:
        """Whether every integer agrees."""
        return self.difference is None


def check_file(path: Path) -> Verdict:
    """Replay one file. Raises InputError when it is not a recording."""
    recording = read_recording(path)
    replay = Replay(recording)
    difference = _first_difference(recording, replay)
    return Verdict(
        path=str(path),
        case=recording.case,
        source=recording.source,
        num_requests=len(recording.requests),
        num_passes=replay.num_passes,
        num_preemptions=replay.num_preemptions,
        difference=difference,
    )


def describe(verdict: Verdict) -> list[str]:
    """A line for the case; for a mismatch also the first record that differs, both sides and simkit's queues."""
    counts = f"{verdict.num_requests} requests, {verdict.num_passes} passes, {verdict.num_preemptions} preemptions"
    found = verdict.difference
    if found is None:
        return [f"exact     {verdict.case}: {counts} ({verdict.source})"]
    lines = [f"MISMATCH  {verdict.case}: {verdict.path}:{found.line} differs in {', '.join(found.keys) or 'length'}"]
    for side, record in (("recorded", found.recorded), ("simkit", found.simkit)):
        shown = "nothing" if record is None else json.dumps(record, separators=(",", ":"))
        lines.append(f"  {side:<8}  {shown}")
    lines.append(f"  running   {list(found.running)}")
    lines.append(f"  waiting   {list(found.waiting)}")
    return lines


def _first_difference(recording: Recording, replay: Replay) -> Difference | None:
    produced = replay.records()
    for index, recorded in enumerate(recording.records):
        ours = next(produced, None)
        if ours != recorded:
            return _difference(index + 2, recorded, ours, replay)
    surplus = next(produced, None)
    last_line = len(recording.records) + 2
    if surplus is not None:
        return _difference(last_line, None, surplus, replay)
    totals = replay.summary()
    return None if totals == recording.summary else _difference(last_line, recording.summary, totals, replay)


def _difference(line: int, recorded: Record | None, ours: Record | None, replay: Replay) -> Difference:
    left, right = recorded or {}, ours or {}
    keys = tuple(key for key in {**left, **right} if left.get(key) != right.get(key))
    running = tuple(seq.id for seq in replay.batcher.members())
    waiting = tuple(seq.id for seq in replay.batcher.waiting)
    return Difference(line, keys, recorded, ours, running, waiting)
