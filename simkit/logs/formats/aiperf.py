"""AIPerf (genai-perf) profile_export.jsonl: one record a request of a benchmark, metadata in ns since 1970 and metrics.

Source of the format: ai-dynamo/aiperf, per-request records (metrics are {value, unit}).
"""

from __future__ import annotations

from collections.abc import Iterator

from simkit.logs.read.cells import NS_PER
from simkit.logs.read.fields import Row, note_unit, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import Columns, Record

NEEDS = ("metadata", "metrics")
ID, SESSION = ("x_request_id", "session_num"), ("x_correlation_id", "conversation_id")
PROMPT, OUTPUT = ("input_sequence_length", "error_isl"), ("output_sequence_length", "output_token_count")


def matches(head: Head) -> str | None:
    """By metadata with request_start_ns beside metrics."""
    fits = head.kind == "json" and any(
        isinstance(about := row.get("metadata"), dict) and "request_start_ns" in about and "metrics" in row
        for row in head.objects
    )
    return "fields metadata.request_start_ns, metrics" if fits else None


def record(row: Row) -> Record:
    """One record."""
    about, numbers = row.get("metadata"), row.get("metrics") or {}
    if not isinstance(about, dict) or not isinstance(numbers, dict):
        raise BadCell("metrics" if isinstance(about, dict) else "metadata", row.values, "an object")
    metadata, metrics = row.within(about), row.within(numbers)
    failed = None
    if metadata.get("was_cancelled") is True:
        failed = "cancelled"
    elif row.get("error") is not None:
        failed = "with an error"
    if metadata.get("benchmark_phase") == "warmup":
        row.source.log.remark("some requests are of the benchmark's own warm-up, and are replayed as the others")
    start = metadata.time("request_start_ns", "ns")
    end = metadata.time("request_end_ns", "ns") if metadata.get("request_end_ns") is not None else None
    whole = _time(metrics, "request_latency")
    return Record(
        line=row.line,
        time_ns=start,
        prompt_tokens=_tokens(metrics, PROMPT, failed),
        output_tokens=_tokens(metrics, OUTPUT, failed),
        id=metadata.text(*ID),
        session=metadata.text(*SESSION),
        turn=metadata.count("turn_index"),
        failed=failed,
        ttft_ns=_time(metrics, "time_to_first_token"),
        e2e_ns=row.elapsed(start, end, "request_end_ns") if whole is None else whole,
    )


def _metric(metrics: Row, name: str) -> tuple[Row, object]:
    """(the value of a metric under its name, its unit)."""
    found = metrics.get(name)
    if not isinstance(found, dict):
        raise BadCell(name, found, "an object of value and unit")
    return metrics.within({name: found.get("value")}), found.get("unit")


def _tokens(metrics: Row, names: tuple[str, ...], failed: str | None) -> int:
    """A count under any of its names; 0 where a failed request has none."""
    name = metrics.first(*names)
    return metrics.tokens_unless(failed, *names) if name is None else _metric(metrics, name)[0].tokens(name)


def _time(metrics: Row, name: str) -> int | None:
    if metrics.get(name) is None:
        return None
    value, written = _metric(metrics, name)
    unit = next((unit for unit in NS_PER if unit == written), None)
    if unit is None:
        raise BadCell(f"unit of {name}", written, f"one of {', '.join(NS_PER)}")
    return value.duration(name, unit)


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, source.format.needs)
    note_unit(source, "request_start_ns", "ns")
    return read_objects(source, record)


FORMAT = Format("aiperf", "AIPerf records", matches, read, NEEDS)
