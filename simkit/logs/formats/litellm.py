"""LiteLLM JSON: standard logging payloads (times in s since 1970), and spend log rows (wall clocks).

Source of the format: BerriAI/litellm, StandardLoggingPayload and LiteLLM_SpendLogs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simkit.logs.formats.litellm_csv import NEEDS, failure, why_not
from simkit.logs.read.fields import arrival, cached, first_of, moment, read_objects, require, text, tokens, took
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.record import Columns, Record

ID, SESSION = ("request_id", "id"), ("session_id", "trace_id")


def matches(head: Head) -> str | None:
    """By its fields."""
    return f"fields {', '.join(NEEDS)}" if head.kind == "json" and set(NEEDS) <= head.keys else None


def record(line: int, row: dict[str, Any], source: Source) -> Record | None:
    """One row; None, counted, for what no engine has generated."""
    hit = row.get("cache_hit")
    reason = why_not(text(row, "call_type"), str(hit) if isinstance(hit, bool) else text(row, "cache_hit"))
    if reason is not None:
        source.log.add_skipped(line, reason)
        return None
    start, end = arrival(row, ("startTime",), source), moment(row, ("endTime",), source)
    first = moment(row, ("completionStartTime",), source)
    prompt, own_id, session = tokens(row, "prompt_tokens"), first_of(row, ID), first_of(row, SESSION)
    # An answer that was not streamed has its end as its first token.
    is_streamed = row.get("stream") is not False and first != end
    return Record(
        line=line,
        time_ns=start,
        prompt_tokens=prompt,
        output_tokens=tokens(row, "completion_tokens"),
        id=text(row, own_id) if own_id else None,
        session=text(row, session) if session else None,
        model=text(row, "model"),
        failed=failure(text(row, "status")),
        ttft_ns=took(start, first, "completionStartTime", source) if is_streamed else None,
        e2e_ns=took(start, end, "endTime", source),
        cached_tokens=cached(_details(row), ("cached_tokens",), prompt, source),
    )


def _details(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """metadata.usage_object.prompt_tokens_details, empty where it is not there."""
    found: Any = row
    for name in ("metadata", "usage_object", "prompt_tokens_details"):
        found = found.get(name)
        if not isinstance(found, dict):
            return {}
    return found  # type: ignore[no-any-return]


def read(source: Source) -> Iterator[Columns]:
    """The requests in file order."""
    require(source, "litellm", NEEDS)
    return read_objects(source, record)


FORMAT = Format("litellm", "LiteLLM JSON", matches, read, NEEDS)
