"""Files that are no log that can be replayed, each with what to do instead: no token counts, or no arrivals.

Sources: vLLM's log lines and benchmark datasets (sharegpt, custom), OpenAI batch files, Applied Compute's traces as in
ai-dynamo/dynamo, TraceLab, ServeGen's client files (alibaba/ServeGen, data/), genai-perf's profile export.
"""

from __future__ import annotations

import re

from simkit.logs.read.format import Format, Head, having

_CONSOLE = re.compile(
    r"Received request [^\s:]+|Avg prompt throughput: |\"(?:GET|POST) /[^\s\"]* HTTP/[\d.]+\" \d{3}", re.ASCII
)
_TIME = re.compile(r"time|start|arriv|created|date|epoch|(?:^|_)(?:ts|t|at|when)$", re.IGNORECASE)
_LENGTHS = (
    ("input_length", "output_length"),
    ("input_toks", "output_toks"),
    ("input_tokens", "output_tokens"),
    ("prompt_tokens", "completion_tokens"),
    ("prompt_len", "output_len"),
)
_GAPS = ("", "Gamma", "Weibull")
_TURNS = frozenset({"num_turns", "input_prompt_length"})
_NEEDS_TOKENIZER = (
    "prompts are texts, and counting their tokens needs the model's tokenizer: replay a log with token counts (vLLM "
    "OTLP spans or per-request records, a proxy's spend log), or a file with timestamp, input_length, output_length"
)


def _console(head: Head) -> str | None:
    found = _CONSOLE.search(head.text) if head.kind in ("csv", "text") else None
    return f"a line with {found.group()[:40]!r}" if found is not None else None


def _prompts(head: Head) -> str | None:
    if head.kind != "json" or any(_TIME.search(key) for key in head.keys):
        return None
    if any(isinstance(row.get("prompt"), str) for row in head.objects):
        return "prompt is a text, and no field is a time"
    return "fields custom_id, body" if {"custom_id", "body"} <= head.keys else None


def _client_model(head: Head) -> str | None:
    cells = [value for row in head.objects for value in row.values() if isinstance(value, dict)]
    fits = head.kind == "json" and any(isinstance(cell.get("input_tokens"), str) for cell in cells)
    return "windows with distributions of input_tokens" if fits else None


def _lengths(head: Head) -> str | None:
    if head.kind != "json" or any(_TIME.search(key) for key in head.keys):
        return None
    found = next((names for names in _LENGTHS if set(names) <= head.keys), None)
    return f"fields {', '.join(found)}, and no field is a time" if found is not None else None


def _servegen(head: Head) -> str | None:
    """Six columns without header, of which the fourth names a distribution of gaps or is empty."""
    if head.kind != "csv" or len(head.columns) != 6 or head.columns[3] not in _GAPS:
        return None
    numbers = (*head.columns[:3], *head.columns[4:])
    if not all(cell.replace(".", "", 1).isdecimal() for cell in numbers):
        return None
    return "lines of start, rate, cv, Gamma or Weibull and two parameters"


SERVEGEN = Format(
    "servegen",
    "ServeGen client file",
    _servegen,
    None,
    advice=(
        "it holds rates and distributions of a workload generator, not requests, so there is nothing to replay: use it "
        "as a workload source, workload.servegen"
    ),
)

FORMATS = (
    Format(
        "vllm-console",
        "vLLM console or access log",
        _console,
        None,
        advice="it has no token counts; record OTLP spans (vLLM --otlp-traces-endpoint) or per-request records instead",
    ),
    Format(
        "bench-summary",
        "benchmark result without requests (vllm bench serve)",
        having("json", "request_throughput", "mean_ttft_ms"),
        None,
        advice="it has means and no requests; save them as well (vllm bench serve --save-result --save-detailed)",
    ),
    Format("sharegpt", "ShareGPT conversations", having("json", "conversations"), None, advice=_NEEDS_TOKENIZER),
    Format(
        "lengths",
        "lengths without arrivals",
        _lengths,
        None,
        advice="no field is a time, so there is nothing to replay; if one is, name it (--map time=FIELD,...), else use "
        "the lengths as an empirical distribution with arrivals of your own",
    ),
    Format("prompts", "prompts without arrivals (vLLM custom dataset)", _prompts, None, advice=_NEEDS_TOKENIZER),
    Format(
        "applied-compute",
        "Applied Compute agent sessions",
        having("json", *sorted(_TURNS)),
        None,
        advice="sessions have no arrival times, only a closed loop of turns: give each turn a row with session_id, "
        "input_length, output_length, delay, and the first turn a timestamp",
    ),
    Format(
        "tracelab",
        "TraceLab agent sessions",
        having("json", "timing_events"),
        None,
        advice="not read by this version: give each model call a row with timestamp, session_id, input_length "
        "(prefix_tokens + newly_append_tokens) and output_length",
    ),
    Format(
        "servegen-lengths",
        "ServeGen client data",
        _client_model,
        None,
        advice="it is a model of one client's arrivals and lengths, not a log of requests: use it as a workload source",
    ),
    Format(
        "genai-perf",
        "genai-perf profile export",
        having("json", "experiments"),
        None,
        advice="it has texts and no token counts; AIPerf's profile_export.jsonl has both",
    ),
)
