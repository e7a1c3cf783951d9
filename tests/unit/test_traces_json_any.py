"""Any file is read or refused in one line: odd values in every field of every JSON format, damaged rows, any bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_logs import EPOCH_S, LITELLM, MOONCAKE, VLLM_SPAN, Read, S, genai_span, langfuse, otlp_span

from simkit.errors import InputError
from simkit.logs.formats import FORMATS

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "mooncake": [MOONCAKE, {"session_id": "a", "delay": 5.0, "input_length": 7, "output_length": 3}],
    "mooncake-delta": [{**MOONCAKE, "session_id": "a"}, {"wait_for": ["a"], "tool_wait_ms": 1, "delay_ms": 2}],
    "guidellm": [{**MOONCAKE, "conversation_id": "c"}],
    "bailian": [{**MOONCAKE, "chat_id": 1, "parent_chat_id": -1, "turn": 1}],
    "ragpulse": [{**MOONCAKE, "timestamp": "3", "hash_ids": {"history": [1]}, "session_id": "s"}],
    "llmservingsim": [
        {"input_toks": 1, "output_toks": 2, "arrival_time_ns": 3},
        {"session_id": "s", "arrival_time_ns": 3,
         "sub_requests": [{"input_toks": 1, "output_toks": 2, "tool_duration_ns": 5}, {"input_toks": 1}]},
    ],
    "vllm-records": [
        {"request_id": "r", "input_toks": 1, "output_toks": 2, "arrival_time": EPOCH_S + 0.5, "queued_ts": 1.5,
         "first_token_ts": 2.5, "last_token_ts": 3.5},
    ],
    "otlp": [{"resourceSpans": [{"scopeSpans": [{"spans": [otlp_span(1, VLLM_SPAN, status={"code": 0})]}]}]}],
    "otel": [genai_span({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 9,
                         "gen_ai.usage.output_tokens": 8, "gen_ai.usage.cache_read.input_tokens": 4})],
    "litellm": [{**LITELLM, "id": "p", "startTime": EPOCH_S + 0.5, "endTime": "2025-11-29 16:00:04", "stream": True,
                 "completionStartTime": EPOCH_S, "status": "success", "cache_hit": None}],
    "langfuse": [langfuse({"input": 1, "input_cached_tokens": 1, "output": 3, "total": 5}, level="DEFAULT")],
    "aiperf": [{"metadata": {"request_start_ns": EPOCH_S * S, "request_end_ns": EPOCH_S * S + 5, "turn_index": 0},
                "metrics": {"input_sequence_length": {"value": 1, "unit": "tokens"},
                            "output_sequence_length": {"value": 1, "unit": "tokens"},
                            "request_latency": {"value": 1.5, "unit": "ms"}}, "error": None}],
    "vllm-bench": [{"request_rate": "inf", "max_concurrency": None, "input_lens": [1, 2], "output_lens": [3, 1],
                    "ttfts": [0.25, 0.5], "itls": [[0.5, 0.25], []], "errors": ["", ""], "start_times": [7.5, 8.5]}],
    "guidellm-results": [{"benchmarks": [{"requests": {"successful": [
        {"request_id": "r", "prompt_tokens": 1, "output_tokens": 2, "info": {"timings": {
            "request_start": EPOCH_S, "first_token_iteration": EPOCH_S + 1, "last_token_iteration": EPOCH_S + 2}}},
        {"prompt_tokens": 1, "output_tokens": 2, "start_time": EPOCH_S, "end_time": EPOCH_S + 1}],
        "errored": [{"request_id": "e", "scheduler_info": {"request_timings": {"request_start": EPOCH_S}}}]}}]}],
}  # fmt: skip

WHOLE = {"vllm-bench", "guidellm-results"}
"""Formats of one document with all requests: a second one is refused."""

ODD_VALUES = (
    [0, -1, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, -0.0, 1e-320, "", "1", "-1", "1e9", "x" * 2000, "\ud800",
     "9999-12-31 23:59:59", "0001-01-01T00:00:00Z", "2025-02-30 00:00:00", [], {}, [[]], [None], {"": None}, True,
     float("inf"), float("nan")]
)  # fmt: skip
ODD = st.sampled_from(ODD_VALUES)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | ODD
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


@st.composite
def damaged_logs(draw: st.DrawFn) -> tuple[str, bytes]:
    """(format, file): rows of a format with values replaced or taken away, and then bytes."""
    name = draw(st.sampled_from(sorted(EXAMPLES)))
    rows = json.loads(json.dumps(EXAMPLES[name] * draw(st.integers(1, 3))))
    for _ in range(draw(st.integers(0, 4))):
        spots = list(places(rows))
        if not spots:
            break
        container, key = draw(st.sampled_from(spots))
        if draw(st.integers(0, 5)):
            # A copy: the next damage may be done inside it.
            container[key] = copy.deepcopy(draw(VALUES))
        else:
            del container[key]
    indent = draw(st.sampled_from([None, None, 1]))
    as_array = draw(st.booleans())
    text = json.dumps(rows, indent=indent) if as_array else "\n".join(json.dumps(row, indent=indent) for row in rows)
    content = bytearray(text.encode())
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return name, bytes(content)


def read_or_refuse(path: Path, **trace: Any) -> bool:
    """What must hold of any file: one line that says why not, or columns that fit together. Whether it has requests."""
    found, message = None, ""
    try:
        found = Read(path, **trace)
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    if found is None:
        return False
    columns = found.columns
    assert ((columns.prompt_tokens > 0) & (columns.output_tokens > 0)).all()
    for values in (columns.id, columns.session, columns.parent, columns.model):
        assert values is None or len(values) == len(columns)
        assert all(value is None or value.encode() for value in values or ())
    assert all("\n" not in note for note in found.notes)
    return len(columns) > 0


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - WHOLE))
def test_every_field_with_every_odd_value_is_read_or_refused_in_one_line(tmp_path: Path, name: str) -> None:
    num_places = len(list(places(EXAMPLES[name])))
    for number in range(num_places):
        rows: list[Any] = []
        for odd in ODD_VALUES:
            damaged = json.loads(json.dumps(EXAMPLES[name]))
            container, key = list(places(damaged))[number]
            container[key] = odd
            rows += damaged
        # Python writes an infinite number as no JSON does; this is how JSON can.
        text = "\n".join(json.dumps(row).replace("Infinity", "1e999") for row in [*EXAMPLES[name], *rows])
        path = tmp_path / "t.json"
        path.write_text(text)
        for trace in ({}, {"time_unit": "ns"}):
            assert read_or_refuse(path, format=name, allow_bad=True, **trace), "the good rows must be read"


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_document_with_any_odd_value_is_read_or_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(EXAMPLES[name][0]))
    assert read_or_refuse(path)
    for number in range(len(list(places(EXAMPLES[name])))):
        for odd in ODD_VALUES:
            damaged = json.loads(json.dumps(EXAMPLES[name]))
            container, key = list(places(damaged))[number]
            container[key] = odd
            path.write_text(json.dumps(damaged[0]).replace("Infinity", "1e999"))
            read_or_refuse(path, format=name, allow_bad=True)


@settings(
    max_examples=100, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(log=damaged_logs(), is_named=st.booleans(), allow_bad=st.booleans(), unit=st.sampled_from(["auto", "s", "ns"]))
def test_a_damaged_log_is_read_or_refused_in_one_line(
    tmp_path: Path, log: tuple[str, bytes], is_named: bool, allow_bad: bool, unit: str
) -> None:
    name, content = log
    path = tmp_path / "t.json"
    path.write_bytes(content)
    read_or_refuse(path, format=name if is_named else "auto", allow_bad=allow_bad, time_unit=unit)


@settings(
    max_examples=100, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(sorted(FORMATS)), start=st.sampled_from(["{", "[", ""]), content=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path: Path, name: str, start: str, content: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(start.encode() + content)
    read_or_refuse(path)
    read_or_refuse(path, format=name, allow_bad=True)
