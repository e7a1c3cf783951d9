"""OpenTelemetry spans of model calls, flat or in OTLP: GenAI conventions old and new, OpenInference, vLLM's own.

Sources of the names: OpenTelemetry semantic conventions for generative AI (gen_ai.*), Arize OpenInference
(llm.token_count.*), vLLM's llm_request spans (gen_ai.usage.*, gen_ai.latency.* in s). OTLP: opentelemetry-proto, JSON
encoding (resourceSpans[].scopeSpans[].spans[], 64-bit integers as text), one document or one export a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simkit.logs.read.fields import Row, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.json import JsonRow
from simkit.logs.read.log import RowLog, shown
from simkit.logs.read.record import Columns, Record

START = ("start_time", "startTime", "startTimeUnixNano", "start_time_unix_nano")
END = ("end_time", "endTime", "endTimeUnixNano", "end_time_unix_nano")
SPAN_ID = ("span_id", "spanId")
PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
)
SESSION = ("gen_ai.conversation.id", "session.id")
MODEL = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
ID = ("gen_ai.request.id", "gen_ai.response.id")
TTFT, E2E = "gen_ai.latency.time_to_first_token", "gen_ai.latency.e2e"
OPERATION, KIND = "gen_ai.operation.name", "openinference.span.kind"
CALLS = ("chat", "generate", "generate_content", "text_completion")
OTHERS = ("execute_tool", "invoke_agent", "create_agent", "embeddings")
OTLP_NEEDS = ("resourceSpans",)
SCOPES = ("scopeSpans", "instrumentationLibrarySpans")
_KINDS = ("stringValue", "intValue", "doubleValue", "boolValue")


def matches(head: Head) -> str | None:
    """By a span's identity and time beside gen_ai.* or llm.* attributes."""
    if head.kind != "json" or head.keys.isdisjoint(START) or head.keys.isdisjoint(SPAN_ID):
        return None
    names = {name for row in head.objects for name in attributes(row)}
    found = next((prefix for prefix in ("gen_ai.", "llm.") if any(name.startswith(prefix) for name in names)), None)
    return None if found is None else f"spans with {found}* attributes"


def record(row: Row) -> Record | None:
    """One span; None, counted, for what is no model call."""
    span = row.within(attributes(row.values))
    why_not = _why_no_call(row, span)
    if why_not is not None:
        row.skip(why_not)
        return None
    failed = "with an error" if _has_failed(row, span) else None
    start, end = row.arrival(*START), row.timestamp(*END)
    prompt = span.tokens_unless(failed, *PROMPT)
    whole = span.duration(E2E, "s")
    return Record(
        line=row.line,
        time_ns=start,
        prompt_tokens=prompt,
        output_tokens=span.tokens_unless(failed, *OUTPUT),
        id=span.text(*ID) if span.first(*ID) else row.text(*SPAN_ID),
        session=span.text(*SESSION),
        model=span.text(*MODEL),
        failed=failed,
        ttft_ns=span.duration(TTFT, "s"),
        e2e_ns=row.elapsed(start, end, "end") if whole is None else whole,
        cached_tokens=span.cached_tokens(prompt, *CACHED),
    )


def _why_no_call(row: Row, span: Row) -> str | None:
    """Why a span is not one call of a model; None if it is."""
    operation = span.get(OPERATION)
    if operation in CALLS or (operation is None and span.get(KIND) == "LLM"):
        return None
    if operation is not None:
        return f"of operation {operation}" if operation in OTHERS else "of another operation"
    if span.get(KIND) is not None:
        return "of another span kind than LLM"
    if row.get("name") == "llm_request" or span.first(*PROMPT) is not None:
        return None
    return "no model call"


def _has_failed(row: Row, span: Row) -> bool:
    status = row.get("status")
    code = status.get("code") if isinstance(status, dict) else row.get("status_code")
    return code in (2, "2", "ERROR", "STATUS_CODE_ERROR") or span.get("error.type") not in (None, "")


def read(source: Source) -> Iterator[Columns]:
    """The model calls in file order."""
    require(source, ())
    return read_objects(source, record)


def matches_otlp(head: Head) -> str | None:
    """By resourceSpans."""
    return "field resourceSpans" if head.kind == "json" and "resourceSpans" in head.keys else None


def read_otlp(source: Source) -> Iterator[Columns]:
    """The model calls in file order; their line is that of the export they are in."""
    require(source, source.format.needs)
    return read_objects(replace(source, rows=otlp_spans(source.rows, source.log)), record)


def attributes(span: Mapping[str, object]) -> dict[str, object]:
    """The attributes of a span: an object, or the list of key and typed value that OTLP has; empty for anything else.

    OTLP writes 64-bit integers as text. Values that are lists or objects are left out.
    """
    found = span.get("attributes")
    if isinstance(found, dict):
        return found
    if not isinstance(found, list):
        return {}
    values: dict[str, object] = {}
    for item in found:
        key, value = (item.get("key"), item.get("value")) if isinstance(item, dict) else (None, None)
        if isinstance(key, str) and isinstance(value, dict):
            values.update((key, value[kind]) for kind in _KINDS if kind in value)
    return values


def otlp_spans(rows: Iterator[tuple[int, Any]], log: RowLog) -> Iterator[tuple[int, JsonRow]]:
    """(line, span) of OTLP exports, resourceSpans[].scopeSpans[].spans[]; what has another shape is logged as bad."""
    for line, export in rows:
        for resource in _items(export, ("resourceSpans",), line, log):
            for scope in _items(resource, SCOPES, line, log):
                yield from ((line, span) for span in _items(scope, ("spans",), line, log))


def _items(parent: JsonRow, names: tuple[str, ...], line: int, log: RowLog) -> Iterator[JsonRow]:
    """The objects of the list that `parent` has under one of `names`; nothing where it has none."""
    for name in names:
        found = parent.get(name)
        if found is None:
            continue
        items = found if isinstance(found, list) else [found]
        for item in items:
            if isinstance(item, dict):
                yield item
            else:
                log.num_rows += 1
                log.add_bad(line, f"{name} has {shown(item)}, expected objects")


FORMAT = Format("otel", "OpenTelemetry GenAI spans", matches, read, (OPERATION, PROMPT[0], OUTPUT[0]))
OTLP = Format("otlp", "OTLP spans", matches_otlp, read_otlp, OTLP_NEEDS)
