"""LiteLLM: its spend log as CSV or JSON rows (wall clocks), and standard logging payloads as JSON (s since 1970).

Source of the formats: BerriAI/litellm, schema.prisma (LiteLLM_SpendLogs) and StandardLoggingPayload. Only calls that
generate text reach the engine: the proxy answers cache hits itself, and embeddings and the like are other work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from simkit.logs.read.cells import TEXT, TOKENS, WALL, optional
from simkit.logs.read.fields import Row, read_objects, require
from simkit.logs.read.format import Format, Head, Source, having
from simkit.logs.read.layout import SKIPPED, Field, Layout, Values, read_layout
from simkit.logs.read.log import RowLog
from simkit.logs.read.record import UNKNOWN, Columns, Record

NEEDS = ("startTime", "prompt_tokens", "completion_tokens")
GENERATING = ("completion", "text_completion", "responses", "anthropic_messages", "generate_content")
ID, SESSION = ("request_id", "id"), ("session_id", "trace_id")
_ALSO = ("endTime", "call_type", "status", "completionStartTime")


def matches_csv(head: Head) -> str | None:
    """By its tokens and its camelCase times."""
    known = [name for name in _ALSO if name in head.columns]
    if head.kind != "csv" or not set(NEEDS) <= set(head.columns) or not known:
        return None
    return f"columns {', '.join((*NEEDS, *known))}"


def why_not(call_type: str | None, cache_hit: str | None) -> str | None:
    """Why a call is no request of the engine; None for one that is."""
    if cache_hit is not None and cache_hit.lower() in ("true", "1"):
        return "cache hit"
    if call_type is not None and not any(name in call_type for name in GENERATING):
        return f"call type {call_type}"
    return None


def failure(status: str | None) -> str | None:
    """Why a call was not served; None for one that was."""
    return None if status in (None, "success") else f"status {status}"


def derive(values: Values, log: RowLog) -> None:
    """What failed, what never reached the engine, and the latencies from start to first token and end."""
    nothing = [None] * len(values["line"])
    values["failed"] = list(map(failure, values.get("status", nothing)))
    calls, hits = values.get("call_type", nothing), values.get("cache_hit", nothing)
    values[SKIPPED] = list(map(why_not, calls, hits))
    for measured, end in (("ttft_ns", "first_token"), ("e2e_ns", "end")):
        if end in values:
            took = values[end] - values["time_ns"]
            values[measured] = np.where(values[end] != UNKNOWN, took, UNKNOWN)
    if "first_token" in values and "end" in values:
        # An answer that was not streamed has its end as its first token.
        values["ttft_ns"] = np.where(values["first_token"] == values["end"], UNKNOWN, values["ttft_ns"])


def read_csv(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    layout = Layout(
        (
            Field("time_ns", "startTime", WALL),
            Field("prompt_tokens", "prompt_tokens", TOKENS),
            Field("output_tokens", "completion_tokens", TOKENS),
            Field("status", "status", TEXT, required=False),
            Field("call_type", "call_type", TEXT, required=False),
            Field("cache_hit", "cache_hit", TEXT, required=False),
            Field("end", "endTime", optional(WALL), required=False),
            Field("first_token", "completionStartTime", optional(WALL), required=False),
            Field("id", "request_id", TEXT, required=False),
            Field("session", "session_id", TEXT, required=False),
            Field("model", "model", TEXT, required=False),
        ),
        derive,
    )
    return read_layout(source, layout)


def record(row: Row) -> Record | None:
    """One row; None, counted, for what no engine has generated."""
    hit = row.get("cache_hit")
    reason = why_not(row.text("call_type"), str(hit) if isinstance(hit, bool) else row.text("cache_hit"))
    if reason is not None:
        row.skip(reason)
        return None
    start, end, first = row.arrival("startTime"), row.timestamp("endTime"), row.timestamp("completionStartTime")
    prompt = row.tokens("prompt_tokens")
    # An answer that was not streamed has its end as its first token.
    is_streamed = row.get("stream") is not False and first != end
    return Record(
        line=row.line,
        time_ns=start,
        prompt_tokens=prompt,
        output_tokens=row.tokens("completion_tokens"),
        id=row.text(*ID),
        session=row.text(*SESSION),
        model=row.text("model"),
        failed=failure(row.text("status")),
        ttft_ns=row.elapsed(start, first, "completionStartTime") if is_streamed else None,
        e2e_ns=row.elapsed(start, end, "endTime"),
        cached_tokens=row.within(_details(row)).cached_tokens(prompt, "cached_tokens"),
    )


def _details(row: Row) -> Mapping[str, object]:
    """metadata.usage_object.prompt_tokens_details, empty where it is not there."""
    found: Mapping[str, object] = row.values
    for name in ("metadata", "usage_object", "prompt_tokens_details"):
        inner = found.get(name)
        if not isinstance(inner, dict):
            return {}
        found = inner
    return found


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, source.format.needs)
    return read_objects(source, record)


CSV = Format("litellm-csv", "LiteLLM spend log CSV", matches_csv, read_csv, NEEDS)
FORMAT = Format("litellm", "LiteLLM JSON", having("json", *NEEDS), read, NEEDS)
