"""LiteLLM spend log as CSV: one row a call, with wall-clock start, end and first token.

Source of the format: BerriAI/litellm, schema.prisma (LiteLLM_SpendLogs). Only calls that generate text reach the
engine: the proxy answers cache hits itself, and embeddings and the like are other work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simkit.logs.read.cells import TEXT, TOKENS, WALL, optional
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.layout import SKIPPED, Field, Layout, Values, read_layout
from simkit.logs.read.log import RowLog
from simkit.logs.read.record import UNKNOWN, Columns

NEEDS = ("startTime", "prompt_tokens", "completion_tokens")
GENERATING = ("completion", "text_completion", "responses", "anthropic_messages", "generate_content")
_ALSO = ("endTime", "call_type", "status", "completionStartTime")


def matches(head: Head) -> str | None:
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


def read(source: Source) -> Iterator[Columns]:
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
    return read_layout(source, layout, "litellm-csv")


FORMAT = Format("litellm-csv", "LiteLLM spend log CSV", matches, read, NEEDS)
