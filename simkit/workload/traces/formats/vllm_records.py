"""vLLM per-request records: arrival_time since 1970, and what the engine noted on a clock of its own, both in s.

Source of the format: casys-kaist/LLMServingSim, bench (one record a request of a vLLM run). The two clocks have no
common origin and drift, so times are only subtracted within one of them. Imports its siblings, `types` and `units`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from simkit.types import Ints
from simkit.units import ns_to_s
from simkit.workload.traces.fields import text, time, tokens
from simkit.workload.traces.format import Format, Head, Source
from simkit.workload.traces.moments import took
from simkit.workload.traces.objects import note_unit, note_unused, read_objects, require
from simkit.workload.traces.record import NO_TIME, Columns, Record
from simkit.workload.traces.stamps import MAX_NS

NEEDS = ("input_toks", "output_toks", "arrival_time")
ENGINE = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def matches(head: Head) -> str | None:
    """By lengths and arrival_time."""
    if head.kind != "json" or not set(NEEDS) <= head.keys:
        return None
    return f"fields {', '.join((*NEEDS, *(name for name in ENGINE if name in head.keys)))}"


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order, in memory that grows with them: which clock holds is known when all are read.

    It is the engine's, moved to begin with the first arrival_time, where every request has queued_ts: then TTFT and E2E
    count from the arrivals that are played.
    """
    require(source, "vllm-records", NEEDS)
    note_unit(source, "arrival_time", "s")
    note_unused(source, (*NEEDS, *ENGINE, "request_id", "model"))
    queued: list[int] = []

    def record(line: int, row: dict[str, Any], source: Source) -> Record:
        at = time(row, "arrival_time", "s")
        engine = {name: None if row.get(name) is None else time(row, name, "s") for name in ENGINE}
        start, first, last = engine["queued_ts"], engine["first_token_ts"], engine["last_token_ts"]
        found = Record(
            line=line,
            time_ns=at,
            prompt_tokens=tokens(row, "input_toks"),
            output_tokens=tokens(row, "output_toks"),
            id=text(row, "request_id"),
            model=text(row, "model"),
            ttft_ns=None if start is None else took(start, first, "first_token_ts", source),
            e2e_ns=None if start is None else took(start, last, "last_token_ts", source),
        )
        queued.append(NO_TIME if start is None else start)
        return found

    parts = list(read_objects(source, record))
    stamps = np.array(queued, dtype=np.int64)
    yield from _on_one_clock(parts, stamps, source)


def _on_one_clock(parts: list[Columns], queued: Ints, source: Source) -> Iterator[Columns]:
    """The parts with the arrivals that are played, and a remark on the two clocks."""
    known = queued != NO_TIME
    if not known.any():
        yield from parts
        return
    arrival = np.concatenate([part.time_ns for part in parts])
    # Python's ints: stamps may be so far apart that their differences do not fit 64 bits.
    pairs = list(zip(arrival[known].tolist(), queued[known].tolist(), strict=True))
    spans = [ns_to_s(max(times) - min(times)) for times in zip(*pairs, strict=True)]
    apart = [at - start for at, start in pairs]
    source.log.remark(
        f"arrival_time and queued_ts are of two clocks: they span {spans[0]:.3f} and {spans[1]:.3f} s, and their "
        f"difference varies by up to {ns_to_s(max(apart) - min(apart)):.3f} s; measured TTFT and E2E count from "
        "the engine's queue (queued_ts), not from arrival_time"
    )
    begin = int(arrival.min())
    if not known.all() or int(queued.max()) - int(queued.min()) + max(begin, 0) > MAX_NS:
        why = "lie more than 146 years apart" if known.all() else "are missing for some requests"
        source.log.remark(f"queued_ts {why}: all arrive at their arrival_time")
        yield from parts
        return
    source.log.remark("all requests have queued_ts: they arrive at the times of the engine's clock")
    moved = queued - queued.min() + begin
    first = 0
    for part in parts:
        yield replace(part, time_ns=moved[first : first + len(part)])
        first += len(part)


FORMAT = Format("vllm-records", "vLLM per-request records", matches, read, NEEDS)
