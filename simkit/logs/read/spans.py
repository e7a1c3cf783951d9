"""OpenTelemetry spans out of their OTLP wrapping, and their attributes as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simkit.logs.read.log import RowLog, shown

SCOPES = ("scopeSpans", "instrumentationLibrarySpans")
_KINDS = ("stringValue", "intValue", "doubleValue", "boolValue")


def attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span: an object, or the list of key and typed value that OTLP has; empty for anything else.

    OTLP writes 64-bit integers as text. Values that are lists or objects are left out.
    """
    found = span.get("attributes")
    if isinstance(found, dict):
        return found
    if not isinstance(found, list):
        return {}
    values: dict[str, Any] = {}
    for item in found:
        key, value = (item.get("key"), item.get("value")) if isinstance(item, dict) else (None, None)
        if isinstance(key, str) and isinstance(value, dict):
            values.update((key, value[kind]) for kind in _KINDS if kind in value)
    return values


def otlp_spans(rows: Iterator[tuple[int, Any]], log: RowLog) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, span) of OTLP exports, resourceSpans[].scopeSpans[].spans[]; what has another shape is logged as bad."""
    for line, export in rows:
        for resource in _items(export, ("resourceSpans",), line, log):
            for scope in _items(resource, SCOPES, line, log):
                yield from ((line, span) for span in _items(scope, ("spans",), line, log))


def _items(parent: dict[str, Any], names: tuple[str, ...], line: int, log: RowLog) -> Iterator[dict[str, Any]]:
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
