"""Logs in JSON as tests write and read them: an example of each format, and what became of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from simkit import scenario
from simkit.logs.read.open import scanning
from simkit.logs.read.record import Columns

MS, S = 10**6, 10**9
EPOCH_S = 1_764_432_000  # 2025-11-29 16:00:00 UTC


class Read:
    """A log as it was read: its columns, its notes without the name of the file, its format."""

    def __init__(self, path: Path, **trace: Any) -> None:
        with scanning(scenario.Trace(path=path.name, **trace), path.parent) as scan:
            self.columns = Columns.concatenate(list(scan.parts))
            self.notes = [note.removeprefix(f"trace {path.name}: ") for note in scan.notes()]
        self.format = scan.format.name
        self.why = scan.why

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.columns, name)
        return found.tolist() if isinstance(found, np.ndarray) else found

    def block_ids(self, row: int) -> list[int]:
        assert self.columns.blocks is not None
        return [int(number) for number in self.columns.blocks.of(row)]


def written(tmp_path: Path, *rows: Any, name: str = "t.jsonl") -> Path:
    """A file of JSON lines."""
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


MOONCAKE = {"timestamp": 27_482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}


def otlp_span(number: int, attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A span as OTLP writes it: 64-bit integers as text."""
    kinds = {int: "intValue", float: "doubleValue", str: "stringValue"}
    return {
        "spanId": f"{number:016x}",
        "name": "llm_request",
        "startTimeUnixNano": str(EPOCH_S * S + number),
        "endTimeUnixNano": str(EPOCH_S * S + number + 3 * S),
        "attributes": [
            {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
            for key, value in attributes.items()
        ],
        **more,
    }


VLLM_SPAN = {
    "gen_ai.request.id": "c-1",
    "gen_ai.response.model": "m",
    "gen_ai.usage.prompt_tokens": 1021,
    "gen_ai.usage.completion_tokens": 87,
    "gen_ai.latency.time_to_first_token": 0.201,
    "gen_ai.latency.e2e": 1.9,
}


def genai_span(attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    times = {"start_time": "2025-11-29T16:00:00.120Z", "end_time": "2025-11-29T17:00:02+01:00"}
    return {"trace_id": "a", "span_id": "b", **times, "attributes": attributes, **more}


LITELLM = {"call_type": "acompletion", "model": "m", "prompt_tokens": 1021, "completion_tokens": 87}


def langfuse(usage: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "o", "trace_id": "t", "type": "GENERATION", "start_time": "2025-11-29 16:00:04.000000",
            "end_time": "2025-11-29 16:00:05.000000", "completion_start_time": "2025-11-29 16:00:04.300000",
            "session_id": "s", "usage_details": usage, **more}  # fmt: skip
