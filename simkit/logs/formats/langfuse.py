"""Langfuse observations, as exported (snake_case, UTC without a zone) and as its API gives them (camelCase, ISO).

Source of the format: Langfuse, observations export and public API. Only generations are model calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simkit.logs.read.fields import Row, read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.log import BadCell
from simkit.logs.read.record import MAX_TOKENS, Columns, Record

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


def record(row: Row) -> Record | None:
    """One observation; None, counted, for what is no generation."""
    kind = row.get("type")
    if kind != "GENERATION":
        why = f"of type {kind}, not GENERATION" if kind in OTHERS else "of another type than GENERATION"
        row.skip(why)
        return None
    failed = "at level ERROR" if row.get("level") == "ERROR" else None
    start, end = row.arrival(*START), row.timestamp(*END)
    first = row.elapsed(start, row.timestamp(*FIRST), "completion start")
    usage = row.within(_usage(row))
    prompt, output = _lengths(usage, failed)
    return Record(
        line=row.line,
        time_ns=start,
        prompt_tokens=prompt,
        output_tokens=output,
        id=row.text("id"),
        session=row.text(*SESSION),
        model=row.text(*MODEL),
        failed=failed,
        ttft_ns=row.duration("timeToFirstToken", "s") if first is None else first,
        e2e_ns=row.elapsed(start, end, "end"),
        cached_tokens=usage.cached_tokens(prompt, *CACHED),
    )


def _usage(row: Row) -> Mapping[str, object]:
    """The first usage that says anything."""
    for name in USAGE:
        found = row.get(name)
        if not found:
            continue
        if not isinstance(found, dict):
            raise BadCell(name, found, "an object of token counts")
        if found.get("unit") not in (None, "TOKENS"):
            raise BadCell(f"unit of {name}", found["unit"], "TOKENS")
        return found
    return {}


def _lengths(usage: Row, failed: str | None) -> tuple[int, int]:
    """(prompt, output) tokens; 0 where a failed generation has none.

    Parts of the prompt, as cached tokens, may be split out of `input` or named again beside it: `total` tells. Without
    a total that fits, all parts are added.
    """
    prompts, outputs = _readings(usage, "input", failed), _readings(usage, "output", failed)
    total = usage.get("total")
    for prompt in prompts:
        for output in outputs:
            if total is None or prompt + output == total:
                return prompt, output
    usage.source.log.remark("some rows have a total that is not the sum of their input and output tokens")
    return prompts[0], outputs[0]


def _readings(usage: Row, part: str, failed: str | None) -> list[int]:
    """What `part` can mean: the sum of it and all its parts, or it alone."""
    given = [name for name, value in usage.values.items() if value is not None]
    names = [name for name in given if name == part or name.startswith(f"{part}_")]
    if not names and failed is None:
        raise BadCell(f"usage.{part}", None, "a number of tokens >= 0")
    whole = sum(usage.tokens(name) for name in names)
    if whole > MAX_TOKENS:
        raise BadCell(f"usage.{part}", whole, f"at most {MAX_TOKENS} tokens")
    return [whole, usage.tokens(part)] if part in names else [whole]


def read(source: Source) -> Iterator[Columns]:
    """The generations in file order."""
    require(source, ("type",))
    return read_objects(source, record)


FORMAT = Format("langfuse", "Langfuse observations", matches, read, ("type", START[0], USAGE[0]))
