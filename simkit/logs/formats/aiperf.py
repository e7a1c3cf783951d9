"""AIPerf (genai-perf) profile_export.jsonl: one record a request of a benchmark, metadata in ns since 1970 and metrics.

Source of the format: ai-dynamo/aiperf, per-request records (metrics are {value, unit}).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simkit.logs.read.fields import (
    count,
    duration,
    first_of,
    note_unit,
    read_objects,
    require,
    text,
    time,
    tokens,
    took,
)
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import Columns, Record
from simkit.logs.read.timestamps import NS_PER

NEEDS = ("metadata", "metrics")
ID, SESSION = ("x_request_id", "session_num"), ("x_correlation_id", "conversation_id")
PROMPT, OUTPUT = ("input_sequence_length", "error_isl"), ("output_sequence_length", "output_token_count")


def matches(head: Head) -> str | None:
    """By metadata with request_start_ns beside metrics."""
    fits = head.kind == "json" and any(
        isinstance(row.get("metadata"), dict) and "request_start_ns" in row["metadata"] and "metrics" in row
        for row in head.objects
    )
    return "fields metadata.request_start_ns, metrics" if fits else None


def record(line: int, row: dict[str, Any], source: Source) -> Record:
    """One record."""
    metadata, metrics = row.get("metadata"), row.get("metrics") or {}
    if not isinstance(metadata, dict) or not isinstance(metrics, dict):
        raise BadCell("metadata" if not isinstance(metadata, dict) else "metrics", row, "an object")
    failed = None
    if metadata.get("was_cancelled") is True:
        failed = "cancelled"
    elif row.get("error") is not None:
        failed = "with an error"
    if metadata.get("benchmark_phase") == "warmup":
        source.log.remark("some requests are of the benchmark's own warm-up, and are replayed as the others")
    start = time(metadata, "request_start_ns", "ns")
    end = time(metadata, "request_end_ns", "ns") if metadata.get("request_end_ns") is not None else None
    own_id, session = first_of(metadata, ID), first_of(metadata, SESSION)
    whole = _time(metrics, "request_latency")
    return Record(
        line=line,
        time_ns=start,
        prompt_tokens=_tokens(metrics, PROMPT, failed),
        output_tokens=_tokens(metrics, OUTPUT, failed),
        id=text(metadata, own_id) if own_id else None,
        session=text(metadata, session) if session else None,
        turn=count(metadata, "turn_index"),
        failed=failed,
        ttft_ns=_time(metrics, "time_to_first_token"),
        e2e_ns=took(start, end, "request_end_ns", source) if whole is None else whole,
    )


def _metric(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = metrics[name]
    if not isinstance(found, dict):
        raise BadCell(name, found, "an object of value and unit")
    return found


def _tokens(metrics: Mapping[str, Any], names: tuple[str, ...], failed: str | None) -> int:
    """A count under any of its names; 0 where a failed request has none."""
    name = first_of(metrics, names)
    if name is not None:
        return tokens({name: _metric(metrics, name).get("value")}, name)
    if failed is None:
        raise BadCell(names[0], None, "a number of tokens >= 0")
    return 0


def _time(metrics: Mapping[str, Any], name: str) -> int | None:
    if metrics.get(name) is None:
        return None
    found = _metric(metrics, name)
    unit = found.get("unit")
    if not isinstance(unit, str) or unit not in NS_PER:
        raise BadCell(f"unit of {name}", unit, f"one of {', '.join(NS_PER)}")
    return duration({name: found.get("value")}, name, unit)


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, "aiperf", NEEDS)
    note_unit(source, "request_start_ns", "ns")
    return read_objects(source, record)


FORMAT = Format("aiperf", "AIPerf records", matches, read, NEEDS)
