"""LLMServingSim JSONL: requests with arrival_time_ns, and agentic sessions of sub_requests, mixed in one file.

Source of the format: casys-kaist/LLMServingSim, workloads. A session arrives as its first sub-request; the next starts
when the one before has ended and its tool_duration_ns are over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simkit.logs.read.fields import Row, note_unit, note_unused, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.json import JsonRow
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import Columns, Record

NEEDS = ("arrival_time_ns",)
USED = ("arrival_time_ns", "input_toks", "output_toks", "session_id", "sub_requests")

_TURN, _SESSION, _TOOL = "turn", "session", "tool_before"
"""What a sub-request gets from its session."""


def matches(head: Head) -> str | None:
    """By arrival_time_ns with lengths, or with sub_requests."""
    keys = head.keys
    if head.kind != "json" or "arrival_time_ns" not in keys:
        return None
    if {"input_toks", "output_toks"} <= keys:
        return "fields arrival_time_ns, input_toks, output_toks" + (
            " and sub_requests" if "sub_requests" in keys else ""
        )
    return "fields arrival_time_ns, sub_requests" if "sub_requests" in keys else None


def record(row: Row) -> Record:
    """One request, or one sub-request of a session."""
    turn = row.count(_TURN)
    return Record(
        line=row.line,
        time_ns=row.time("arrival_time_ns", "ns") if not turn else None,
        prompt_tokens=row.tokens("input_toks"),
        output_tokens=row.tokens("output_toks"),
        session=row.text(_SESSION),
        turn=turn,
        delay_ns=row.duration(_TOOL, "ns") if turn else None,
    )


def _requests(source: Source) -> Iterator[tuple[int, JsonRow]]:
    """The requests of all lines: sessions taken apart."""
    for line, row in source.rows:
        if "sub_requests" in row:
            yield from _turns(Row(line, row, source))
        else:
            yield line, {name: row.get(name) for name in ("arrival_time_ns", "input_toks", "output_toks")}


def _turns(row: Row) -> Iterator[tuple[int, JsonRow]]:
    turns, log = row.get("sub_requests"), row.source.log
    if turns == []:
        log.num_rows += 1
        row.skip("without requests in sub_requests")
        return
    try:
        session = row.text("session_id")
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise BadCell("sub_requests", turns, "a list of objects")
        if session is None:
            raise BadCell("session_id", None, "the name of the session")
    except BadCell as error:
        log.num_rows += 1
        log.add_bad(row.line, str(error))
        return
    tool = None
    for number, turn in enumerate(turns):
        named = {name: turn.get(name) for name in ("input_toks", "output_toks")}
        yield row.line, {
            **named, "arrival_time_ns": row.get("arrival_time_ns"), _SESSION: session, _TURN: number, _TOOL: tool,
        }  # fmt: skip
        tool = turn.get("tool_duration_ns")


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, source.format.needs)
    note_unit(source, "arrival_time_ns", "ns")
    note_unused(source, USED)
    return read_objects(replace(source, rows=_requests(source)), record)


FORMAT = Format("llmservingsim", "LLMServingSim JSONL", matches, read, NEEDS)
