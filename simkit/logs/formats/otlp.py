"""OTLP JSON exports of spans: vLLM's llm_request and GenAI model calls; one document, or one export a line.

Source of the format: opentelemetry-proto, JSON encoding (resourceSpans[].scopeSpans[].spans[], 64-bit integers as
text). What a span says is read by `otel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simkit.logs.formats.otel import record
from simkit.logs.read.fields import read_objects, require
from simkit.logs.read.format import Format, Head, Source
from simkit.logs.read.record import Columns
from simkit.logs.read.spans import otlp_spans

NEEDS = ("resourceSpans",)


def matches(head: Head) -> str | None:
    """By resourceSpans."""
    return "field resourceSpans" if head.kind == "json" and "resourceSpans" in head.keys else None


def read(source: Source) -> Iterator[Columns]:
    """The model calls in file order; their line is that of the export they are in."""
    require(source, "otlp", NEEDS)
    return read_objects(replace(source, rows=otlp_spans(source.rows, source.log)), record)


FORMAT = Format("otlp", "OTLP spans", matches, read, NEEDS)
