"""vLLM per-request records: arrival_time since 1970, and what the engine noted on a clock of its own, both in s.

Source of the format: casys-kaist/LLMServingSim, bench (one record a request of a vLLM run). The two clocks have no
common origin and drift, so times are only subtracted within one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simkit.logs.read.fields import Row, note_unit, note_unused, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.log import RemarkKind
from simkit.logs.read.record import Columns, Record
from simkit.units import ns_to_s

NEEDS = ("input_toks", "output_toks", "arrival_time")
ENGINE = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
SAME_CLOCK_S = 1e-3
"""Two clocks whose difference varies by less are taken as one."""

FROM_QUEUE = "measured TTFT and E2E count from the engine's queue (queued_ts), not from arrival_time"


def matches(head: Head) -> str | None:
    """By lengths and arrival_time."""
    if head.kind != "json" or not set(NEEDS) <= head.keys:
        return None
    return f"fields {', '.join((*NEEDS, *(name for name in ENGINE if name in head.keys)))}"


@dataclass(slots=True)
class _Range:
    """Least and greatest of some times."""

    least: int | None = None
    greatest: int = 0

    def add(self, value: int) -> None:
        self.greatest = value if self.least is None else max(self.greatest, value)
        self.least = value if self.least is None else min(self.least, value)

    def span_s(self) -> float:
        return 0.0 if self.least is None else ns_to_s(self.greatest - self.least)


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order; at the end a remark on how far the two clocks agree."""
    require(source, source.format.needs)
    note_unit(source, "arrival_time", "s")
    note_unused(source, (*NEEDS, *ENGINE, "request_id", "model"))
    arrivals, queued, apart = _Range(), _Range(), _Range()

    def record(row: Row) -> Record:
        at = row.time("arrival_time", "s")
        engine = {name: None if row.get(name) is None else row.time(name, "s") for name in ENGINE}
        start, first, last = engine["queued_ts"], engine["first_token_ts"], engine["last_token_ts"]
        found = Record(
            line=row.line,
            time_ns=at,
            prompt_tokens=row.tokens("input_toks"),
            output_tokens=row.tokens("output_toks"),
            id=row.text("request_id"),
            model=row.text("model"),
            ttft_ns=None if start is None else row.elapsed(start, first, "first_token_ts"),
            e2e_ns=None if start is None else row.elapsed(start, last, "last_token_ts"),
        )
        if start is not None:
            arrivals.add(at)
            queued.add(start)
            apart.add(at - start)
        return found

    yield from read_objects(source, record)
    if queued.least is not None and apart.span_s() < SAME_CLOCK_S:
        source.log.remark(FROM_QUEUE, RemarkKind.FROM_QUEUE)
    elif queued.least is not None:
        source.log.remark(
            f"arrival_time and queued_ts are of two clocks: they span {arrivals.span_s():.3f} and "
            f"{queued.span_s():.3f} s, and their difference varies by up to {apart.span_s():.3f} s; {FROM_QUEUE}",
            RemarkKind.FROM_QUEUE,
        )


FORMAT = Format("vllm-records", "vLLM per-request records", matches, read, NEEDS)
