"""Langfuse observations, as exported (snake_case, UTC without a zone) and as its API gives them (camelCase, ISO).

Source of the format: Langfuse, observations export and public API. Only generations are model calls. Imports its
siblings only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simkit.workload.traces.fields import MAX_TOKENS, duration, text, tokens
from simkit.workload.traces.format import Format, Head, Source
from simkit.workload.traces.log import BadCell
from simkit.workload.traces.moments import arrival, cached, first_of, moment, took
from simkit.workload.traces.objects import read_objects, require
from simkit.workload.traces.record import Columns, Record

START, END = ("start_time", "startTime"), ("end_time", "endTime")
FIRST = ("completion_start_time", "completionStartTime")
USAGE = ("usage_details", "usageDetails", "usage")
SESSION = ("session_id", "sessionId", "trace_id", "traceId")
MODEL = ("provided_model_name", "providedModelName", "model")
CACHED = ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens")
OTHERS = ("SPAN", "EVENT", "TOOL", "AGENT", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")


def matches(head: Head) -> str | None:
    """By type, a start and usage."""
    if head.kind != "json" or "type" not in head.keys:
        return None
    found = [next((name for name in names if name in head.keys), None) for names in (START, USAGE)]
    return None if None in found else f"fields type, {found[0]}, {found[1]}"


def record(line: int, row: dict[str, Any], source: Source) -> Record | None:
    """One observation; None, counted, for what is no generation."""
    kind = row.get("type")
    if kind != "GENERATION":
        shown = kind if kind in OTHERS else "another type"
        source.log.add_skipped(line, f"observation of {shown}, not a GENERATION")
        return None
    failed = "level ERROR" if row.get("level") == "ERROR" else None
    start, end = arrival(row, START, source), moment(row, END, source)
    first = took(start, moment(row, FIRST, source), "completion start", source)
    usage = _usage(row)
    prompt, output = _lengths(usage, failed, source)
    session, model = first_of(row, SESSION), first_of(row, MODEL)
    return Record(
        line=line,
        time_ns=start,
        prompt_tokens=prompt,
        output_tokens=output,
        id=text(row, "id"),
        session=text(row, session) if session else None,
        model=text(row, model) if model else None,
        failed=failed,
        ttft_ns=duration(row, "timeToFirstToken", "s") if first is None else first,
        e2e_ns=took(start, end, "end", source),
        cached_tokens=cached(usage, CACHED, prompt, source),
    )


def _usage(row: Mapping[str, Any]) -> Mapping[str, Any]:
    name = first_of(row, USAGE)
    if name is not None and not isinstance(row[name], dict):
        raise BadCell(name, row[name], "an object of token counts")
    return row[name] if name is not None else {}


def _lengths(usage: Mapping[str, Any], failed: str | None, source: Source) -> tuple[int, int]:
    """(prompt, output) tokens. Parts of the prompt may be split out of `input` or named again beside it: `total` tells.

    Without a total that fits, all keys that begin with input (output) are added.
    """
    if failed is None and not ("input" in usage and "output" in usage):
        raise BadCell("usage_details", usage, "input and output tokens")
    sums = [
        sum(tokens(usage, name) for name in usage if name.startswith(part) and usage[name] is not None)
        for part in ("input", "output")
    ]
    own = [tokens(usage, part) if usage.get(part) is not None else 0 for part in ("input", "output")]
    if max(sums) > MAX_TOKENS:
        raise BadCell("usage_details", usage, f"at most {MAX_TOKENS} tokens")
    total = usage.get("total")
    for prompt in (sums[0], own[0]):
        for output in (sums[1], own[1]):
            if total is None or prompt + output == total:
                return prompt, output
    source.log.remark("some rows have a total that is not the sum of their input and output tokens")
    return sums[0], sums[1]


def read(source: Source) -> Iterator[Columns]:
    """The generations in file order."""
    require(source, "langfuse", ("type",))
    return read_objects(source, record)


FORMAT = Format("langfuse", "Langfuse observations", matches, read, ("type", START[0], USAGE[0]))
