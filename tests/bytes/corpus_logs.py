"""Small logs of requests: one of each format that is read, some that are refused, and some with dirt in them."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
_EPOCH_S = 1_764_432_000
_NS = 10**9


def _stamps(count: int, step_s: float = 1.0) -> list[str]:
    """Wall times on one evening, without a zone."""
    return [f"2025-11-29 16:{int(at * step_s) // 60:02d}:{at * step_s % 60:09.6f}" for at in range(count)]


def _azure(stamps: list[str]) -> str:
    return _AZURE + "".join(f"{stamp},{20 + 7 * at % 90},{3 + at % 5}\n" for at, stamp in enumerate(stamps))


def _table(header: str, *rows: str) -> str:
    return "\n".join((header, *rows)) + "\n"


def _lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


_GOOD = _stamps(40, 0.4)
_MOONCAKE = {"timestamp": 27_482, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]}
_VLLM = {"request_id": "a", "input_toks": 7, "output_toks": 8, "arrival_time": _EPOCH_S + 0.5, "queued_ts": 100.5,
         "scheduled_ts": 100.5, "first_token_ts": 100.75, "last_token_ts": 102.5}  # fmt: skip
_BENCH = {"duration": 3.0, "input_lens": [9, 8], "output_lens": [2, 3], "ttfts": [0.1, 0.2],
          "itls": [[0.1], [0.1, 0.2]],
          "errors": ["", ""], "start_times": [5.0, 6.0]}  # fmt: skip
_SPAN = {"spanId": "1", "name": "llm_request", "startTimeUnixNano": str(_EPOCH_S * _NS),
         "endTimeUnixNano": str((_EPOCH_S + 3) * _NS),
         "attributes": [{"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "1021"}},
                        {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "87"}},
                        {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.2}}]}  # fmt: skip
_SPANS = [_SPAN, {**_SPAN, "status": {"code": 2}}, {**_SPAN, "name": "POST /v1", "attributes": []}]
_GENAI = {"trace_id": "a", "span_id": "b", "start_time": "2025-11-29T16:00:00.120Z",
          "end_time": "2025-11-29T17:00:02+01:00",
          "attributes": {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 9,
                         "gen_ai.usage.output_tokens": 8, "gen_ai.usage.cache_read.input_tokens": 4}}  # fmt: skip
_LITELLM = {"call_type": "acompletion", "model": "m", "prompt_tokens": 1021, "completion_tokens": 87, "request_id": "r",
            "startTime": "2025-11-29 16:00:01.5", "endTime": "2025-11-29T16:00:03Z", "cache_hit": "False"}  # fmt: skip
_LANGFUSE = {"id": "o", "trace_id": "t", "type": "GENERATION", "start_time": "2025-11-29 16:00:04.000000",
             "end_time": "2025-11-29 16:00:05.000000",
             "usage_details": {"input": 10, "output": 40, "total": 99}}  # fmt: skip
_AIPERF = {"metadata": {"x_request_id": "r", "request_start_ns": _EPOCH_S * _NS, "benchmark_phase": "warmup"},
           "metrics": {"input_sequence_length": {"value": 550, "unit": "tokens"},
                       "output_sequence_length": {"value": 9, "unit": "tokens"},
                       "time_to_first_token": {"value": 255.5, "unit": "ms"}}, "error": None}  # fmt: skip
_GUIDELLM = {"benchmarks": [{"requests": {"successful": [
    {"request_id": "a", "request_start_time": _EPOCH_S + 1.0, "prompt_tokens": 5, "output_tokens": 6,
     "request_end_time": _EPOCH_S + 2.0}], "errored": [], "incomplete": []}}]}  # fmt: skip
_CHAT = {"chat_id": 55, "parent_chat_id": -1, "timestamp": 12.03, "input_length": 20, "output_length": 64, "turn": 1,
         "type": "text", "hash_ids": [1, 2]}  # fmt: skip

READ = {
    "azure.csv": _azure(_GOOD),
    "azure-zone.csv": _azure([f"{stamp}+01:00" for stamp in _GOOD]),
    "azure-dirty.csv": _azure([*_stamps(120), "yesterday"]),
    "azure-unordered.csv": _azure([_GOOD[1], _GOOD[0], *_GOOD[2:]]),
    "azure-runs.csv": _azure(_GOOD[:20] + _GOOD[:20]),
    "azure-idle.csv": _azure([*_GOOD, "2025-11-30 09:00:00.5"]),
    "azure-ties.csv": _azure([stamp[:19] for stamp in _stamps(40, 0.25)]),
    "azure-cut.csv": _azure(_GOOD) + '"2025-11-29 16:0',
    "azure-zero.csv": _azure(_GOOD).replace(",3\n", ",0\n"),
    "azure-one.csv": _azure(_GOOD[:1]),
    "azure-same.csv": _azure(_GOOD[:1] * 30),
    "azure-long.csv": _azure(_GOOD).replace(",27,", ",9027,"),
    "burstgpt.csv": _table("Timestamp,Model,Request tokens,Response tokens,Log Type,Session ID,Elapsed time",
                           "5,ChatGPT,472,18,Conversation log,a,2.5", "9,GPT-4,30,0,API log,,"),
    "vidur.csv": _table("arrived_at,num_prefill_tokens,num_decode_tokens,extra", "0.5,100,20,1", "1.5,90,2,1"),
    "vidur-old.csv": _table("Time,PromptTokenCount,GeneratedTokenCount", "2025-11-29 16:00:00,10,2",
                            "2025-11-29 16:00:01,11,2"),
    "splitwise.csv": _table("request_id,arrival_timestamp,prompt_size,token_size", "0,0.1,5,6", "1,0.4,7,8"),
    "blis.csv": _table("arrival_time_us,input_tokens,output_tokens,status,first_chunk_time_us,last_chunk_time_us",
                       "5,10,3,ok,900,2000", "90,10,3,timeout,0,0", "99,7,2,ok,1000,3000"),
    "litellm.csv": _table("request_id,call_type,startTime,endTime,prompt_tokens,completion_tokens,cache_hit,status",
                          "a,acompletion,2025-11-29 16:00:00,2025-11-29 16:00:02,9,8,False,success",
                          "b,aembedding,2025-11-29 16:00:01,2025-11-29 16:00:02,9,8,False,success",
                          "c,acompletion,2025-11-29 16:00:02,2025-11-29 16:00:03,9,8,False,failure"),
    "home.csv": _table("at_ms,in,out,user", "5,10,2,a", "9,20,3,b"),
    "mooncake.jsonl": _lines({**_MOONCAKE, "trace": 1}, {**_MOONCAKE, "timestamp": 27_600, "hash_ids": [46, 47, 49]}),
    "mooncake-short.jsonl": _lines({**_MOONCAKE, "hash_ids": [46]}, *[{**_MOONCAKE, "timestamp": 27_500}] * 200),
    "sessions.jsonl": _lines(
        {"session_id": "a", "timestamp": 1000.0, "input_length": 600, "output_length": 20, "hash_ids": [101, 102]},
        {"session_id": "a", "delay": 5.5, "input_length": 700, "output_length": 30},
        {"session_id": "b", "timestamp": 1400, "input_length": 70, "output_length": 3},
        {"session_id": "b", "timestamp": 2400, "input_length": 90, "output_length": 3},
    ),
    "guidellm.jsonl": _lines({**_MOONCAKE, "timestamp": 1.5, "conversation_id": 3},
                              {**_MOONCAKE, "conversation_id": 4}),
    "bailian.jsonl": _lines(_CHAT, {**_CHAT, "chat_id": 56, "parent_chat_id": 55, "turn": 2, "timestamp": 14.5},
                            {**_CHAT, "chat_id": 57, "parent_chat_id": 11, "turn": 2, "timestamp": 15}),
    "ragpulse.jsonl": _lines({"timestamp": "604453", "input_length": 312, "output_length": 19, "session_id": "s",
                              "hash_ids": {"sys_prompt": [8302], "web_search": []}}),
    "llmservingsim.jsonl": _lines(
        {"input_toks": 147, "output_toks": 13, "arrival_time_ns": 2**53 + 1, "input_tok_ids": [1]},
        {"session_id": "s", "arrival_time_ns": 9_059_740,
         "sub_requests": [{"input_toks": 10, "output_toks": 5, "tool_duration_ns": 127_348_767},
                          {"input_toks": 20, "output_toks": 5, "tool_duration_ns": 0}]},
        {"session_id": "t", "arrival_time_ns": 9_100_000, "sub_requests": []},
    ),
    "vllm.jsonl": _lines(_VLLM, {**_VLLM, "request_id": "b", "arrival_time": _EPOCH_S + 3.5, "queued_ts": 103.75,
                                 "scheduled_ts": 103.75, "first_token_ts": 104.0, "last_token_ts": 105.75}),
    "bench.json": json.dumps(_BENCH),
    "guidellm.json": json.dumps(_GUIDELLM),
    "otlp.json": json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": _SPANS}]}]}),
    "otel.jsonl": _lines(_GENAI, {**_GENAI, "attributes": {"gen_ai.operation.name": "execute_tool"}}),
    "langfuse.jsonl": _lines(_LANGFUSE, {**_LANGFUSE, "type": "SPAN"}, {**_LANGFUSE, "level": "ERROR"}),
    "litellm.jsonl": _lines(_LITELLM, {**_LITELLM, "status": "failure"}, {**_LITELLM, "call_type": "aembedding"}),
    "aiperf.jsonl": _lines(_AIPERF, {"metadata": _AIPERF["metadata"], "metrics": None, "error": {"code": 500}}),
}  # fmt: skip
"""Logs that are read, some with notes."""

_SECONDS = [{"timestamp": 0.125 * at, "input_length": 16 * at + 16, "output_length": 9, "hash_ids": list(range(at + 1))}
            for at in range(20)]  # fmt: skip

REFUSED = {
    "nothing.csv": "",
    "header-only.csv": _AZURE,
    "no-column.csv": _table("TIMESTAMP,ContextTokens", "2025-11-29 16:00:00,5"),
    "column-twice.csv": _table("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens", "2025-11-29 16:00:00,5,5,5"),
    "bad-cells.csv": _azure(_GOOD[:10]).replace(",3\n", ",x\n"),
    "negative.csv": _azure(_GOOD[:5]).replace(",3\n", ",-3\n"),
    "open-quote.csv": _azure(_GOOD[:5]) + '"' + _azure(_GOOD[:5]),
    "far-apart.csv": _table("arrived_at,num_prefill_tokens,num_decode_tokens", "0,1,1", "9000000000,1,1"),
    "unit.csv": _table("when,in,out", "5,10,2"),
    "lengths-only.csv": _table("num_prefill_tokens,num_decode_tokens", "100,20"),
    "servegen.csv": "0,1,1,Gamma,1,1\n",
    "console.log": "INFO 11-29 16:00:00 [loggers.py:1] Avg prompt throughput: 5.0 tokens/s, Running: 1 reqs\n",
    "words.txt": "nothing but\nsome words\n",
    "no-json.jsonl": '{"timestamp": 1, "input_length": 2, "output_len\n',
    "mooncake-seconds.jsonl": _lines(*_SECONDS),
    "mooncake-text.jsonl": _lines({"timestamp": 1, "text_input": "hello", "output_length": 5}),
    "mooncake-blocks.jsonl": _lines(*[{**_MOONCAKE, "hash_ids": [1]}] * 20),
    "mooncake-bad.jsonl": _lines(_MOONCAKE, {**_MOONCAKE, "input_length": -5}, {**_MOONCAKE, "timestamp": "soon"}),
    "sharegpt.json": json.dumps([{"id": "x", "conversations": []}]),
    "prompts.jsonl": _lines({"prompt": "hello", "max_tokens": 5}),
    "no-times.jsonl": _lines({"input_tokens": 5, "output_tokens": 6}),
    "summary.json": json.dumps({"request_throughput": 5.0, "mean_ttft_ms": 3.0}),
    "bench-length.json": json.dumps({**_BENCH, "ttfts": [0.1]}),
    "bench-times.json": json.dumps({key: value for key, value in _BENCH.items() if key != "start_times"}),
    "bench-two.jsonl": _lines(_BENCH, _BENCH),
    "guidellm-two.json": json.dumps({"benchmarks": _GUIDELLM["benchmarks"] * 2}),
    "otel-counts.jsonl": _lines({**_GENAI, "attributes": {"gen_ai.operation.name": "chat"}}),
    "langfuse-unit.jsonl": _lines({**_LANGFUSE, "usage_details": {"input": 1, "output": 1, "unit": "CHARACTERS"}}),
    "all-failed.jsonl": _lines({**_LITELLM, "status": "failure"}),
}
"""Logs that are not read."""


def _parquet(metadata: dict[str, str] | None = None, **columns: list[Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), buffer)
    return buffer.getvalue()


_PACKED = {
    "broken.parquet": b"PAR1 and no more PAR1",
    "other.parquet": _parquet(time=[1, 2], tokens=[3, 4]),
    "broken.csv.gz": b"\x1f\x8b\x08\x00 and no more",
    "utf-16.csv": _azure(_GOOD[:5]).encode("utf-16"),
    "binary.csv": bytes(range(256)),
}

LOGS: dict[str, bytes] = {
    f"logs/{name}": content
    for name, content in (
        *((name, text.encode()) for name, text in {**READ, **REFUSED}.items()),
        *_PACKED.items(),
    )
}
